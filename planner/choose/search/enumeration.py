"""Candidates: every legal layout of a world size.

Columns are crossed one group at a time and filtered as soon as a rule can be applied, so
illegal degrees are never multiplied out. Nothing is dropped silently: every reason is counted.
"""

from __future__ import annotations

import numpy as np

from planner.choose.legality import legal
from planner.choose.preferences import preferences
from planner.choose.search.grid import Grid
from planner.cost.operators.backward import FREES_NOTHING, selective_frees_nothing
from planner.cost.scenario import Scenario
from planner.cost.schedules.bubble import interleaved
from planner.cost.schedules.registry import schedule_named
from planner.cost.shards.layouts import Layouts
from planner.describe.layout import OFFLOAD, RECOMPUTE, SCHEDULES, divisors

__all__ = ["enumerate_layouts"]


def enumerate_layouts(scenario: Scenario, world: int) -> tuple[Layouts, dict[str, int]]:
    """All legal layouts of `world` ranks, and how many combinations fell for which reason."""
    grid = Grid(scenario)
    _degrees(grid, world)
    _batches(grid)
    _sharding(grid)
    _schedules(grid)
    grid.cross("recompute", _recompute(grid))
    mask, dropped = legal(scenario, grid.layouts(), {"schedule", "recompute", "zero_stage"})
    grid.dropped.update(dropped)
    grid.filter(mask)
    return grid.layouts(), dict(grid.dropped)


def _recompute(grid: Grid) -> list[int]:
    """Modes of recompute but those that repeat attention and free nothing."""
    modes = list(grid.scenario.framework.recompute)
    if "selective" in modes and selective_frees_nothing(grid.scenario):
        modes.remove("selective")
        if fell := len(grid.columns["tp"]):
            grid.dropped[f"selective recompute: {FREES_NOTHING}"] += fell
    return [RECOMPUTE.index(mode) for mode in modes]


def _degrees(grid: Grid, world: int) -> None:
    framework, model = grid.scenario.framework, grid.scenario.model
    ways = divisors(world)
    grid.columns = {"tp": np.asarray(ways if "tp" in framework.axes else [1], dtype=np.int64)}
    grid.apply("tp")
    layers = model.depth
    grid.cross("pp", [p for p in ways if p <= layers] if "pp" in framework.axes else [1])
    _context(grid, ways)
    # where heads are all that it exchanges; other kinds are tried on what these candidates leave
    alone = framework.context[0] == "ulysses"
    grid.columns["ulysses"] = grid.columns["cp"] if alone else np.ones_like(grid.columns["cp"])
    used = grid.columns["tp"] * grid.columns["pp"] * grid.columns["cp"]
    # combinations whose product is not a divisor of the world are no layouts at all
    grid.filter(world % used == 0)
    columns = grid.columns
    columns["dp"] = world // (columns["tp"] * columns["pp"] * columns["cp"])
    columns["vpp"] = np.ones_like(columns["dp"])
    batch = grid.scenario.workload.global_batch
    grid.filter(batch % columns["dp"] == 0, "global batch is not a multiple of dp")
    experts = model.experts.num_experts if model.experts else 1
    grid.cross("ep", divisors(experts) if "ep" in framework.axes else [1])
    _whole_experts(grid)
    grid.apply("pp", "cp", "ulysses", "ep", "etp", "dp", "vpp")


def _whole_experts(grid: Grid) -> None:
    """Experts split as the framework does unasked, and where it can, on one rank each."""
    model, (unasked, *others) = grid.scenario.model, grid.scenario.framework.expert_tensor_parallel
    apart = model.experts is not None and "one" in others and unasked == "tp"
    grid.cross("etp", [0, 1] if apart else [0])
    columns = grid.columns
    # with ep = 1 every rank would hold all experts whole; with tp = 1 they are whole anyway
    grid.filter((columns["etp"] == 0) | ((columns["tp"] > 1) & (columns["ep"] > 1)))


