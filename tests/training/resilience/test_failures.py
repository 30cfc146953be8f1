"""Failures: closed forms against simulated failures, publications, and their edges."""

from __future__ import annotations

import numpy as np
import pytest

from planner.describe.training.training_run import Failures
from planner.errors import DescriptionError
from planner.training.resilience.failures import (
    consecutive_jobs,
    constants,
    daly_interval_s,
    detection_s,
    expected_time_s,
    mean_time_between_failures_s,
    training_losses,
    young_interval_s,
)

WORK, WRITE, MTBF, RESTART = 20 * 86400.0, 60.0, 11_135.0, 700.0


def played(
    work: float,
    write: float,
    interval: float,
    mtbf: float,
    restart: float,
    seed: int,
) -> tuple[float, float, float, int]:
    """One training, failure by failure: its time, lost time, restarts' time and failures."""
    random = np.random.default_rng(seed)
    time = lost = restarts = 0.0
    failures = 0
    left = random.exponential(mtbf)
    for _ in range(round(work / interval)):
        need = interval + write
        while left < need:
            time, lost, failures = time + left, lost + left, failures + 1
            left = random.exponential(mtbf)
            while left < restart:
                time, restarts, failures = time + left, restarts + left, failures + 1
                left = random.exponential(mtbf)
            time, restarts, left = time + restart, restarts + restart, left - restart
        time, left = time + need, left - need
    return time, lost, restarts, failures


@pytest.mark.parametrize("interval", [300.0, 1200.0, 7200.0])
def test_closed_form_is_the_mean_of_simulated_trainings(interval: float) -> None:
    runs = np.array([played(WORK, WRITE, interval, MTBF, RESTART, seed) for seed in range(200)])
    found = training_losses(WORK, WRITE, MTBF, RESTART, interval)
    time, lost, restarts, failures = runs.mean(axis=0)
    assert float(found.total_s) == pytest.approx(time, rel=0.01)
    assert float(found.lost_s) == pytest.approx(lost, rel=0.04)
    assert float(found.restarts_s) == pytest.approx(restarts, rel=0.04)
    assert float(found.failures) == pytest.approx(failures, rel=0.04)


@pytest.mark.parametrize("write", [1.0, 60.0, 900.0])
@pytest.mark.parametrize("mtbf", [3600.0, 11_135.0, 1e6])
def test_daly_finds_the_least_of_the_expected_time(write: float, mtbf: float) -> None:
    intervals = np.geomspace(1, 5e4, 20_001)
    times = expected_time_s(1e6, write, intervals, mtbf, RESTART)
    best = float(times.min())
    chosen = float(expected_time_s(1e6, write, daly_interval_s(write, mtbf), mtbf, RESTART))
    assert chosen == pytest.approx(best, rel=2e-3)


def test_young_is_daly_where_failures_are_rare() -> None:
    assert float(daly_interval_s(1, 1e9)) == pytest.approx(
        float(young_interval_s(1, 1e9)), rel=1e-4
    )
    assert float(daly_interval_s(600, 3600)) < float(young_interval_s(600, 3600))


def test_small_losses_are_those_of_meta_research_clusters() -> None:
    # Kokolis et al. 2024, arXiv:2410.21680, expected ETTR of runs that are not queued again:
    # (1 - N r (u + d/2)) / (1 + w/d)
    devices, interval, write, restart = 2048, 1800.0, 10.0, 300.0
    failures = Failures(per_device_hour=6.50e-3 / 24 / 8)
    mtbf = float(mean_time_between_failures_s(devices, failures))
    expected = (1 - (restart + interval / 2) / mtbf) / (1 + write / interval)
    assert float(training_losses(1e7, write, mtbf, restart, interval).fraction) == pytest.approx(
        expected, rel=2e-3
    )


@pytest.mark.parametrize(("devices", "hours"), [(16_384, 1.8), (131_072, 0.23)])
def test_projections_of_meta_research_clusters(devices: int, hours: float) -> None:
    # arXiv:2410.21680: 6.50 failures per 1000 node-days of 8 devices
    failures = Failures(per_device_hour=6.50e-3 / 24 / 8)
    assert float(mean_time_between_failures_s(devices, failures)) / 3600 == pytest.approx(
        hours, rel=0.03
    )


def test_small_jobs_of_meta_research_clusters_fail_more_often() -> None:
    # the same paper measured 7.9 h for jobs of 1,024: no rate per device gives both
    failures = Failures(per_device_hour=6.50e-3 / 24 / 8)
    assert float(mean_time_between_failures_s(1024, failures)) / 3600 > 3 * 7.9


