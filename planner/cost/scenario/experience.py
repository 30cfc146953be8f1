"""Experience: measured runs, and the errors they predict (Gaussian, in logarithms)."""

from dataclasses import dataclass

import numpy as np

from planner.cost.arrays import Arrays, Float
from planner.cost.scenario.prior import GAUSSIAN, SITES, Prior, Site, Traits

REPEAT = 0.054
"""Standard deviation of log(step time) between runs of one layout: root mean square over fourteen
published tables with equal rows, 0.004 to 0.12."""


@dataclass(frozen=True, slots=True)
class MeasuredRuns(Arrays):
    """Measured step times, or memory, of runs of one user or publication."""

    traits: Traits
    log_ratios: Float
    """(n,) log(measured / estimated)."""

    def __len__(self) -> int:
        return len(self.log_ratios)


@dataclass(frozen=True, slots=True)
class Experience:
    """Measured step times and device memory of runs; None without any."""

    step_time: MeasuredRuns | None = None
    memory: MeasuredRuns | None = None
    """Device memory."""

    @property
    def is_known(self) -> bool:
        """True if anything was measured."""
        return self.step_time is not None or self.memory is not None


@dataclass(frozen=True, slots=True)
class Outlook:
    """Factors (m,) by which to multiply estimates of the cost model."""

    expected: Float
    """Expected measured / estimated, from measured runs; 1 without any."""
    by_cause: Float
    """(m, 4) expected measured / estimated of computation, traffic, host time and offload."""
    low: Float
    """5 % quantile of measured / estimated."""
    high: Float
    """95 % quantile of measured / estimated."""
    spread: Float
    """Standard deviation of log(measured / estimated)."""

    def around(self) -> tuple[float, float]:
        """Low and high quantile of the first run, over its expected value [1]."""
        return self.intervals(np.ones(1))[0]

    def intervals(self, values: Float) -> list[tuple[float, float]]:
        """Low and high quantile of runs with these expected values."""
        ends = (values * (end / self.expected) for end in (self.low, self.high))
        return list(zip(*(end.tolist() for end in ends), strict=True))


def outlook(prior: Prior, measured: MeasuredRuns | None, runs: Traits) -> Outlook:
    """Expected error and spread of runs, with or without measured runs.

    Counted: see `predict_log_ratio`; without measured runs the quantiles of published runs' errors,
    which are skewed to the slow side; with them those of a Gaussian. Left out: stalls.
    intervals.md#intervals.
    """
    if measured is None or not len(measured):
        expected, variance = np.ones(len(runs)), prior.variance(runs)
        by_cause, low, high = np.ones(runs.shares.shape), prior.low, prior.high
    else:
        effects, variance = predict_log_ratio(prior, measured, runs)
        by_cause = np.exp(effects[:, :-1] + effects[:, -1:])
        no_cause = 1 - runs.shares.sum(axis=1)  # 1 for memory, which has no causes
        expected = np.sum(runs.shares * by_cause, axis=1) + no_cause * np.exp(effects[:, -1])
        low, high = -GAUSSIAN, GAUSSIAN
    spread = np.sqrt(variance)
    limits = expected * np.exp(low * spread), expected * np.exp(high * spread)
    return Outlook(expected, by_cause, *limits, spread)


def most_informative_run(prior: Prior, runs: Traits, measured: Traits | None = None) -> int:
    """Index of the run whose measurement would reduce the others' variance most [1].

    Counted: `variance_removed`. Left out: odd runs. Cohn 1996, Neural Networks 9;
    intervals.md#intervals.
    """
    removed = variance_removed(prior, runs, measured)
    np.fill_diagonal(removed, 0.0)
    return int(np.argmax(removed.sum(axis=0)))


def variance_removed(prior: Prior, runs: Traits, measured: Traits | None = None) -> Float:
    """Variance (n, n) of each run's error that measuring each run would remove [1].

    Counted: the covariance of the runs, given those already measured. Left out: odd runs. Cohn
    1996, Neural Networks 9; intervals.md#intervals.
    """
    shared = prior.covariance(runs, runs)
    if measured is not None and len(measured):
        conditioning = prior.covariance(measured, measured)
        conditioning = conditioning + np.diag(prior.variance_alone(measured))
        across = prior.covariance(runs, measured)
        shared = shared - across @ np.linalg.solve(conditioning, across.T)
    return np.asarray(shared**2 / (np.diag(shared) + prior.variance_alone(runs)))


_SIMULATIONS = 100


def expected_spread(prior: Prior, job: Traits, runs: Traits) -> float:
    """Spread of log(measured / estimated) of a job that runs still to be measured will leave [1].

    Counted: the mean over results drawn from the prior, each learned from as real ones are; odd
    sites, sites that scatter, odd runs. Left out: what is already known of the site.
    intervals.md#intervals.
    """
    rng, shared = np.random.default_rng(0), _shared(prior, runs)
    weights = [float(np.mean(prior.site_share(runs, site))) for site in SITES]
    spreads = []
    for place in rng.choice(len(SITES), _SIMULATIONS, p=weights):
        odd = prior.odd**2 * (rng.random(len(runs)) < prior.odd_runs)
        covariance = _covariance(prior, runs, SITES[place], shared) + np.diag(odd)
        results = rng.multivariate_normal(np.zeros(len(runs)), covariance)
        spreads.append(float(outlook(prior, MeasuredRuns(runs, results), job).spread[0]))
    return float(np.mean(spreads))


