"""Recommendation: rank the layouts that fit by strategy, and choose the one to run."""

from collections.abc import Callable, Collection, Iterable, Mapping

import numpy as np

from planner.choose.preferences import preferences
from planner.choose.search import Candidates, rank_fastest
from planner.choose.search.expected_time import expected_time_s, is_sensible, stall_probability
from planner.cost.arrays import Float, Mask, distinct
from planner.cost.estimate import Estimate, Estimates
from planner.cost.scenario import Scenario
from planner.cost.shards.layouts import Layouts
from planner.describe.layout import OFFLOAD

_DEGREES = ("tp", "pp", "cp", "ep")


def setup_effort(layouts: Layouts) -> Float:
    """Effort to set up and maintain each layout, beyond plain data parallelism [1]."""
    weights = preferences().effort
    total = np.zeros(np.shape(layouts.dp))
    for column, used in weights.used.items():
        degree = getattr(layouts, column)
        total = total + np.where(degree > 1, used.value, 0.0)
        total = total + weights.doubling[column].value * np.log2(degree)
    total = total + np.array([weights.offload[kind].value for kind in OFFLOAD])[layouts.offload]
    states, group = (weights.sharding[name].value for name in ("states", "group"))
    total = total + np.where(layouts.zero_stage > 0, states, 0.0)
    groups = (layouts.dp_shard < layouts.dp).astype(int) + (layouts.reshard > 0)
    return np.asarray(total + groups * group)


def rank_layouts(candidates: Iterable[Candidates], top: int) -> list[Estimate]:
    """Rank the fastest layout of every strategy; ties go to the framework searched first."""
    firsts: list[tuple[float, int, Estimates, int]] = []
    for position, part in enumerate(candidates):
        estimates = part.estimates
        indices = rank_fastest(estimates, None)
        layouts = estimates.layouts.take(indices)
        degrees = [getattr(layouts, name) for name in (*_DEGREES, "zero_stage")]
        first, _ = distinct(*degrees, layouts.dp_shard < layouts.dp, layouts.offload)
        # twice as many, because layouts that offload needlessly are skipped below
        for index in indices[first][: 2 * top]:
            time_s = round(float(estimates.step_time_s[index]), 9)
            firsts.append((time_s, position, estimates, int(index)))
    firsts.sort(key=lambda entry: entry[:2])
    ranked: list[Estimate] = []
    for _, _, estimates, index in firsts:
        if len(ranked) == top:
            break
        estimate = estimates[index]
        if not any(_offloads_needlessly(estimate, faster) for faster in ranked):
            ranked.append(estimate)
    return ranked


def with_recommended(ranked: list[Estimate], recommended: Estimate | None) -> tuple[Estimate, ...]:
    """Rank the recommended layout too, behind the fastest one of its strategy."""
    further = () if recommended is None or recommended in ranked else (recommended,)
    return tuple(sorted((*ranked, *further), key=lambda each: round(each.step_time_s, 9)))


def _offloads_needlessly(estimate: Estimate, faster: Estimate) -> bool:
    """True if a faster layout of the same degrees and framework is safe without offload."""
    if estimate.layout.offload == "none" or faster.layout.offload != "none":
        return False
    alike = all(getattr(estimate.layout, x) == getattr(faster.layout, x) for x in _DEGREES)
    risk = max(preferences().risk, estimate.out_of_memory_probability)
    safe = faster.out_of_memory_probability <= risk
    return alike and estimate.framework == faster.framework and safe


def recommend(
    candidates: Iterable[Candidates],
    tolerance: float | None = None,
    without: Collection[str] = (),
    allowed: Callable[[Scenario, Estimates], Mask] | None = None,
    caution: float = 1.0,
) -> Estimate | None:
    """Choose the least time and effort within `tolerance` of the least expected time."""
    parts = [part for part in candidates if len(part.estimates)]
    times_s = [
        expected_time_s(part.scenario, part.estimates, without) ** caution
        * part.estimates.step_time_s ** (1 - caution)
        for part in parts
    ]
    if allowed is not None:
        masks = [allowed(part.scenario, part.estimates) for part in parts]
        times_s = [np.where(*pair, np.inf) for pair in zip(masks, times_s, strict=True)]
    if not np.isfinite(min((float(np.min(each)) for each in times_s), default=np.inf)):
        return None
    tolerance = caution * (preferences().tolerance if tolerance is None else tolerance)
    limit_s = (1 + tolerance) * min(float(np.min(each)) for each in times_s)
    worth = tolerance / preferences().recommendation.spared_effort.value
    choices: list[tuple[float, int, int, Estimates]] = []
    for position, (part, expected_s) in enumerate(zip(parts, times_s, strict=True)):
        rows = np.flatnonzero(expected_s <= limit_s)
        if len(rows):
            layouts = part.estimates.layouts.take(rows)
            efforts = setup_effort(layouts) + part.scenario.framework.effort
            costs_s = expected_s[rows] * (1 + worth * efforts)
            index = int(np.lexsort((efforts, np.round(costs_s, 9)))[0])
            choices.append((float(costs_s[index]), position, int(rows[index]), part.estimates))
    _, _, row, estimates = min(choices, key=lambda entry: entry[:2])
    return estimates[row]


def recommend_sensible(
    candidates: Iterable[Candidates], tolerance: float | None = None
) -> Estimate | None:
    """Choose a safe, common layout, unless it is `uncommon_slowdown` times slower than the best."""
    parts = list(candidates)
    best = recommend(parts, tolerance)
    sensible = recommend(parts, tolerance, allowed=is_sensible)
    if best is None or sensible is None:
        return best
    limit_s = preferences().recommendation.uncommon_slowdown.value * best.step_time_s
    return sensible if sensible.step_time_s <= limit_s else best


_SAFER, _BOLDER = (2.0, 2.5, 4.0, 8.0, 16.0), (0.5, 0.25)
"""Degrees of caution beyond the recommendation's, which is 1."""


def trade_offs(
    candidates: Iterable[Candidates], tolerance: float | None = None
) -> tuple[Estimate, ...]:
    """Layouts to choose among, from the safest to the fastest; the recommended is among them."""
    parts = list(candidates)
    recommended = recommend(parts, tolerance)
    if recommended is None:
        return ()
    risk = max(preferences().risk, recommended.out_of_memory_probability)

    def is_safe(_: Scenario, estimates: Estimates) -> Mask:
        return np.asarray(estimates.out_of_memory_probability <= risk)

    (fastest,) = rank_layouts(parts, 1)
    chosen = [recommended]
    for caution in _SAFER:
        each = recommend(parts, tolerance, allowed=is_safe, caution=caution)
        if each is not None and each.step_time_s > chosen[0].step_time_s:
            chosen.insert(0, each)
    for caution in _BOLDER:
        each = recommend(parts, tolerance, caution=caution)
        if each is not None and fastest.step_time_s < each.step_time_s < chosen[-1].step_time_s:
            chosen.append(each)
    return (*chosen, *(() if fastest == recommended else (fastest,)))


def stall_notes(scenarios: Mapping[str, Scenario], estimates: Iterable[Estimate]) -> list[str]:
    """Warn about each layout if measured runs in similar layouts stalled."""
    shares = {
        each.layout: float(stall_probability(scenarios[each.framework], Layouts.of(each.layout)))
        for each in estimates
    }
    return [
        f"{layout}: {100 * share:.0f} % of measured runs in layouts like it took more than 1.7 "
        "times as long as estimated, for an unknown cause; time a few steps first."
        for layout, share in shares.items()
        if share
    ]
