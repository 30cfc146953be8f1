"""In flight: what of a stage's chunks is held when most is, for the micro-batches of a step."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from planner.cost.arrays import Float, distinct
from planner.cost.schedules.bubble import chunks_in_flight, chunks_waiting
from planner.cost.shards.parted import chunk_parts, parts_columns
from planner.cost.shards.stages import Stages

__all__ = ["InFlight", "in_flight_on"]


@dataclass(frozen=True, slots=True)
class InFlight:
    """Passes whose activations a stage holds at its peak [1]."""

    micro_batches: Float
    """Whole micro-batches of the stage: passes through one chunk count as a part."""
    blocks: tuple[Float, ...]
    """Each block times the micro-batches in flight through its chunk, in the order of blocks."""
    smallest: tuple[Float, ...]
    """Blocks of the chunk with fewest layers, in which least is freed by a backward pass."""
    received: Float
    """Passes whose input came from a neighbour."""
    sent: Float
    """Passes whose output went to one."""
    first: tuple[Float, ...]
    """Blocks of the stage's first chunk."""
    cooling: tuple[Float, ...]
    """As `blocks`, when no forward pass follows and most weight gradients are still to be computed:
    for schedules with passes of their own for them."""
    waiting: tuple[Float, ...]
    """Of those, the ones that wait for nothing but their weight gradients."""


def in_flight_on(stages: Stages) -> InFlight:
    """Passes whose activations stages hold at their peak [1].

    Counted: chunk by chunk, where a first or last one holds fewer layers than the others; one pass
    more where those of neighbouring micro-batches run together. Left out: passes in backward.
    Megatron-LM, schedules.py: num_warmup_microbatches; method.md#pipeline.

    >>> from planner import Layout, Workload, load_framework, load_machine, load_model
    >>> from planner.cost.question import Question
    >>> model, machine = load_model("llama-3-8b").replaced(num_layers=14), load_machine("polaris")
    >>> job = Question(model, machine, Workload(), load_framework("fsdp2"))
    >>> layout = Layout(pp=4, vpp=2, schedule="interleaved-1f1b", grad_accumulation=8)
    >>> held = in_flight_on(Stages.every(job, layout))
    >>> held.micro_batches.tolist(), held.blocks[1].tolist()        # first: 7 * 1 + 4 * 2
    ([5.5, 4.5, 3.5, 2.5], [15.0, 18.0, 14.0, 10.0])
    """
    layouts = stages.layouts
    # schedules that pair passes count the one more themselves
    merged = layouts.merges_passes(stages.question.framework) & ~layouts.paired
    counted = (layouts.pp, layouts.vpp, layouts.schedule, layouts.grad_accumulation)
    columns = (*counted, *parts_columns(layouts), *layouts.dealing, stages.stage)
    first, which = distinct(*columns, merged)
    pairs = layouts.of_each(first, which.size)
    stage = np.broadcast_to(stages.stage, stages.shape).ravel()[first]
    counts = chunk_parts(stages.blocks, pairs, stage, stages.question.framework)
    kinds = zip(stages.blocks, counts, strict=True)
    layers = np.sum([count for block, count in kinds if block.kind == "layer"], axis=0)
    held = chunks_in_flight(pairs, stage, layers)
    further = np.broadcast_to(merged, stages.shape).ravel()[first]
    largest = np.arange(len(held))[:, None] == np.argmax(layers, axis=0)
    held = held + further * largest * (held < pairs.num_microbatches)
    fewest = np.argmin(np.where(layers > 0, layers, np.inf), axis=0)[None]
    chunk = pairs.chunk(stage, np.arange(len(held))[:, None])
    passes = np.sum(held, axis=0)
    cooling, waiting = chunks_waiting(pairs, stage, layers)
    goes = (chunk < pairs.pp * pairs.vpp - 1) & (pairs.stage_of(chunk + 1) != stage)
    return InFlight(
        micro_batches=(passes / pairs.vpp)[which],
        blocks=tuple(np.sum(held * count, axis=0)[which] for count in counts),
        smallest=tuple(np.take_along_axis(count, fewest, axis=0)[0][which] for count in counts),
        received=np.sum(held * (chunk > 0), axis=0)[which],
        sent=np.sum(held * goes, axis=0)[which],
        first=tuple(count[0][which] for count in counts),
        cooling=tuple(np.sum(cooling * count, axis=0)[which] for count in counts),
        waiting=tuple(np.sum(waiting * count, axis=0)[which] for count in counts),
    )
