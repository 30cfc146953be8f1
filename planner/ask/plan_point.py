"""PlanPoint: the recommended layout of a job, its table row, its reason and its wording."""

import math
import sys
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass, fields
from typing import Any

from planner.ask.answer import Row, interval_names
from planner.choose.jobs.alternatives import search_headline
from planner.choose.jobs.job_search import JobCandidates
from planner.choose.jobs.job_spec import JobSpec
from planner.choose.jobs.neighbours import Kind
from planner.choose.preferences import preferences
from planner.choose.search import Candidates, SearchScope, is_common, is_deep_pipeline
from planner.choose.search.expected_time import likely_stalls
from planner.choose.search.recommendation import recommend_sensible
from planner.choose.verdicts.answer_lines import percent_chance
from planner.choose.verdicts.differences import largest_parts
from planner.choose.verdicts.fixes import closest_to_fitting, shortage_sentence
from planner.choose.verdicts.layout_words import estimate_words
from planner.cost.estimate import Estimate, estimate_times
from planner.cost.memory.footprint import Footprints
from planner.cost.scenario import Scenario
from planner.cost.shards.layouts import Layouts
from planner.describe.machine import Machine
from planner.describe.workload import Workload
from planner.errors import LayoutError, PlannerError
from planner.training.campaign import whole_training
from planner.training.whole_training import Amount, WholeTraining
from planner.units import counted, format_amount, format_seconds

_KINDS: tuple[Kind, ...] = ("batch", "sequence")
"""What a question may change in a job: its nodes are what it asks of."""
_NO_TOKENS_STEPS = 1000
"""Steps that node-hours count if the workload states no tokens."""


@dataclass(frozen=True, slots=True)
class PlanPoint:
    """The recommended layout of a job, or the reason why nothing fits."""

    nodes: int
    machine: Machine
    workload: Workload
    """Workload of the job; its batch is the nearest one with a layout if its own has none."""
    reason: str
    """Largest parts of the step time and uncommon features, or why nothing fits."""
    best: Estimate | None = None
    """Estimate of the recommended layout; None if nothing fits."""
    scenario: Scenario | None = None
    """The job under the framework of that layout."""
    uncommon_features: tuple[str, ...] = ()
    """Uncommon features of the layout, for example offload or a very deep pipeline."""
    training: WholeTraining | None = None
    """The whole training; None if nothing fits or the workload states no tokens."""
    changed: tuple[str, ...] = ()
    """Batch and length of sequences, where they are not those that were asked."""

    @property
    def fits(self) -> bool:
        """True if a layout fits."""
        return self.best is not None

    @property
    def safe(self) -> bool:
        """True if the out-of-memory risk of the recommended layout is acceptable."""
        return self.best is not None and is_safe(self.best)

    @property
    def common(self) -> bool:
        """True if the recommended layout is safe and in common use."""
        return self.safe and not self.uncommon_features

    @property
    def tokens_per_s(self) -> float:
        """Throughput; 0 if nothing fits [tokens/s]."""
        return self.best.tokens_per_s if self.best else 0.0

    @property
    def time(self) -> Amount:
        """Time of the whole training, else of a thousand steps; infinite if nothing fits [s]."""
        if self.training is not None:
            return self.training.time
        if self.best is None:
            return Amount(math.inf, math.inf, math.inf)
        times_s = self.best.step_time_s, *self.best.interval_step_time_s
        return Amount(*times_s).times(_NO_TOKENS_STEPS)

    @property
    def seconds(self) -> float:
        """Expected time of the whole training, else of a thousand steps [s]."""
        return self.time.expected

    @property
    def node_hours(self) -> float:
        """Node-hours of `seconds`; infinite if nothing fits."""
        return self.nodes * self.seconds / 3600

    @property
    def devices(self) -> int:
        """Number of devices on all nodes."""
        return self.nodes * self.machine.node.num_devices

    @property
    def place(self) -> str:
        """Nodes and machine as a phrase."""
        return nodes_of(self.machine, self.nodes)

    @property
    def columns(self) -> Row:
        """Columns for the nodes, and whether something fits."""
        return {"nodes": self.nodes, "devices": self.devices, "fits": self.fits}

    def recommended(self) -> tuple[Scenario, Estimate]:
        """Return scenario and estimate of the recommended layout; Infeasible if nothing fits."""
        if self.scenario is None or self.best is None:
            raise Infeasible(self)
        return self.scenario, self.best

    def describe(self) -> str:
        """Return layout, framework, step time, and what is not as it was asked, as a phrase."""
        _, best = self.recommended()
        return ", ".join([estimate_words(best), *self.changed, step_time(best)])

    def row(self, reason: str = "", **columns: Any) -> Row:
        """Return a table row: nodes, estimate, extra columns, and the reason last."""
        row = self.columns
        if self.best is not None:
            row |= estimate_row(self.best)
            durations = {"node_hours": self.time.times(self.nodes / 3600)}
            if self.training is not None:
                durations["days"] = self.training.days
            for name, value in durations.items():
                row |= with_interval(name, value.expected, (value.low, value.high))
        return {**row, **columns, "reason": reason or self.reason}


