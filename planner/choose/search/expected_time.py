"""Expected time: step times with what may go wrong, as one factor for each cause."""

import math
from collections.abc import Callable, Collection, Mapping
from dataclasses import replace

import numpy as np
from numpy.typing import ArrayLike

from planner.choose.legality import check, legal
from planner.choose.preferences import preferences
from planner.choose.search.layout_classes import is_common, is_deep_pipeline, is_starved
from planner.cost.arrays import Float, Mask, is_in
from planner.cost.estimate import Estimate, Estimates
from planner.cost.scenario import Scenario
from planner.cost.shards.layouts import Layouts
from planner.cost.uncertainty import step_outlook
from planner.describe.framework.framework import Stall
from planner.describe.layout import Layout
from planner.errors import LayoutError

_MOST = 0.999
"""Greatest chance to run out of memory that is told from certainty."""


def expected_time_s(
    scenario: Scenario, estimates: Estimates, without: Collection[str] = ()
) -> Float:
    """Step times multiplied by the factors of every cause but those in `without` [s]."""
    layouts, risk = estimates.layouts, estimates.out_of_memory_probability
    if not len(layouts):
        return np.zeros(0)
    factors = time_factors(scenario, layouts, risk, estimates.time_parts_s)
    chosen = [factor for cause, factor in factors.items() if cause not in without]
    return np.asarray(estimates.step_time_s * math.prod(chosen, start=np.ones(len(layouts))))


def factors_of(scenario: Scenario, estimate: Estimate) -> dict[str, float]:
    """Factors on the step time of one layout by cause [1]."""
    risk, layouts = np.array([estimate.out_of_memory_probability]), Layouts.of(estimate.layout)
    factors = time_factors(scenario, layouts, risk, estimate.step_time_parts_s)
    return {cause: float(factor.item()) for cause, factor in factors.items()}


def time_factors(
    scenario: Scenario, layouts: Layouts, risk: Float, parts_s: Mapping[str, ArrayLike]
) -> dict[str, Float]:
    """Factors on the step time by cause; `risk` is the chance to run out of memory [1]."""
    policy = preferences().recommendation
    risk = np.clip(risk - policy.out_of_memory_risk.value, 0.0, _MOST)
    return {
        "memory": 1 + policy.failed_start.value * risk / (1 - risk),
        **degree_factors(scenario, layouts),
        "files": np.where(_has_files(scenario, layouts), 1.0, policy.uncommon_slowdown.value),
        # mean of the log-normal interval of step times over its median
        "spread": np.exp(np.square(step_outlook(scenario, layouts, parts_s).spread) / 2),
    }


def degree_factors(scenario: Scenario, layouts: Layouts) -> dict[str, Float]:
    """Those of `time_factors` that no refinement of a layout changes, known without an estimate."""
    policy = preferences().recommendation
    rare, offload = policy.uncommon_slowdown.value, 1 + policy.offload_slowdown.value
    model, tokens = scenario.model, scenario.workload.sequence_length
    stages = layouts.pp / policy.max_pipeline_stages.value
    beyond = layouts.tp / scenario.machine.wired_devices
    slices = np.where(layouts.cp > 1, layouts.cp * policy.min_slice_tokens.value / tokens, 1.0)
    return {
        "stall": 1 + _largest(scenario, layouts, lambda stall: stall.slowdown.value - 1),
        "wires": np.where(beyond > 1, np.maximum(_for_doublings(beyond, rare), rare), 1.0),
        "slices": _for_doublings(slices, rare),
        "depth": np.where(is_deep_pipeline(model, layouts.pp), _for_doublings(stages, rare), 1.0),
        "starved": np.where(is_starved(layouts), rare, 1.0),
        "offload": np.where(layouts.keeps_states, 1.0, offload),
    }


def _has_files(scenario: Scenario, layouts: Layouts) -> Mask:
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


def stall_applies(stall: Stall, scenario: Scenario, layouts: Layouts) -> Mask:
    """Whether layouts are of the kind that stalled in measured runs."""
    devices = scenario.machine.node.num_devices
    applies = (layouts.world >= stall.min_nodes * devices) & (layouts.piped == stall.piped)
    return np.asarray(applies & is_in(layouts.zero_stage, stall.zero_stages))


def stall_probability(scenario: Scenario, layouts: Layouts) -> Float:
    """Largest share of a framework's measured runs in layouts like these that stalled [1]."""
    return _largest(scenario, layouts, lambda stall: 1.0)


def _largest(scenario: Scenario, layouts: Layouts, weight: Callable[[Stall], float]) -> Float:
    """Largest product of share and weight of the stalls that apply [1]."""
    largest = np.zeros(np.shape(layouts.dp))
    for stall in scenario.framework.stalls:
        applies = stall_applies(stall, scenario, layouts)
        largest = np.maximum(largest, np.where(applies, stall.share.value * weight(stall), 0.0))
    return largest


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
