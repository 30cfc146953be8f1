"""Failures: time lost to interruptions (a Poisson process), and the best checkpoint interval."""

import functools
from dataclasses import dataclass
from pathlib import Path

import numpy as np
from numpy.typing import ArrayLike

from planner.cost.arrays import Arrays, Float
from planner.describe.base import Description, Quantity
from planner.describe.files import read_toml
from planner.describe.training.training_run import Failures

_ENDLESS_S = 1e18
# stands for "never"; keeps exponents finite
_MAX_EXPONENT = 200.0
# a training with a larger exponent never ends


class FailureConstants(Description):
    """Rate of interruptions, and the time to detect one."""

    per_device_hour: Quantity
    """Interruptions of the job per device-hour."""
    detection_s: Quantity
    """Time to detect an interruption [s]."""


@functools.cache
def constants() -> FailureConstants:
    """Constants of failures, from `operation.toml`."""
    data = read_toml(Path(__file__).with_name("operation.toml"))["failures"]
    return FailureConstants.described(data, where="operation.toml: failures")


def mean_time_between_failures_s(num_devices: ArrayLike, failures: Failures | None = None) -> Float:
    """Mean time between interruptions, arXiv:2410.21680, section III [s]."""
    own_rate = (failures or Failures()).per_device_hour
    rate = constants().per_device_hour.value if own_rate is None else own_rate
    if rate <= 3600.0 / _ENDLESS_S:
        return np.full(np.shape(num_devices), _ENDLESS_S)
    return 3600.0 / (rate * np.asarray(num_devices, dtype=float))


def detection_s(failures: Failures) -> float:
    """Time to detect an interruption and to get nodes again [s]."""
    stated_s = failures.detection_s
    return (constants().detection_s.value if stated_s is None else stated_s) + failures.queue_s


def young_interval_s(write_s: ArrayLike, mtbf_s: ArrayLike) -> Float:
    """Best checkpoint interval to first order, Young 1974, doi:10.1145/361147.361115 [s]."""
    return np.sqrt(2.0 * np.asarray(write_s, dtype=float) * np.asarray(mtbf_s, dtype=float))


def daly_interval_s(write_s: ArrayLike, mtbf_s: ArrayLike) -> Float:
    """Best checkpoint interval, Daly 2006, doi:10.1016/j.future.2004.11.016, equation 37 [s]."""
    write, mtbf = _floats(write_s, mtbf_s)
    half = write / (2.0 * mtbf)
    higher = young_interval_s(write, mtbf) * (1 + np.sqrt(half) / 3 + half / 9) - write
    return np.where(half < 1, higher, mtbf)


def _floats(*values: ArrayLike) -> tuple[Float, ...]:
    return np.broadcast_arrays(*(np.asarray(each, dtype=float) for each in values))


def expected_time_s(
    work_s: ArrayLike,
    write_s: ArrayLike,
    interval_s: ArrayLike,
    mtbf_s: ArrayLike,
    restart_s: ArrayLike,
) -> Float:
    """Time with failures and restarts, Daly 2006, doi:10.1016/j.future.2004.11.016 [s]."""
    mtbf = np.minimum(np.asarray(mtbf_s, dtype=float), _ENDLESS_S)
    interval = np.asarray(interval_s, dtype=float)
    segment = np.minimum((interval + write_s) / mtbf, _MAX_EXPONENT)
    restarts = np.minimum(np.asarray(restart_s, dtype=float) / mtbf, _MAX_EXPONENT)
    return np.asarray(work_s, dtype=float) / interval * mtbf * np.exp(restarts) * np.expm1(segment)


@dataclass(frozen=True, slots=True)
class Losses(Arrays):
    """Expected time of a training by use [s], its checkpoint interval and number of failures."""

    interval_s: Float
    work_s: Float
    checkpoints_s: Float
    lost_s: Float
    """Work and checkpoints lost to failures; not part of `work_s` and `checkpoints_s`."""
    restarts_s: Float
    failures: Float

    @property
    def total_s(self) -> Float:
        """Total time [s]."""
        return self.work_s + self.checkpoints_s + self.lost_s + self.restarts_s

    @property
    def fraction(self) -> Float:
        """Fraction of time spent on work that counts: effective training time, or goodput [1]."""
        return self.work_s / self.total_s


def training_losses(
    work_s: ArrayLike,
    write_s: ArrayLike,
    mtbf_s: ArrayLike,
    restart_s: ArrayLike,
    interval_s: ArrayLike | None = None,
    behind_s: ArrayLike = 0.0,
) -> Losses:
    """Time lost to checkpoints, failures and restarts; training.md#failures [s]."""
    work, write, mtbf, restart, behind = _floats(work_s, write_s, mtbf_s, restart_s, behind_s)
    mtbf = np.minimum(mtbf, _ENDLESS_S)
    wanted_s = daly_interval_s(write, mtbf) if interval_s is None else interval_s
    interval = np.maximum(np.maximum(wanted_s, behind), 1e-9)
    interval = np.minimum(interval, np.maximum(work, 1e-9))
    recovery = restart + behind
    total = expected_time_s(work, write, interval, mtbf, recovery)
    checkpoints = work / interval * write
    # every failure is followed by a restart, which the next failure may cut short
    restarting = total * -np.expm1(-np.minimum(recovery / mtbf, _MAX_EXPONENT))
    restarts = restarting * restart / np.maximum(recovery, 1e-9)
    lost = np.maximum(total - work - checkpoints - restarts, 0.0)
    return Losses(interval, work, checkpoints, lost, restarts, np.asarray(total / mtbf))


@dataclass(frozen=True, slots=True)
class Jobs(Arrays):
    """Number of consecutive jobs, and time lost at the ends of jobs [s]."""

    jobs: Float
    ends_s: Float


def consecutive_jobs(
    total_s: ArrayLike, wall_s: ArrayLike, start_s: ArrayLike, interval_s: ArrayLike
) -> Jobs:
    """Jobs within a queue's wall time that a training needs, and the time lost at ends [1, s]."""
    total, wall, start, interval = _floats(total_s, wall_s, start_s, interval_s)
    end = interval / 2
    room = wall - start - end
    # the last job ends with the training and loses nothing
    most = (total - end) / np.where(room > 0, room, 1.0)
    jobs = np.where(room > 0, np.maximum(np.ceil(most), 1.0), np.inf)
    counted = np.where(np.isfinite(jobs), jobs, 0.0)
    return Jobs(jobs, np.maximum(counted - 1, 0.0) * end)
