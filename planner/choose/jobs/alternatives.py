"""Alternatives: ways to do a job that does not divide well, ranked by useful throughput."""

import functools
import math
from collections.abc import Collection, Sequence
from dataclasses import dataclass, replace
from typing import Any

from planner.choose.jobs.job_search import JobCandidates, search_job, search_jobs
from planner.choose.jobs.job_spec import JobSpec
from planner.choose.jobs.neighbours import KINDS, Kind, neighbours
from planner.choose.preferences import preferences, user_file
from planner.choose.search import SearchScope
from planner.choose.search.expected_time import factors_of
from planner.choose.search.recommendation import recommend
from planner.cost.estimate import Estimate, estimate_layouts
from planner.cost.scenario import Scenario
from planner.cost.shards.layouts import Layouts
from planner.describe.machine.variants import take_devices
from planner.tables import Record
from planner.units import counted, format_seconds


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


@dataclass(frozen=True, slots=True)
class _Way:
    job: JobSpec
    result: JobCandidates | None
    """Its candidates; None if only its recommended layout is known."""
    alternative: Alternative
    worth: float
    """Useful tokens per expected second, less the cost of another batch [tokens/s]."""


_MOST_LAYOUTS = 16_384
"""Number of a job's layouts below which its neighbours are searched together."""


_WITHIN_A_JOB = ("stall", "depth", "spread")
"""Causes that do not count between jobs: known at few node counts, a habit, or shared."""


_Recommended = tuple[Estimate | None, float]
"""Recommended layout of a job, and expected over estimated time by causes that count here."""


@functools.lru_cache(2048)
def _remembered(*_: Any) -> list[_Recommended]:
    """Return the list that holds the answer for a job once it was searched."""
    return []


def _recommend_each(
    jobs: Sequence[JobSpec], scope: SearchScope
) -> list[tuple[_Recommended, JobCandidates | None]]:
    """Recommend a layout of each job; search those that are not remembered together."""
    answers = [_answers_of(job, scope) for job in jobs]
    open_rows = [row for row, recommended in enumerate(answers) if not recommended]
    results = search_jobs([jobs[row] for row in open_rows], scope)
    searched = dict(zip(open_rows, results, strict=True))
    for row, candidates in searched.items():
        answers[row].append(_judged(jobs[row], candidates))
    return [(recommended[0], searched.get(row)) for row, recommended in enumerate(answers)]


def _answers_of(job: JobSpec, scope: SearchScope) -> list[_Recommended]:
    if job.experience.is_known:
        return []
    machine, options = job.machine.model_dump_json(), (job.frameworks, job.tolerance)
    return _remembered(job.model, machine, job.nodes, job.workload, options, scope, user_file())


def _judged(job: JobSpec, candidates: JobCandidates) -> _Recommended:
    estimate, slowdown = recommend(candidates.values(), job.tolerance), 1.0
    if estimate is not None:
        factors = factors_of(candidates[estimate.framework].scenario, estimate)
        slowdown = math.prod(factors[cause] for cause in factors if cause not in _WITHIN_A_JOB)
    return estimate, slowdown


def search_headline(
    job: JobSpec, scope: SearchScope = SearchScope(), kinds: Collection[Kind] = KINDS
) -> tuple[JobSpec, JobCandidates, tuple[Alternative, ...]]:
    """Search a job and its neighbours: the best of these jobs, its candidates, and all, ranked."""
    best, candidates = _recommend_each([job], scope)[0]
    result = candidates or search_job(job, scope)
    ways = _search_ways(job, best, result, scope, () if job.exact else kinds)
    if not ways:
        return job, result, ()
    ways.sort(key=lambda way: (-_is_same_job(job, way.alternative), -way.worth))
    first = _first(job, ways)
    ranked = (first, *(way for way in ways if way is not first))
    if _is_same_job(job, first.alternative):
        job, result = first.job, first.result or search_job(first.job, scope)
    return job, result, tuple(way.alternative for way in ranked)


def _search_ways(
    job: JobSpec,
    best: _Recommended,
    result: JobCandidates,
    scope: SearchScope,
    kinds: Collection[Kind],
) -> list[_Way]:
    """The job as asked, if it has a layout, and those of its neighbours that may be as good."""
    ways, as_asked = [], None
    estimate, slowdown = best
    if estimate is not None:
        as_asked = _alternative(job, "as-asked", job, estimate, None)
        ways.append(_Way(job, result, as_asked, _worth(job, as_asked, slowdown)))
    offers = [pair for pair in neighbours(job, estimate) if pair[0] in kinds]
    # many layouts are searched job by job: a good neighbour spares the search of the next
    is_large = sum(len(part.footprints) for part in result.values()) >= _MOST_LAYOUTS
    step = 1 if is_large else max(len(offers), 1)
    of_neighbours = replace(scope, recommended_only=is_large)
    for start in range(0, len(offers), step):
        several = offers[start : start + step]
        if as_asked is not None:
            several = [pair for pair in several if _can_keep_up(pair[1], ways)]
        results = _recommend_each([neighbour for _, neighbour in several], of_neighbours)
        for (kind, neighbour), ((estimate, slowdown), candidates) in zip(
            several, results, strict=True
        ):
            if estimate is None or (as_asked is not None and not _can_keep_up(neighbour, ways)):
                continue
            each = _alternative(job, kind, neighbour, estimate, as_asked)
            searched = None if is_large else candidates
            ways.append(_Way(neighbour, searched, each, _worth(job, each, slowdown)))
    return ways


