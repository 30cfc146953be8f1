"""Backtest: estimates against measured runs.

Runs that ask the same question are estimated together, as one array of layouts.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import ArrayLike, NDArray

from planner.cost.estimate import Estimate, Question, estimate_layouts
from planner.cost.intervals import GUESSED, interval_factors
from planner.cost.parts import unseen_parts
from planner.cost.shards.layouts import Layouts
from planner.describe.layout import Layout
from planner.errors import PlannerError
from planner.evidence.runs.run import RefusedRun, Run

__all__ = ["GROUP_KEYS", "Backtest", "Group", "Score", "interval", "rank_correlation", "score"]

Interval = tuple[float, float]

GROUP_KEYS: dict[str, Callable[[Run], str]] = {
    "source": lambda run: run.source,
    "machine": lambda run: run.machine_label,
    "model": lambda run: run.model.name,
    "framework": lambda run: run.framework.name,
    "devices": lambda run: str(run.layout.world),
    "precision": lambda run: run.workload.precision,
}
"""What runs can be grouped by."""


@dataclass(frozen=True, slots=True)
class Score:
    """One scored run beside its estimate."""

    run: Run
    estimate: Estimate
    estimated_memory_bytes: float
    """The parts that the measurement sees, summed [B]."""
    interval_s: Interval | None
    fits: bool
    """Whether it fits; where the row does not say what is recomputed, with any recompute."""

    @property
    def error(self) -> float | None:
        """Estimated over measured step time, minus one; None where no time was measured."""
        measured = self.run.step_time_s
        return None if measured is None else self.estimate.step_time_s / measured - 1

    @property
    def covered(self) -> bool:
        """Whether the interval holds the measured step time."""
        measured = self.run.step_time_s
        if measured is None or self.interval_s is None:
            return False
        return self.interval_s[0] <= measured <= self.interval_s[1]

    @property
    def memory_error(self) -> float | None:
        """Estimated over measured memory, minus one; None where none was measured."""
        measured = self.run.memory_bytes
        return None if measured is None else self.estimated_memory_bytes / measured - 1


@dataclass(frozen=True, slots=True)
class Group:
    """Figures over a group of scored runs; None where too few runs carry them."""

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
    """Share of the measured step times that lie in the estimate's interval."""
    rank_correlation: float | None
    """Spearman's, over the tokens per second and device of all runs of the group."""
    num_jobs: int
    """Jobs measured in at least two layouts."""
    regret: float | None
    """Mean over jobs: measured time of the layout ranked first over the best measured, - 1."""
    job_rank_correlation: float | None
    """Mean over jobs with at least four layouts of the correlation of step times."""
    failed_picks: int
    """Jobs whose layout ranked first did not run."""
    memory_mape: float | None
    memory_bias: float | None
    num_memories: int
    fit_recall: float | None
    """Of the runs that went through, the share said to fit."""
    oom_precision: float | None
    """Of the runs said not to fit, the share that failed."""
    oom_recall: float | None
    """Of the runs that failed, the share said not to fit."""


@dataclass(frozen=True, slots=True)
class Backtest:
    """Every row in the order of the table: scored or refused."""

    rows: tuple[Score | RefusedRun, ...]

    @property
    def scores(self) -> tuple[Score, ...]:
        """The scored rows."""
        return tuple(row for row in self.rows if isinstance(row, Score))

    @property
    def refused(self) -> tuple[RefusedRun, ...]:
        """The refused rows."""
        return tuple(row for row in self.rows if isinstance(row, RefusedRun))

    def groups(self, keys: Sequence[str] = ("source",)) -> list[Group]:
        """Figures per group, groups in order of first appearance."""
        members: dict[str, list[Score]] = {}
        for item in self.scores:
            name = ", ".join(GROUP_KEYS[key](item.run) for key in keys)
            members.setdefault(name, []).append(item)
        return [_group(name, items) for name, items in members.items()]

    def to_json(self, keys: Sequence[str] = ("source",)) -> dict[str, Any]:
        """Plain data: {"rows": [...], "groups": [...]}."""
        groups = [
            {name: getattr(group, name) for name in Group.__dataclass_fields__}
            for group in self.groups(keys)
        ]
        return {"rows": [_row_json(row) for row in self.rows], "groups": groups}


