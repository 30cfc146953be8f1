"""Classes of layouts: of each, a search finds the fastest; some are uncommon in practice."""

import numpy as np

from planner.choose.preferences import preferences
from planner.cost.arrays import Float, Int, Mask
from planner.cost.scenario import Scenario
from planner.cost.shards.layouts import Layouts
from planner.describe.layout import OFFLOAD
from planner.describe.model.model import Model

_DATA, _TENSOR, _PIPELINE, _TENSOR_PIPELINE, _THREE_AXES, _UNCLASSIFIED = range(6)
"""Axes in use; `_UNCLASSIFIED`: context parallelism, or experts with only data parallelism."""
_ZERO_STAGES, _FLAGS = 4, 2**3

NUM_CLASSES = (_UNCLASSIFIED + 1) * _ZERO_STAGES * len(OFFLOAD) * _FLAGS
_CLASSES = np.arange(NUM_CLASSES)
_AXES = _CLASSES // (_ZERO_STAGES * len(OFFLOAD) * _FLAGS)
# with data parallelism only, offload is a strategy of its own
_OFFLOADED = np.where(_AXES == _DATA, 0, _CLASSES // _FLAGS % len(OFFLOAD))

_PREFERRED: Int = _CLASSES // _FLAGS * _FLAGS - _OFFLOADED * _FLAGS
"""For each class, the class recommended in its place unless that is much slower."""
_IS_PREFERRED = _PREFERRED == _CLASSES
_IS_UNCLASSIFIED = _AXES == _UNCLASSIFIED
"""Classes that belong to no classic strategy."""


def classify_layouts(scenario: Scenario, layouts: Layouts) -> Int:
    """Class of each layout: axes in use, ZeRO stage, offload, and uncommon features."""
    tensor, piped = layouts.tp > 1, layouts.piped
    both = np.where(layouts.dp > 1, _THREE_AXES, _TENSOR_PIPELINE)
    axes = np.where(tensor & piped, both, _TENSOR * tensor + _PIPELINE * piped)
    is_other = (layouts.cp > 1) | ((layouts.ep > 1) & (axes == _DATA))
    axes = np.where(is_other, _UNCLASSIFIED, axes)
    # with both tp and pp, strategies ignore the ZeRO stage, but stalls may depend on it
    by_stage = (axes < _TENSOR_PIPELINE) | bool(scenario.framework.stalls)
    sharded = np.where(by_stage, layouts.zero_stage, 0)
    offload = np.where(axes == _DATA, layouts.offload, layouts.offload > 0)
    classes = (axes * _ZERO_STAGES + sharded) * len(OFFLOAD) + offload
    for flag in (
        _leaves_wires(scenario, layouts),
        _has_short_slices(scenario, layouts),
        # for every model: a separate class loses no layout, and the recommendation decides
        layouts.pp > preferences().recommendation.max_pipeline_stages.value,
    ):
        classes = classes * 2 + flag
    return np.asarray(classes)


def is_common(scenario: Scenario, layouts: Layouts) -> Mask:
    """True if tp stays on wired devices (arXiv:2104.04473) and sequence slices are long enough."""
    return ~_leaves_wires(scenario, layouts) & ~_has_short_slices(scenario, layouts)


def _leaves_wires(scenario: Scenario, layouts: Layouts) -> Mask:
    """True if tensor parallelism spans devices without direct links."""
    return np.asarray(layouts.tp > scenario.machine.wired_devices)


def _has_short_slices(scenario: Scenario, layouts: Layouts) -> Mask:
    """True if context parallelism has fewer tokens per slice than in common use."""
    shortest = layouts.cp * preferences().recommendation.min_slice_tokens.value
    return np.asarray((layouts.cp > 1) & (scenario.workload.sequence_length < shortest))


def is_deep_pipeline(model: Model, pp: Int | int) -> Mask:
    """True if a model has more stages than any published run of its size (arXiv:2104.04473)."""
    policy = preferences().recommendation
    is_deep = np.asarray(pp) > policy.max_pipeline_stages.value
    return is_deep & (model.num_params < policy.deep_pipeline_params.value)


def is_starved(layouts: Layouts) -> Mask:
    """Whether a pipeline has fewer micro-batches than stages, so that some are always idle."""
    return np.asarray(layouts.num_microbatches < layouts.pp)


def time_limits_s(fastest_s: Float, factor: float, slowest_s: float) -> Float:
    """Step time by class above which no layout matters, from the fastest of each class [s]."""
    limits = factor * fastest_s
    limits = np.where(_IS_PREFERRED, limits, np.minimum(limits, limits[_PREFERRED]))
    fastest = factor * float(np.min(fastest_s[_IS_PREFERRED]))
    # layouts outside the classic strategies matter only among the fastest of all
    limits = np.where(_IS_UNCLASSIFIED, np.minimum(limits, fastest), limits)
    return np.maximum(limits, max(slowest_s, fastest) if np.isfinite(fastest) else 0.0)