class Infeasible(Exception):
    """Raised when no layout of a job fits; carries the plan point with the reason."""

    def __init__(self, point: PlanPoint) -> None:
        super().__init__(point.reason)
        self.point = point


def search_top_layouts(job: JobSpec) -> tuple[JobSpec, JobCandidates]:
    """Search a job, or the nearby batch or sequence that stands for it, for its best layout."""
    scope = SearchScope(near_factor=1 + job.tolerance, top=1)
    return search_headline(job, scope, _KINDS)[:2]


def search_every_layout(job: JobSpec) -> tuple[JobSpec, JobCandidates]:
    """Estimate every layout of a job, or of the nearby batch or sequence that stands for it."""
    scope = SearchScope(exhaustive_up_to=sys.maxsize)
    return search_headline(job, scope, _KINDS)[:2]


def plan_point(job: JobSpec) -> PlanPoint:
    """Plan a job, with a nearby batch or a padded sequence where that gains throughput."""
    return point_of(*search_top_layouts(job), job)


def plan_or_reason(job: JobSpec, **changes: Any) -> PlanPoint:
    """Plan a job with changed job or workload fields; an error becomes the reason."""
    names = {field.name for field in fields(JobSpec)}
    job_changes = {name: value for name, value in changes.items() if name in names}
    workload_changes = {name: value for name, value in changes.items() if name not in names}
    try:
        if workload_changes:
            job_changes["workload"] = job.workload.replaced(**workload_changes)
        return plan_point(job.replaced(**job_changes))
    except PlannerError as error:
        nodes, machine = (changes.get(name, getattr(job, name)) for name in ("nodes", "machine"))
        return PlanPoint(nodes, machine, job.workload, error.plain)


def point_of(job: JobSpec, parts: JobCandidates, request: JobSpec | None = None) -> PlanPoint:
    """Make the plan point of a searched job, which may stand in for the job `request`."""
    workload, request = job.workload, request or job
    best = recommend_sensible(parts.values(), job.tolerance)
    if best is None:
        return PlanPoint(job.nodes, job.machine, workload, _infeasible_reason(parts.values()))
    scenario = parts[best.framework].scenario
    uncommon = tuple(_uncommon_features(scenario, best))
    changed = []
    if workload.sequence_length != request.workload.sequence_length:
        changed.append(f"sequences of {workload.sequence_length:,}")
    if workload.global_batch != request.workload.global_batch:
        changed.append(f"batch {workload.global_batch:,}")
    reason = "; ".join([*changed, *uncommon, largest_parts(best)])
    training = whole_training(scenario, best, job.nodes, job.training)
    about = reason, best, scenario, uncommon, training, tuple(changed)
    return PlanPoint(job.nodes, scenario.machine, workload, *about)


