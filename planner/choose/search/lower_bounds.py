"""Lower bounds of memory and step time, computed once per distinct shape of layouts."""

from dataclasses import replace

import numpy as np

from planner.cost.arrays import Float
from planner.cost.memory.activations import kept_bytes
from planner.cost.memory.in_flight import passes_in_flight
from planner.cost.memory.weights import gathered, resident, resident_weights
from planner.cost.operators.blocks import blocks_of
from planner.cost.scenario import Scenario
from planner.cost.schedules.bubble import REGISTRY
from planner.cost.schedules.schedule import Passes
from planner.cost.shards.candidate_stages import candidate_stages
from planner.cost.shards.layouts import Layouts
from planner.cost.shards.partial_recompute import stage_block_counts
from planner.cost.shards.stages import Stages
from planner.cost.step.block_pass import block_passes
from planner.describe.layout import RECOMPUTE, STAGE_FIELDS

_SPLIT = ("pp", "vpp", "schedule", *STAGE_FIELDS)
_EXPERTS = ("ep", "etp")
_STATES = (
    *("dp", "dp_shard", "tp", "cp", *_EXPERTS, "zero_stage", "offload", "reshard", "tiles"),
    *("grad_accumulation", *_SPLIT),
)
_ACTIVATIONS = (
    *("micro_batch", "tp", "cp", "ulysses", *_EXPERTS, "sequence_parallel"),
    *("recompute", "recompute_modules", "offload_activations"),
)
_IN_FLIGHT = ("grad_accumulation", *_SPLIT)
_PASSES = (
    *("micro_batch", "tp", "cp", "ulysses", "pp", *_EXPERTS),
    *("sequence_parallel", "grad_accumulation"),
)


def memory_lower_bound_bytes(scenario: Scenario, layouts: Layouts) -> Float:
    """Lower bound of the device memory of layouts: the first stage, without working sets [B]."""
    # recompute of all layers keeps less than recompute of some
    zeros = np.zeros_like(layouts.recompute)
    layouts = replace(layouts, recompute_layers=zeros, recompute_every=zeros + 1)
    least, gradient_sums, at_loss = _states(scenario, layouts)
    shapes, rows = layouts.distinct(*_IN_FLIGHT)
    flight = passes_in_flight(Stages.of(scenario, shapes, 0))
    # gradient sums of earlier micro-batches exist unless all of them are still in flight
    has_sums = shapes.num_microbatches > flight.micro_batches
    at_loss = at_loss + np.where(has_sums[rows], gradient_sums, 0.0)
    shapes, of_shape = layouts.with_default_etp(scenario.framework).distinct(*_ACTIVATIONS)
    for block, passes in zip(blocks_of(scenario), flight.blocks, strict=True):
        if block.kind != "head":
            at_loss += passes[rows] * kept_bytes(scenario, block, shapes)[of_shape]
    device, buffers = scenario.machine.device, scenario.framework.buffers
    reserve = 1 + buffers.allocator_fraction.value
    return reserve * np.maximum(least, at_loss) + device.context_bytes.value


def _states(scenario: Scenario, layouts: Layouts) -> tuple[Float, Float, Float]:
    """First stage: peak without activations, accumulated gradients, states at the loss [B]."""
    layouts = replace(layouts, grad_accumulation=np.minimum(layouts.grad_accumulation, 2))
    shapes, rows = layouts.distinct(*_STATES)
    stages = Stages.of(scenario, shapes, 0)
    stay, size = resident(stages), stages.states
    weights, fetched = resident_weights(stages, stay.weights), gathered(stages, np.asarray(np.inf))
    sums_once = shapes.sums_gradients(scenario.framework) & (size.sharded_weight_bytes == 0)
    sums = np.where(sums_once, stages.trained.trainable * size.reduce_bytes, stay.gradients)
    backward = weights.in_first_layer + sums + fetched.in_second_layer
    optimizer_step = weights.in_optimizer + stay.gradients
    least = stay.optimizer_states + np.maximum(backward, optimizer_step)
    at_loss = weights.all + stay.optimizer_states + fetched.head
    return least[rows], sums[rows], at_loss[rows]


def step_time_lower_bound_s(scenario: Scenario, layouts: Layouts, final: bool = False) -> Float:
    """Lower bound of the step time of layouts and, unless `final`, of their refinements [s]."""
    shapes = replace(
        layouts,
        pp=np.minimum(layouts.pp, 2),
        # passes of several micro-batches may be merged, whatever the schedule
        grad_accumulation=np.minimum(layouts.grad_accumulation, 2),
        vpp=np.full_like(layouts.vpp, 2),
        recompute=np.full_like(layouts.recompute, RECOMPUTE.index("none")),
        # Ulysses leaves each rank as much attention as other context parallelism
        ulysses=layouts.ulysses if final else layouts.cp,
    )
    shapes, rows = shapes.distinct(*_PASSES)
    blocks, num_microbatches = blocks_of(scenario), layouts.num_microbatches
    passes = block_passes(scenario, blocks, shapes)
    seconds = [p.total_s if final else p.total_s - p.context_s for p in passes]
    total_s = np.sum([b.count * s for b, s in zip(blocks, seconds, strict=True)], axis=0)[rows]
    if not final:
        return np.asarray(num_microbatches * total_s / layouts.pp)
    slowest_s = _slowest_stage_s(scenario, layouts, [each[rows] for each in seconds])
    slowest, rest = (Passes(x, x / 2, x / 2) for x in (slowest_s, total_s - slowest_s))
    idle_s = np.zeros(len(layouts))
    for name, schedule in REGISTRY.items():
        applies = layouts.uses_schedule(name) & layouts.piped
        if schedule.least_idle_s is not None and np.any(applies):
            idle = schedule.least_idle_s(layouts.pp, layouts.vpp, num_microbatches, slowest, rest)
            idle_s = np.where(applies, idle, idle_s)
    return num_microbatches * slowest_s + idle_s


def _slowest_stage_s(scenario: Scenario, layouts: Layouts, seconds: list[Float]) -> Float:
    """Time of one micro-batch on the slowest stage, from the time of each block [s]."""
    blocks, framework = blocks_of(scenario), scenario.framework
    splits, rows = layouts.distinct(*_SPLIT)
    stages = candidate_stages(blocks, splits, framework)
    counts = stage_block_counts(blocks, splits.take((..., None)), stages, framework)
    slowest = np.zeros(len(layouts))
    for stage in range(stages.shape[1]):
        pairs = zip(counts, seconds, strict=True)
        slowest = np.maximum(slowest, sum(count[rows, stage] * each for count, each in pairs))
    return slowest