@dataclass(frozen=True, slots=True)
class Likelihoods:
    """Log likelihoods of the measured runs under each hypothesis, weighted by its prior."""

    sound: Float
    """(h,) without an odd run, by hypothesis of the site."""
    odd_run: Float
    """(h, n) with each run odd in turn, by hypothesis of the site."""

    @property
    def total(self) -> float:
        """Log likelihood of the measured runs over all hypotheses."""
        return float(np.logaddexp.reduce(np.concatenate([self.sound, self.odd_run.ravel()])))

    @property
    def odd_runs(self) -> Float:
        """(n,) probability that a run differs from its description [1]."""
        return np.exp(np.logaddexp.reduce(self.odd_run, axis=(0)) - self.total)

    @property
    def odd_site(self) -> float:
        """Probability that the site differs from its description [1]."""
        chosen = [place for place, site in enumerate(SITES) if site.odd]
        odd = np.concatenate([self.sound[chosen], self.odd_run[chosen].ravel()])
        return float(np.exp(np.logaddexp.reduce(odd) - self.total))


def likelihoods(prior: Prior, measured: MeasuredRuns) -> Likelihoods:
    """Log marginal likelihoods of measured runs.

    Counted: a sound or an odd site, whose runs agree or scatter, with no odd run or with each run
    odd in turn (a change of one entry of the diagonal: Sherman and Morrison 1950). Left out: two
    odd runs, the constant n log(2 pi) / 2. Rasmussen and Williams 2006, equation 2.30;
    intervals.md#intervals.
    """
    each = prior.odd_runs
    n = len(measured)
    sound, odd_run = np.empty(len(SITES)), np.empty((len(SITES), n))
    shared = _shared(prior, measured.traits)
    for place, site in enumerate(SITES):
        weight = float(np.mean(prior.site_share(measured.traits, site)))
        inverse, fitted, likelihood = _conditioned(prior, measured, site, shared)
        sound[place] = likelihood + np.log(weight) + n * np.log1p(-each)
        more = prior.odd**2 * np.diag(inverse)
        gain = (prior.odd * fitted) ** 2 / (1 + more) - np.log1p(more)
        odd_run[place] = sound[place] + np.log(each / (1 - each)) + gain / 2
    return Likelihoods(sound, odd_run)


def _shared(prior: Prior, runs: Traits) -> tuple[Float, Float]:
    """Covariance of runs of a sound site, and of an odd one."""
    sound = prior.covariance(runs, runs)
    return sound, sound + prior.covariance_of_odd(runs, runs)


def _covariance(prior: Prior, runs: Traits, site: Site, shared: tuple[Float, Float]) -> Float:
    """Covariance of the measurements of runs under one hypothesis of the site."""
    repeats = prior.covariance_alone(runs, runs, scatters=site.scatters)
    return np.asarray(shared[site.odd] + repeats + REPEAT**2 * np.eye(len(runs)))


def _conditioned(
    prior: Prior, measured: MeasuredRuns, site: Site, shared: tuple[Float, Float]
) -> tuple[Float, Float, float]:
    """Inverse covariance, its product with the log ratios, and the log likelihood."""
    covariance = _covariance(prior, measured.traits, site, shared)
    inverse = np.asarray(np.linalg.inv(covariance), dtype=np.float64)
    fitted = inverse @ measured.log_ratios
    likelihood = -(measured.log_ratios @ fitted + np.linalg.slogdet(covariance)[1]) / 2
    return inverse, fitted, float(likelihood)


def predict_log_ratio(prior: Prior, measured: MeasuredRuns, runs: Traits) -> tuple[Float, Float]:
    """Mean (m, 5) of the errors of further runs by cause, variance (m,) of their log ratio [1].

    The columns are the errors of computation, traffic, host time and offload, and that of the whole
    step; the log ratio is the shares of the first four times them, and the last. Counted: moments
    of a mixture of conditioned Gaussians, one per hypothesis of the site and odd run; an odd run
    changes one entry of a diagonal (Sherman and Morrison 1950); the further run may be odd itself.
    Left out: two odd runs among the measured. Rasmussen and Williams 2006, equations 2.25 and 2.26;
    intervals.md#intervals.
    """
    evidence = likelihoods(prior, measured)
    effects = prior.effects(runs, measured.traits)
    by_cause = np.zeros((len(runs), runs.shares.shape[1] + 1))
    mean, square = np.zeros(len(runs)), np.zeros(len(runs))
    shared, sound = (
        _shared(prior, measured.traits),
        prior.covariance_of_whole(runs, measured.traits),
    )
    odd = prior.covariance_of_odd(runs, measured.traits)
    for place, site in enumerate(SITES):
        inverse, fitted, _ = _conditioned(prior, measured, site, shared)
        repeats = prior.covariance_alone(runs, measured.traits, scatters=site.scatters)
        step = sound + site.odd * odd + repeats
        across = np.einsum("ik,kij->ij", runs.shares, effects) + step
        noise = prior.variance_alone(runs, scatters=site.scatters)
        prior_variance = prior.variance_shared(runs, odd=site.odd) + noise
        gain = across @ inverse
        variance = (prior_variance - np.sum(gain * across, axis=-1))[:, None]
        # each run odd in turn: one entry of the diagonal grows
        more = 1 / (1 / prior.odd**2 + np.diag(inverse))
        solved = np.hstack([fitted[:, None], fitted[:, None] - inverse * (more * fitted)])
        means = across @ solved
        variances = np.hstack([variance, variance + gain**2 * more])
        weights = np.exp(np.append(evidence.sound[place], evidence.odd_run[place]) - evidence.total)
        by_cause += np.moveaxis(np.concatenate([effects, step[None]]) @ (solved @ weights), 0, -1)
        mean += means @ weights
        square += (variances + means**2) @ weights
    return by_cause, square - mean**2 + prior.variance_odd
