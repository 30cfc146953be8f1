"""Known values of functions of `planner.cost`."""

from __future__ import annotations

import numpy as np

from planner.cost.arrays import distinct, where_any
from planner.cost.estimate import estimate_fitting, estimate_layouts, estimate_times, step_times
from planner.cost.memory.footprint import footprints
from planner.cost.shards.layouts import Layouts
from planner.cost.uncertainty import exceeding_probability, memory_outlook, step_outlook, traits_of
from planner.describe.layout import Layout
from tests.descriptions import default_scenario as make_scenario


def test_where_any() -> None:
    assert where_any(np.array([True, False]), lambda: np.array([1.0, 2.0])).tolist() == [1.0, 0.0]


def test_distinct() -> None:
    assert [part.tolist() for part in distinct(np.array([4, 2, 4, 2]), np.array([1, 1, 1, 3]))] == [
        [0, 1, 3],
        [0, 1, 0, 2],
    ]


def test_estimate_layouts() -> None:
    scenario = make_scenario("gpt2-xl", global_batch=64)
    found = estimate_layouts(scenario, Layouts.of(Layout(dp=8, grad_accumulation=8)))[0]
    assert found.memory_bytes["optimizer_states"] / scenario.model.num_params == 12.0


def test_estimate_fitting() -> None:
    scenario = make_scenario("gpt2-xl", "ddp", global_batch=64)
    layouts = Layouts.broadcast(dp=64, micro_batch=[1, 64])
    footprints, estimates = estimate_fitting(scenario, layouts)
    assert (footprints.fits.tolist(), len(estimates)) == ([True, False], 1)


def test_estimate_times() -> None:
    scenario = make_scenario("gpt2-xl", global_batch=64)
    layouts = Layouts.broadcast(dp=[8, 4], grad_accumulation=[8, 16])
    later = estimate_times(scenario, footprints(scenario, layouts)).step_time_s
    assert bool(np.all(later == estimate_layouts(scenario, layouts).step_time_s))


def test_step_times() -> None:
    scenario = make_scenario("gpt2-xl", global_batch=64)
    layouts = Layouts.broadcast(dp=[8, 4], grad_accumulation=[8, 16])
    found = estimate_layouts(scenario, layouts).step_time_s
    assert bool(np.all(step_times(scenario, layouts) == found))


def test_traits_of() -> None:
    scenario = make_scenario()
    parts_s = {"forward": [3.0, 3.0], "gradient_reduction": [1.0, 3.0]}
    # traffic
    assert traits_of(scenario, Layouts.broadcast(dp=[8, 32]), parts_s).shares[:, 1].tolist() == [
        0.25,
        0.5,
    ]


def test_step_outlook() -> None:
    scenario = make_scenario()
    parts_s = {"forward": [3.0, 3.0], "gradient_reduction": [1.0, 3.0]}
    near, far = step_outlook(scenario, Layouts.broadcast(dp=[8, 32]), parts_s).spread
    # more traffic is less sure
    assert bool(near < far)


def test_memory_outlook() -> None:
    scenario = make_scenario()
    low, high = memory_outlook(scenario, Layouts.broadcast(dp=[4])).around()
    assert low < 1 < high


def test_exceeding_probability() -> None:
    scenario = make_scenario()
    layouts = Layouts.broadcast(dp=[4, 4, 4])
    assert [round(float(p)) for p in exceeding_probability(scenario, layouts, [2, 1, 0.5])] == [
        0,
        1,
        1,
    ]
