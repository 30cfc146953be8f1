"""Enumeration: every legal layout of a world size."""

from collections import Counter

import numpy as np

from planner.choose.legality import legal
from planner.choose.preferences import preferences
from planner.cost.arrays import Int, Mask
from planner.cost.operators.backward import FREES_NOTHING, selective_frees_nothing
from planner.cost.scenario import Scenario
from planner.cost.schedules.bubble import interleaved, schedule_by_name
from planner.cost.shards.layouts import Layouts
from planner.describe.layout import OFFLOAD, RECOMPUTE, SCHEDULES, divisors


def enumerate_layouts(scenario: Scenario, world: int) -> tuple[Layouts, dict[str, int]]:
    """List all legal layouts of `world` ranks, and count the rejected combinations by reason."""
    grid = _Grid(scenario)
    _add_degrees(grid, world)
    _add_batches(grid)
    _add_sharding(grid)
    _add_schedules(grid)
    _add_recompute(grid)
    return grid.layouts(), dict(grid.dropped)


class _Grid:
    """Columns of layouts under construction, and counts of rejected rows by reason."""

    def __init__(self, scenario: Scenario) -> None:
        self.scenario = scenario
        self.columns: dict[str, Int] = {"tp": np.ones(1, dtype=np.int64)}
        self.dropped: Counter[str] = Counter()
        self._complete: set[str] = set()

    def __len__(self) -> int:
        return len(self.columns["tp"])

    def cross(self, name: str, values: list[int]) -> None:
        """Combine every row with every value of a new column."""
        rows, count = len(self), len(values)
        self.columns = {key: np.repeat(column, count) for key, column in self.columns.items()}
        self.columns[name] = np.tile(np.asarray(values, dtype=np.int64), rows)

    def filter(self, mask: Mask, reason: str = "") -> None:
        """Keep the rows of a mask; count the others if a reason is given."""
        if reason:
            self.drop(reason, int(np.count_nonzero(~mask)))
        self.take(np.flatnonzero(mask))

    def take(self, rows: Int) -> None:
        """Keep these rows, in their order."""
        self.columns = {key: column[rows] for key, column in self.columns.items()}

    def drop(self, reason: str, count: int) -> None:
        """Count rejected combinations."""
        if count:
            self.dropped[reason] += count

    def apply_rules(self, *columns: str) -> None:
        """Mark columns as complete, and apply the rules that read only complete columns."""
        self._complete |= set(columns)
        self.apply_rules_of(self._complete)

    def apply_rules_of(self, columns: set[str], *, counted: bool = True) -> None:
        """Apply the rules that read only these columns."""
        mask, dropped = legal(self.scenario, self.layouts(), columns)
        if counted:
            self.dropped.update(dropped)
        self.filter(mask)

    def layouts(self) -> Layouts:
        """Layouts of the rows so far; missing columns have a layout's defaults."""
        return Layouts.broadcast(**self.columns)


def _add_degrees(grid: _Grid, world: int) -> None:
    """Cross the parallel degrees; data parallelism takes the remaining ranks."""
    framework, model = grid.scenario.framework, grid.scenario.model
    degrees = divisors(world)
    grid.columns = {"tp": np.asarray(degrees if "tp" in framework.axes else [1], dtype=np.int64)}
    grid.apply_rules("tp")
    grid.cross("pp", [p for p in degrees if p <= model.depth] if "pp" in framework.axes else [1])
    _add_context(grid, degrees)
    used = grid.columns["tp"] * grid.columns["pp"] * grid.columns["cp"]
    # products that do not divide the world are not layouts, and not counted
    grid.filter(world % used == 0)
    columns = grid.columns
    columns["dp"] = world // (columns["tp"] * columns["pp"] * columns["cp"])
    columns["vpp"] = np.ones_like(columns["dp"])
    batch = grid.scenario.workload.global_batch
    grid.filter(batch % columns["dp"] == 0, "global batch is not a multiple of dp")
    experts = model.experts.num_experts if model.experts else 1
    grid.cross("ep", divisors(experts) if "ep" in framework.axes else [1])
    _add_expert_tensor_parallel(grid)
    grid.apply_rules("pp", "cp", "ulysses", "ep", "etp", "dp", "vpp")


