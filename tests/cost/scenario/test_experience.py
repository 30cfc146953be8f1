"""What measured runs teach, against Gaussians written out."""

from __future__ import annotations

import math
from dataclasses import replace

import numpy as np
import pytest
from scipy.stats import multivariate_normal

from benchmarks.residual_table import experience_of, read_table
from planner.cost.scenario.experience import (
    REPEAT,
    MeasuredRuns,
    likelihoods,
    outlook,
    predict_log_ratio,
)
from planner.cost.scenario.prior import GAUSSIAN, SITES, Prior, Site, Traits, priors

PRIOR = priors().step_time
SURE = PRIOR.model_copy(update={"odd_sites": 1e-99, "odd_runs": 1e-99, "scattered_sites": 1e-99})


def rows(source: str, most: int) -> MeasuredRuns:
    """Published runs of one source, of stated jobs."""
    own = (row for row in read_table() if source in row.source and not row.guessed)
    return experience_of([row for row in own if row.teaches("step_time")][:most])


@pytest.fixture(scope="module")
def tr11() -> MeasuredRuns:
    return rows("tr11", 6)


def whole(prior: Prior, traits: Traits, site: Site = SITES[0]) -> np.ndarray:
    """Covariance of measurements."""
    alone = prior.covariance_alone(traits, traits, scatters=site.scatters)
    odd = site.odd * prior.covariance_of_odd(traits, traits)
    return prior.covariance(traits, traits) + odd + alone + REPEAT**2 * np.eye(len(traits))


@pytest.mark.parametrize("source", ["tr11", "Megatron-Bridge", "ultrascale", "SimuMax"])
@pytest.mark.parametrize("odd", [False, True])
def test_covariance_is_one(source: str, odd: bool) -> None:
    traits = rows(source, 30).traits
    shared = PRIOR.covariance(traits, traits) + odd * PRIOR.covariance_of_odd(traits, traits)
    np.testing.assert_allclose(shared, shared.T)
    np.testing.assert_allclose(np.diag(shared), PRIOR.variance_shared(traits, odd=odd))
    assert np.linalg.eigvalsh(shared).min() > -1e-9


def test_likelihoods_are_those_of_gaussians(tr11: MeasuredRuns) -> None:
    found, n = likelihoods(PRIOR, tr11), len(tr11)
    constant = n * math.log(2 * math.pi) / 2
    for place, site in enumerate(SITES):
        share = PRIOR.odd_sites if site.odd else 1 - PRIOR.odd_sites
        share *= PRIOR.scattered_sites if site.scatters else 1 - PRIOR.scattered_sites
        covariance = whole(PRIOR, tr11.traits, site)
        plain = multivariate_normal(np.zeros(n), covariance).logpdf(tr11.log_ratios)
        sound = math.log(share) + n * math.log1p(-PRIOR.odd_runs)
        assert found.sound[place] == pytest.approx(plain + constant + sound)
        for run in range(n):
            worse = covariance.copy()
            worse[run, run] += PRIOR.odd**2
            density = multivariate_normal(np.zeros(n), worse).logpdf(tr11.log_ratios)
            odds = math.log(PRIOR.odd_runs / (1 - PRIOR.odd_runs))
            expected = density + constant + sound + odds
            assert found.odd_run[place, run] == pytest.approx(expected)
    assert found.odd_runs.sum() < 1
    assert 0 < found.odd_site < 1


def test_prediction_is_the_conditional_gaussian(tr11: MeasuredRuns) -> None:
    asked = rows("tr11", 12).traits.take(slice(6, None))
    both = Traits.joined([tr11.traits, asked])
    joint, n = whole(SURE, both), len(tr11)
    gain = joint[n:, :n] @ np.linalg.inv(joint[:n, :n])
    effects, variance = predict_log_ratio(SURE, tr11, asked)
    mean = np.sum(asked.shares * effects[:, :-1], axis=1) + effects[:, -1]
    np.testing.assert_allclose(mean, gain @ tr11.log_ratios)
    expected = np.diag(joint[n:, n:] - gain @ joint[:n, n:]) - REPEAT**2
    np.testing.assert_allclose(variance, expected)


def test_a_layout_that_was_measured_is_known_better_than_others(tr11: MeasuredRuns) -> None:
    own = tr11.traits.take(slice(0, 1))
    other = replace(own, shape=own.shape + 1.0)
    slow = MeasuredRuns(Traits.joined([own] * 3), np.full(3, 0.25))
    same, near = (outlook(PRIOR, slow, some) for some in (own, other))
    assert same.expected[0] > near.expected[0] > 1
    assert same.spread[0] < near.spread[0]


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


def test_runs_move_the_cause_that_they_blame(tr11: MeasuredRuns) -> None:
    one = tr11.traits.take(slice(0, 1))
    shares = np.array([[0.9, 0.1, 0.0, 0.0], [0.5, 0.5, 0.0, 0.0], [0.2, 0.8, 0.0, 0.0]])
    mixed = replace(Traits.joined([one] * 3), shares=shares)
    slow_links = MeasuredRuns(mixed, np.log(shares @ np.array([1.0, 1.5, 1.0, 1.0])))
    computation, traffic, host, _ = outlook(PRIOR, slow_links, mixed).by_cause[0]
    assert traffic > 1.02 * computation
    assert host > 1  # what blames no cause moves all
    found = outlook(PRIOR, slow_links, mixed)
    np.testing.assert_allclose(found.expected, np.sum(shares * found.by_cause, axis=1))


def test_runs_that_scatter_move_less_than_runs_that_agree(tr11: MeasuredRuns) -> None:
    own = Traits.joined([tr11.traits.take(slice(0, 1))] * 4)
    agree = MeasuredRuns(own, np.full(4, 0.15))
    scatter = MeasuredRuns(own, np.array([0.45, -0.15, 0.4, -0.1]))
    asked = own.take(slice(0, 1))
    moved = [float(outlook(PRIOR, some, asked).expected[0]) for some in (agree, scatter)]
    assert moved[0] > moved[1] > 1
    widths = [float(outlook(PRIOR, some, asked).spread[0]) for some in (agree, scatter)]
    assert widths[0] < widths[1]


def test_a_program_that_nobody_measured_on_a_device_is_less_sure(tr11: MeasuredRuns) -> None:
    own = tr11.traits.take(slice(0, 1))
    other_program = replace(own, framework=np.array(["nanotron"]))
    new_device = replace(own, architecture=np.array(["another"]))
    new_program = replace(new_device, framework=np.array(["another"]))
    spreads = [
        float(outlook(PRIOR, None, some).spread[0])
        for some in (own, other_program, new_device, new_program)
    ]
    assert spreads[0] < spreads[1]
    assert spreads[0] < spreads[2] < spreads[3]


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