def _context(grid: Grid, ways: list[int]) -> None:
    """Context degrees; slices too short to fill a device are dropped, and counted."""
    if "cp" not in grid.scenario.framework.axes:
        grid.cross("cp", [1])
        return
    shortest = int(preferences().search.min_context_tokens.value)
    longest = grid.scenario.workload.sequence_length // shortest
    useful = [c for c in ways if c <= max(longest, 1)]
    if fell := len(ways) - len(useful):
        reason = f"context slices below {shortest} tokens"
        grid.dropped[reason] += fell * len(grid.columns["tp"])
    grid.cross("cp", useful)


def _batches(grid: Grid) -> None:
    batch = grid.scenario.workload.global_batch
    limits = preferences().search
    most = limits.max_samples if grid.scenario.model.counts_samples else limits.max_micro_batch
    grid.cross("micro_batch", [d for d in divisors(batch) if d <= most.value])
    columns = grid.columns
    per_replica = batch // columns["dp"]
    grid.filter(per_replica % columns["micro_batch"] == 0)
    columns = grid.columns
    columns["grad_accumulation"] = batch // columns["dp"] // columns["micro_batch"]
    grid.apply("micro_batch")


def _sharding(grid: Grid) -> None:
    framework = grid.scenario.framework
    modes = {"never": [0], "with-tp": [1], "optional": [0, 1]}[framework.sequence_parallel]
    grid.cross("sequence_parallel", modes)
    columns = grid.columns
    alone = columns["tp"] == 1
    if framework.sequence_parallel == "with-tp":
        columns["sequence_parallel"] = np.where(alone, 0, 1)
    else:
        grid.filter(~alone | (columns["sequence_parallel"] == 0))
    grid.apply("sequence_parallel")
    stages = framework.zero_stages_for(grid.scenario.workload.precision)
    grid.cross("zero_stage", list(stages))
    grid.apply("zero_stage")
    grid.cross("offload", list(range(len(OFFLOAD))))
    mask, _ = legal(grid.scenario, grid.layouts(), {"offload", "zero_stage"})
    grid.filter(mask)
    # sharding over one replica is no sharding, but offload asks for a stage
    layouts = grid.layouts()
    least = layouts.zero_stage == min(stages)
    grid.filter((layouts.num_replicas > 1) | least | ~layouts.keeps_states)


def _schedules(grid: Grid) -> None:
    scenario = grid.scenario
    offered = [name for name in scenario.framework.schedules if name != "none"]
    for name in list(offered):
        if (better := schedule_named(name).no_better_than) in offered:
            offered.remove(name)
            if fell := len(grid.columns["pp"]):
                grid.dropped[f"{name}: {better} takes as long and less memory"] = fell
    grid.cross("schedule", [SCHEDULES.index(name) for name in ("none", *offered)])
    layouts = grid.layouts()
    grid.filter(layouts.piped != layouts.scheduled("none"))
    _chunks(grid)
    mask, dropped = legal(scenario, grid.layouts(), {"pp", "vpp", "schedule", "grad_accumulation"})
    grid.dropped.update(dropped)
    grid.filter(mask)


def _chunks(grid: Grid) -> None:
    """Chunks of a stage: one, two where the model turns at the last stage, or with an interleaved
    schedule as many as its layers make even."""
    model, layouts = grid.scenario.model, grid.layouts()
    layers, pp = model.depth, layouts.pp
    several, turned = interleaved(layouts), layouts.v_shaped
    fullest = preferences().search.fullest_chunk.value
    rows, chunks = [np.flatnonzero(~several & ~turned)], [1]
    for count in range(2, layers // 2 + 1):
        deep = (several | (turned & (count == 2))) & (pp * count <= layers)
        even = deep & (-(-layers // (pp * count)) * pp * count <= fullest * layers)
        rows, chunks = [*rows, np.flatnonzero(even)], [*chunks, count]
        if fell := int(np.count_nonzero(deep & ~even)):
            grid.dropped["interleaved chunks would be uneven"] += fell
    grid.keep(np.concatenate(rows))
    grid.columns["vpp"] = np.repeat(chunks, [len(some) for some in rows])
