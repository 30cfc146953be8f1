"""Layout classes: a number for each layout, by strategy and by what is in common use."""

from __future__ import annotations

import numpy as np

from planner.choose.preferences import preferences
from planner.cost.arrays import Int, Mask
from planner.cost.scenario import Scenario
from planner.cost.shards.layouts import Layouts
from planner.describe.layout import OFFLOAD
from planner.describe.model.model import Model

__all__ = [
    "IS_PREFERRED",
    "IS_UNCLASSIFIED",
    "NUM_CLASSES",
    "PREFERRED",
    "classify_layouts",
    "is_common",
    "is_deep_pipeline",
]

_DATA, _TENSOR, _PIPELINE, _TENSOR_PIPELINE, _THREE_AXES, _UNCLASSIFIED = range(6)
"""Axes in use; `_OTHER` has context parallelism, or experts and data parallelism alone."""
_ZERO_STAGES, _FLAGS = 4, 2**3

NUM_CLASSES = (_UNCLASSIFIED + 1) * _ZERO_STAGES * len(OFFLOAD) * _FLAGS
_CLASSES = np.arange(NUM_CLASSES)
_AXES = _CLASSES // (_ZERO_STAGES * len(OFFLOAD) * _FLAGS)
# beside data parallelism alone, offload is a strategy of its own
_OFFLOADED = np.where(_AXES == _DATA, 0, _CLASSES // _FLAGS % len(OFFLOAD))

PREFERRED: Int = _CLASSES // _FLAGS * _FLAGS - _OFFLOADED * _FLAGS
"""For every class the one that is recommended in its place unless that is much slower."""
IS_PREFERRED = PREFERRED == _CLASSES
IS_UNCLASSIFIED = _AXES == _UNCLASSIFIED
"""Classes of no classic strategy."""


def classify_layouts(scenario: Scenario, layouts: Layouts) -> Int:
    """The class of each layout: axes in use, sharding and offload, how far axes reach."""
    tensor, piped = layouts.tp > 1, layouts.piped
    both = np.where(layouts.dp > 1, _THREE_AXES, _TENSOR_PIPELINE)
    axes = np.where(tensor & piped, both, _TENSOR * tensor + _PIPELINE * piped)
    is_other = (layouts.cp > 1) | ((layouts.ep > 1) & (axes == _DATA))
    axes = np.where(is_other, _UNCLASSIFIED, axes)
    # strategies with both axes do not differ by ZeRO stage, but stalls may
    by_stage = (axes < _TENSOR_PIPELINE) | bool(scenario.framework.stalls)
    sharded = np.where(by_stage, layouts.zero_stage, 0)
    offload = np.where(axes == _DATA, layouts.offload, layouts.offload > 0)
    classes = (axes * _ZERO_STAGES + sharded) * len(OFFLOAD) + offload
    for flag in (
        _leaves_wires(scenario, layouts),
        _has_short_slices(scenario, layouts),
        # of every model: a class of its own loses no layout, and the recommendation decides
        layouts.pp > preferences().recommendation.max_pipeline_stages.value,
    ):
        classes = classes * 2 + flag
    return np.asarray(classes)


def is_common(scenario: Scenario, layouts: Layouts) -> Mask:
    """Whether layers lie on wired devices (arXiv:2104.04473) and slices of sequences are long."""
    return ~_leaves_wires(scenario, layouts) & ~_has_short_slices(scenario, layouts)


def _leaves_wires(scenario: Scenario, layouts: Layouts) -> Mask:
    """Tensor parallelism over devices that are not wired to each other."""
    return np.asarray(layouts.tp > scenario.machine.wired_devices)


def _has_short_slices(scenario: Scenario, layouts: Layouts) -> Mask:
    """Context parallelism with fewer tokens a slice than in common use."""
    shortest = preferences().recommendation.min_slice_tokens.value
    tokens = scenario.workload.sequence_length
    return np.asarray((layouts.cp > 1) & (tokens < layouts.cp * shortest))


def is_deep_pipeline(model: Model, pp: Int | int) -> Mask:
    """Whether a model has more stages than any published run of its size (arXiv:2104.04473)."""
    policy = preferences().recommendation
    is_deep = np.asarray(pp) > policy.max_pipeline_stages.value
    return is_deep & (model.num_params < policy.deep_pipeline_params.value)
