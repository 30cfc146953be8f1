"""Backtest: estimates beside measured runs.

Runs of one scenario are estimated together, as one array of layouts.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np

from planner.cost.estimate import Estimate, estimate_layouts
from planner.cost.parts import unseen_parts
from planner.cost.scenario import Scenario
from planner.cost.shards.layouts import Layouts
from planner.cost.uncertainty import step_outlook
from planner.errors import PlannerError
from planner.evidence.runs.open_choices import first_stage_bytes
from planner.evidence.runs.run import RefusedRun, Run
from planner.evidence.scores import Interval, Score
from planner.evidence.statistics import Group, group

__all__ = ["GROUP_KEYS", "Backtest", "interval", "score"]

GROUP_KEYS: dict[str, Callable[[Run], str]] = {
    "source": lambda run: run.source,
    "machine": lambda run: run.machine_label,
    "model": lambda run: run.model.name,
    "framework": lambda run: run.framework.name,
    "devices": lambda run: str(run.layout.world),
    "precision": lambda run: run.workload.precision,
}
"""Keys by which runs can be grouped."""

_ABSURD = 1e6
"""Ratio of measured to estimated beyond which a cell is wrong, whatever the estimate."""


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
        return [group(name, items) for name, items in members.items()]

    def to_json(self, keys: Sequence[str] = ("source",)) -> dict[str, Any]:
        """Plain data: {"rows": [...], "groups": [...]}."""
        groups = [
            {name: getattr(group, name) for name in Group.__dataclass_fields__}
            for group in self.groups(keys)
        ]
        return {"rows": [_row_json(row) for row in self.rows], "groups": groups}


def score(runs: Iterable[Run | RefusedRun]) -> Backtest:
    """Estimate every run, and put the estimate beside the measurement."""
    rows: list[Score | RefusedRun | None] = []
    together: dict[Any, list[tuple[int, Run]]] = {}
    for place, run in enumerate(runs):
        rows.append(run if isinstance(run, RefusedRun) else None)
        if isinstance(run, Run):
            key = (run.machine_label, run.framework, run.model, run.workload)
            together.setdefault(key, []).append((place, run))
    for members in together.values():
        scores = _score_scenario([run for _, run in members])
        for (place, _), scored in zip(members, scores, strict=True):
            rows[place] = scored
    return Backtest(tuple(row for row in rows if row is not None))


def _score_scenario(runs: list[Run]) -> list[Score | RefusedRun]:
    first = runs[0]
    scenario = Scenario(first.model, first.machine, first.workload, first.framework)
    try:
        estimates = estimate_layouts(scenario, Layouts.stack(run.layout for run in runs))
    except PlannerError as error:
        if len(runs) > 1:
            return [scored for run in runs for scored in _score_scenario([run])]
        return [RefusedRun(first.row_id, first.source, str(error))]
    scores = []
    for number, run in enumerate(runs):
        estimate = estimates[number]
        fits = estimate.fits or (run.open_recompute and _fits_with_recompute(scenario, run))
        scores.append(_score_run(run, estimate, fits))
    return scores


def _fits_with_recompute(scenario: Scenario, run: Run) -> bool:
    """Whether a run fits with any recompute of its software."""
    modes = scenario.framework.recompute
    layouts = Layouts.stack(run.layout.replaced(recompute=mode) for mode in modes)
    return bool(np.any(estimate_layouts(scenario, layouts).fits))


def _score_run(run: Run, estimate: Estimate, fits: bool) -> Score | RefusedRun:
    memory = _measurable_memory(run, estimate)
    if not (math.isfinite(estimate.step_time_s) and math.isfinite(memory)):
        return RefusedRun(run.row_id, run.source, f"no finite estimate for {run.layout}")
    if run.step_time_s is None and run.memory_bytes is None and run.fits is None:
        return RefusedRun(
            run.row_id,
            run.source,
            "nothing to compare: step_time_s, tokens_per_s_per_gpu, samples_per_s, peak_memory_gib "
            "and oom are empty",
        )
    pairs = {
        "step time": (run.step_time_s, estimate.step_time_s),
        "peak memory": (run.memory_bytes, memory),
    }
    for name, (measured, estimated) in pairs.items():
        if measured is not None and not 1 / _ABSURD < measured / estimated < _ABSURD:
            return RefusedRun(
                run.row_id,
                run.source,
                f"the {name} is {measured / estimated:.0e} times its estimate; check the unit",
            )
    return Score(run, estimate, memory, interval(run, estimate), fits)


def _measurable_memory(run: Run, estimate: Estimate) -> float:
    """Memory that the run's way of measuring sees, of the stage that it measured [B]."""
    if run.first_stage and run.layout.pp > 1:
        scenario = Scenario(run.model, run.machine, run.workload, run.framework)
        return first_stage_bytes(scenario, run.layout, run.memory_kind)
    parts = estimate.memory_bytes
    return parts["total"] - sum(parts[name] for name in unseen_parts(run.memory_kind))


def interval(run: Run, estimate: Estimate) -> Interval | None:
    """Range in which the step time is expected [s]; None where no time was measured."""
    if run.step_time_s is None:
        return None
    if not run.guessed:
        return estimate.interval_step_time_s
    scenario = Scenario(run.model, run.machine, run.workload, run.framework)
    layouts, parts = Layouts.stack([run.layout]), estimate.step_time_parts_s
    low, high = step_outlook(scenario, layouts, parts, guessed=True).around()
    return estimate.step_time_s * low, estimate.step_time_s * high


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
