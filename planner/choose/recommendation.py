"""Recommending: of what fits, the fastest of every idea, and the one to run.

The fastest by an estimate is not what an expert runs: a second axis for a percent, a device filled
to its last gigabyte. Of the layouts whose memory is safe, those within a tolerance of the fastest
are equally good; among them the one with the least effort is recommended.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass

import numpy as np

from planner.choose.search import RISK, Candidates, rank_fastest
from planner.cost.arrays import Float, Int, Mask, among, distinct
from planner.cost.estimate import Estimate, Estimates
from planner.cost.scenario import Scenario
from planner.cost.shards.layouts import Layouts
from planner.describe.layout import OFFLOAD
from planner.describe.model.model import Model

__all__ = [
    "TOLERANCE",
    "is_common",
    "is_deep_pipeline",
    "likely_stalls",
    "rank_layouts",
    "recommend",
    "setup_effort",
    "stall_notes",
    "stall_probability",
]

TOLERANCE = 0.05
"""By how much a simpler layout may be slower: far inside the interval of any step time."""
_LIKELY = 0.5
"""Probability of a stall above which a layout is recommended only where there is nothing else."""
_SLICE_TOKENS = 4096
# published runs cut no shorter: Llama 3 405B has cp 1 at 8,192 tokens and cp 16 at 131,072
# (arXiv:2407.21783, table 4); masks of documents, and padding each to 2 * cp slices, which the
# estimate leaves out, take most where slices are short
_STAGES, _STAGES_PARAMS = 16, 300e9
# arXiv:2104.04473, table 1
_UNUSUAL_GAIN = 2.0
# times as long as what nobody runs from which on a job is no usual one: an order of preference
_OFFLOAD_GAIN = 0.25
# less time than this is no reason to leave the device: the host's part of a step hangs on how its
# processes are bound (DeepSpeed issue 6834, pull request 7474: twice as long unbound)


@dataclass(frozen=True, slots=True)
class _Effort:
    """What a column costs the people who set a run up and keep it alive."""

    column: str
    used: float
    """Wherever it is above one."""
    doubling: float = 0.0
    """For each doubling."""


_AXES = (
    # parallel code inside a layer, across layers, along the sequence; experts are made to be spread
    _Effort("tp", 1.0, 0.5),
    _Effort("pp", 2.0, 0.5),
    _Effort("cp", 3.0, 0.5),
    _Effort("ulysses", 0.5),
    _Effort("ep", 1.0),
    _Effort("vpp", 0.5, 0.5),
    _Effort("tiles", 5.0),
    # larger ones gain little, take memory and leave few steps to a batch
    _Effort("micro_batch", 0.0, 0.25),
)
_OFFLOAD = {
    "none": 0.0,
    "optimizer-cpu": 2.0,
    "all-cpu": 3.0,
    "optimizer-nvme": 3.0,
    "all-nvme": 4.0,
}
_SHARDING, _GROUPS = 0.5, 0.5


def setup_effort(layouts: Layouts) -> Float:
    """How much there is to set up and to keep alive, beyond plain data parallelism [1].

    Counted: parallel axes and their degrees, chunks, sharding of states, offload, tiles. Left out:
    recompute, which is a switch; the framework, which has an effort of its own. An order of
    preference, no measurement: what people take first where several ways are as fast.
    method.md#recommended.

    >>> from planner import Layout
    >>> rising = [Layout(dp=8), Layout(dp=8, zero_stage=3), Layout(dp=4, tp=2), Layout(tp=2, pp=4)]
    >>> efforts = setup_effort(Layouts.stack(rising)).tolist()
    >>> efforts == sorted(efforts)
    True
    """
    total = np.zeros(np.shape(layouts.dp))
    for axis in _AXES:
        degree = getattr(layouts, axis.column)
        total = total + np.where(degree > 1, axis.used, 0.0) + axis.doubling * np.log2(degree)
    total = total + np.array([_OFFLOAD.get(name, 0.0) for name in OFFLOAD])[layouts.offload]
    total = total + np.where(layouts.zero_stage > 0, _SHARDING, 0.0)
    groups = (layouts.dp_shard < layouts.dp).astype(int) + (layouts.reshard > 0)
    return np.asarray(total + groups * _GROUPS)


def rank_layouts(found: Iterable[Candidates], top: int) -> list[Estimate]:
    """The fastest layout of every idea, fastest first; ties go to the framework searched first.

    An idea is a framework with its parallel degrees and what it shards and offloads; micro-batch,
    chunks, schedule and recompute are its shades. Offload is none where the same framework and
    degrees are as fast and as safe without it.
    """
    firsts: list[tuple[float, int, Estimates, int]] = []
    for position, part in enumerate(found):
        estimates = part.estimates
        indices = rank_fastest(estimates, None)
        first, _ = distinct(*_idea(estimates.layouts.take(indices)))
        # as many as are asked for, and as many again that may be twins
        for index in indices[first][: 2 * top]:
            time_s = round(float(estimates.step_time_s[index]), 9)
            firsts.append((time_s, position, estimates, int(index)))
    firsts.sort(key=lambda entry: entry[:2])
    kept: list[Estimate] = []
    for _, _, estimates, index in firsts:
        if len(kept) == top:
            break
        one = estimates[index]
        if not any(_needless(one, faster) for faster in kept):
            kept.append(one)
    return kept


_DEGREES = ("tp", "pp", "cp", "ep")


def _idea(layouts: Layouts) -> list[Int | Mask]:
    """What tells ideas apart."""
    degrees = [getattr(layouts, name) for name in _DEGREES]
    return [*degrees, layouts.zero_stage, layouts.dp_shard < layouts.dp, layouts.offload]


def _needless(one: Estimate, faster: Estimate) -> bool:
    """Whether a layout offloads what a faster one of its kind leaves on the device, as safely."""
    if one.layout.offload == "none" or faster.layout.offload != "none":
        return False
    alike = all(getattr(one.layout, name) == getattr(faster.layout, name) for name in _DEGREES)
    safe = faster.out_of_memory_probability <= max(RISK, one.out_of_memory_probability)
    return alike and one.framework == faster.framework and safe


def recommend(found: Iterable[Candidates], tolerance: float = TOLERANCE) -> Estimate | None:
    """The layout to run: safe in memory, within `tolerance` of the fastest such, least effort.

    None where nothing fits. Where no layout is safe, those count that are as safe as any. Short
    slices of sequences, tensor parallelism over a network and pipelines deeper than any published
    are recommended only where all else takes more than twice as long; what is likely to stall, only
    where there is nothing else.
    """
    sets = [part for part in found if len(part.estimates)]
    if not sets:
        return None
    least = min(float(np.min(part.estimates.out_of_memory_probability)) for part in sets)
    safe = [part.estimates.out_of_memory_probability <= max(RISK, least) for part in sets]
    steady = [mask & ~_stalling(part) for mask, part in zip(safe, sets, strict=True)]
    safe = steady if any(np.any(mask) for mask in steady) else safe
    common = [
        mask & is_common(part.scenario, part.estimates.layouts)
        for mask, part in zip(safe, sets, strict=True)
    ]
    shallow = [
        mask & ~is_deep_pipeline(part.scenario.model, part.estimates.layouts.pp)
        for mask, part in zip(common, sets, strict=True)
    ]
    enough = _UNUSUAL_GAIN * _fastest(sets, safe)
    masks = next(some for some in (shallow, common, safe) if _fastest(sets, some) <= enough)
    fastest = _fastest(sets, masks)
    resident = [
        mask & part.estimates.layouts.keeps_states for mask, part in zip(masks, sets, strict=True)
    ]
    if _fastest(sets, resident) <= (1 + _OFFLOAD_GAIN) * fastest:
        masks, fastest = resident, _fastest(sets, resident)
    picks: list[tuple[float, float, int, Estimate]] = []
    for position, (part, mask) in enumerate(zip(sets, masks, strict=True)):
        some = part.estimates
        near = np.flatnonzero(mask & (some.step_time_s <= (1 + tolerance) * fastest))
        if len(near):
            efforts = setup_effort(some.layouts.take(near)) + part.scenario.framework.effort
            pick = int(np.lexsort((some.step_time_s[near], efforts))[0])
            one = some[int(near[pick])]
            picks.append((float(efforts[pick]), one.step_time_s, position, one))
    return min(picks, key=lambda entry: entry[:3])[3]


def is_deep_pipeline(model: Model, pp: Int | int) -> Mask:
    """Whether a model has more pipeline stages than any published run of its size [1].

    Counted: 16 stages for 310 B parameters and fewer for less, 35 for 530 B, 64 for 1 T
    (arXiv:2104.04473, table 1). Left out: layers, micro-batches. method.md#recommended.

    >>> bool(is_deep_pipeline(load_model("llama-3.1-70b"), 25))
    True
    >>> bool(is_deep_pipeline(load_model("llama-3.1-405b"), 25))
    False
    """
    return (np.asarray(pp) > _STAGES) & (model.num_params < _STAGES_PARAMS)


def stall_probability(scenario: Scenario, layouts: Layouts) -> Float:
    """Part of a framework's measured runs in layouts like these that stalled [1].

    Counted: runs that took more than 1 / 0.6 of their estimate, by what a framework's description
    says of them; the largest share that holds. Left out: how long they took, which is no part of a
    step time. method.md#recommended.

    >>> from planner import Layout, Workload, load_framework, load_machine, load_model
    >>> job = Scenario(load_model("llama-3-8b"), load_machine("dgx-h100"), Workload(),
    ...                load_framework("nanotron"))
    >>> some = [Layout(dp=64, tp=8), Layout(dp=32, tp=8, pp=2)]
    >>> stall_probability(job, Layouts.stack(some)).tolist()
    [0.6, 0.0]
    """
    devices = scenario.machine.node.num_devices
    found = np.zeros(np.shape(layouts.dp))
    for stall in scenario.framework.stalls:
        here = (layouts.world >= stall.min_nodes * devices) & (layouts.piped == stall.piped)
        here = here & among(layouts.zero_stage, stall.zero_stages)
        here = here & ((layouts.tp > devices) | (not stall.beyond_node))
        found = np.maximum(found, np.where(here, stall.share.value, 0.0))
    return found


def likely_stalls(scenario: Scenario, layouts: Layouts) -> Mask:
    """Where more measured runs stalled than did not."""
    return stall_probability(scenario, layouts) > _LIKELY


def stall_notes(scenarios: Mapping[str, Scenario], some: Iterable[Estimate]) -> list[str]:
    """A warning for each of some layouts of whose kind measured runs have stalled."""
    shares = {
        one.layout: float(stall_probability(scenarios[one.framework], Layouts.of(one.layout)))
        for one in some
    }
    return [
        f"{layout}: {100 * share:.0f} % of measured runs in layouts like it took more than 1.7 "
        "times as long as estimated, for a cause that is not known; time a few steps first."
        for layout, share in shares.items()
        if share
    ]


def _stalling(part: Candidates) -> Mask:
    """Where more runs stall than do not."""
    return likely_stalls(part.scenario, part.estimates.layouts)


def is_common(scenario: Scenario, layouts: Layouts) -> Mask:
    """Where layers and sequences are cut as people do: layers over devices that are wired to each
    other (Narayanan et al. 2021, arXiv:2104.04473, takeaway 1), sequences into long slices."""
    tokens = scenario.workload.sequence_length
    long = (layouts.cp == 1) | (tokens >= layouts.cp * _SLICE_TOKENS)
    return np.asarray(long & (layouts.tp <= scenario.machine.wired_devices))


def _fastest(sets: Sequence[Candidates], masks: Sequence[Mask]) -> float:
    """The least step time of what masks leave; infinite where they leave nothing [s]."""
    pairs = zip(sets, masks, strict=True)
    times = (np.min(part.estimates.step_time_s, where=mask, initial=np.inf) for part, mask in pairs)
    return float(min(times))