def _can_keep_up(neighbour: JobSpec, ways: Sequence[_Way]) -> bool:
    """True if a job that only computed would train as many tokens a second as the best so far."""
    best = max(ways, key=lambda way: way.worth).alternative
    share = neighbour.num_devices / best.devices
    is_small = best.global_batch < best.devices  # fewer devices then have larger kernels
    gain = preferences().offers.kernel_gain.value
    return is_small or share * gain >= _computing_share(best.estimate)


def _first(job: JobSpec, ways: Sequence[_Way]) -> _Way:
    """Choose from those about as fast as the fastest: the fewest devices, then the job as asked."""
    eligible = [way for way in ways if _may_lead(job, way.alternative, ways[0].alternative)]
    limit = eligible[0].worth / preferences().offers.change_gain.value
    about_as_good = [way for way in eligible if way.worth >= limit]

    def devices_then_change(way: _Way) -> tuple[float, bool]:
        is_spare = _spares_devices(job, way.alternative)
        share = way.alternative.devices / job.num_devices if is_spare else 1.0
        return share, way.alternative.kind != "as-asked"

    return min(about_as_good, key=devices_then_change)


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


def network_choice(scenario: Scenario, best: Estimate) -> str:
    """Name an estimate's network, and its step on others; empty if none notably differs."""
    steps = []
    for name in (each.name for each in scenario.machine.networks if best.network):
        elsewhere = replace(scenario, machine=scenario.machine.on_network(name))
        step_s = estimate_layouts(elsewhere, Layouts.of(best.layout))[0].step_time_s
        if abs(step_s / best.step_time_s - 1) > preferences().tolerance:
            steps.append(f"{format_seconds(step_s)} on {name}")
    return f"on {best.network}; {', '.join(steps)}" if steps else ""


def wasted_nodes_note(job: JobSpec, best: Estimate | None) -> str:
    """State from which node count on a job wastes nodes; empty if it computes most of the time."""
    offers = preferences().offers
    if best is None or _computing_share(best) >= offers.computing_share.value:
        return ""
    scope = SearchScope(near_factor=1 + job.tolerance, recommended_only=True)
    nodes, rate = job.nodes, 0.0
    limit = best.tokens_per_s / offers.doubling_gain.value
    while nodes > 1:
        estimate = _recommend_each([job.replaced(nodes=nodes // 2)], scope)[0][0][0]
        if estimate is None or estimate.tokens_per_s < limit:
            break
        nodes, rate = nodes // 2, estimate.tokens_per_s
        limit = rate / offers.doubling_gain.value
    if nodes == job.nodes:
        return ""
    share = 100 * rate / best.tokens_per_s
    train = "trains" if nodes == 1 else "train"
    return (
        f"Use fewer nodes: {counted(nodes, 'node')} {train} {share:.0f} % as many tokens a second. "
        f"Beyond, twice the nodes gain less than {100 * (offers.doubling_gain.value - 1):.0f} %, "
        f"as only {100 * _computing_share(best):.0f} % of the step is computation."
    )


def _computing_share(estimate: Estimate) -> float:
    parts = estimate.step_time_parts_s
    return sum(parts[name] for name in ("forward", "backward", "recompute")) / estimate.step_time_s


def _spares_devices(job: JobSpec, each: Alternative) -> bool:
    return each.devices <= preferences().offers.fewer_devices.value * job.num_devices


def _is_same_job(job: JobSpec, each: Alternative) -> bool:
    """Whether the batch of an alternative is near enough to stand for the job's."""
    batch = job.workload.global_batch
    return abs(each.global_batch - batch) <= preferences().offers.batch_change.value * batch


def _alternative(
    job: JobSpec, kind: Kind, neighbour: JobSpec, estimate: Estimate, as_asked: Alternative | None
) -> Alternative:
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


def _worth(job: JobSpec, each: Alternative, slowdown: float) -> float:
    """Useful tokens per expected second, less the cost of another batch [tokens/s]."""
    batch = job.workload.global_batch
    change = min(abs(each.global_batch - batch) / batch, 1.0)
    cost = preferences().offers.batch_cost.value * change
    return each.tokens_per_s / slowdown * (1 - cost)


def _change(job: JobSpec, neighbour: JobSpec) -> str:
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
