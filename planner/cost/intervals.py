"""Intervals: how far measured step times and memory lay from estimates for runs of one class.

Split-conformal: the 5 % and 95 % quantiles of log(measured / estimated) over runs of sources
that took no part in any fit, per class of run. The quantiles are written by
`benchmarks/accuracy.py`, which also reports their coverage source by source.
"""

from __future__ import annotations

import functools
from pathlib import Path

import numpy as np
from numpy.typing import ArrayLike
from pydantic import Field

from planner.cost.arrays import Float
from planner.describe.base import Description
from planner.describe.files import read_toml
from planner.describe.framework.framework import Framework
from planner.describe.machine import Machine
from planner.describe.model.model import Model

__all__ = [
    "CLASSES",
    "GUESSED",
    "MEMORY_CLASSES",
    "RunClass",
    "class_name",
    "exceeding_probability",
    "interval_factors",
    "memory_class",
    "memory_classes",
    "memory_factors",
    "run_classes",
]

GUESSED = "guessed job"
CLASSES = ("calibrated device", "assumed device", "experts", "host-bound framework", GUESSED)
"""Classes of run: a dense model on a device whose training rate was calibrated on measured
runs; a dense model on any other device; a mixture of experts; a framework whose host keeps
devices waiting (its measured runs hold every layout, the collapsed ones too); a run of which
the model's shape, the software, the devices or the layout had to be guessed."""


MEMORY_CLASSES = ("host-bound framework", "any other framework")
"""Classes of run where memory is concerned: it depends on no rate, so devices are one. The
host-bound frameworks' runs hold every layout that was tried, to the edge of memory."""


class RunClass(Description):
    """Quantiles of measured over estimated step time, or memory, for one class of run."""

    low: float = Field(gt=0)
    """5 % quantile of measured / estimated."""
    high: float = Field(gt=0)
    """95 % quantile of measured / estimated."""
    num_runs: int = Field(ge=1)
    """Runs behind the quantiles."""
    num_sources: int = Field(ge=1)
    """Publications or logs they come from."""


class MemoryClass(RunClass):
    """Quantiles of measured over estimated memory for one class of run."""

    parts: tuple[float, ...]
    """Parts of the runs, rising; of n runs the ends are 1/(n + 1) and n/(n + 1)."""
    ratios: tuple[float, ...]
    """Which part of the runs measured at most so much of their estimate."""


class _Table(Description):
    """The file of quantiles."""

    step_time: dict[str, RunClass]
    """Quantiles of step times by class."""
    memory: dict[str, MemoryClass]
    """Quantiles of the memory of whole devices by class."""


@functools.cache
def _table() -> _Table:
    path = Path(__file__).parent / "intervals.toml"
    return _Table.described(read_toml(path), where=path.name)


def run_classes() -> dict[str, RunClass]:
    """How far measured step times were from their estimates, by class of run."""
    return _table().step_time


def memory_classes() -> dict[str, MemoryClass]:
    """How far the measured memory of devices was from its estimate, by class of run."""
    return _table().memory


def class_name(model: Model, machine: Machine, framework: Framework) -> str:
    """The class of a run.

    >>> from planner.describe.catalogue import load_framework, load_machine, load_model
    >>> class_name(load_model("gpt2"), load_machine("polaris"), load_framework("ddp"))
    'calibrated device'
    """
    if framework.host.awaits_collectives:
        return "host-bound framework"
    if model.experts is not None:
        return "experts"
    known = machine.device.sustained_fraction.kind in ("calibrated", "measured")
    return "calibrated device" if known else "assumed device"


def interval_factors(name: str) -> tuple[float, float]:
    """Factors on the step time that 90 % of measured runs of a class lie between [1].

    Counted: runs of the class that no fit has seen. Left out: memory; that runs of one source are
    alike. Vovk et al. 2005; Lei et al. 2018, arXiv:1604.04173; method.md#intervals.

    >>> low, high = interval_factors("calibrated device")
    >>> 0.5 < low < 1 < high < 2
    True
    """
    found = run_classes()[name]
    return found.low, found.high


def memory_class(framework: Framework) -> str:
    """The class of a run where memory is concerned.

    >>> from planner.describe.catalogue import load_framework
    >>> memory_class(load_framework("ddp"))
    'any other framework'
    """
    return MEMORY_CLASSES[not framework.host.awaits_collectives]


def memory_factors(name: str) -> tuple[float, float]:
    """Factors on a device's memory that 90 % of measured runs of a class lie between [1].

    Counted: runs that no fit of memory has seen, measured as the driver sees a device or with what
    the allocator holds. Left out: runs measured by their tensors alone, which need not fit; that
    runs of one source are alike. Vovk et al. 2005; Lei et al. 2018, arXiv:1604.04173;
    method.md#intervals.

    >>> low, high = memory_factors("any other framework")
    >>> 0.5 < low < 1 < high < 1.5
    True
    """
    found = memory_classes()[name]
    return found.low, found.high


def exceeding_probability(name: str, room: ArrayLike) -> Float:
    """Probability that a run of a class takes more than `room` times its estimated memory [1].

    Counted: the runs of the class that no fit has seen, between their quantiles by the logarithm;
    beyond all of them as often as one further run would lie there. Left out: that runs of one
    source are alike. method.md#intervals.

    >>> low, _, high = (float(exceeding_probability("any other framework", r)) for r in (2, 1, 0.5))
    >>> low < 0.05, high > 0.95
    (True, True)
    """
    found = memory_classes()[name]
    return 1 - np.interp(np.log(room), np.log(found.ratios), found.parts)
