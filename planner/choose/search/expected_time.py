"""Expected time: step times with what may go wrong, as one factor for each cause."""

from __future__ import annotations

import math
from collections.abc import Collection
from dataclasses import replace

import numpy as np

from planner.choose.legality import check, legal
from planner.choose.preferences import preferences
from planner.choose.search.pruning import is_common, is_deep_pipeline, is_starved
from planner.cost.arrays import Float, Mask, is_in
from planner.cost.estimate import Estimate, Estimates
from planner.cost.scenario import Scenario
from planner.cost.shards.layouts import Layouts
from planner.cost.uncertainty import step_outlook
from planner.describe.framework.framework import Stall
from planner.describe.layout import Layout
from planner.errors import LayoutError
from planner.units import counted

CAUSES = ("memory", "stall", "wires", "slices", "depth", "starved", "offload", "files", "spread")
"""Risks that are measured or judged; a factor of 1 is none."""
_MOST = 0.999
"""Greatest chance to run out of memory that is told from certainty."""


def expected_time_s(
    scenario: Scenario, estimates: Estimates, without: Collection[str] = ()
) -> Float:
    """Step times multiplied by the factors of every cause but those in `without` [s].

    recommendation.md#recommended.
    """
    layouts, risk = estimates.layouts, estimates.out_of_memory_probability
    factors = time_factors(scenario, layouts, risk)
    if "spread" not in without and len(layouts):
        spread = step_outlook(scenario, layouts, estimates.time_parts_s).spread
        factors["spread"] = np.exp(np.square(spread) / 2)  # mean of a log-normal over its median
    chosen = [factor for cause, factor in factors.items() if cause not in without]
    return np.asarray(estimates.step_time_s * math.prod(chosen, start=np.ones(len(layouts))))


def time_factors(scenario: Scenario, layouts: Layouts, risk: Float) -> dict[str, Float]:
    """Factors on the step time by cause; `risk` is the chance to run out of memory [1].

    A start that runs out of memory is repeated, p / (1 - p) times on average; a chance that counts
    as safe costs nothing.
    """
    policy = preferences().recommendation
    risk = np.clip(risk - policy.out_of_memory_risk.value, 0.0, _MOST)
    rare, offload = policy.uncommon_slowdown.value, 1 + policy.offload_slowdown.value
    model, tokens = scenario.model, scenario.workload.sequence_length
    stages = layouts.pp / policy.max_pipeline_stages.value
    beyond = layouts.tp / scenario.machine.wired_devices
    slices = np.where(layouts.cp > 1, layouts.cp * policy.min_slice_tokens.value / tokens, 1.0)
    return {
        "memory": 1 + policy.failed_start.value * risk / (1 - risk),
        "stall": stall_slowdown(scenario, layouts),
        "wires": np.where(beyond > 1, np.maximum(_for_doublings(beyond, rare), rare), 1.0),
        "slices": _for_doublings(slices, rare),
        "depth": np.where(is_deep_pipeline(model, layouts.pp), _for_doublings(stages, rare), 1.0),
        "starved": np.where(is_starved(layouts), rare, 1.0),
        "offload": np.where(layouts.keeps_states, 1.0, offload),
        "files": np.where(_has_files(scenario, layouts), 1.0, rare),
    }


def _has_files(scenario: Scenario, layouts: Layouts) -> Mask:
    """Whether the framework's configuration files can express each layout."""
    model, workload, framework = scenario.model, scenario.workload, scenario.framework
    if framework.code.lacks(model, workload):
        return np.zeros(np.shape(layouts.dp), dtype=np.bool_)
    limited = framework.limit_to_files(model, workload)
    if limited == framework:
        return np.ones(np.shape(layouts.dp), dtype=np.bool_)
    return legal(replace(scenario, framework=limited), layouts, set(Layout.model_fields))[0]


def _for_doublings(excess: Float, factor: float) -> Float:
    """The factor once for every doubling beyond a limit: no cliff where a limit is passed."""
    return np.asarray(factor ** np.log2(np.maximum(excess, 1.0)))


def _applies(stall: Stall, scenario: Scenario, layouts: Layouts) -> Mask:
    devices = scenario.machine.node.num_devices
    applies = (layouts.world >= stall.min_nodes * devices) & (layouts.piped == stall.piped)
    return np.asarray(applies & is_in(layouts.zero_stage, stall.zero_stages))


def stall_probability(scenario: Scenario, layouts: Layouts) -> Float:
    """Largest share of a framework's measured runs in layouts like these that stalled [1]."""
    probability = np.zeros(np.shape(layouts.dp))
    for stall in scenario.framework.stalls:
        share = np.where(_applies(stall, scenario, layouts), stall.share.value, 0.0)
        probability = np.maximum(probability, share)
    return probability


