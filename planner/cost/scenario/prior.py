"""Prior: how far estimates lie from measurements, and which runs err alike, learned from runs."""

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
    """Of n runs."""

    shares: Float
    """(n, 3) parts of the estimated step: computation, traffic, the host's time."""
    size: Float
    """(n, 2) logarithms of parameters and sequence length."""
    shape: Float
    """(n, 6) log2 of tp, pp, ep, micro-batch, dp * cp; twice the full recompute."""
    growth: Float
    """(n,) doublings of the devices beyond a node of eight."""
    assumed_rate: Float
    """(n,) 1 where nobody measured the device's sustained rate."""
    assumed_links: Float
    """(n,) 1 where nobody measured the network's rate, or in a node its links'."""
    experts: Float
    """(n,) 1 where the model has experts."""
    guessed: Float
    """(n,) 1 where model, software, devices or layout had to be guessed."""
    machine: NDArray[np.str_]
    """(n,) names."""
    framework: NDArray[np.str_]
    """(n,) names."""

    def __len__(self) -> int:
        return len(self.growth)


GAUSSIAN = 1.645
"""How many standard deviations a Gaussian's 95 % quantile is from its mean."""

Spread = float
"""Standard deviation of log(measured / estimated)."""


class Prior(Description):
    """Standard deviations of log(measured / estimated), by what is shared, and what is not."""

    common: Spread = Field(gt=0)
    """Shared by all runs."""
    compute: Spread = Field(gt=0)
    """Shared by the computation of a machine, times its part of the step."""
    assumed_rate: Spread = Field(gt=0)
    """Shared besides by the computation of a machine whose device nobody measured in training."""
    traffic: Spread = Field(gt=0)
    """Shared by the traffic of a machine, times its part of the step."""
    assumed_links: Spread = Field(gt=0)
    """Shared besides by the traffic of a machine whose network or links nobody measured."""
    host: Spread = Field(gt=0)
    """Shared by the host's time of a framework, times its part of the step."""
    model: Spread = Field(gt=0)
    """Shared by models and sequences of like size."""
    layout: Spread = Field(gt=0)
    """Shared by like layouts of models of like size."""
    growth: Spread = Field(gt=0)
    """Shared by all runs, per doubling of their devices beyond a node of eight."""
    alone: Spread = Field(gt=0)
    """Of a run alone, whatever it is made of."""
    experts_alone: Spread = Field(gt=0)
    """Of a run alone, where its model has experts."""
    traffic_alone: Spread = Field(gt=0)
    """Of a run alone, times the part of traffic in its step."""
    host_alone: Spread = Field(gt=0)
    """Of a run alone, times the part of the host's time in its step."""
    odd: Spread = Field(gt=0)
    """Of a site, or of a run, that is not what it is described as."""
    odd_sites: float = Field(gt=0, lt=0.5)
    """Part of sites that are odd."""
    odd_runs: float = Field(gt=0, lt=0.5)
    """Part of runs that are."""
    size_reach: float = Field(gt=0)
    """Over how much of log(parameters) and log(sequence) models count as alike."""
    shape_reach: float = Field(gt=0)
    """Over how many doublings of their degrees layouts count as alike."""
    low: float = Field(lt=0, default=-GAUSSIAN)
    """5 % quantile of log(measured / estimated) of dense models, in standard deviations."""
    high: float = Field(gt=0, default=GAUSSIAN)
    """95 % quantile of the same."""
    experts_low: float = Field(lt=0, default=-GAUSSIAN)
    """`low` of models with experts."""
    experts_high: float = Field(gt=0, default=GAUSSIAN)
    """`high` of models with experts."""

    def covariance(self, a: Traits, b: Traits, *, odd: bool = False) -> Float:
        """Covariance (n, m) of log(measured / estimated) that runs share [1]."""
        machine = a.machine[:, None] == b.machine[None]
        framework = a.framework[:, None] == b.framework[None]
        compute, traffic, host = (
            a.shares[:, None, i] * b.shares[None, :, i] for i in range(a.shares.shape[1])
        )
        alike = _alike(a.size, b.size, self.size_reach)
        rates = self.compute**2 + self.assumed_rate**2 * a.assumed_rate[:, None] * b.assumed_rate
        links = self.traffic**2 + self.assumed_links**2 * a.assumed_links[:, None] * b.assumed_links
        return (
            self.common**2
            + machine * (rates * compute + links * traffic)
            + framework * self.host**2 * host
            + alike * self.model**2
            + alike * _alike(a.shape, b.shape, self.shape_reach) * self.layout**2
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
        """Probability (n,) that the site of a run is odd: even odds where a job is guessed [1]."""
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


def _alike(a: Float, b: Float, reach: float) -> Float:
    """Similarity (n, m) of two sets of points; 1 where equal."""
    squares = np.sum((a[:, None] - b[None]) ** 2, axis=-1)
    return np.exp(-squares / (2 * reach**2))


class Priors(Description):
    """The file of priors."""

    step_time: Prior
    memory: Prior
    """Of a device's memory, as the way of measuring sees it; no part of the time counts there."""


@functools.cache
def priors() -> Priors:
    """The priors that are shipped."""
    path = Path(__file__).with_name("prior.toml")
    return Priors.described(read_toml(path), where=path.name)


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
    """The class of a run where memory is concerned."""
    return MEMORY_CLASSES[not framework.host.awaits_collectives]
