"""Recommendation: rank the layouts that fit by strategy, and choose the one to run."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence

import numpy as np

from planner.choose.preferences import preferences
from planner.choose.search import Candidates, is_common, is_deep_pipeline, rank_fastest
from planner.cost.arrays import Float, Mask, distinct, is_in
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


# --- ranking --------------------------------------------------------------------------------------


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


def _offloads_needlessly(estimate: Estimate, faster: Estimate) -> bool:
    """True if a faster layout of the same degrees and framework is safe without offload."""
    if estimate.layout.offload == "none" or faster.layout.offload != "none":
        return False
    alike = all(getattr(estimate.layout, x) == getattr(faster.layout, x) for x in _DEGREES)
    risk = max(preferences().risk, estimate.out_of_memory_probability)
    safe = faster.out_of_memory_probability <= risk
    return alike and estimate.framework == faster.framework and safe


# --- the layout to run ----------------------------------------------------------------------------


def recommend(candidates: Iterable[Candidates], tolerance: float | None = None) -> Estimate | None:
    """Choose the simplest layout that is safe in memory and within `tolerance` of the fastest."""
    parts = [part for part in candidates if len(part.estimates)]
    if not parts:
        return None
    masks = _recommendable(parts)
    tolerance = preferences().tolerance if tolerance is None else tolerance
    limit_s = (1 + tolerance) * _fastest_s(parts, masks)
    choices: list[tuple[float, float, int, Estimate]] = []
    for position, (part, mask) in enumerate(zip(parts, masks, strict=True)):
        estimates = part.estimates
        rows = np.flatnonzero(mask & (estimates.step_time_s <= limit_s))
        if len(rows):
            efforts = setup_effort(estimates.layouts.take(rows)) + part.scenario.framework.effort
            index = int(np.lexsort((estimates.step_time_s[rows], efforts))[0])
            estimate = estimates[int(rows[index])]
            choices.append((float(efforts[index]), estimate.step_time_s, position, estimate))
    return min(choices, key=lambda entry: entry[:3])[3]


def _recommendable(parts: Sequence[Candidates]) -> list[Mask]:
    """Mask layouts to choose from: safe and, if possible, free of stalls, common, not offloaded."""
    policy = preferences().recommendation
    least_risk = min(float(np.min(part.estimates.out_of_memory_probability)) for part in parts)
    risk = max(policy.out_of_memory_risk.value, least_risk)
    safe = [part.estimates.out_of_memory_probability <= risk for part in parts]
    steady = _restrict(parts, safe, lambda s, x: ~likely_stalls(s, x))
    safe = steady if any(np.any(mask) for mask in steady) else safe
    common = _restrict(parts, safe, is_common)
    shallow = _restrict(parts, common, lambda s, x: ~is_deep_pipeline(s.model, x.pp))
    limit_s = policy.uncommon_slowdown.value * _fastest_s(parts, safe)
    masks = next(m for m in (shallow, common, safe) if _fastest_s(parts, m) <= limit_s)
    on_device = _restrict(parts, masks, lambda _, x: x.keeps_states)
    limit_s = (1 + policy.offload_slowdown.value) * _fastest_s(parts, masks)
    return on_device if _fastest_s(parts, on_device) <= limit_s else masks


def _restrict(
    parts: Sequence[Candidates],
    masks: Sequence[Mask],
    condition: Callable[[Scenario, Layouts], Mask],
) -> list[Mask]:
    """Restrict the masks to layouts that meet a condition."""
    return [
        mask & condition(part.scenario, part.estimates.layouts)
        for part, mask in zip(parts, masks, strict=True)
    ]


def _fastest_s(parts: Sequence[Candidates], masks: Sequence[Mask]) -> float:
    """Shortest step time under the masks; infinite if the masks are empty [s]."""
    return min(
        float(np.min(part.estimates.step_time_s, where=mask, initial=np.inf))
        for part, mask in zip(parts, masks, strict=True)
    )


# --- stalls ---------------------------------------------------------------------------------------


def stall_probability(scenario: Scenario, layouts: Layouts) -> Float:
    """Largest share of stalled runs among the framework's measured runs in similar layouts [1]."""
    devices = scenario.machine.node.num_devices
    probability = np.zeros(np.shape(layouts.dp))
    for stall in scenario.framework.stalls:
        applies = (layouts.world >= stall.min_nodes * devices) & (layouts.piped == stall.piped)
        applies = applies & is_in(layouts.zero_stage, stall.zero_stages)
        applies = applies & ((layouts.tp > devices) | (not stall.beyond_node))
        probability = np.maximum(probability, np.where(applies, stall.share.value, 0.0))
    return probability


def likely_stalls(scenario: Scenario, layouts: Layouts) -> Mask:
    """True where the stall probability exceeds the limit in the preferences."""
    limit = preferences().recommendation.stall_probability.value
    return stall_probability(scenario, layouts) > limit


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
