"""Speed: estimating many layouts in one call is much faster; checks ratios of CPU times."""

from __future__ import annotations

import time
from collections.abc import Callable

import pytest

from planner.choose.search.enumeration import enumerate_layouts
from planner.cost.estimate import estimate_layouts
from planner.cost.scenario import Scenario
from planner.cost.shards.layouts import Layouts
from tests.descriptions import scenario

pytestmark = pytest.mark.slow

MANY = 20_000
"""Number of layouts; in `benchmarks/speed.py`, one by one takes over a thousand times as long."""


def seconds(work: Callable[[], object]) -> float:
    """Measure the CPU time of the fastest of three calls [s]."""
    times = []
    for _ in range(3):
        start = time.process_time()
        work()
        times.append(time.process_time() - start)
    return min(times)


def asked() -> tuple[Scenario, Layouts]:
    """Return a scenario and layouts of a dense model on 16 nodes of eight devices."""
    job = scenario("llama-3.1-70b", "megatron-lm", machine="dgx-h100", global_batch=1024)
    layouts, _ = enumerate_layouts(job, 128)
    return job, layouts


def test_many_layouts_in_one_call_take_less_than_a_tenth_of_each_alone() -> None:
    job, layouts = asked()
    some = layouts.take(slice(0, MANY))
    assert len(some) > MANY // 2
    one = layouts.take(slice(0, 1))
    together = seconds(lambda: estimate_layouts(job, some)) / len(some)
    assert together < seconds(lambda: estimate_layouts(job, one)) / 10


def test_time_grows_with_layouts_and_no_faster() -> None:
    job, layouts = asked()
    many, few = (layouts.take(slice(0, count)) for count in (MANY, MANY // 4))
    assert len(many) <= 4 * len(few)
    longer = seconds(lambda: estimate_layouts(job, many))
    assert longer < 6 * seconds(lambda: estimate_layouts(job, few))
