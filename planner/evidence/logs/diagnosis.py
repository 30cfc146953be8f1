"""Diagnosis: changes of a job that would explain why a run differs from its estimate."""

import math
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field, replace
from typing import Any, get_args

from planner.choose.legality import check
from planner.cost.estimate import Estimate, estimate_layouts
from planner.cost.parts import MemoryKind, unseen_parts
from planner.cost.scenario import Scenario
from planner.cost.shards.layouts import Layouts
from planner.describe.layout import Layout, Recompute
from planner.describe.workload import ATTENTIONS, PRECISIONS
from planner.errors import PlannerError
from planner.units import counted, format_bytes, format_seconds

_LISTED = 5
_LEAST_SHARE = 0.1
"""Share of the difference that a listed change removes."""
_PASSES = {"grad_accumulation": "gradient accumulation", "micro_batch": "micro-batch"}
_LAYOUT_CHOICES = {
    "recompute": ("activation recompute", get_args(Recompute)),
    "zero_stage": ("ZeRO stage", range(4)),
}
_WORKLOAD_CHOICES = {
    "precision": ("precision", PRECISIONS),
    "attention": ("attention kernel", ATTENTIONS[1:]),
}
"""Fields that logs seldom state, with their names and values."""


@dataclass(frozen=True, slots=True)
class Measured:
    """Measured figures of a run."""

    step_time_s: float
    memory_bytes: float = 0.0
    """Peak memory; 0 if the log states none."""
    memory_kind: MemoryKind = "reserved"
    tokens: float = 0.0
    """Tokens of a step that the log states; 0: none."""
    ranks: int = 0
    """Ranks that the log states; 0: none."""
    mfu_tokens: float = 0.0
    """Tokens of a step by the MFU that the log prints; 0: none."""

    def gaps(self, estimate: Estimate) -> list[tuple[float, bool]]:
        """Return measured / estimated time and memory, and whether each is in its interval."""
        low, high = estimate.interval_step_time_s
        ratios = [(self.step_time_s / estimate.step_time_s, low <= self.step_time_s <= high)]
        if self.memory_bytes:
            total, (low, high) = estimate.memory_bytes["total"], estimate.interval_memory_bytes
            ratio = self.memory_bytes / peak_bytes(estimate, self.memory_kind)
            ratios.append((ratio, low <= ratio * total <= high))
        return ratios


@dataclass(frozen=True, slots=True)
class Explanation:
    """A change of the job that brings its estimate closer to the run."""

    change: str
    layout: Layout
    workload: Mapping[str, Any] = field(default_factory=dict)
    """Changed fields of the workload."""
    network: str = ""
    """Network of the machine that the job uses instead."""
    contradiction: str = ""
    """Figure of the log that differs; empty if none does."""
    gaps: tuple[tuple[float, bool], ...] = ()
    """`Measured.gaps` from the estimate of the changed job."""

    @property
    def inside(self) -> bool:
        """True if the run lies inside every interval of the changed job."""
        return all(inside for _, inside in self.gaps)

    def sentence(self, measured: Measured) -> str:
        """State the change, its estimate, and how far the run is from it."""
        estimated = format_seconds(measured.step_time_s / self.gaps[0][0])
        text = f"{self.change}: {estimated} a step, the run {self.gaps[0][0]:.2f} times that"
        for ratio, _ in self.gaps[1:]:
            size = format_bytes(measured.memory_bytes / ratio)
            text += f"; memory {size}, the run {ratio:.2f} times that"
        against = f"; but the log states {self.contradiction}" * bool(self.contradiction)
        return f"{text} ({'inside' if self.inside else 'outside'} the interval){against}"


def peak_bytes(estimate: Estimate, kind: MemoryKind) -> float:
    """Return the peak memory that a way of measuring sees [B]."""
    parts = estimate.memory_bytes
    return parts["total"] - sum(parts[part] for part in unseen_parts(kind))