def test_bloom_lost_one_or_two_devices_a_week() -> None:
    # arXiv:2211.05100, section 3.2.5: 1 to 2 GPU failures a week on 384
    week = 7 * 86400 / float(mean_time_between_failures_s(384))
    assert 1 <= week <= 2


def test_rate_is_that_of_its_source() -> None:
    # Llama 3, arXiv:2407.21783, section 3.3.4: 419 in 54 days on 16,384
    rate = 419 / (54 * 24 * 16_384)
    assert constants().per_device_hour.value == pytest.approx(rate, rel=1e-3)


def test_parts_are_the_whole_and_none_is_negative() -> None:
    found = training_losses(
        WORK, [0.0, 10.0, 1e4], MTBF, [[0.0], [700.0]], behind_s=[0.0, 100.0, 0.0]
    )
    assert found.total_s.shape == (2, 3)
    for part in (found.checkpoints_s, found.lost_s, found.restarts_s):
        assert np.all(part >= 0)
    expected = expected_time_s(
        WORK, [0.0, 10.0, 1e4], found.interval_s, MTBF, [[0.0, 100.0, 0.0], [700.0, 800.0, 700.0]]
    )
    assert np.allclose(found.total_s, expected)


def test_scalar_and_array_agree() -> None:
    found = training_losses(WORK, [10.0, 60.0], MTBF, RESTART)
    for index, write in enumerate((10.0, 60.0)):
        alone = training_losses(WORK, write, MTBF, RESTART)
        assert float(alone.fraction) == float(found.fraction[index])


def test_more_of_anything_is_worse() -> None:
    base = training_losses(WORK, WRITE, MTBF, RESTART).fraction
    assert training_losses(WORK, 2 * WRITE, MTBF, RESTART).fraction < base
    assert training_losses(WORK, WRITE, MTBF / 2, RESTART).fraction < base
    assert training_losses(WORK, WRITE, MTBF, 2 * RESTART).fraction < base
    assert training_losses(WORK, WRITE, MTBF, RESTART, behind_s=600).fraction < base


def test_a_rate_too_small_for_any_training_is_none() -> None:
    never = mean_time_between_failures_s(8, Failures(per_device_hour=0))
    assert mean_time_between_failures_s(8, Failures(per_device_hour=2.8e-306)) == never


def test_nothing_is_lost_where_nothing_fails() -> None:
    never = mean_time_between_failures_s(8, Failures(per_device_hour=0))
    found = training_losses(WORK, 0.0, never, RESTART)
    assert float(found.fraction) == pytest.approx(1.0)
    saved = training_losses(WORK, 40.0, never, RESTART, interval_s=10_800.0)
    # BLOOM-176B: 40 s every 3 hours are 0.37 % (stas00/ml-engineering, fault-tolerance/README.md)
    assert float(saved.checkpoints_s / saved.total_s) == pytest.approx(0.0037, abs=1e-4)


def test_nothing_is_ever_done_where_writing_outlasts_the_machine() -> None:
    found = training_losses(WORK, 1e6, 3600.0, RESTART)
    assert float(found.fraction) < 1e-6
    assert np.isfinite(float(found.total_s))
    never = training_losses(30 * 86400, 1e7, 1.0, 1e7, 1e9)
    assert np.isfinite(float(never.total_s))
    assert float(never.fraction) == pytest.approx(0, abs=1e-9)


def test_checkpoints_are_no_closer_than_they_are_written() -> None:
    assert float(training_losses(WORK, 1.0, MTBF, RESTART, behind_s=900.0).interval_s) == 900.0
    assert float(training_losses(100.0, 1.0, 1e9, RESTART).interval_s) == 100.0


def test_noticing_and_waiting_add_up() -> None:
    assert detection_s(Failures(detection_s=30, queue_s=60)) == 90
    assert detection_s(Failures()) == constants().detection_s.value


def test_jobs_hold_all_the_work() -> None:
    day = consecutive_jobs(86_400, 21_600, 300, 1800)
    room = 21_600 - 300 - 900
    assert float(day.jobs) == np.ceil((86_400 - 900) / room)
    assert float(day.ends_s) == 900 * (float(day.jobs) - 1)


def test_one_job_loses_nothing_at_its_end() -> None:
    one = consecutive_jobs(3600, 86_400, 300, 1800)
    assert (float(one.jobs), float(one.ends_s)) == (1.0, 0.0)


def test_jobs_that_only_start_are_endless() -> None:
    assert float(consecutive_jobs(3600, 600, 700, 60).jobs) == np.inf


def test_impossible_rates_are_refused() -> None:
    with pytest.raises(DescriptionError, match="per_device_hour"):
        Failures(per_device_hour=-1)