def score(runs: Iterable[Run | RefusedRun]) -> Backtest:
    """Estimate every run that was read and put it beside its measurement."""
    rows: list[Score | RefusedRun | None] = []
    together: dict[Any, list[tuple[int, Run]]] = {}
    for place, run in enumerate(runs):
        rows.append(run if isinstance(run, RefusedRun) else None)
        if isinstance(run, Run):
            key = (run.machine_label, run.framework.name, run.model, run.workload)
            together.setdefault(key, []).append((place, run))
    for asked in together.values():
        for (place, _), scored in zip(asked, _scored([run for _, run in asked]), strict=True):
            rows[place] = scored
    return Backtest(tuple(row for row in rows if row is not None))


def _scored(runs: list[Run]) -> list[Score | RefusedRun]:
    first = runs[0]
    question = Question(first.model, first.machine, first.workload, first.framework)
    try:
        estimates = estimate_layouts(question, Layouts.stack(run.layout for run in runs))
    except PlannerError as error:
        if len(runs) > 1:
            return [scored for run in runs for scored in _scored([run])]
        return [RefusedRun(first.row_id, first.source, str(error))]
    found = [estimates[i] for i in range(len(runs))]
    return [
        _one(run, estimate, estimate.fits or (run.open_recompute and _fits_somehow(question, run)))
        for run, estimate in zip(runs, found, strict=True)
    ]


def _fits_somehow(question: Question, run: Run) -> bool:
    """Whether a run fits with any recompute that its software has."""
    modes = question.framework.recompute
    layouts = Layouts.stack(run.layout.replaced(recompute=mode) for mode in modes)
    return bool(np.any(estimate_layouts(question, layouts).fits))


def _one(run: Run, estimate: Estimate, fits: bool) -> Score | RefusedRun:
    unseen = unseen_parts(run.memory_kind)
    parts = estimate.memory_bytes
    memory = parts["total"] - sum(parts[name] for name in unseen)
    if not (math.isfinite(estimate.step_time_s) and math.isfinite(memory)):
        return RefusedRun(run.row_id, run.source, f"no finite estimate for {run.layout}")
    if run.step_time_s is None and run.memory_bytes is None and run.fits is None:
        return RefusedRun(
            run.row_id,
            run.source,
            "nothing to compare: step_time_s, tokens_per_s_per_gpu, samples_per_s, peak_memory_gib "
            "and oom are empty",
        )
    return Score(run, estimate, memory, interval(run, estimate), fits)


def interval(run: Run, estimate: Estimate) -> Interval | None:
    """Range in which the step time is expected [s]; None where no time was measured."""
    if run.step_time_s is None:
        return None
    if run.guessed:
        low, high = interval_factors(GUESSED)
        return estimate.step_time_s * low, estimate.step_time_s * high
    return estimate.interval_step_time_s


# --- figures of a group -----------------------------------------------------------------------


def _ranks(values: NDArray[np.float64]) -> NDArray[np.float64]:
    """Ranks from 1, ties sharing their mean."""
    distinct, inverse, counts = np.unique(values, return_inverse=True, return_counts=True)
    del distinct
    last = np.cumsum(counts)
    return np.asarray((last - (counts - 1) / 2)[inverse], dtype=np.float64)


def rank_correlation(a: ArrayLike, b: ArrayLike) -> float | None:
    """Spearman's rank correlation with mean ranks; None below three pairs or without spread.

    >>> rank_correlation([1, 2, 3, 4], [1, 3, 2, 4])
    0.8
    """
    x, y = (_ranks(np.asarray(values, dtype=np.float64)) for values in (a, b))
    x, y = x - x.mean(), y - y.mean()
    size = float(np.sqrt((x @ x) * (y @ y)))
    return round(float(x @ y) / size, 12) if len(x) > 2 and size > 0 else None


def _job(run: Run) -> tuple[object, ...]:
    """What runs share that are layouts of one job."""
    work = run.workload
    return (
        run.source,
        run.machine_label,
        run.framework.name,
        run.model.name,
        run.layout.world,
        work.sequence_length,
        work.global_batch,
        work.precision,
        work.lora_rank,
    )


def regret(items: Sequence[Score]) -> tuple[float | None, bool]:
    """Of one job: measured time of our pick over the best measured, minus one; did it fail?

    Our pick is the fastest layout by estimate among those that we say fit (all, if none does).
    Where it did not run, the best-ranked layout that did stands in for it.
    """
    times: dict[Layout, list[float]] = {}
    for item in items:
        if item.run.step_time_s is not None:
            times.setdefault(item.run.layout, []).append(item.run.step_time_s)
    measured = {layout: float(np.mean(values)) for layout, values in times.items()}
    fitting = [item for item in items if item.fits] or list(items)
    ranked = sorted(fitting, key=lambda item: (item.estimate.step_time_s, item.run.row_id))
    ran = [item.run.layout for item in ranked if item.run.layout in measured]
    failed = bool(ranked) and ranked[0].run.fits is False
    if len(measured) < 2 or not ran:
        return None, failed
    return measured[ran[0]] / min(measured.values()) - 1, failed


