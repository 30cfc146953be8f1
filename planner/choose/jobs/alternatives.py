"""Alternatives: ways to do a job that does not divide well, ranked by useful throughput."""

from __future__ import annotations

import math
from collections.abc import Collection, Iterator, Sequence
from dataclasses import dataclass
from typing import Literal

import numpy as np

from planner.choose.jobs.job_search import JobCandidates, search_job
from planner.choose.jobs.job_spec import JobSpec
from planner.choose.preferences import preferences
from planner.choose.search import SearchScope
from planner.choose.search.expected_time import time_factors
from planner.choose.search.recommendation import recommend
from planner.cost.estimate import Estimate
from planner.cost.shards.layouts import Layouts
from planner.describe.machine.variants import take_devices
from planner.errors import PlannerError
from planner.tables import Record
from planner.units import counted, format_seconds

Kind = Literal["as-asked", "nodes", "batch", "sequence"]
"""Part of the job that an alternative changes."""
KINDS: tuple[Kind, ...] = ("nodes", "batch", "sequence")
_LENGTH_STEP = 64
"""Multiples of this length divide over all usual degrees of tensor and context parallelism."""
_MOST_COUNTS = 3
"""Largest number of smaller node counts to search."""


@dataclass(frozen=True, slots=True)
class Alternative:
    """A way to do a job, with its recommended layout."""

    kind: Kind
    nodes: int
    devices: int
    """Devices in use."""
    global_batch: int
    sequence_length: int
    estimate: Estimate
    tokens_per_s: float
    """Useful throughput, without padding [tokens/s]."""
    gain: float | None
    """Gain of useful throughput over the job as asked; None if that has no layout."""
    sentence: str
    """The change and its gain."""

    def record(self) -> Record:
        """Return the alternative and its estimate as one flat row."""
        return {**self.estimate.record(), **{name: getattr(self, name) for name in PLAIN}}

    def applied(self, job: JobSpec) -> JobSpec:
        """Apply the change to the job."""
        machine = job.machine
        if self.devices < self.nodes * machine.node.num_devices:
            machine = take_devices(machine, self.devices)
        workload = job.workload.replaced(
            global_batch=self.global_batch, sequence_length=self.sequence_length
        )
        return job.replaced(nodes=self.nodes, machine=machine, workload=workload)


PLAIN = (
    *("kind", "nodes", "devices", "global_batch", "sequence_length", "tokens_per_s", "gain"),
    "sentence",
)
"""Fields of an alternative that JSON holds as they are."""


def search_headline(
    job: JobSpec, scope: SearchScope = SearchScope(), kinds: Collection[Kind] = KINDS
) -> tuple[JobSpec, JobCandidates, tuple[Alternative, ...]]:
    """Search a job and its neighbours: the best of these jobs, its candidates, and all, ranked."""
    result = search_job(job, scope)
    best = recommend(result.by_framework.values(), job.tolerance)
    ranked = rank_alternatives(job, result, best, () if job.exact else kinds)
    first = next(iter(ranked), None)
    if first is None or first.kind == "as-asked" or not _is_same_job(job, first):
        return job, result, ranked
    chosen = first.applied(job)
    result = search_job(chosen, scope)
    best = recommend(result.by_framework.values(), job.tolerance)
    assert best is not None, "the neighbour has a layout"
    as_asked = next(iter(of_kind(ranked, "as-asked")), None)
    first = _alternative(job, first.kind, chosen, best, as_asked)
    return chosen, result, (first, *ranked[1:])


def rank_alternatives(
    job: JobSpec, result: JobCandidates, best: Estimate | None, kinds: Collection[Kind] = KINDS
) -> tuple[Alternative, ...]:
    """Rank the job as asked and its neighbours, the one to run first.

    Of those about as fast as the fastest, the one with the fewest devices is first, then as asked.
    """
    rated: list[tuple[float, Alternative]] = []
    as_asked = None
    if best is not None:
        as_asked = _alternative(job, "as-asked", job, best, None)
        rated.append((_worth(job, as_asked, result), as_asked))
    scope = SearchScope(near_factor=1 + job.tolerance, top=1)
    for kind, neighbour in _neighbours(job, best):
        if kind not in kinds:
            continue
        candidates = search_job(neighbour, scope)
        estimate = recommend(candidates.by_framework.values(), job.tolerance)
        if estimate is not None:
            alternative = _alternative(job, kind, neighbour, estimate, as_asked)
            rated.append((_worth(job, alternative, candidates), alternative))
    rated.sort(key=lambda pair: (-_is_same_job(job, pair[1]), -pair[0]))
    if not rated:
        return ()
    eligible = [pair for pair in rated if _may_lead(job, pair[1], rated[0][1])]
    limit = eligible[0][0] / preferences().offers.change_gain.value
    about_as_good = [each for worth, each in eligible if worth >= limit]
    first = min(about_as_good, key=lambda each: _devices_then_change(job, each))
    return (first, *(each for _, each in rated if each is not first))


