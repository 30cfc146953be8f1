"""Known values of functions of `planner.cost.scenario`."""

from __future__ import annotations

import numpy as np
import pytest

from planner.cost.scenario.experience import (
    MeasuredRuns,
    expected_spread,
    likelihoods,
    most_informative_run,
    outlook,
    predict_log_ratio,
    variance_removed,
)
from planner.cost.scenario.prior import priors
from planner.cost.shards.layouts import Layouts
from planner.cost.uncertainty import traits_of
from tests.descriptions import default_scenario as make_scenario


def test_outlook() -> None:
    runs = traits_of(make_scenario("gpt2", "ddp"), Layouts.broadcast(dp=[4, 4, 4, 4]), {})
    slow = MeasuredRuns(runs, np.log([1.1, 1.1, 1.1, 1.1]))
    assert bool(1.05 < outlook(priors().step_time, slow, runs).expected[0] < 1.1)


def test_most_informative_run() -> None:
    runs = traits_of(make_scenario("gpt2"), Layouts.broadcast(dp=[16, 8, 4], tp=[1, 2, 4]), {})
    # the middle
    assert most_informative_run(priors().step_time, runs) == 1


def test_likelihoods() -> None:
    runs = traits_of(make_scenario("gpt2", "ddp"), Layouts.broadcast(dp=[4, 4, 4, 4]), {})
    found = likelihoods(priors().step_time, MeasuredRuns(runs, np.log([1.0, 6.0, 1.1, 1.0])))
    assert [round(float(chance)) for chance in found.odd_runs] == [0, 1, 0, 0]


def test_predict_log_ratio() -> None:
    runs = traits_of(make_scenario("gpt2", "ddp"), Layouts.broadcast(dp=[4, 4, 4, 4]), {})
    _, variance = predict_log_ratio(priors().step_time, MeasuredRuns(runs, np.zeros(4)), runs)
    assert bool(np.all(variance < priors().step_time.variance(runs) / 2))


def test_variance_removed() -> None:
    runs = traits_of(make_scenario("gpt2"), Layouts.broadcast(dp=[16, 8], tp=[1, 2]), {})
    prior = priors().step_time
    shared = prior.covariance(runs, runs)
    removed = variance_removed(prior, runs)
    alone = prior.variance_alone(runs)[1]
    assert removed[0, 1] == pytest.approx(shared[0, 1] ** 2 / (shared[1, 1] + alone))
    # what was measured before says most of it
    assert variance_removed(prior, runs, runs)[0, 1] < removed[0, 1] / 2


def test_expected_spread() -> None:
    runs = traits_of(make_scenario("gpt2"), Layouts.broadcast(dp=[16, 8, 4], tp=[1, 2, 4]), {})
    prior, job = priors().step_time, runs.take(np.array([0]))
    before = float(np.sqrt(prior.variance(job))[0])
    one, two = (expected_spread(prior, job, runs.take(np.arange(1, n))) for n in (2, 3))
    assert before > one > two
