"""Scores: measured runs against their estimates, and figures over groups of runs."""

import operator
from collections.abc import Sequence
from dataclasses import dataclass
from importlib.util import find_spec
from typing import Any

import numpy as np
from numpy.typing import ArrayLike, NDArray

from planner.choose.search.expected_time import likely_stalls
from planner.cost.estimate import Estimate
from planner.cost.shards.layouts import Layouts
from planner.describe.layout import Layout
from planner.evidence.runs.run import Run
from planner.tables import Record

Interval = tuple[float, float]
"""Shortest and longest expected step time [s]."""
MISSING_RANKS = (
    "rank correlations are left out, as scipy is not installed; install the extra: "
    "pip install 'parallelism-planner[evidence]'"
)


@dataclass(frozen=True, slots=True)
class Score:
    """One measured run with its estimate."""

    run: Run
    estimate: Estimate
    estimated_memory_bytes: float
    """Sum of the memory parts that the measurement sees [B]."""
    interval_s: Interval | None
    fits: bool
    """True if the estimate fits; if the row states no recompute, with any recompute mode."""

    @property
    def error(self) -> float | None:
        """Estimated over measured step time, minus one; None if no time was measured."""
        measured = self.run.step_time_s
        return None if measured is None else self.estimate.step_time_s / measured - 1

    def record(self) -> Record:
        """Return the run as one flat row: measurements, errors, and the record of the estimate."""
        run = self.run
        return {
            "run": run.row_id,
            "source": run.source,
            "model": run.model.name,
            "machine": run.machine.name,
            "measured_step_time_s": run.step_time_s,
            "step_time_error": self.error,
            "measured_memory_bytes": run.memory_bytes,
            "memory_error": self.memory_error,
            **self.estimate.record(),
        }

    @property
    def covered(self) -> bool:
        """True if the interval contains the measured step time."""
        measured, bounds = self.run.step_time_s, self.interval_s
        return measured is not None and bounds is not None and bounds[0] <= measured <= bounds[1]

    @property
    def memory_error(self) -> float | None:
        """Estimated over measured memory, minus one; None if none was measured."""
        measured = self.run.memory_bytes
        return None if measured is None else self.estimated_memory_bytes / measured - 1


@dataclass(frozen=True, slots=True)
class Group:
    """Figures over a group of scored runs; None if too few runs have the data."""

    name: str
    num_runs: int
    num_times: int
    mape: float | None
    """Mean of |error| of step times."""
    median_error: float | None
    """Median of the signed errors."""
    bias: float | None
    """Geometric mean of estimated over measured, minus one."""
    log_spread: float | None
    """Standard deviation of log(estimated / measured)."""
    worst_row: str | None
    worst_error: float | None
    coverage: float | None
    """Share of the measured step times inside the estimate's interval."""
    rank_correlation: float | None
    """Spearman's rank correlation of tokens per second and device, over the group's runs."""
    num_jobs: int
    """Jobs measured in at least two layouts."""
    regret: float | None
    """Mean over jobs: measured time of the first-ranked layout over the best measured, - 1."""
    job_rank_correlation: float | None
    """Mean rank correlation of step times, over jobs with at least four timed runs."""
    failed_picks: int
    """Jobs whose first-ranked layout failed to run."""
    memory_mape: float | None
    memory_bias: float | None
    num_memories: int
    fit_recall: float | None
    """Share of the successful runs that are estimated to fit."""
    oom_precision: float | None
    """Share of the runs estimated not to fit that failed."""
    oom_recall: float | None
    """Share of the failed runs that are estimated not to fit."""


def ranks_are_known() -> bool:
    """True if scipy, which computes rank correlations, is installed."""
    return find_spec("scipy") is not None


def rank_correlation(a: ArrayLike, b: ArrayLike) -> float | None:
    """Spearman's rank correlation; None below three pairs, for equal values, or without scipy."""
    x, y = np.asarray(a, dtype=np.float64), np.asarray(b, dtype=np.float64)
    if len(x) < 3 or np.ptp(x) == 0 or np.ptp(y) == 0 or not ranks_are_known():
        return None
    from scipy.stats import spearmanr

    return round(float(spearmanr(x, y).statistic), 12)


