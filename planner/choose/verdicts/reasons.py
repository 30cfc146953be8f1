"""Reasons: why a faster layout is not the recommended one."""

from __future__ import annotations

import itertools
import math
from collections.abc import Collection, Mapping, Sequence
from typing import NamedTuple

from planner.choose.preferences import preferences
from planner.choose.search.expected_time import factors_of, stall_applies, why_no_files
from planner.choose.search.recommendation import setup_effort
from planner.choose.verdicts.layout_words import TEXTS
from planner.cost.estimate import Estimate
from planner.cost.scenario import Scenario
from planner.cost.shards.layouts import Layouts
from planner.units import counted

PREFERENCES = {cause: each["preference"] for cause, each in TEXTS["reasons"].items()}
"""Preference behind each cause."""


class Contender(NamedTuple):
    """A layout that may be recommended: its estimate, and the scenario of that."""

    scenario: Scenario
    estimate: Estimate

    @property
    def factors(self) -> dict[str, float]:
        """Factors on the step time by cause, uncertainty included [1]."""
        return factors_of(self.scenario, self.estimate)

    @property
    def effort(self) -> float:
        """Effort to set up the layout with its framework [1]."""
        effort: float = setup_effort(Layouts.of(self.estimate.layout)).item()
        return effort + self.scenario.framework.effort

    def costs(self, tolerance: float, without: Collection[str]) -> tuple[float, float]:
        """Expected time, and that with effort, if some causes do not count [s]."""
        factors = [factor for cause, factor in self.factors.items() if cause not in without]
        expected_s = self.estimate.step_time_s * math.prod(factors)
        worth = tolerance / preferences().recommendation.spared_effort.value
        return expected_s, expected_s * (1 + worth * self.effort * ("effort" not in without))

    def comes_before(
        self, chosen: Contender, tolerance: float, without: Collection[str] = ()
    ) -> bool:
        """Whether it would be recommended before another if some causes did not count."""
        (time_s, cost), (limit_s, limit) = (e.costs(tolerance, without) for e in (self, chosen))
        return time_s <= limit_s and cost < limit


def causes_against(faster: Contender, chosen: Contender) -> list[str]:
    """Causes that put a faster layout behind the chosen one, the largest first; effort last."""
    safe = chosen.factors
    ratios = {cause: factor / safe[cause] for cause, factor in faster.factors.items()}
    least = 1 + preferences().recommendation.tolerance.value / 2
    worse = sorted((c for c in ratios if ratios[c] > 1), key=lambda c: -ratios[c])
    causes = [cause for cause in worse if ratios[cause] > least]
    gain = chosen.estimate.step_time_s / faster.estimate.step_time_s
    return (causes or worse[:1]) if math.prod(ratios.values()) >= gain else [*causes, "effort"]


def reason_against(faster: Contender, chosen: Contender) -> str:
    """Explain why a faster layout is not recommended: the rules, their numbers and sources."""
    causes = causes_against(faster, chosen)
    return "; ".join(_reason(cause, faster, chosen) for cause in causes)


def reasons_against(
    scenarios: Mapping[str, Scenario], ranked: Sequence[Estimate], best: Estimate | None
) -> tuple[str, ...]:
    """Explain why each ranked layout that is faster than the recommended one is passed over."""
    if best is None:
        return ()
    chosen = Contender(scenarios[best.framework], best)
    faster = itertools.takewhile(lambda each: each.step_time_s < best.step_time_s, ranked)
    return tuple(
        reason_against(Contender(scenarios[each.framework], each), chosen) for each in faster
    )


def _reason(cause: str, faster: Contender, chosen: Contender) -> str:
    """Write one cause with its number and the preference or measurement behind it."""
    scenario, estimate = faster
    layout, factor = estimate.layout, faster.factors.get(cause, 1.0)
    if cause == "stall":
        layouts = Layouts.of(layout)
        applying = (s for s in scenario.framework.stalls if stall_applies(s, scenario, layouts))
        stall = max(applying, key=lambda s: s.share.value * (s.slowdown.value - 1))
        return (
            f"{100 * stall.share.value:.0f} % of measured runs in similar layouts stalled and took "
            f"{stall.slowdown.value:.1f} times their estimate ({stall.share.source})"
        )
    if cause == "spread":
        return f"its step time is less sure, and its mean counts as {factor:.3g} times the estimate"
    used = preferences().effort.used
    more = [n for n in used if getattr(layout, n) > getattr(chosen.estimate.layout, n)]
    text = TEXTS["reasons"][cause]["text"].format(
        times=f"{factor:.2g} times the time",
        risk=100 * estimate.out_of_memory_probability,
        layout=layout,
        machine=scenario.machine,
        slice_tokens=scenario.workload.sequence_length // layout.cp,
        micro_batches=counted(layout.grad_accumulation, "micro-batch"),
        no_files=why_no_files(scenario, layout),
        axes=f" ({', '.join(more)})" if more else "",
        faster=faster,
        chosen=chosen,
    )
    return f"{text} (preference {PREFERENCES[cause]})"