def _uncommon_features(scenario: Scenario, best: Estimate) -> Iterator[str]:
    """List features of a layout that teams use only when nothing else fits."""
    layout, layouts = best.layout, Layouts.stack([best.layout])
    if best.out_of_memory_probability > preferences().risk:
        yield f"out-of-memory risk {percent_chance(best.out_of_memory_probability)}"
    if layout.offload != "none":
        yield f"offload {layout.offload}"
    if is_deep_pipeline(scenario.model, layout.pp):
        yield f"a pipeline of {layout.pp} stages"
    if not is_common(scenario, layouts)[0]:
        if layout.tp > scenario.machine.wired_devices:
            yield f"tp {layout.tp} leaves the node"
        else:
            yield f"cp {layout.cp} cuts sequences into short slices"
    if likely_stalls(scenario, layouts)[0]:
        yield "similar runs usually stalled"


def closest_layout(parts: Iterable[Candidates]) -> tuple[Scenario, Estimate, Footprints] | None:
    """Find the layout that exceeds its memory by the smallest share; None if no layout is legal."""
    if (closest := closest_to_fitting(parts)) is None:
        return None
    scenario, footprints = closest
    return scenario, estimate_times(scenario, footprints)[0], footprints


def _infeasible_reason(parts: Iterable[Candidates]) -> str:
    """Name the shortage of the closest layout, or the rule that rejects the most layouts."""
    parts = list(parts)
    if closest := closest_layout(parts):
        _, estimate, footprints = closest
        return f"{estimate_words(estimate)} {shortage_sentence(estimate, footprints)}"
    rejected = [item for each in parts for item in each.dropped.items()]
    no_framework = "no framework can run it here", 0
    return f"no legal layout: {max(rejected, key=lambda item: item[1], default=no_framework)[0]}"


def with_interval(column: str, value: float, ends: Sequence[float]) -> Row:
    """Return a column with its interval's ends; `_low` and `_high` go before the unit."""
    return {column: value, **dict(zip(interval_names(column), ends, strict=True))}


def estimate_row(estimate: Estimate) -> Row:
    """Return the columns of an estimate."""
    memory_bytes = estimate.memory_bytes["total"]
    return {
        "framework": estimate.framework,
        "layout": str(estimate.layout),
        **with_interval("step_time_s", estimate.step_time_s, estimate.interval_step_time_s),
        "tokens_per_s": estimate.tokens_per_s,
        "mfu": estimate.mfu,
        **with_interval("memory_bytes", memory_bytes, estimate.interval_memory_bytes),
        "out_of_memory_probability": estimate.out_of_memory_probability,
    }


def is_safe(estimate: Estimate) -> bool:
    """True if a layout fits with an acceptable out-of-memory risk."""
    return estimate.fits and estimate.out_of_memory_probability <= preferences().risk


def nodes_of(machine: Machine, nodes: int) -> str:
    """Return nodes and machine as a phrase, for example "14 nodes of polaris"."""
    return f"{counted(nodes, 'node')} of {machine.name}"


def step_time(estimate: Estimate) -> str:
    """Return a step time with its interval as a phrase."""
    low, high = (format_seconds(end) for end in estimate.interval_step_time_s)
    return f"{format_seconds(estimate.step_time_s)} a step (90 % interval {low} to {high})"


def within_days(days: float) -> str:
    """Format a time limit, for example "2.5 days"."""
    return f"{days:g} {'day' if days == 1 else 'days'}"


def verb(count: int, plural: str, singular: str = "") -> str:
    """Return the singular or plural form of a verb for a count."""
    return plural if count != 1 else singular or f"{plural}s"


def amount_of_training(workload: Workload) -> str:
    """Return the tokens of the training as a phrase, or 1,000 steps if none are stated."""
    if workload.all_tokens:
        return f"{format_amount(workload.all_tokens)} tokens"
    return f"{_NO_TOKENS_STEPS:,} steps"


def needs_tokens(job: JobSpec, purpose: str) -> None:
    """Raise LayoutError if the workload does not state how many tokens it trains on."""
    if not job.workload.all_tokens:
        raise LayoutError(
            f"tokens = 0: {purpose} follows from how much is trained on; set tokens (such as "
            "300B), or samples and epochs"
        )