def _mean(values: Sequence[float]) -> float | None:
    return float(np.mean(values)) if values else None


def _share(count: int, total: int) -> float | None:
    return count / total if total else None


def _group(name: str, items: list[Score]) -> Group:
    timed = [item for item in items if item.error is not None]
    errors = np.array([item.error for item in timed], dtype=np.float64)
    logs = np.log1p(errors)
    worst = timed[int(np.argmax(np.abs(logs)))] if timed else None
    memory = np.array([m for item in items if (m := item.memory_error) is not None])
    return Group(
        name=name,
        num_runs=len(items),
        num_times=len(timed),
        mape=_mean(list(np.abs(errors))),
        median_error=float(np.median(errors)) if timed else None,
        bias=float(np.expm1(logs.mean())) if timed else None,
        log_spread=float(logs.std()) if timed else None,
        worst_row=worst.run.row_id if worst else None,
        worst_error=worst.error if worst else None,
        coverage=_share(sum(item.covered for item in timed), len(timed)),
        rank_correlation=_throughput_correlation(timed),
        memory_mape=_mean(list(np.abs(memory))),
        memory_bias=float(np.expm1(np.log1p(memory).mean())) if len(memory) else None,
        num_memories=len(memory),
        **_jobs(items),
        **_fit(items),
    )


def _throughput_correlation(timed: list[Score]) -> float | None:
    def rates(seconds: list[float]) -> list[float]:
        return [
            item.run.workload.tokens_per_step / (second * item.run.layout.world)
            for item, second in zip(timed, seconds, strict=True)
        ]

    return (
        rank_correlation(
            rates([float(item.run.step_time_s or math.inf) for item in timed]),
            rates([item.estimate.step_time_s for item in timed]),
        )
        if timed
        else None
    )


def _jobs(items: list[Score]) -> dict[str, Any]:
    jobs: dict[tuple[object, ...], list[Score]] = {}
    for item in items:
        jobs.setdefault(_job(item.run), []).append(item)
    regrets, failed, correlations = [], 0, []
    for members in jobs.values():
        lost, pick_failed = regret(members)
        if lost is None:
            continue
        regrets.append(lost)
        failed += pick_failed
        timed = [item for item in members if item.run.step_time_s is not None]
        if len(timed) > 3:
            correlations.append(
                rank_correlation(
                    [float(item.run.step_time_s or math.inf) for item in timed],
                    [item.estimate.step_time_s for item in timed],
                )
            )
    return {
        "num_jobs": len(regrets),
        "regret": _mean(regrets),
        "failed_picks": failed,
        "job_rank_correlation": _mean([value for value in correlations if value is not None]),
    }


def _fit(items: list[Score]) -> dict[str, Any]:
    known = [item for item in items if item.run.fits is not None]
    ran = [item for item in known if item.run.fits]
    failed = [item for item in known if not item.run.fits]
    refused = [item for item in known if not item.fits]
    right = sum(not item.fits for item in failed)
    return {
        "fit_recall": _share(sum(item.fits for item in ran), len(ran)),
        "oom_precision": _share(right, len(refused)),
        "oom_recall": _share(right, len(failed)),
    }


def _row_json(row: Score | RefusedRun) -> dict[str, Any]:
    run = row.run if isinstance(row, Score) else None
    scored = row if isinstance(row, Score) else None
    bounds = scored.interval_s if scored else None
    return {
        "row_id": run.row_id if run else row.row_id,  # type: ignore[union-attr]
        "source": run.source if run else row.source,  # type: ignore[union-attr]
        "status": "scored" if scored else "refused",
        "reason": None if scored else row.reason,  # type: ignore[union-attr]
        "measured_step_time_s": run.step_time_s if run else None,
        "estimated_step_time_s": scored.estimate.step_time_s if scored else None,
        "interval_step_time_s": list(bounds) if bounds else None,
        "measured_memory_bytes": run.memory_bytes if run else None,
        "estimated_memory_bytes": scored.estimated_memory_bytes if scored else None,
        "measured_fits": run.fits if run else None,
        "estimated_fits": scored.fits if scored else None,
        "assumed": _assumptions(row) if isinstance(row, Score) else [],
    }


def _assumptions(row: Score) -> list[str]:
    only = row.fits and not row.estimate.fits
    return [*row.run.assumed, *["it fits with more recompute than is assumed"] * only]
