"""Prior: spread of measured runs around estimates, and which runs share their errors."""

from __future__ import annotations

import functools
from dataclasses import dataclass
from pathlib import Path

import numpy as np
from numpy.typing import NDArray
from pydantic import Field

from planner.cost.arrays import Arrays, Float
from planner.cost.constants import load
from planner.describe.base import Description
from planner.describe.files import read_toml
from planner.describe.framework.framework import Framework


@dataclass(frozen=True, slots=True)
class Traits(Arrays):
    """Properties of n runs that determine how far their estimates may be off."""

    shares: Float
    """(n, 4) shares of the estimated step: computation, traffic, host time, offload."""
    size: Float
    """(n, 2) logarithms of parameters and sequence length."""
    shape: Float
    """(n, 6) log2 of tp, pp, ep, micro-batch, dp * cp; then 2 with full recompute, else 0."""
    assumed_rate: Float
    """(n,) 1 if the device's sustained rate was not measured; if fitted, its error over that."""
    assumed_links: Float
    """(n,) The same for the rate of the network (in one node: of its fabric)."""
    experts: Float
    """(n,) 1 if the model has experts."""
    guessed: Float
    """(n,) 1 if the model, software, devices or layout had to be guessed."""
    machine: NDArray[np.str_]
    """(n,) names of machines."""
    architecture: NDArray[np.str_]
    """(n,) architectures of their devices."""
    framework: NDArray[np.str_]
    """(n,) names of framework families."""

    def __len__(self) -> int:
        return len(self.machine)


GAUSSIAN = 1.645
"""Standard deviations from a Gaussian's mean to its 95 % quantile."""


@dataclass(frozen=True, slots=True)
class Site:
    """Hypothesis on all runs of a user or a publication."""

    odd: bool
    """The site differs from its description."""
    scatters: bool
    """Its runs differ among each other more than those of other sites."""


