"""Memory: how far measured memory of devices lies from estimates, by class of run or by experience.

Split-conformal: the 5 % and 95 % quantiles of measured / estimated over runs that no constant of
memory was fitted on. They are written by `benchmarks/accuracy.py`.
"""

from __future__ import annotations

import functools
import math
from pathlib import Path

import numpy as np
from numpy.typing import ArrayLike
from pydantic import Field

from planner.cost.arrays import Float
from planner.cost.scenario import Scenario
from planner.cost.scenario.experience import Outlook, outlook
from planner.cost.scenario.prior import GAUSSIAN, priors
from planner.cost.shards.layouts import Layouts
from planner.cost.uncertainty.step_time_spread import traits_of
from planner.describe.base import Description
from planner.describe.files import read_toml
from planner.describe.framework.framework import Framework

__all__ = [
    "MEMORY_CLASSES",
    "MemoryClass",
    "exceeding_probability",
    "memory_class",
    "memory_classes",
    "memory_outlook",
]

MEMORY_CLASSES = ("host-bound framework", "any other framework")
"""Classes of run where memory is concerned: it depends on no rate, so devices are one. The
host-bound frameworks' runs hold every layout that was tried, to the edge of memory."""


class MemoryClass(Description):
    """Quantiles of measured over estimated memory for one class of run."""

    low: float = Field(gt=0)
    """5 % quantile of measured / estimated."""
    high: float = Field(gt=0)
    """95 % quantile of measured / estimated."""
    num_runs: int = Field(ge=1)
    """Runs behind the quantiles."""
    num_sources: int = Field(ge=1)
    """Publications or logs they come from."""
    parts: tuple[float, ...]
    """Parts of the runs, rising; of n runs the ends are 1/(n + 1) and n/(n + 1)."""
    ratios: tuple[float, ...]
    """Which part of the runs measured at most so much of their estimate."""


@functools.cache
def memory_classes() -> dict[str, MemoryClass]:
    """How far the measured memory of devices was from its estimate, by class of run."""
    path = Path(__file__).with_name("memory_spread.toml")
    return {
        name: MemoryClass.described(values, where=f"{path.name}, {name}")
        for name, values in read_toml(path).items()
    }


def memory_class(framework: Framework) -> str:
    """The class of a run where memory is concerned.

    >>> memory_class(load_framework("ddp"))
    'any other framework'
    """
    return MEMORY_CLASSES[not framework.host.awaits_collectives]


def memory_outlook(scenario: Scenario, layouts: Layouts) -> Outlook:
    """What to expect of the memory of layouts' devices.

    Counted: quantiles of runs of the class; the runs that were measured before, where there are
    any. Left out: of the class's runs those measured by their tensors alone, which need not fit;
    that runs of one source are alike. Vovk et al. 2005; Lei et al. 2018, arXiv:1604.04173;
    method.md#intervals.

    >>> scenario = make_scenario("gpt2", "ddp")
    >>> low, high = memory_outlook(scenario, Layouts.broadcast(dp=[4])).around()
    >>> low < 1 < high
    True
    """
    measured = scenario.experience.memory
    if measured is not None:
        return outlook(priors().memory, measured, traits_of(scenario, layouts, {}))
    spread_of_class = memory_classes()[memory_class(scenario.framework)]
    unbiased = np.ones(len(layouts))
    spread = math.log(spread_of_class.high / spread_of_class.low) / (2 * GAUSSIAN)
    return Outlook(
        unbiased, unbiased * spread_of_class.low, unbiased * spread_of_class.high, unbiased * spread
    )


def exceeding_probability(scenario: Scenario, layouts: Layouts, room: ArrayLike) -> Float:
    """Probability that runs take more than `room` times the memory that is expected [1].

    Counted: the runs of the class that no fit has seen, between their quantiles by the logarithm,
    beyond all of them as often as one further run would lie there; with runs measured before a
    Gaussian of the logarithm. Left out: that runs of one source are alike. method.md#intervals.

    >>> scenario = make_scenario("gpt2", "ddp")
    >>> layouts = Layouts.broadcast(dp=[4, 4, 4])
    >>> [round(float(p)) for p in exceeding_probability(scenario, layouts, [2, 1, 0.5])]
    [0, 1, 1]
    """
    if scenario.experience.memory is not None:
        spread = memory_outlook(scenario, layouts).spread
        return _gaussian_tail(np.log(room) / np.reshape(spread, np.shape(room)))
    memory_class_of = memory_classes()[memory_class(scenario.framework)]
    return 1 - np.interp(np.log(room), np.log(memory_class_of.ratios), memory_class_of.parts)


def _gaussian_tail(values: Float) -> Float:
    """Probability that a standard Gaussian exceeds values [1]."""
    return np.array([math.erfc(v / math.sqrt(2)) / 2 for v in np.ravel(values)]).reshape(
        np.shape(values)
    )