def _may_lead(job: JobSpec, each: Alternative, best: Alternative) -> bool:
    """Whether an alternative may lead: it gains, or spares devices and loses next to nothing."""
    least = preferences().offers.change_gain.value - 1
    if _spares_devices(job, each):
        least = -least
    gains = each.kind == "as-asked" or each.gain is None or each.gain >= least
    return gains and _is_same_job(job, each) == _is_same_job(job, best)


def of_kind(alternatives: Sequence[Alternative], kind: Kind) -> list[Alternative]:
    """The alternatives of one kind, in their order."""
    return [each for each in alternatives if each.kind == kind]


def wasted_nodes_note(job: JobSpec, best: Estimate | None) -> str:
    """State from which node count on a job wastes nodes; empty if it computes most of the time.

    Nodes are halved while twice as many train hardly more tokens per second.
    """
    offers = preferences().offers
    if best is None or _computing_share(best) >= offers.computing_share.value:
        return ""
    scope, nodes, rate = SearchScope(near_factor=1 + job.tolerance, top=1), job.nodes, 0.0
    limit = best.tokens_per_s / offers.doubling_gain.value
    while nodes > 1:
        candidates = search_job(job.replaced(nodes=nodes // 2), scope)
        estimate = recommend(candidates.by_framework.values(), job.tolerance)
        if estimate is None or estimate.tokens_per_s < limit:
            break
        nodes, rate = nodes // 2, estimate.tokens_per_s
        limit = rate / offers.doubling_gain.value
    if nodes == job.nodes:
        return ""
    return (
        f"Use fewer nodes: {counted(nodes, 'node')} train {100 * rate / best.tokens_per_s:.0f} % as "
        f"many tokens a second with {100 * nodes / job.nodes:.2g} % of the nodes. From there on "
        f"twice the nodes gain less than {100 * (offers.doubling_gain.value - 1):.0f} %; on "
        f"{job.nodes:,} nodes {100 * _computing_share(best):.0f} % of a step is computation."
    )


def _computing_share(estimate: Estimate) -> float:
    """Share of the step in forward, backward and recompute [1]."""
    parts = estimate.step_time_parts_s
    return sum(parts[name] for name in ("forward", "backward", "recompute")) / estimate.step_time_s


def _devices_then_change(job: JobSpec, each: Alternative) -> tuple[float, bool]:
    """Sort key: devices if there are notably fewer, then whether anything changes."""
    share = each.devices / job.num_devices if _spares_devices(job, each) else 1.0
    return share, each.kind != "as-asked"


def _spares_devices(job: JobSpec, each: Alternative) -> bool:
    return each.devices <= preferences().offers.fewer_devices.value * job.num_devices


def _is_same_job(job: JobSpec, each: Alternative) -> bool:
    """Whether the batch of an alternative is near enough to stand for the job's."""
    batch = job.workload.global_batch
    return abs(each.global_batch - batch) <= preferences().offers.batch_change.value * batch


# --- neighbours -----------------------------------------------------------------------------------


def _neighbours(job: JobSpec, best: Estimate | None) -> Iterator[tuple[Kind, JobSpec]]:
    """Yield jobs near one whose sequence, devices or batch do not divide well, nearest first.

    Fewer nodes and another batch keep a sequence that divides well.
    """
    even = _with_even_length(job)
    if even is not job:
        yield "sequence", even
    batch = job.workload.global_batch
    has_few_sequences = batch < job.num_devices
    if best is None or best.layout.pp * best.layout.cp > 1 or has_few_sequences:
        for nodes in _fewer(job.nodes, job.machine.node.num_devices, batch):
            fewer = even.replaced(nodes=nodes)
            yield "nodes", fewer
            for size in nearby_batches(fewer, best):
                yield "nodes", _with_batch(fewer, size)
        if job.nodes == 1:
            for devices in _fewer(job.num_devices, 1, batch):
                yield "nodes", even.replaced(machine=take_devices(job.machine, devices))
    for size in nearby_batches(job, best):
        yield "batch", _with_batch(even, size)


def _with_batch(job: JobSpec, size: int) -> JobSpec:
    return job.replaced(workload=job.workload.replaced(global_batch=size))


def _with_even_length(job: JobSpec) -> JobSpec:
    """Pad or cut sequences to a length that divides well; the job itself if they do already."""
    length = job.workload.sequence_length
    rest = length % _LENGTH_STEP
    if rest == 0 or length < _LENGTH_STEP:
        return job
    most_cut = preferences().offers.sequence_cut.value * length
    cuts = rest <= min(most_cut, _LENGTH_STEP / 2)
    even = length - rest if cuts else length - rest + _LENGTH_STEP
    try:
        return job.replaced(workload=job.workload.replaced(sequence_length=even))
    except PlannerError:  # longer than the model can be trained on
        return job


def uneven(ranks: int, batch: int) -> int:
    """Fewest ranks that must share a sequence for all ranks to have equal parts of a batch.

    >>> uneven(60, 1024), uneven(56, 1024), uneven(64, 1024)
    (15, 7, 1)
    """
    return ranks // math.gcd(ranks, batch)


def _fewer(nodes: int, devices: int, batch: int) -> list[int]:
    """Smaller node counts, largest first: the next one, and those that divide a batch better."""
    least = uneven(nodes * devices, batch)
    counts = [nodes - 1] if nodes > 1 and least > 1 else []
    for count in range(nodes - 1, nodes // 2 - 1, -1):
        if count and least > (parts := uneven(count * devices, batch)):
            least = parts
            counts.append(count)
    return list(dict.fromkeys(counts))[:_MOST_COUNTS]


def nearest_batches(batch: int, ranks: int) -> list[int]:
    """Nearest multiples of `ranks` below and above a batch; none if the batch is a multiple."""
    below = batch // ranks * ranks
    return [] if below == batch else [size for size in (below, below + ranks) if size]


def nearby_batches(job: JobSpec, best: Estimate | None) -> list[int]:
    """Batches that divide evenly over nodes or devices, nearest first.

    They are at most a quarter away if the job has a layout, else any.
    """
    world, batch = job.num_devices, job.workload.global_batch
    most = preferences().offers.batch_change.value * batch if best else math.inf
    sizes = []
    for ranks in (
        _ranks_with_sequence(job.nodes, batch),
        _ranks_with_sequence(world, batch),
        *([] if best else [world]),
    ):
        pair = [size for size in nearest_batches(batch, ranks) if abs(size - batch) <= most]
        # the nearer one is as good as the other, unless nothing fits
        pair.sort(key=lambda size: (abs(size - batch), size))
        sizes += pair[: 1 if best else 2]
    return sorted(set(sizes), key=lambda size: (abs(size - batch), size))


def _ranks_with_sequence(ranks: int, batch: int) -> int:
    """Halve `ranks` until each has a sequence of the batch, or until `ranks` is odd."""
    while ranks > batch and ranks % 2 == 0:
        ranks //= 2
    return ranks


# --- gain and worth -------------------------------------------------------------------------------


def _alternative(
    job: JobSpec, kind: Kind, neighbour: JobSpec, estimate: Estimate, as_asked: Alternative | None
) -> Alternative:
    """Make the alternative that does `job` as `neighbour`."""
    length, padded = job.workload.sequence_length, neighbour.workload.sequence_length
    tokens_per_s = estimate.tokens_per_s * min(length / padded, 1.0)
    gain = tokens_per_s / as_asked.tokens_per_s - 1 if as_asked else None
    gain = 0.0 if kind == "as-asked" else gain
    sentence = f"As asked: {format_seconds(estimate.step_time_s)} a step."
    if kind != "as-asked":
        sentence = f"{_change(job, neighbour)}: {_gain_phrase(gain, job)}."
    return Alternative(
        kind,
        neighbour.nodes,
        neighbour.num_devices,
        neighbour.workload.global_batch,
        padded,
        estimate,
        tokens_per_s,
        gain,
        sentence,
    )


def _worth(job: JobSpec, each: Alternative, result: JobCandidates) -> float:
    """Useful tokens per expected second, less the cost of another batch.

    Stalls do not count: they were measured on a few node counts, and say nothing of those between.
    """
    scenario = result.by_framework[each.estimate.framework].scenario
    risk = np.array([each.estimate.out_of_memory_probability])
    factors = time_factors(scenario, Layouts.of(each.estimate.layout), risk)
    slowdown = math.prod(float(f.item()) for cause, f in factors.items() if cause != "stall")
    batch = job.workload.global_batch
    change = min(abs(each.global_batch - batch) / batch, 1.0)
    return each.tokens_per_s / slowdown * (1 - preferences().offers.batch_cost.value * change)


def _change(job: JobSpec, neighbour: JobSpec) -> str:
    """Describe how a neighbour differs from the job, as the first half of a sentence."""
    before, after = job.workload, neighbour.workload
    changes = []
    if neighbour.nodes != job.nodes:
        changes.append(f"use {neighbour.nodes:,} of the {counted(job.nodes, 'node')}")
    elif neighbour.num_devices != job.num_devices:
        changes.append(f"use {neighbour.num_devices} of the {counted(job.num_devices, 'device')}")
    if after.global_batch != before.global_batch:
        verb = "with" if changes else "use"
        changes.append(
            f"{verb} a batch of {after.global_batch:,} instead of {before.global_batch:,}"
        )
    if after.sequence_length != before.sequence_length:
        verb = "pad" if after.sequence_length > before.sequence_length else "cut"
        changes.append(f"{verb} sequences to {after.sequence_length:,} tokens")
    change = " and ".join(changes).replace(" and with", " with")
    return change[0].upper() + change[1:]


def _gain_phrase(gain: float | None, job: JobSpec) -> str:
    unit = "samples" if job.model.counts_samples else "tokens"
    if gain is None:
        return "as asked it has no layout"
    percent = round(100 * gain)
    if percent == 0:
        return f"as many {unit} a second"
    return f"{abs(percent)} % {'more' if percent > 0 else 'fewer'} {unit} a second"
