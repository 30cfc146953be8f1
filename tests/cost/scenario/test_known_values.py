"""Known values of functions of `planner.cost.scenario`."""

from __future__ import annotations

import numpy as np

from planner.cost.scenario.experience import (
    MeasuredRuns,
    likelihoods,
    most_informative_run,
    outlook,
    predict_log_ratio,
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