def explanations(
    scenario: Scenario, layout: Layout, estimate: Estimate, measured: Measured
) -> tuple[Explanation, ...]:
    """Rank single changes of a job by how close they come to a run; none if it agrees."""
    gaps = measured.gaps(estimate)
    if all(inside for _, inside in gaps):
        return ()
    most, results = (1 - _LEAST_SHARE) * _distance(gaps), []
    for each in _changes(scenario, layout, measured, gaps[0][0]):
        try:
            changed = replace(scenario, workload=scenario.workload.replaced(**each.workload))
            if each.network:
                changed = replace(changed, machine=scenario.machine.on_network(each.network))
            check(changed, each.layout)
            new = measured.gaps(estimate_layouts(changed, Layouts.stack([each.layout]))[0])
        except PlannerError:
            continue  # the framework or the machine does not allow it
        if _distance(new) < most:
            against = _contradiction(changed, each.layout, measured)
            results.append(replace(each, gaps=tuple(new), contradiction=against))
    results.sort(key=lambda e: (not e.inside, bool(e.contradiction), _distance(e.gaps)))
    return tuple(results[:_LISTED])


def _distance(gaps: Any) -> float:
    return sum(abs(math.log(ratio)) for ratio, _ in gaps)


def _contradiction(scenario: Scenario, layout: Layout, measured: Measured) -> str:
    if measured.tokens and round(measured.tokens / scenario.workload.tokens_per_step, 1) != 1:
        return f"{measured.tokens:,.0f} tokens a step"
    differs = measured.ranks not in (0, layout.world)
    return counted(measured.ranks, "rank") if differs else ""


def _changes(
    scenario: Scenario, layout: Layout, measured: Measured, ratio: float
) -> Iterator[Explanation]:
    yield from _batches(scenario, layout, measured, ratio)
    for name, (label, values) in _LAYOUT_CHOICES.items():
        for value in values:
            text = f"{label} {value} instead of {getattr(layout, name)}"
            yield Explanation(text, layout.replaced(**{name: value}))
    for name, (label, values) in _WORKLOAD_CHOICES.items():
        now = getattr(scenario.workload, name)
        for value in values:
            yield Explanation(f"{label} {value} instead of {now}", layout, {name: value})
    for network in scenario.machine.networks:
        yield Explanation(f"network {network.name}", layout, network=network.name)
    if layout.dp % 2 == 0:
        text = f"{layout.world // 2:,} ranks instead of {layout.world:,}, the same batch"
        passes = 2 * layout.grad_accumulation
        yield Explanation(text, layout.replaced(dp=layout.dp // 2, grad_accumulation=passes))


def _batches(
    scenario: Scenario, layout: Layout, measured: Measured, ratio: float
) -> Iterator[Explanation]:
    """Yield other batches: by the ratio of tokens, by that of times, or one batch per replica."""
    tokens = scenario.workload.tokens_per_step
    counts = [round(measured.tokens / tokens), round(measured.mfu_tokens / tokens)]
    counts += [round(ratio), 2 ** max(round(math.log2(ratio)), 0), layout.dp]
    for times in sorted({count for count in counts if count > 1}):
        batch = layout.global_batch * times
        each = f", {layout.global_batch:,} per replica" * (times == layout.dp)
        for name, label in _PASSES.items():
            now = getattr(layout, name)
            text = f"{label} {now * times} instead of {now}, a batch of {batch:,}"
            changed = layout.replaced(**{name: now * times})
            yield Explanation(text + each, changed, {"global_batch": batch})
    times = round(1 / ratio)
    if times > 1 and layout.grad_accumulation % times == 0:
        passes, batch = layout.grad_accumulation // times, layout.global_batch // times
        text = f"gradient accumulation {passes} instead of {layout.grad_accumulation}"
        changed = layout.replaced(grad_accumulation=passes)
        yield Explanation(f"{text}, a batch of {batch:,}", changed, {"global_batch": batch})
