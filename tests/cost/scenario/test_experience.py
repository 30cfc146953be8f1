"""What measured runs teach, against Gaussians written out."""

from __future__ import annotations

import math
from dataclasses import replace

import numpy as np
import pytest
from scipy.stats import multivariate_normal

from benchmarks.residual_table import experience_of, read_table
from planner.cost.scenario.experience import MeasuredRuns, likelihoods, outlook, predict_log_ratio
from planner.cost.scenario.prior import GAUSSIAN, Prior, Traits, priors

PRIOR = priors().step_time
SURE = PRIOR.model_copy(update={"odd_sites": 1e-12, "odd_runs": 1e-12})


def rows(source: str, most: int) -> MeasuredRuns:
    """Published runs of one source, of stated jobs."""
    own = (row for row in read_table() if source in row.source and not row.guessed)
    return experience_of([row for row in own if row.teaches("step_time")][:most])


@pytest.fixture(scope="module")
def tr11() -> MeasuredRuns:
    return rows("tr11", 6)


def whole(prior: Prior, traits: Traits, odd: bool = False) -> np.ndarray:
    """Covariance of measurements."""
    return prior.covariance(traits, traits, odd=odd) + np.diag(prior.variance_alone(traits))


@pytest.mark.parametrize("source", ["tr11", "Megatron-Bridge", "ultrascale", "SimuMax"])
@pytest.mark.parametrize("odd", [False, True])
def test_covariance_is_one(source: str, odd: bool) -> None:
    traits = rows(source, 30).traits
    shared = PRIOR.covariance(traits, traits, odd=odd)
    np.testing.assert_allclose(shared, shared.T)
    np.testing.assert_allclose(np.diag(shared), PRIOR.variance_shared(traits, odd=odd))
    assert np.linalg.eigvalsh(shared).min() > -1e-9


def test_likelihoods_are_those_of_gaussians(tr11: MeasuredRuns) -> None:
    found, n = likelihoods(PRIOR, tr11), len(tr11)
    constant = n * math.log(2 * math.pi) / 2
    for odd, share in ((False, 1 - PRIOR.odd_sites), (True, PRIOR.odd_sites)):
        covariance = whole(PRIOR, tr11.traits, odd)
        plain = multivariate_normal(np.zeros(n), covariance).logpdf(tr11.log_ratios)
        sound = math.log(share) + n * math.log1p(-PRIOR.odd_runs)
        assert found.sound[int(odd)] == pytest.approx(plain + constant + sound)
        for run in range(n):
            worse = covariance.copy()
            worse[run, run] += PRIOR.odd**2
            density = multivariate_normal(np.zeros(n), worse).logpdf(tr11.log_ratios)
            odds = math.log(PRIOR.odd_runs / (1 - PRIOR.odd_runs))
            expected = density + constant + sound + odds
            assert found.odd_run[int(odd), run] == pytest.approx(expected)
    assert found.odd_runs.sum() < 1
    assert 0 < found.odd_site < 1


def test_prediction_is_the_conditional_gaussian(tr11: MeasuredRuns) -> None:
    asked = rows("tr11", 12).traits.take(slice(6, None))
    both = Traits.joined([tr11.traits, asked])
    joint, n = whole(SURE, both), len(tr11)
    gain = joint[n:, :n] @ np.linalg.inv(joint[:n, :n])
    mean, variance = predict_log_ratio(SURE, tr11, asked)
    np.testing.assert_allclose(mean, gain @ tr11.log_ratios)
    np.testing.assert_allclose(variance, np.diag(joint[n:, n:] - gain @ joint[:n, n:]))


def test_nothing_measured_leaves_the_estimate(tr11: MeasuredRuns) -> None:
    found = outlook(PRIOR, None, tr11.traits)
    assert np.all(found.expected == 1)
    assert np.all(found.low < 1)
    assert np.all(found.high > 1)


def test_more_runs_that_agree_move_further_and_narrow_the_interval(tr11: MeasuredRuns) -> None:
    asked = tr11.traits.take(slice(0, 1))
    slow = [
        MeasuredRuns(Traits.joined([asked] * count), np.full(count, math.log(1.3)))
        for count in (1, 3, 9)
    ]
    found = [outlook(PRIOR, some, asked) for some in slow]
    factors = [1.0, *(float(one.expected[0]) for one in found), 1.3]
    assert factors == sorted(factors)
    assert factors[-2] == pytest.approx(1.3, rel=0.03)
    widths = [float(one.high[0] / one.low[0]) for one in found]
    assert widths == sorted(widths, reverse=True)
    # what a run has for itself is not learned away
    alone = math.sqrt(float(PRIOR.variance_alone(asked)[0]))
    assert widths[-1] > math.exp(2 * GAUSSIAN * alone)


def test_other_machines_and_models_learn_less(tr11: MeasuredRuns) -> None:
    own = tr11.traits.take(slice(0, 1))
    slow = MeasuredRuns(Traits.joined([own] * 3), np.full(3, math.log(1.5)))
    elsewhere = replace(own, machine=np.array(["another"]))
    larger = replace(elsewhere, size=own.size + 4)
    moved = [float(outlook(PRIOR, slow, some).expected[0]) for some in (own, elsewhere, larger)]
    assert moved == sorted(moved, reverse=True)
    assert moved[0] > 1.4
    assert moved[-1] < 1.1


def test_an_absurd_run_among_good_ones_is_called_odd(tr11: MeasuredRuns) -> None:
    own = Traits.joined([tr11.traits.take(slice(0, 1))] * 4)
    good = MeasuredRuns(own.take(slice(0, 3)), np.array([0.01, 0.0, 0.02]))
    spoilt = MeasuredRuns(own, np.array([0.01, 0.0, 0.02, math.log(2.5)]))
    assert likelihoods(PRIOR, spoilt).odd_runs[3] > 0.9
    asked = own.take(slice(0, 1))
    before, after = (outlook(PRIOR, some, asked).expected[0] for some in (good, spoilt))
    assert after == pytest.approx(before, rel=0.02)


def test_a_site_where_every_run_is_slow_is_called_odd(tr11: MeasuredRuns) -> None:
    slow = MeasuredRuns(tr11.traits, np.full(len(tr11), math.log(2.0)))
    assert likelihoods(PRIOR, slow).odd_site > 0.95
    assert likelihoods(PRIOR, tr11).odd_site < 0.5
