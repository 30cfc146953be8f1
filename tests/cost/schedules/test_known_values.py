"""Known values of functions of `planner.cost.schedules`."""

from __future__ import annotations

import numpy as np

from planner.cost.schedules.bubble import (
    bubble_s,
    chunks_in_flight,
    chunks_waiting,
    fewest_micro_batches,
    in_flight,
)
from planner.cost.schedules.schedule import Passes, PipelinePasses, idle_s, pair
from planner.cost.schedules.simulate import StageTime, simulate
from planner.cost.shards.layouts import Layouts
from planner.describe.layout import Layout


def test_in_flight() -> None:
    assert float(in_flight(Layouts.broadcast(pp=4, grad_accumulation=8, schedule=2), 1)) == 3.0


def test_chunks_in_flight() -> None:
    layouts = Layouts.broadcast(pp=4, vpp=2, grad_accumulation=8, schedule=3)
    # 11 passes
    assert chunks_in_flight(layouts, 0, np.array([1.0, 2.0])).tolist() == [7.0, 4.0]


def test_chunks_waiting() -> None:
    layouts = Layouts.broadcast(pp=4, vpp=2, grad_accumulation=8, schedule=5)
    assert [held.tolist() for held in chunks_waiting(layouts, 3, np.array([1.0, 1.0]))] == [
        [4.0, 3.0],
        [4.0, 3.0],
    ]


def test_bubble_s() -> None:
    layouts = Layouts.of(Layout(pp=4, schedule="1f1b", grad_accumulation=8))
    one, before, four = (Passes(*(n * np.array([3.0, 1.0, 1.0])[:, None])) for n in (1, 3, 4))
    all_stages = Passes(*(part[0] for part in (four.total_s, four.forward_s, four.weight_s)))
    pipeline = PipelinePasses(np.array([3]), one, before, one.minus(one), all_stages)
    # 3 * 3 s
    assert float(bubble_s(layouts, pipeline)) == 9.0


def test_fewest_micro_batches() -> None:
    assert int(fewest_micro_batches(Layouts.broadcast(pp=4, vpp=2, schedule=6))) == 8


def test_idle_s() -> None:
    one = Passes(np.asarray(3.0), np.asarray(1.0), np.asarray(1.0))
    assert float(idle_s(2, 2, 8, one, one)) == 1.5


def test_pair() -> None:
    assert pair(np.array([3]), np.array([1]), np.ones((3, 1))).tolist() == [[3.0], [1.0], [0.0]]


def test_simulate() -> None:
    timeline = simulate([StageTime(1.0, 2.0)] * 4, 8, "1f1b")
    # (m + p - 1) (t_f + t_b)
    assert timeline.makespan_s == 33.0