_JOB = operator.attrgetter(
    "run.source",
    "run.machine_label",
    "run.framework.name",
    "run.model.name",
    "run.layout.world",
    *(f"run.workload.{n}" for n in ("sequence_length", "global_batch", "precision", "lora_rank")),
)
"""Key that all layouts of one job share."""


def regret(items: Sequence[Score]) -> tuple[float | None, bool]:
    """Measured time of our pick over the best measured, minus one; and whether it failed."""
    times: dict[Layout, list[float]] = {}
    for item in items:
        if item.run.step_time_s is not None:
            times.setdefault(item.run.layout, []).append(item.run.step_time_s)
    measured = {layout: float(np.mean(values)) for layout, values in times.items()}
    ranked = sorted([item for item in items if item.fits] or items, key=_rank)
    ran = [item.run.layout for item in ranked if item.run.layout in measured]
    failed = bool(ranked) and ranked[0].run.fits is False
    if len(measured) < 2 or not ran:
        return None, failed
    return measured[ran[0]] / min(measured.values()) - 1, failed


def _rank(item: Score) -> tuple[bool, float, str]:
    """Sort key of a layout within its job: layouts likely to stall last, then by step time."""
    stalls = bool(likely_stalls(item.run.scenario, Layouts.of(item.run.layout)))
    return stalls, item.estimate.step_time_s, item.run.row_id


def _mean(values: ArrayLike) -> float | None:
    array = np.asarray(values, dtype=np.float64)
    return float(array.mean()) if array.size else None


def group(name: str, items: Sequence[Score]) -> Group:
    """Compute all figures over scored runs."""
    timed = [item for item in items if item.error is not None]
    errors = np.array([item.error for item in timed], dtype=np.float64)
    logs = np.log1p(errors)
    worst = timed[int(np.argmax(np.abs(logs)))] if timed else None
    memory = np.array([m for item in items if (m := item.memory_error) is not None])
    return Group(
        name=name,
        num_runs=len(items),
        num_times=len(timed),
        mape=_mean(np.abs(errors)),
        median_error=float(np.median(errors)) if timed else None,
        bias=float(np.expm1(logs.mean())) if timed else None,
        log_spread=float(logs.std()) if timed else None,
        worst_row=worst.run.row_id if worst else None,
        worst_error=worst.error if worst else None,
        coverage=_mean([item.covered for item in timed]),
        rank_correlation=rank_correlation(*_rates(timed)),
        memory_mape=_mean(np.abs(memory)),
        memory_bias=float(np.expm1(np.log1p(memory).mean())) if len(memory) else None,
        num_memories=len(memory),
        **_jobs(items),
        **_fit(items),
    )


def _times(timed: Sequence[Score]) -> NDArray[np.float64]:
    pairs = [(item.run.step_time_s, item.estimate.step_time_s) for item in timed]
    return np.array(pairs, dtype=np.float64).reshape(-1, 2).T


def _rates(timed: Sequence[Score]) -> NDArray[np.float64]:
    tokens = np.array([item.run.workload.tokens_per_step for item in timed])
    return tokens / (_times(timed) * np.array([item.run.layout.world for item in timed]))


def _jobs(items: Sequence[Score]) -> dict[str, Any]:
    jobs: dict[tuple[object, ...], list[Score]] = {}
    for item in items:
        jobs.setdefault(_JOB(item), []).append(item)
    regrets, failed, correlations = [], 0, []
    for members in jobs.values():
        lost, pick_failed = regret(members)
        if lost is None:
            continue
        regrets.append(lost)
        failed += pick_failed
        timed = [item for item in members if item.run.step_time_s is not None]
        if len(timed) > 3:
            correlations.append(rank_correlation(*_times(timed)))
    return {
        "num_jobs": len(regrets),
        "regret": _mean(regrets),
        "failed_picks": failed,
        "job_rank_correlation": _mean([value for value in correlations if value is not None]),
    }


def _fit(items: Sequence[Score]) -> dict[str, Any]:
    outcomes = [(item.run.fits, item.fits) for item in items if item.run.fits is not None]
    return {
        "fit_recall": _mean([fits for ran, fits in outcomes if ran]),
        "oom_precision": _mean([not ran for ran, fits in outcomes if not fits]),
        "oom_recall": _mean([not fits for ran, fits in outcomes if not ran]),
    }
