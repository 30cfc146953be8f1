"""Kinds: what an answer tells apart, as a number for each layout.

That is a classic strategy, and what is recommended only where there is little else: tensor
parallelism beyond wires, deep pipelines, short slices of sequences, offload.
"""

from __future__ import annotations

import numpy as np

from planner.cost.arrays import Int
from planner.cost.scenario import Scenario
from planner.cost.shards.layouts import Layouts
from planner.describe.layout import OFFLOAD

__all__ = ["IS_PREFERRED", "IS_UNCLASSIFIED", "NUM_CLASSES", "PREFERRED", "classify_layouts"]

_PLAIN, _TENSOR, _STAGES, _WITHOUT_DATA, _WITH_DATA, _OTHERS = range(6)
"""Axes in use: none or data, one of tensor and pipeline, both, any with context or experts."""
_ZERO_STAGES, _FLAGS = 4, 2**3
_DEEP, _SLICE = 16, 4096
# stages above which, and tokens of a slice below which, a layout is not preferred

NUM_CLASSES = (_OTHERS + 1) * _ZERO_STAGES * len(OFFLOAD) * _FLAGS
_KINDS = np.arange(NUM_CLASSES)
_AXES = _KINDS // (_ZERO_STAGES * len(OFFLOAD) * _FLAGS)
_MOVED = np.where(_AXES == _PLAIN, 0, _KINDS // _FLAGS % len(OFFLOAD))
# offload is a strategy of its own beside data parallelism

PREFERRED: Int = _KINDS // _FLAGS * _FLAGS - _MOVED * _FLAGS
"""Of every kind the one that is recommended in its place unless that is much slower."""
IS_PREFERRED = PREFERRED == _KINDS
IS_UNCLASSIFIED = _AXES == _OTHERS


def classify_layouts(scenario: Scenario, layouts: Layouts) -> Int:
    """The kind of each layout [1].

    Counted: axes in use, what is sharded and offloaded as far as strategies tell it apart, how far
    axes reach. Left out: degrees, micro-batches, recompute. method.md#search.

    >>> from planner import Layout, Workload, load_framework, load_machine, load_model
    >>> job = Scenario(load_model("llama-3-8b"), load_machine("polaris"), Workload(),
    ...                load_framework("megatron-lm"))
    >>> near, far = classify_layouts(job, Layouts.stack([Layout(dp=2, tp=4), Layout(dp=2, tp=8)]))
    >>> bool(PREFERRED[far] == near), bool(PREFERRED[near] == near)     # 4 devices a node
    (True, True)
    """
    tensor, stages = layouts.tp > 1, layouts.piped
    both = np.where(layouts.dp > 1, _WITH_DATA, _WITHOUT_DATA)
    axes = np.where(tensor & stages, both, _TENSOR * tensor + _STAGES * stages)
    others = (layouts.cp > 1) | ((layouts.ep > 1) & (axes == _PLAIN))
    axes = np.where(others, _OTHERS, axes)
    # with both axes a strategy is one whatever is sharded; which runs stall may hang on it
    told = (axes < _WITHOUT_DATA) | bool(scenario.framework.stalls)
    sharded = np.where(told, layouts.zero_stage, 0)
    offload = np.where(axes == _PLAIN, layouts.offload, layouts.offload > 0)
    kinds = (axes * _ZERO_STAGES + sharded) * len(OFFLOAD) + offload
    far = layouts.tp > scenario.machine.wired_devices
    short = (layouts.cp > 1) & (scenario.workload.sequence_length // layouts.cp < _SLICE)
    for flag in (far, short, layouts.pp > _DEEP):
        kinds = kinds * 2 + flag
    return np.asarray(kinds)
