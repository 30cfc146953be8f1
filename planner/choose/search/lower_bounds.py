"""Least: bounds of what layouts take, from the few distinct shapes among them.

A search skips what by these cannot fit, or cannot be as fast as what it knows.
"""

from __future__ import annotations

from dataclasses import replace

import numpy as np

from planner.cost.arrays import Float
from planner.cost.memory.activations import kept_bytes
from planner.cost.memory.in_flight import in_flight_on
from planner.cost.memory.weights import gathered, resident, unfreed
from planner.cost.operators.blocks import blocks_of
from planner.cost.scenario import Scenario
from planner.cost.schedules.registry import KNOWN
from planner.cost.schedules.schedule import Passes
from planner.cost.shards.candidate_stages import candidate_stages
from planner.cost.shards.layouts import Layouts
from planner.cost.shards.partial_recompute import stage_parts
from planner.cost.shards.stages import Stages
from planner.cost.step.block_time import block_passes
from planner.describe.layout import DEALING, RECOMPUTE

__all__ = ["memory_lower_bound_bytes", "step_time_lower_bound_s"]

_DEALT = ("pp", "vpp", "schedule", *DEALING)
_EXPERTS = ("ep", "etp")
_STATES = (
    *("dp", "dp_shard", "tp", "cp", *_EXPERTS, "zero_stage", "offload", "reshard", "tiles"),
    *("grad_accumulation", *_DEALT),
)
_KEPT = (
    *("micro_batch", "tp", "cp", "ulysses", *_EXPERTS, "sequence_parallel"),
    *("recompute", "recompute_modules", "offload_activations"),
)
_FLIGHT = ("grad_accumulation", *_DEALT)
_PASSES = (
    *("micro_batch", "tp", "cp", "ulysses", "pp", *_EXPERTS),
    *("sequence_parallel", "grad_accumulation"),
)


def memory_lower_bound_bytes(scenario: Scenario, layouts: Layouts) -> Float:
    """Less than what layouts take of a device [B].

    Counted: weights, states and sums of gradients of the first stage, what is gathered of it, what
    its activations keep, the allocator's reserve, the driver's context. Left out: other stages,
    working sets, logits, buffers. method.md#search.

    >>> from planner.cost.memory.footprint import footprints
    >>> model, job = load_model("gpt2-xl"), Workload(global_batch=64)
    >>> scenario = Scenario(model, load_machine("polaris"), job, load_framework("megatron-lm"))
    >>> layouts = Layouts.broadcast(dp=[8, 4], tp=[1, 2], grad_accumulation=[8, 16])
    >>> bound_bytes = memory_lower_bound_bytes(scenario, layouts)
    >>> share = bound_bytes / footprints(scenario, layouts).memory_bytes
    >>> bool(np.all((share > 0.5) & (share <= 1)))
    True
    """
    # repeating all layers leaves less than repeating some
    none = np.zeros_like(layouts.recompute)
    layouts = replace(layouts, recompute_layers=none, recompute_every=none + 1)
    least, first, loss = _states(scenario, layouts)
    few, flies = layouts.distinct(*_FLIGHT)
    flight = in_flight_on(Stages.of(scenario, few, 0))
    # sums of earlier micro-batches are there while those in flight are all that follow
    following = few.num_microbatches > flight.micro_batches
    in_loss = loss + np.where(following[flies], first, 0.0)
    few, kind = layouts.settled(scenario.framework).distinct(*_KEPT)
    for block, passes in zip(blocks_of(scenario), flight.blocks, strict=True):
        if block.kind != "head":
            in_loss += passes[flies] * kept_bytes(scenario, block, few)[kind]
    device, buffers = scenario.machine.device, scenario.framework.buffers
    reserve = 1 + buffers.allocator_fraction.value
    return reserve * np.maximum(least, in_loss) + device.context_bytes.value


