"""Prior: spread of measured runs around estimates, and which runs share their errors."""

from __future__ import annotations

import functools
from dataclasses import dataclass
from pathlib import Path

import numpy as np
from numpy.typing import NDArray
from pydantic import Field

from planner.cost.arrays import Arrays, Float
from planner.describe.base import Description
from planner.describe.files import read_toml
from planner.describe.framework.framework import Framework


@dataclass(frozen=True, slots=True)
class Traits(Arrays):
    """Properties of n runs that determine how far their estimates may be off."""

    shares: Float
    """(n, 3) shares of the estimated step: computation, traffic, host time."""
    size: Float
    """(n, 2) logarithms of parameters and sequence length."""
    shape: Float
    """(n, 6) log2 of tp, pp, ep, micro-batch, dp * cp; then 2 with full recompute, else 0."""
    growth: Float
    """(n,) doublings of the device count beyond a node of eight."""
    assumed_rate: Float
    """(n,) 1 if the device's sustained rate was not measured."""
    assumed_links: Float
    """(n,) 1 if the rate of the network (in one node: of its fabric) was not measured."""
    experts: Float
    """(n,) 1 if the model has experts."""
    guessed: Float
    """(n,) 1 if the model, software, devices or layout had to be guessed."""
    machine: NDArray[np.str_]
    """(n,) names of machines."""
    framework: NDArray[np.str_]
    """(n,) names of framework families."""

    def __len__(self) -> int:
        return len(self.growth)


GAUSSIAN = 1.645
"""Standard deviations from a Gaussian's mean to its 95 % quantile."""

Spread = float
"""Standard deviation of log(measured / estimated)."""


class Prior(Description):
    """Standard deviations of log(measured / estimated), by source of error."""

    common: Spread = Field(gt=0)
    """Error shared by all runs."""
    compute: Spread = Field(gt=0)
    """Error of computation shared by runs on a machine, times its share of the step."""
    assumed_rate: Spread = Field(gt=0)
    """Further error of computation on a machine whose device was not measured in training."""
    traffic: Spread = Field(gt=0)
    """Error of traffic shared by runs on a machine, times its share of the step."""
    assumed_links: Spread = Field(gt=0)
    """Further error of traffic on a machine whose network or links were not measured."""
    host: Spread = Field(gt=0)
    """Error of host time shared by runs of a framework, times its share of the step."""
    model: Spread = Field(gt=0)
    """Error shared by models and sequences of similar size."""
    layout: Spread = Field(gt=0)
    """Error shared by similar layouts of models of similar size."""
    growth: Spread = Field(gt=0)
    """Error shared by all runs, per doubling of the devices beyond a node of eight."""
    alone: Spread = Field(gt=0)
    """Error of a single run."""
    experts_alone: Spread = Field(gt=0)
    """Further error of a single run if its model has experts."""
    traffic_alone: Spread = Field(gt=0)
    """Error of a single run, times the share of traffic in its step."""
    host_alone: Spread = Field(gt=0)
    """Error of a single run, times the share of host time in its step."""
    odd: Spread = Field(gt=0)
    """Error of an odd site or run: one that differs from its description."""
    odd_sites: float = Field(gt=0, lt=0.5)
    """Fraction of sites that are odd."""
    odd_runs: float = Field(gt=0, lt=0.5)
    """Fraction of runs that are odd."""
    size_reach: float = Field(gt=0)
    """Distance in log(parameters) and log(sequence) within which models are similar."""
    shape_reach: float = Field(gt=0)
    """Doublings of degrees within which layouts are similar."""
    low: float = Field(lt=0, default=-GAUSSIAN)
    """5 % quantile of log(measured / estimated) of dense models, in standard deviations."""
    high: float = Field(gt=0, default=GAUSSIAN)
    """95 % quantile of log(measured / estimated) of dense models, in standard deviations."""
    experts_low: float = Field(lt=0, default=-GAUSSIAN)
    """`low` of models with experts."""
    experts_high: float = Field(gt=0, default=GAUSSIAN)
    """`high` of models with experts."""

    def covariance(self, a: Traits, b: Traits, *, odd: bool = False) -> Float:
        """Covariance (n, m) of log(measured / estimated) between runs [1]."""
        machine = a.machine[:, None] == b.machine[None]
        framework = a.framework[:, None] == b.framework[None]
        compute, traffic, host = (
            a.shares[:, None, i] * b.shares[None, :, i] for i in range(a.shares.shape[1])
        )
        size_similarity = _similarity(a.size, b.size, self.size_reach)
        rates = self.compute**2 + self.assumed_rate**2 * a.assumed_rate[:, None] * b.assumed_rate
        links = self.traffic**2 + self.assumed_links**2 * a.assumed_links[:, None] * b.assumed_links
        return (
            self.common**2
            + machine * (rates * compute + links * traffic)
            + framework * self.host**2 * host
            + size_similarity * self.model**2
            + size_similarity * _similarity(a.shape, b.shape, self.shape_reach) * self.layout**2
            + self.growth**2 * a.growth[:, None] * b.growth
            + odd * self.odd**2 * (machine & framework)
        )

    def variance_shared(self, a: Traits, *, odd: bool = False) -> Float:
        """The diagonal (n,) of `covariance` [1]."""
        compute, traffic, host = (a.shares[:, i] for i in range(a.shares.shape[1]))
        return (
            self.common**2
            + (self.compute**2 + self.assumed_rate**2 * a.assumed_rate) * compute**2
            + (self.traffic**2 + self.assumed_links**2 * a.assumed_links) * traffic**2
            + (self.host * host) ** 2
            + self.model**2
            + self.layout**2
            + (self.growth * a.growth) ** 2
            + odd * self.odd**2
        )

    def variance_alone(self, a: Traits) -> Float:
        """Variance (n,) of log(measured / estimated) that no other run shares [1]."""
        _, traffic, host = (a.shares[:, i] for i in range(a.shares.shape[1]))
        return (
            self.alone**2
            + self.experts_alone**2 * a.experts
            + (self.traffic_alone * traffic) ** 2
            + (self.host_alone * host) ** 2
        )

    @property
    def variance_odd(self) -> float:
        """Variance of log(measured / estimated) because a run may be odd [1]."""
        return self.odd_runs * self.odd**2

    def odd_site_share(self, a: Traits) -> Float:
        """Probability (n,) that the site of a run is odd; 1/2 for a guessed job [1]."""
        return np.where(a.guessed > 0, 0.5, self.odd_sites)

    def quantiles(self, a: Traits) -> tuple[Float, Float]:
        """5 % and 95 % quantiles (n,) before anything is measured, in standard deviations [1]."""
        experts = a.experts > 0
        return (
            np.where(experts, self.experts_low, self.low),
            np.where(experts, self.experts_high, self.high),
        )

    def variance(self, a: Traits) -> Float:
        """Variance (n,) of log(measured / estimated) before anything is measured [1]."""
        site = self.odd_site_share(a) * self.odd**2
        return self.variance_shared(a) + self.variance_alone(a) + site + self.variance_odd


