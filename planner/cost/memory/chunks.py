"""Chunk memory: activations of one micro-batch per chunk, and bytes that stay between passes."""

from __future__ import annotations

import numpy as np

from planner.cost.arrays import Float
from planner.cost.memory.activations import kept_bytes
from planner.cost.memory.phases import MOMENTS, PeakInputs
from planner.cost.shards.partial_recompute import chunk_block_counts
from planner.cost.shards.stages import Stages

__all__ = ["chunk_kept_bytes", "staying_bytes"]


def chunk_kept_bytes(stages: Stages) -> Float:
    """Saved activations of one micro-batch on every chunk of stages (S,) [B].

    Shape (chunks, S). Counted: activations of embedding and layers on the device. Left out: the
    head, whose loss follows at once; receive buffers. method.md#activations.

    >>> scenario = make_scenario("llama-3-8b", sequence_length=1)
    >>> layout = Layout(pp=2, vpp=2, recompute="full", schedule="interleaved-1f1b")
    >>> saved = chunk_kept_bytes(Stages.of_pipeline(scenario, layout))
    >>> np.round(saved / 8192, 1)                # inputs of 8 layers, 4096 of two bytes
    array([[8., 8.],
           [8., 8.]])
    """
    counts = chunk_block_counts(
        stages.blocks, stages.layouts, stages.stage, stages.scenario.framework
    )
    sizes = [
        kept_bytes(stages.scenario, block, stages.layouts_of_block(block))
        for block in stages.blocks
    ]
    return np.asarray(sum(size * count for size, count in zip(sizes, counts, strict=True)))


def staying_bytes(stages: Stages) -> Float:
    """Resident bytes of a stage between passes [B].

    Counted: weights, gradients and optimizer states beside the last layer's backward pass. Left
    out: activations, temporaries and buffers of a pass, what the driver and the allocator hold.
    method.md#memory-per-device.

    >>> scenario = make_scenario("gpt2-xl")
    >>> stages = Stages.of_pipeline(scenario, Layout())
    >>> each = staying_bytes(stages).item() / stages.params.unsharded.item()
    >>> round(each, 1)                          # 2 + 4 + 12, and gradients not summed yet
    18.1
    """
    inputs = PeakInputs.of(stages)
    live_tensors = MOMENTS["backward"](inputs)
    resident_bytes = (
        live_tensors.weights + live_tensors.gradients + inputs.resident.optimizer_states
    )
    return np.broadcast_to(resident_bytes, stages.shape)
