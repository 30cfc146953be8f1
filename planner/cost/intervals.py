"""Intervals: how far measured step times lay from estimates for runs of the same class.

Split-conformal: the 5 % and 95 % quantiles of log(measured / estimated) over runs of sources
that took no part in any fit, per class of run. The quantiles are written by
`benchmarks/accuracy.py`, which also reports their coverage source by source.
"""

from __future__ import annotations

import functools
from pathlib import Path

from pydantic import Field

from planner.describe.base import Description
from planner.describe.files import read_toml
from planner.describe.framework import Framework
from planner.describe.machine import Machine
from planner.describe.model.model import Model

__all__ = ["CLASSES", "GUESSED", "RunClass", "class_name", "interval_factors", "run_classes"]

GUESSED = "guessed job"
CLASSES = ("calibrated device", "assumed device", "experts", "host-bound framework", GUESSED)
"""Classes of run: a dense model on a device whose training rate was calibrated on measured
runs; a dense model on any other device; a mixture of experts; a framework whose host keeps
devices waiting (its measured runs hold every layout, the collapsed ones too); a run of which
the model's shape, the software, the devices or the layout had to be guessed."""


class RunClass(Description):
    """Quantiles of measured over estimated step time for one class of run."""

    low: float = Field(gt=0)
    """5 % quantile of measured / estimated."""
    high: float = Field(gt=0)
    """95 % quantile of measured / estimated."""
    num_runs: int = Field(ge=1)
    """Runs behind the quantiles."""
    num_sources: int = Field(ge=1)
    """Publications or logs they come from."""


class _Table(Description):
    """The file of quantiles."""

    classes: dict[str, RunClass]
    """Quantiles by class."""


@functools.cache
def run_classes() -> dict[str, RunClass]:
    """How far measured runs were from their estimates, by class of run."""
    path = Path(__file__).parent / "intervals.toml"
    return _Table.described({"classes": read_toml(path)}, where=path.name).classes


def class_name(model: Model, machine: Machine, framework: Framework) -> str:
    """The class of a run.

    >>> from planner.describe.catalogue import load_framework, load_machine, load_model
    >>> class_name(load_model("gpt2"), load_machine("polaris"), load_framework("ddp"))
    'calibrated device'
    """
    if framework.host is not None:
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