def stall_slowdown(scenario: Scenario, layouts: Layouts) -> Float:
    """Mean of measured over estimated time, as far as stalls make it longer [1]."""
    slowdown = np.ones(np.shape(layouts.dp))
    for stall in scenario.framework.stalls:
        mean = 1 + stall.share.value * (stall.slowdown.value - 1)
        slowdown = np.maximum(slowdown, np.where(_applies(stall, scenario, layouts), mean, 1.0))
    return slowdown


def is_sensible(scenario: Scenario, estimates: Estimates) -> Mask:
    """Whether layouts are safe in memory, steady, in common use, and keep states on the device."""
    layouts, policy = estimates.layouts, preferences().recommendation
    is_safe = estimates.out_of_memory_probability <= policy.out_of_memory_risk.value
    shallow = ~is_deep_pipeline(scenario.model, layouts.pp)
    usual = is_common(scenario, layouts) & shallow & layouts.keeps_states
    return np.asarray(is_safe & usual & ~likely_stalls(scenario, layouts))


def likely_stalls(scenario: Scenario, layouts: Layouts) -> Mask:
    """Where more measured runs stalled than did not."""
    limit = preferences().recommendation.stall_probability.value
    return np.asarray(stall_probability(scenario, layouts) > limit)


def reason_against(scenario: Scenario, faster: Estimate, chosen: Estimate, of: Scenario) -> str:
    """Explain why a faster layout is not recommended: the rules, their numbers and sources.

    `scenario` is that of the faster layout, `of` that of the chosen one. Empty where only effort
    decides.
    """
    risky, safe = _factors(scenario, faster), _factors(of, chosen)
    ratios = {cause: risky[cause] / safe[cause] for cause in risky}
    least = 1 + preferences().recommendation.tolerance.value / 2
    causes = sorted((c for c in ratios if ratios[c] > least), key=lambda c: -ratios[c])
    if not causes:
        return ""
    return "; ".join(_reason(cause, scenario, faster, risky[cause]) for cause in causes)


def _reason(cause: str, scenario: Scenario, estimate: Estimate, factor: float) -> str:
    """Write one cause with its number and the preference or measurement behind it."""
    layout, times = estimate.layout, f"{factor:.2g} times the time"
    if cause == "stall":
        stall = _stall_of(scenario, Layouts.of(layout))
        return (
            f"{100 * stall.share.value:.0f} % of measured runs in similar layouts stalled and took "
            f"{stall.slowdown.value:.1f} times their estimate ({stall.share.source})"
        )
    micro_batches = counted(layout.grad_accumulation, "micro-batch")
    slice_tokens = scenario.workload.sequence_length // layout.cp
    return {
        "memory": f"its out-of-memory risk of {100 * estimate.out_of_memory_probability:.0f} % "
        f"counts as {times} (preference failed_start)",
        "wires": f"tensor parallelism over {layout.tp}, beyond the {scenario.machine.wired_devices}"
        f" wired devices, counts as {times} (preference uncommon_slowdown)",
        "slices": f"slices of {slice_tokens:,} tokens, shorter than in published runs, count as "
        f"{times} (preference min_slice_tokens)",
        "depth": f"{layout.pp} stages, more than in published runs of this size, count as {times} "
        "(preference max_pipeline_stages)",
        "starved": f"{layout.pp} stages with {micro_batches}, so that some always wait, count as "
        f"{times} (preference uncommon_slowdown)",
        "offload": f"offload counts as {times} (preference offload_slowdown)",
        "files": f"no files can be written for it ({why_no_files(scenario, layout)}), which "
        f"counts as {times} (preference uncommon_slowdown)",
    }[cause]


def why_no_files(scenario: Scenario, layout: Layout) -> str:
    """Why the files of a framework cannot express a layout."""
    model, workload, framework = scenario.model, scenario.workload, scenario.framework
    if reason := framework.code.lacks(model, workload):
        return reason
    try:
        check(replace(scenario, framework=framework.limit_to_files(model, workload)), layout)
    except LayoutError as error:
        return str(error)
    return ""


def _factors(scenario: Scenario, estimate: Estimate) -> dict[str, float]:
    risk = np.array([estimate.out_of_memory_probability])
    factors = time_factors(scenario, Layouts.of(estimate.layout), risk)
    return {cause: float(factor.item()) for cause, factor in factors.items()}


def _stall_of(scenario: Scenario, layouts: Layouts) -> Stall:
    stalls = [s for s in scenario.framework.stalls if _applies(s, scenario, layouts).item()]
    return max(stalls, key=lambda stall: stall.share.value * (stall.slowdown.value - 1))
