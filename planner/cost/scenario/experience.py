"""Experience: measured runs, and the errors they predict (Gaussian, in logarithms)."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from planner.cost.arrays import Arrays, Float
from planner.cost.scenario.prior import GAUSSIAN, Prior, Traits


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
    low: Float
    """5 % quantile of measured / estimated."""
    high: Float
    """95 % quantile of measured / estimated."""
    spread: Float
    """Standard deviation of log(measured / estimated)."""

    def around(self) -> tuple[float, float]:
        """Low and high quantile of the first run, over its expected value [1]."""
        return float(self.low[0] / self.expected[0]), float(self.high[0] / self.expected[0])


def outlook(prior: Prior, measured: MeasuredRuns | None, runs: Traits) -> Outlook:
    """Expected error and spread of runs, with or without measured runs.

    Counted: see `predict_log_ratio`; without measured runs the quantiles of published runs' errors,
    which are skewed to the slow side; with them those of a Gaussian. Left out: stalls.
    intervals.md#intervals.

    >>> from planner.cost.scenario.prior import priors
    >>> from planner.cost.uncertainty import traits_of
    >>> runs = traits_of(make_scenario("gpt2", "ddp"), Layouts.broadcast(dp=[4, 4, 4, 4]), {})
    >>> slow = MeasuredRuns(runs, np.log([1.1, 1.1, 1.1, 1.1]))
    >>> bool(1.05 < outlook(priors().step_time, slow, runs).expected[0] < 1.1)
    True
    """
    if measured is None or not len(measured):
        mean, variance = np.zeros(len(runs)), prior.variance(runs)
        low, high = prior.quantiles(runs)
    else:
        mean, variance = predict_log_ratio(prior, measured, runs)
        low, high = np.full_like(mean, -GAUSSIAN), np.full_like(mean, GAUSSIAN)
    spread = np.sqrt(variance)
    return Outlook(np.exp(mean), np.exp(mean + low * spread), np.exp(mean + high * spread), spread)


def most_informative_run(prior: Prior, runs: Traits, measured: MeasuredRuns | None = None) -> int:
    """Index of the run whose measurement would reduce the others' variance most [1].

    Counted: the covariance of the runs, given those already measured. Left out: odd runs. Cohn
    1996, Neural Networks 9; intervals.md#intervals.

    >>> from planner.cost.scenario.prior import priors
    >>> from planner.cost.uncertainty import traits_of
    >>> runs = traits_of(make_scenario("gpt2"), Layouts.broadcast(dp=[16, 8, 4], tp=[1, 2, 4]), {})
    >>> most_informative_run(priors().step_time, runs)      # the middle
    1
    """
    shared = prior.covariance(runs, runs)
    if measured is not None and len(measured):
        conditioning = prior.covariance(measured.traits, measured.traits)
        conditioning = conditioning + np.diag(prior.variance_alone(measured.traits))
        across = prior.covariance(runs, measured.traits)
        shared = shared - across @ np.linalg.solve(conditioning, across.T)
    variance = np.diag(shared) + prior.variance_alone(runs)
    squares = shared**2
    np.fill_diagonal(squares, 0.0)
    return int(np.argmax(squares.sum(axis=0) / variance))


@dataclass(frozen=True, slots=True)
class Likelihoods:
    """Log likelihoods of the measured runs under each hypothesis, weighted by its prior."""

    sound: Float
    """(2,) without an odd run, at a sound and at an odd site."""
    odd_run: Float
    """(2, n) with each run odd in turn, at a sound and at an odd site."""

    @property
    def total(self) -> float:
        """Log likelihood of the measured runs over all hypotheses."""
        return float(np.logaddexp.reduce(np.concatenate([self.sound, self.odd_run.ravel()])))

    @property
    def odd_runs(self) -> Float:
        """(n,) probability that a run differs from its description [1]."""
        return np.exp(np.logaddexp.reduce(self.odd_run, axis=0) - self.total)

    @property
    def odd_site(self) -> float:
        """Probability that the site differs from its description [1]."""
        odd = np.concatenate([self.sound[1:], self.odd_run[1]])
        return float(np.exp(np.logaddexp.reduce(odd) - self.total))


def likelihoods(prior: Prior, measured: MeasuredRuns) -> Likelihoods:
    """Log marginal likelihoods of measured runs.

    Counted: a sound or an odd site, with no odd run or with each run odd in turn (a change of one
    entry of the diagonal: Sherman and Morrison 1950). Left out: two odd runs, the constant n log(2
    pi) / 2. Rasmussen and Williams 2006, equation 2.30; intervals.md#intervals.

    >>> from planner.cost.scenario.prior import priors
    >>> from planner.cost.uncertainty import traits_of
    >>> runs = traits_of(make_scenario("gpt2", "ddp"), Layouts.broadcast(dp=[4, 4, 4, 4]), {})
    >>> found = likelihoods(priors().step_time, MeasuredRuns(runs, np.log([1.0, 6.0, 1.1, 1.0])))
    >>> [round(float(chance)) for chance in found.odd_runs]
    [0, 1, 0, 0]
    """
    site = float(np.mean(prior.odd_site_share(measured.traits)))
    each = prior.odd_runs
    n = len(measured)
    sound, odd_run = np.empty(2), np.empty((2, n))
    for odd, weight in ((0, 1 - site), (1, site)):
        inverse, fitted, likelihood = _conditioned(prior, measured, bool(odd))
        sound[odd] = likelihood + np.log(weight) + n * np.log1p(-each)
        more = prior.odd**2 * np.diag(inverse)
        gain = (prior.odd * fitted) ** 2 / (1 + more) - np.log1p(more)
        odd_run[odd] = sound[odd] + np.log(each / (1 - each)) + gain / 2
    return Likelihoods(sound, odd_run)


def _conditioned(prior: Prior, measured: MeasuredRuns, odd: bool) -> tuple[Float, Float, float]:
    """Inverse covariance, its product with the log ratios, and the log likelihood."""
    measured_covariance = prior.covariance(measured.traits, measured.traits, odd=odd)
    measured_covariance = measured_covariance + np.diag(prior.variance_alone(measured.traits))
    inverse = np.asarray(np.linalg.inv(measured_covariance), dtype=np.float64)
    fitted = inverse @ measured.log_ratios
    likelihood = -(measured.log_ratios @ fitted + np.linalg.slogdet(measured_covariance)[1]) / 2
    return inverse, fitted, float(likelihood)


def predict_log_ratio(prior: Prior, measured: MeasuredRuns, runs: Traits) -> tuple[Float, Float]:
    """Mean (m,) and variance (m,) of log(measured / estimated) of further runs [1].

    Counted: the two moments of a mixture of conditioned Gaussians, one per odd site or run; an odd
    run changes one entry of a diagonal (Sherman and Morrison 1950); the further run may be odd
    itself. Left out: two odd runs among the measured. Rasmussen and Williams 2006, equations 2.25
    and 2.26; intervals.md#intervals.

    >>> from planner.cost.scenario.prior import priors
    >>> from planner.cost.uncertainty import traits_of
    >>> runs = traits_of(make_scenario("gpt2", "ddp"), Layouts.broadcast(dp=[4, 4, 4, 4]), {})
    >>> _, variance = predict_log_ratio(priors().step_time, MeasuredRuns(runs, np.zeros(4)), runs)
    >>> bool(np.all(variance < priors().step_time.variance(runs) / 2))
    True
    """
    evidence = likelihoods(prior, measured)
    mean, square = np.zeros(len(runs)), np.zeros(len(runs))
    for odd in (False, True):
        inverse, fitted, _ = _conditioned(prior, measured, odd)
        across = prior.covariance(runs, measured.traits, odd=odd)
        gain = across @ inverse
        expected = (gain @ measured.log_ratios)[:, None]
        prior_variance = prior.variance_shared(runs, odd=odd) + prior.variance_alone(runs)
        variance = (prior_variance - np.sum(gain * across, axis=-1))[:, None]
        # each run odd in turn: one entry of the diagonal grows
        more = 1 / (1 / prior.odd**2 + np.diag(inverse))
        means = np.hstack([expected, expected - gain * (more * fitted)])
        variances = np.hstack([variance, variance + gain**2 * more])
        weights = np.exp(
            np.append(evidence.sound[int(odd)], evidence.odd_run[int(odd)]) - evidence.total
        )
        mean += means @ weights
        square += (variances + means**2) @ weights
    return mean, square - mean**2 + prior.variance_odd