SITES = tuple(Site(odd, scatters) for odd in (False, True) for scatters in (False, True))
"""Hypotheses on a site."""

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
    alone: Spread = Field(gt=0)
    """Error of a single run."""
    experts_alone: Spread = Field(gt=0)
    """Further error of a single run if its model has experts."""
    traffic_alone: Spread = Field(gt=0)
    """Error of a single run, times the share of traffic in its step."""
    host_alone: Spread = Field(gt=0)
    """Error of a single run, times the share of host time in its step."""
    offload: Spread = Field(gt=0)
    """Error of offload shared by runs of a framework on a machine, times its share of the step."""
    offload_alone: Spread = Field(gt=0)
    """Error of a single run, times the share of offload in its step."""
    odd: Spread = Field(gt=0)
    """Error of an odd site or run: one that differs from its description."""
    odd_sites: float = Field(gt=0, lt=0.5)
    """Fraction of sites that are odd."""
    odd_runs: float = Field(gt=0, lt=0.5)
    """Fraction of runs that are odd."""
    scatter: float = Field(ge=1)
    """Errors of single runs at a site that scatters, over those at other sites."""
    scattered_sites: float = Field(gt=0, lt=1)
    """Fraction of sites that scatter."""
    unmeasured: Spread = Field(gt=0)
    """Error shared by runs of a site, thrice: for an architecture, a framework, and the framework
    on the architecture that no publication measured; over sqrt(1 + n) where n did."""
    size_reach: float = Field(gt=0)
    """Distance in log(parameters) and log(sequence) within which models are similar."""
    shape_reach: float = Field(gt=0)
    """Doublings of degrees within which layouts are similar."""
    low: float = Field(lt=0, default=-GAUSSIAN)
    """Lower end of the 90 % range of log(measured / estimated) of a new source, in standard
    deviations."""
    high: float = Field(gt=0, default=GAUSSIAN)
    """Its upper end, in standard deviations."""

    published: dict[str, dict[str, int]] = Field(default_factory=dict)
    """Publications with measured runs, by architecture and framework."""

    def effects(self, a: Traits, b: Traits) -> Float:
        """Covariance (4, n, m) of a's errors by cause with log(measured / estimated) of b [1]."""
        machine = a.machine[:, None] == b.machine[None]
        framework = a.framework[:, None] == b.framework[None]
        rates = self.compute**2 + self.assumed_rate**2 * a.assumed_rate[:, None] * b.assumed_rate
        links = self.traffic**2 + self.assumed_links**2 * a.assumed_links[:, None] * b.assumed_links
        offload = machine * framework * self.offload**2
        shared = (machine * rates, machine * links, framework * self.host**2, offload)
        return np.asarray(np.stack(shared) * b.shares.T[:, None, :], dtype=np.float64)

    def covariance_of_whole(self, a: Traits, b: Traits) -> Float:
        """Covariance (n, m) of errors of the whole step, whatever it consists of [1]."""
        unmeasured = np.outer(self.variance_unmeasured(a), self.variance_unmeasured(b))
        size_similarity = _similarity(a.size, b.size, self.size_reach)
        return np.asarray(
            self.common**2
            + size_similarity * self.model**2
            + size_similarity * _similarity(a.shape, b.shape, self.shape_reach) * self.layout**2
            + np.sqrt(unmeasured) * _same_site(a, b)
        )

    def covariance_of_odd(self, a: Traits, b: Traits) -> Float:
        """Further covariance (n, m) of runs of an odd site [1]."""
        return np.asarray(self.odd**2 * _same_site(a, b), dtype=np.float64)

    def covariance(self, a: Traits, b: Traits) -> Float:
        """Covariance (n, m) of log(measured / estimated) between runs of a sound site [1]."""
        by_cause = np.einsum("ik,kij->ij", a.shares, self.effects(a, b))
        return np.asarray(by_cause + self.covariance_of_whole(a, b))

    def variance_shared(self, a: Traits, *, odd: bool = False) -> Float:
        """The diagonal (n,) of `covariance` [1]."""
        compute, traffic, host, offload = a.shares.T
        return np.asarray(
            self.common**2
            + (self.offload * offload) ** 2
            + (self.compute**2 + self.assumed_rate**2 * a.assumed_rate**2) * compute**2
            + (self.traffic**2 + self.assumed_links**2 * a.assumed_links**2) * traffic**2
            + (self.host * host) ** 2
            + self.model**2
            + self.layout**2
            + self.variance_unmeasured(a)
            + odd * self.odd**2
        )

    def variance_unmeasured(self, a: Traits) -> Float:
        """Variance (n,) that sites have because few publications measured their devices [1]."""
        names = (a.architecture, a.framework)
        if len(a) and all((column == column[0]).all() for column in names):
            return np.full(len(a), self._variance_of_pair(*(str(column[0]) for column in names)))
        pairs = list(zip(*(column.tolist() for column in names), strict=True))
        by_pair = {pair: self._variance_of_pair(*pair) for pair in set(pairs)}
        return np.array([by_pair[pair] for pair in pairs])

    def _variance_of_pair(self, architecture: str, framework: str) -> float:
        on_device = self.published.get(architecture, {})
        with_framework = sum(counts.get(framework, 0) for counts in self.published.values())
        counts = (sum(on_device.values()), with_framework, on_device.get(framework, 0))
        return self.unmeasured**2 * sum(1 / (1 + count) for count in counts)

    def variance_alone(self, a: Traits, *, scatters: bool = False) -> Float:
        """Variance (n,) of log(measured / estimated) that no other run shares [1]."""
        _, traffic, host, offload = a.shares.T
        factor = self.scatter**2 if scatters else 1.0
        return np.asarray(
            factor * (self.alone**2 + self.experts_alone**2 * a.experts)
            + (self.traffic_alone * traffic) ** 2
            + (self.host_alone * host) ** 2
            + (self.offload_alone * offload) ** 2
        )

    def covariance_alone(self, a: Traits, b: Traits, *, scatters: bool) -> Float:
        """Covariance (n, m) of runs of one layout: an error that no other layout shares [1]."""
        shares = np.abs(a.shares[:, None] - b.shares[None]).max(axis=-1) < 0.002
        size = (a.size[:, None] == b.size[None]).all(axis=-1)
        shape = (a.shape[:, None] == b.shape[None]).all(axis=-1)
        spreads = (np.sqrt(self.variance_alone(runs, scatters=scatters)) for runs in (a, b))
        return np.asarray(np.outer(*spreads) * (shares & size & shape & _same_site(a, b)))

    def site_share(self, a: Traits, site: Site) -> Float:
        """Probability (n,) of a hypothesis on the site of a run [1]."""
        odd = self.odd_site_share(a)
        scattered = self.scattered_sites if site.scatters else 1 - self.scattered_sites
        return (odd if site.odd else 1 - odd) * scattered

    @property
    def variance_odd(self) -> float:
        """Variance of log(measured / estimated) because a run may be odd [1]."""
        return self.odd_runs * self.odd**2

    def odd_site_share(self, a: Traits) -> Float:
        """Probability (n,) that the site of a run is odd; 1/2 for a guessed job [1]."""
        return np.where(a.guessed > 0, 0.5, self.odd_sites)

    def variance(self, a: Traits) -> Float:
        """Variance (n,) of log(measured / estimated) before anything is measured [1]."""
        site = self.odd_site_share(a) * self.odd**2
        return self.variance_shared(a) + self.mean_variance_alone(a) + site + self.variance_odd

    def mean_variance_alone(self, a: Traits) -> Float:
        """Mean (n,) of `variance_alone` over sites that agree and sites that scatter [1]."""
        share = self.scattered_sites
        return self.variance_alone(a) * (1 - share) + self.variance_alone(a, scatters=True) * share


def _same_site(a: Traits, b: Traits) -> NDArray[np.bool_]:
    """Whether (n, m) runs have machine and framework in common."""
    machine = a.machine[:, None] == b.machine[None]
    return np.asarray(machine & (a.framework[:, None] == b.framework[None]))


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
    return load(Path(__file__).with_name("prior.toml"), Priors)


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

    def times(self, factor: MemoryClass) -> MemoryClass:
        """Quantiles of the product of both ratios, which err independently."""
        at = (np.arange(200) + 0.5) / 200
        logs = [np.interp(at, each.parts, np.log(each.ratios)) for each in (self, factor)]
        products = np.exp(np.add.outer(*logs))
        low, high, *ratios = np.quantile(products, (0.05, 0.95, *self.parts)).tolist()
        changes = {"low": low, "high": high, "ratios": tuple(ratios)}
        return self.model_copy(update=changes)


@functools.cache
def memory_classes() -> dict[str, MemoryClass]:
    """Return the spread of measured over estimated device memory, by class of run."""
    classes = {}
    for name in ("memory_spread.toml", "unknown_blocks.toml"):
        for key, values in read_toml(Path(__file__).with_name(name)).items():
            classes[key] = MemoryClass.described(values, where=f"{name}, {key}")
    return classes


@functools.cache
def memory_spread(name: str, *, knows_blocks: bool) -> MemoryClass:
    """Return the spread of a class, wider if the blocks of the model are not known."""
    spread = memory_classes()[name]
    return spread if knows_blocks else spread.times(memory_classes()["unknown blocks"])


def memory_class(framework: Framework) -> str:
    """Return the class of a framework's runs for errors of memory."""
    return MEMORY_CLASSES[not framework.host.awaits_collectives]