def _similarity(a: Float, b: Float, reach: float) -> Float:
    """Similarity (n, m) of two sets of points; 1 where equal."""
    squares = np.sum((a[:, None] - b[None]) ** 2, axis=-1)
    return np.exp(-squares / (2 * reach**2))


class Priors(Description):
    """Contents of `prior.toml`."""

    step_time: Prior
    memory: Prior
    """Prior of device memory; shares of the step time are 0 there."""


@functools.cache
def priors() -> Priors:
    """Return the shipped priors."""
    path = Path(__file__).with_name("prior.toml")
    return Priors.described(read_toml(path), where=path.name)


MEMORY_CLASSES = ("host-bound framework", "any other framework")
"""Classes of runs for errors of memory, by framework alone: memory depends on no device rate. Runs
of host-bound frameworks include every layout that was tried, up to the memory limit."""


class MemoryClass(Description):
    """Quantiles of measured over estimated memory for one class of run."""

    low: float = Field(gt=0)
    """5 % quantile of measured / estimated."""
    high: float = Field(gt=0)
    """95 % quantile of measured / estimated."""
    num_runs: int = Field(ge=1)
    """Number of runs behind the quantiles."""
    num_sources: int = Field(ge=1)
    """Number of publications or logs that the runs come from."""
    parts: tuple[float, ...]
    """Cumulative fractions of the n runs, from 1/(n + 1) to n/(n + 1)."""
    ratios: tuple[float, ...]
    """Measured / estimated at each of these fractions."""


@functools.cache
def memory_classes() -> dict[str, MemoryClass]:
    """Return the spread of measured over estimated device memory, by class of run."""
    path = Path(__file__).with_name("memory_spread.toml")
    return {
        name: MemoryClass.described(values, where=f"{path.name}, {name}")
        for name, values in read_toml(path).items()
    }


def memory_class(framework: Framework) -> str:
    """Return the class of a framework's runs for errors of memory."""
    return MEMORY_CLASSES[not framework.host.awaits_collectives]
