"""Search: every legal layout of a world size, evaluated by the one implementation, ranked.

Columns are crossed one group at a time and filtered as soon as a rule can be applied, so
illegal degrees are never multiplied out. Memory comes first, and only what fits is timed. Nothing
is dropped silently: every reason is counted.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable
from dataclasses import dataclass, fields, replace
from typing import TypeVar

import numpy as np
from numpy.typing import NDArray

from planner.choose.job import check_sequence
from planner.choose.legality import legal
from planner.cost.arrays import Mask
from planner.cost.estimate import Estimates, timed
from planner.cost.memory.footprint import Footprints, footprints
from planner.cost.question import Question
from planner.cost.schedules.bubble import interleaved
from planner.cost.schedules.known import schedule_named
from planner.cost.shards.layouts import Layouts
from planner.describe.layout import OFFLOAD, RECOMPUTE, SCHEDULES, Layout, divisors
from planner.errors import LayoutError

__all__ = ["TILES", "Found", "candidates", "order", "search"]

Int = NDArray[np.int64]

_Taken = TypeVar("_Taken", bound=Footprints)

_MAX_MICRO_BATCH = 64
TILES = (4, 16)
"""Tiles of the largest matrix that are tried."""
_FULLEST_CHUNK = 1.05
# layers of the fullest chunk over their mean: what interleaving saves is lost where it is more
_LEAST_CONTEXT_TOKENS = 1024


@dataclass(frozen=True, slots=True)
class Found:
    """The candidates of one framework: what all of them take, and how long those take that fit."""

    question: Question
    footprints: Footprints
    estimates: Estimates
    """Of those that fit, in the same order."""
    dropped: dict[str, int]

    def only(self, holds: Callable[[Layouts], Mask]) -> Found:
        """The part of it whose layouts are of one kind."""

        def some(found: _Taken) -> _Taken:
            return found.take(np.flatnonzero(holds(found.layouts)))

        return replace(self, footprints=some(self.footprints), estimates=some(self.estimates))


def _crossed(columns: dict[str, Int], name: str, values: list[int]) -> dict[str, Int]:
    """Every row with every value."""
    count = len(values)
    crossed = {key: np.repeat(column, count) for key, column in columns.items()}
    rows = len(next(iter(columns.values())))
    crossed[name] = np.tile(np.asarray(values, dtype=np.int64), rows)
    return crossed


def _kept(columns: dict[str, Int], mask: NDArray[np.bool_]) -> dict[str, Int]:
    return {key: column[mask] for key, column in columns.items()}


class _Grid:
    """Columns under construction, with the reasons for what fell."""

    def __init__(self, question: Question) -> None:
        self.question = question
        self.columns: dict[str, Int] = {"tp": np.ones(1, dtype=np.int64)}
        self.dropped: Counter[str] = Counter()
        self._applied: set[str] = set()

    def cross(self, name: str, values: list[int]) -> None:
        self.columns = _crossed(self.columns, name, values)

    def filter(self, mask: NDArray[np.bool_], reason: str = "") -> None:
        if reason and (fell := int(np.count_nonzero(~mask))):
            self.dropped[reason] += fell
        self.columns = _kept(self.columns, mask)

    def apply(self, *new: str) -> None:
        """Apply the rules that the columns `new` make possible."""
        self._applied |= set(new)
        mask, dropped = legal(self.question, self.layouts(), self._applied)
        self.dropped.update(dropped)
        self.columns = _kept(self.columns, mask)

    def layouts(self) -> Layouts:
        return Layouts.broadcast(**self.columns)


def candidates(question: Question, world: int) -> tuple[Layouts, dict[str, int]]:
    """All legal layouts of `world` ranks, and how many combinations fell for which reason."""
    grid = _Grid(question)
    _degrees(grid, world)
    _batches(grid)
    _sharding(grid)
    _schedules(grid)
    recompute = [RECOMPUTE.index(mode) for mode in question.framework.recompute]
    grid.cross("recompute", recompute)
    mask, dropped = legal(question, grid.layouts(), {"schedule", "recompute", "zero_stage"})
    grid.dropped.update(dropped)
    grid.filter(mask)
    return grid.layouts(), dict(grid.dropped)


def _degrees(grid: _Grid, world: int) -> None:
    framework, model = grid.question.framework, grid.question.model
    ways = divisors(world)
    grid.columns = {"tp": np.asarray(ways if "tp" in framework.axes else [1], dtype=np.int64)}
    grid.apply("tp")
    layers = model.num_layers + model.num_decoder_layers
    grid.cross("pp", [p for p in ways if p <= layers] if "pp" in framework.axes else [1])
    _context(grid, ways)
    used = grid.columns["tp"] * grid.columns["pp"] * grid.columns["cp"]
    # combinations whose product is not a divisor of the world are no layouts at all
    grid.filter(world % used == 0)
    columns = grid.columns
    columns["dp"] = world // (columns["tp"] * columns["pp"] * columns["cp"])
    columns["vpp"] = np.ones_like(columns["dp"])
    batch = grid.question.workload.global_batch
    grid.filter(batch % columns["dp"] == 0, "global batch is not a multiple of dp")
    experts = model.experts.num_experts if model.experts else 1
    grid.cross("ep", divisors(experts) if "ep" in framework.axes else [1])
    grid.apply("pp", "cp", "ep", "dp", "vpp")


def _context(grid: _Grid, ways: list[int]) -> None:
    """Context degrees; slices too short to fill a device are dropped, and counted."""
    if "cp" not in grid.question.framework.axes:
        grid.cross("cp", [1])
        return
    longest = grid.question.workload.sequence_length // _LEAST_CONTEXT_TOKENS
    useful = [c for c in ways if c <= max(longest, 1)]
    if fell := len(ways) - len(useful):
        reason = f"context slices below {_LEAST_CONTEXT_TOKENS} tokens"
        grid.dropped[reason] += fell * len(grid.columns["tp"])
    grid.cross("cp", useful)


def _batches(grid: _Grid) -> None:
    batch = grid.question.workload.global_batch
    grid.cross("micro_batch", [d for d in divisors(batch) if d <= _MAX_MICRO_BATCH])
    columns = grid.columns
    per_replica = batch // columns["dp"]
    grid.filter(per_replica % columns["micro_batch"] == 0)
    columns = grid.columns
    columns["grad_accumulation"] = batch // columns["dp"] // columns["micro_batch"]


def _sharding(grid: _Grid) -> None:
    framework = grid.question.framework
    modes = {"never": [0], "with-tp": [1], "optional": [0, 1]}[framework.sequence_parallel]
    grid.cross("sequence_parallel", modes)
    columns = grid.columns
    alone = columns["tp"] == 1
    if framework.sequence_parallel == "with-tp":
        columns["sequence_parallel"] = np.where(alone, 0, 1)
    else:
        grid.filter(~alone | (columns["sequence_parallel"] == 0))
    grid.apply("sequence_parallel")
    stages = framework.stages(grid.question.workload.precision)
    grid.cross("zero_stage", list(stages))
    grid.apply("zero_stage")
    grid.cross("offload", list(range(len(OFFLOAD))))
    mask, _ = legal(grid.question, grid.layouts(), {"offload", "zero_stage"})
    grid.filter(mask)
    # sharding over one replica is no sharding, but offload asks for a stage
    layouts = grid.layouts()
    least = layouts.zero_stage == min(stages)
    grid.filter((layouts.num_replicas > 1) | least | ~layouts.keeps_states)


def _schedules(grid: _Grid) -> None:
    question = grid.question
    offered = [name for name in question.framework.schedules if name != "none"]
    for name in list(offered):
        if (better := schedule_named(name).no_better_than) in offered:
            offered.remove(name)
            if fell := len(grid.columns["pp"]):
                grid.dropped[f"{name}: {better} takes as long and less memory"] = fell
    grid.cross("schedule", [SCHEDULES.index(name) for name in ("none", *offered)])
    layouts = grid.layouts()
    grid.filter(layouts.piped != layouts.scheduled("none"))
    _chunks(grid)
    mask, dropped = legal(question, grid.layouts(), {"pp", "vpp", "schedule", "grad_accumulation"})
    grid.dropped.update(dropped)
    grid.filter(mask)


def _chunks(grid: _Grid) -> None:
    """Chunks of a stage: one, two where the model turns at the last stage, or with an interleaved
    schedule as many as its layers make even."""
    model, layouts = grid.question.model, grid.layouts()
    layers, pp = model.num_layers + model.num_decoder_layers, layouts.pp
    several, turned = interleaved(layouts), layouts.v_shaped
    rows, chunks = [np.flatnonzero(~several & ~turned)], [1]
    for count in range(2, layers // 2 + 1):
        deep = (several | (turned & (count == 2))) & (pp * count <= layers)
        even = deep & (-(-layers // (pp * count)) * pp * count <= _FULLEST_CHUNK * layers)
        rows, chunks = [*rows, np.flatnonzero(even)], [*chunks, count]
        if fell := int(np.count_nonzero(deep & ~even)):
            grid.dropped["interleaved chunks would be uneven"] += fell
    grid.columns = _kept(grid.columns, np.concatenate(rows))
    grid.columns["vpp"] = np.repeat(chunks, [len(some) for some in rows])


def _in_groups(question: Question, taken: Footprints) -> Layouts:
    """Layouts whose weights are sharded inside groups of any size, from those sharded over all.

    A smaller group takes more memory: only what fits over all ranks is tried, and of the rest what
    is closest to it, so that the answer can say by how much it does not fit.
    """
    layouts = taken.layouts
    if not question.framework.hybrid_sharding or not len(layouts):
        return layouts.take(np.zeros(0, dtype=np.int64))
    fits = taken.fits.copy()
    fits[np.argmin(taken.memory_bytes)] = True
    whole = layouts.take(np.flatnonzero(fits & layouts.shards_weights & layouts.keeps_states))
    groups = []
    for size in divisors(int(np.max(whole.dp, initial=1)))[1:]:
        some = whole.take(np.flatnonzero((whole.dp % size == 0) & (size < whole.dp)))
        groups.append(replace(some, dp_shard=np.full(len(some), size)))
    joined = Layouts.joined(groups or [whole])
    mask, _ = legal(question, joined, set(Layout.model_fields))
    return joined.take(np.flatnonzero(mask))


def _in_tiles(question: Question, taken: Footprints) -> Layouts:
    """The last resort where nothing fits: the largest matrix in tiles."""
    layouts = taken.layouts
    tried = question.framework.tiling and len(layouts) and not taken.fits.any()
    some = layouts.take(np.flatnonzero(layouts.shards_weights & bool(tried)))
    return Layouts.joined([replace(some, tiles=np.full(len(some), n)) for n in TILES])


def search(question: Question, world: int) -> Found:
    """Every legal layout of `world` ranks under one framework, and the step time of what fits."""
    check_sequence(question)
    layouts, dropped = candidates(question, world)
    taken = footprints(question, layouts)
    for further in (_in_groups, _in_tiles):
        more = further(question, taken)
        if len(more):
            taken = Footprints.joined([taken, footprints(question, more)])
    device = int(np.count_nonzero(~taken.fits_device))
    host = int(np.count_nonzero(taken.fits_device & ~taken.fits_host))
    if device:
        dropped["device memory is exceeded"] = device
    if host:
        dropped["host memory is exceeded"] = host
    estimates = timed(question, taken.take(np.flatnonzero(taken.fits)))
    return Found(question, taken, estimates, dropped)


def order(estimates: Estimates, count: int | None = None) -> Int:
    """Indices of the layouts that fit, fastest first (the first `count` of them) [1].

    Counted: step time to a nanosecond; ties go to the smaller memory, then to the smaller degrees
    in the order of Layouts' fields, so the order never depends on how candidates were generated.
    Left out: layouts that do not fit, the interval of the time. method.md#search. Raises
    LayoutError where `count` is less than nothing.

    >>> from planner import Workload, load_framework, load_machine, load_model
    >>> from planner.cost.estimate import estimate_layouts
    >>> model, workload = load_model("gpt2"), Workload(sequence_length=1024)
    >>> job = Question(model, load_machine("polaris"), workload, load_framework("ddp"))
    >>> ranks = Layouts.broadcast(dp=[1, 4], grad_accumulation=[64, 16])
    >>> order(estimate_layouts(job, ranks)).tolist()            # four ranks before one
    [1, 0]
    """
    if count is not None and count < 0:
        raise LayoutError(f"top = {count} must not be negative; give 0 or more")
    fitting = np.flatnonzero(estimates.fits)
    time = np.round(estimates.step_time_s[fitting], 9)
    if count and len(fitting) > count:
        # nothing slower than the count-th fastest can be among the first
        near = time <= np.partition(time, count - 1)[count - 1]
        fitting, time = fitting[near], time[near]
    layouts = estimates.layouts
    degrees = [getattr(layouts, field.name)[fitting] for field in reversed(fields(layouts))]
    ranked = np.lexsort([*degrees, np.round(estimates.memory_bytes[fitting]), time])
    return fitting[ranked][:count]