def _add_context(grid: _Grid, degrees: list[int]) -> None:
    """Cross the degrees of context parallelism whose slices are long enough to fill a device."""
    framework = grid.scenario.framework
    if "cp" in framework.axes:
        shortest = int(preferences().search.min_context_tokens.value)
        most = max(grid.scenario.workload.sequence_length // shortest, 1)
        useful = [degree for degree in degrees if degree <= most]
        count = (len(degrees) - len(useful)) * len(grid)
        grid.drop(f"context slices below {shortest} tokens", count)
        grid.cross("cp", useful)
    else:
        grid.cross("cp", [1])
    # use the framework's first kind; refinements try the others
    exchanges_heads = framework.context[0] == "ulysses"
    cp = grid.columns["cp"]
    grid.columns["ulysses"] = cp if exchanges_heads else np.ones_like(cp)


def _add_expert_tensor_parallel(grid: _Grid) -> None:
    """Cross expert tensor parallelism: the framework's default, and unsplit if it can."""
    experts = grid.scenario.model.experts
    default, *alternatives = grid.scenario.framework.expert_tensor_parallel
    has_choice = experts is not None and "one" in alternatives and default == "tp"
    grid.cross("etp", [0, 1] if has_choice else [0])
    columns = grid.columns
    # unsplit experts need ep > 1, else every rank holds all; with tp = 1 they are unsplit anyway
    grid.filter((columns["etp"] == 0) | ((columns["tp"] > 1) & (columns["ep"] > 1)))


def _add_batches(grid: _Grid) -> None:
    """Cross the micro-batches; gradient accumulation follows from the global batch."""
    batch, limits = grid.scenario.workload.global_batch, preferences().search
    most = limits.max_samples if grid.scenario.model.counts_samples else limits.max_micro_batch
    grid.cross("micro_batch", [size for size in divisors(batch) if size <= most.value])
    grid.filter(batch // grid.columns["dp"] % grid.columns["micro_batch"] == 0)
    columns = grid.columns
    columns["grad_accumulation"] = batch // columns["dp"] // columns["micro_batch"]
    grid.apply_rules("micro_batch")


def _add_sharding(grid: _Grid) -> None:
    grid.cross("sequence_parallel", [0, 1])
    tensor, split = grid.columns["tp"] > 1, grid.columns["sequence_parallel"] == 1
    is_default = grid.scenario.framework.sequence_parallel == "by-default"
    grid.filter(np.where(tensor, split | (not is_default), ~split))
    grid.apply_rules_of({"tp", "sequence_parallel"}, counted=False)
    grid.apply_rules("sequence_parallel")
    stages = grid.scenario.framework.zero_stages_for(grid.scenario.workload.precision)
    grid.cross("zero_stage", list(stages))
    grid.apply_rules("zero_stage")
    grid.cross("offload", list(range(len(OFFLOAD))))
    grid.apply_rules_of({"offload", "zero_stage"}, counted=False)
    # sharding over one replica does nothing, but offload needs a ZeRO stage
    layouts = grid.layouts()
    is_lowest = layouts.zero_stage == min(stages)
    grid.filter((layouts.num_replicas > 1) | is_lowest | ~layouts.keeps_states)


def _add_schedules(grid: _Grid) -> None:
    """Cross the pipeline schedules, except those that another one dominates, and their chunks."""
    offered = [name for name in grid.scenario.framework.schedules if name != "none"]
    for name in list(offered):
        if (better := schedule_by_name(name).no_better_than) in offered:
            offered.remove(name)
            grid.drop(f"{name}: {better} takes as long and less memory", len(grid))
    grid.cross("schedule", [SCHEDULES.index(name) for name in ("none", *offered)])
    layouts = grid.layouts()
    grid.filter(layouts.piped != layouts.uses_schedule("none"))
    _add_chunks(grid)
    grid.apply_rules_of({"pp", "vpp", "schedule", "grad_accumulation"})


def _add_chunks(grid: _Grid) -> None:
    """Cross the chunks per stage: one; two if V-shaped; two or more if interleaved."""
    layers, layouts = grid.scenario.model.depth, grid.layouts()
    is_interleaved, is_v_shaped = interleaved(layouts), layouts.v_shaped
    fullest = preferences().search.fullest_chunk.value
    rows, chunks = [np.flatnonzero(~is_interleaved & ~is_v_shaped)], [1]
    shortest = _ideal_step(layouts, layers, 1)
    for count in range(2, layers // 2 + 1):
        slots = layouts.pp * count
        is_possible = (is_interleaved | (is_v_shaped & (count == 2))) & (slots <= layers)
        step = _ideal_step(layouts, layers, count)
        is_even = -(-layers // slots) * slots <= fullest * layers
        is_tried = is_possible & (is_even | (step < shortest))
        shortest = np.minimum(shortest, step)
        rows, chunks = [*rows, np.flatnonzero(is_tried)], [*chunks, count]
        uneven = int(np.count_nonzero(is_possible & ~is_tried))
        grid.drop("layers not divisible into interleaved chunks", uneven)
    grid.take(np.concatenate(rows))
    grid.columns["vpp"] = np.repeat(chunks, [len(each) for each in rows])


def _ideal_step(layouts: Layouts, layers: int, chunks: int) -> Int:
    """Passes of the fullest chunk in a 1F1B step, in layers; what it sends takes no time."""
    fullest = -(-layers // (layouts.pp * chunks))
    return fullest * (layouts.num_microbatches * chunks + layouts.pp - 1)


def _add_recompute(grid: _Grid) -> None:
    """Cross the recompute modes, without selective recompute that would free nothing."""
    modes = list(grid.scenario.framework.recompute)
    if "selective" in modes and selective_frees_nothing(grid.scenario):
        modes.remove("selective")
        grid.drop(f"selective recompute: {FREES_NOTHING}", len(grid))
    grid.cross("recompute", [RECOMPUTE.index(mode) for mode in modes])
    grid.apply_rules_of({"schedule", "recompute", "zero_stage"})