def _states(scenario: Scenario, layouts: Layouts) -> tuple[Float, Float, Float]:
    """The most of weights and states when no activations are there; gradients beside them; and
    weights and states at the loss without these [B]."""
    some = replace(layouts, grad_accumulation=np.minimum(layouts.grad_accumulation, 2))
    few, which = some.distinct(*_STATES)
    stages = Stages.of(scenario, few, 0)
    stay, size = resident(stages), stages.states
    there, fetched = unfreed(stages, stay.weights), gathered(stages, np.asarray(np.inf))
    once = few.sums_gradients(scenario.framework) & (size.sharded_weight_bytes == 0)
    sums = np.where(once, stages.trained.trainable * size.reduce_bytes, stay.gradients)
    backward = there.in_first_layer + sums + fetched.in_second_layer
    optimizing = there.in_optimizer + stay.gradients
    least = stay.optimizer_states + np.maximum(backward, optimizing)
    loss = there.all + stay.optimizer_states + fetched.head
    return least[which], sums[which], loss[which]


def step_time_lower_bound_s(scenario: Scenario, layouts: Layouts, alone: bool = False) -> Float:
    """Less than the step time of layouts, and where not of them `alone`, of the same with other
    kinds of context parallelism and other ends [s].

    Counted: computation without recompute, traffic of tensor and expert parallelism, waiting for
    the host, shared evenly by the stages; of layouts alone context parallelism, the slowest stage
    and what its schedule says that it waits at least. Left out: recompute, other
    traffic, transfers, the optimizer, offload. method.md#search.

    >>> from planner.cost.estimate import step_times
    >>> model, job = load_model("gpt2-xl"), Workload(global_batch=64)
    >>> scenario = Scenario(model, load_machine("polaris"), job, load_framework("megatron-lm"))
    >>> layouts = Layouts.broadcast(dp=[8, 4], tp=[1, 2], grad_accumulation=[8, 16])
    >>> part = step_time_lower_bound_s(scenario, layouts) / step_times(scenario, layouts)
    >>> bool(np.all((part > 0.5) & (part < 1)))
    True
    """
    shapes = replace(
        layouts,
        pp=np.minimum(layouts.pp, 2),
        # in a step of several passes they may run together, whatever the schedule
        grad_accumulation=np.minimum(layouts.grad_accumulation, 2),
        vpp=np.full_like(layouts.vpp, 2),
        recompute=np.full_like(layouts.recompute, RECOMPUTE.index("none")),
        # heads that are exchanged leave every rank as much attention as any other
        ulysses=layouts.ulysses if alone else layouts.cp,
    )
    few, which = shapes.distinct(*_PASSES)
    blocks, m = blocks_of(scenario), layouts.num_microbatches
    passes = block_passes(scenario, blocks, few)
    seconds = [p.total_s if alone else p.total_s - p.context_s for p in passes]
    whole = np.sum([b.count * s for b, s in zip(blocks, seconds, strict=True)], axis=0)[which]
    if not alone:
        return np.asarray(m * whole / layouts.pp)
    slowest = _slowest_s(scenario, layouts, [each[which] for each in seconds])
    own, others = (Passes(x, x / 2, x / 2) for x in (slowest, whole - slowest))
    idle = np.zeros(len(layouts))
    for name, schedule in KNOWN.items():
        here = layouts.scheduled(name) & layouts.piped
        if schedule.least_idle_s is not None and np.any(here):
            found = schedule.least_idle_s(layouts.pp, layouts.vpp, m, own, others)
            idle = np.where(here, found, idle)
    return m * slowest + idle


def _slowest_s(scenario: Scenario, layouts: Layouts, seconds: list[Float]) -> Float:
    """One micro-batch on the slowest stage, of seconds on each block [s]."""
    blocks, framework = blocks_of(scenario), scenario.framework
    deals, which = layouts.distinct(*_DEALT)
    stage = candidate_stages(blocks, deals, framework)
    counts = stage_parts(blocks, deals.take((..., None)), stage, framework)
    slowest = np.zeros(len(layouts))
    for one in range(stage.shape[1]):
        pairs = zip(counts, seconds, strict=True)
        slowest = np.maximum(slowest, sum(count[which, one] * each for count, each in pairs))
    return slowest
