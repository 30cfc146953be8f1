"""Backtest: score estimates against measured runs; runs of one scenario are estimated together."""

import math
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import asdict, dataclass, replace
from typing import Any

import numpy as np

from planner.cost.estimate import Estimate, estimate_layouts
from planner.cost.memory.footprint import stage_memory
from planner.cost.parts import unseen_parts
from planner.cost.scenario import Scenario
from planner.cost.scenario.experience import Experience
from planner.cost.shards.layouts import Layouts
from planner.cost.uncertainty import step_outlook
from planner.errors import PlannerError
from planner.evidence.runs.run import RefusedRun, Run
from planner.evidence.scores import Group, Interval, Score, group
from planner.units import format_seconds

GROUP_KEYS: dict[str, Callable[[Run], str]] = {
    "source": lambda run: run.source,
    "machine": lambda run: run.machine_label,
    "model": lambda run: run.model.name,
    "framework": lambda run: run.framework.name,
    "devices": lambda run: str(run.layout.world),
    "precision": lambda run: run.workload.precision,
}
"""Keys by which runs can be grouped."""

_FIGURES: dict[str, Callable[[Score], Any]] = {
    "measured_step_time_s": lambda row: row.run.step_time_s,
    "estimated_step_time_s": lambda row: row.estimate.step_time_s,
    "interval_step_time_s": lambda row: list(row.interval_s) if row.interval_s else None,
    "measured_memory_bytes": lambda row: row.run.memory_bytes,
    "estimated_memory_bytes": lambda row: row.estimated_memory_bytes,
    "measured_fits": lambda row: row.run.fits,
    "estimated_fits": lambda row: row.fits,
}
_ABSURD = 1e6
"""Factor between measurement and estimate beyond which the measured value must be wrong."""
_MOST_OF_PEAK = 2.0
"""Model FLOP count all of attention, of which causal kernels compute half."""


@dataclass(frozen=True, slots=True)
class Backtest:
    """All rows in the order of the table, each scored or refused."""

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
        """Compute the figures of every group, in order of first appearance."""
        members: dict[str, list[Score]] = {}
        for item in self.scores:
            name = ", ".join(GROUP_KEYS[key](item.run) for key in keys)
            members.setdefault(name, []).append(item)
        return [group(name, items) for name, items in members.items()]

    def to_json(self, keys: Sequence[str] = ("source",)) -> dict[str, Any]:
        """Return plain data: {"rows": [...], "groups": [...]}."""
        groups = [asdict(group) for group in self.groups(keys)]
        return {"rows": [_row_json(row) for row in self.rows], "groups": groups}


def score(runs: Iterable[Run | RefusedRun], experience: Experience = Experience()) -> Backtest:
    """Estimate every run, corrected by experience, and score the estimate against it."""
    rows: list[Score | RefusedRun | None] = []
    together: dict[Any, list[tuple[int, Run]]] = {}
    for place, run in enumerate(runs):
        rows.append(run if isinstance(run, RefusedRun) else None)
        if isinstance(run, Run):
            key = (run.machine_label, run.framework, run.model, run.workload)
            together.setdefault(key, []).append((place, run))
    for members in together.values():
        scores = _score_scenario([run for _, run in members], experience)
        for (place, _), scored in zip(members, scores, strict=True):
            rows[place] = scored
    return Backtest(tuple(row for row in rows if row is not None))


def _score_scenario(runs: list[Run], experience: Experience) -> list[Score | RefusedRun]:
    scenario = replace(runs[0].scenario, experience=experience)
    try:
        layouts = Layouts.stack(run.layout for run in runs)
        estimates = estimate_layouts(scenario, layouts)
    except PlannerError as error:
        if len(runs) > 1:
            return [scored for run in runs for scored in _score_scenario([run], experience)]
        return [RefusedRun(runs[0].row_id, runs[0].source, str(error))]
    return [_score_run(run, scenario, estimates[number]) for number, run in enumerate(runs)]


def _score_run(run: Run, scenario: Scenario, estimate: Estimate) -> Score | RefusedRun:
    memory = measurable_memory(run, estimate)
    if reason := _refusal(run, estimate, memory):
        return RefusedRun(run.row_id, run.source, reason)
    fits = estimate.fits or (run.open_recompute and _fits_with_recompute(run))
    return Score(run, estimate, memory, interval(run, scenario, estimate), fits)


def _refusal(run: Run, estimate: Estimate, memory: float) -> str:
    """Return why a run cannot be compared with its estimate; empty if it can."""
    step_time_s, machine = estimate.step_time_s, run.scenario.machine
    if not (math.isfinite(step_time_s) and math.isfinite(memory)):
        return f"no finite estimate for {run.layout}"
    if run.step_time_s is None and run.memory_bytes is None and run.fits is None:
        return (
            "nothing to compare: step_time_s, tokens_per_s_per_gpu, samples_per_s, peak_memory_gib "
            "and oom are empty"
        )
    for name, measured, estimated in (
        ("step time", run.step_time_s, step_time_s),
        ("peak memory", run.memory_bytes, memory),
    ):
        if measured is not None and not 1 / _ABSURD < measured / estimated < _ABSURD:
            return f"the {name} is {measured / estimated:.0e} times its estimate; check the unit"
    measured_s = run.step_time_s or math.inf
    used = estimate.mfu * step_time_s / measured_s
    used *= machine.peak(run.workload.base_precision) / machine.peak(run.workload.precision)
    if used > _MOST_OF_PEAK:
        return (
            f"a step of {format_seconds(measured_s)} would need {used:.1f} times the peak of "
            f"{run.layout.world} devices of {machine.name}; check the unit, batch and model"
        )
    return ""


def _fits_with_recompute(run: Run) -> bool:
    modes = run.framework.recompute
    layouts = Layouts.stack(run.layout.replaced(recompute=mode) for mode in modes)
    return bool(np.any(estimate_layouts(run.scenario, layouts).fits))


def measurable_memory(run: Run, estimate: Estimate) -> float:
    """Estimated memory that the run's measurement sees, on the stage that it measured [B]."""
    parts: Mapping[str, float] = estimate.memory_bytes
    total = parts["total"]
    if run.first_stage and run.layout.pp > 1:
        parts = stage_memory(run.scenario, run.layout)[0]
        total = sum(parts.values())
    return total - sum(parts[name] for name in unseen_parts(run.memory_kind))


def interval(run: Run, scenario: Scenario, estimate: Estimate) -> Interval | None:
    """Expected range of the step time [s]; None if no time was measured."""
    if run.step_time_s is None:
        return None
    if not run.guessed:
        return estimate.interval_step_time_s
    layouts, parts = Layouts.stack([run.layout]), estimate.step_time_parts_s
    low, high = step_outlook(scenario, layouts, parts, guessed=True).around()
    return estimate.step_time_s * low, estimate.step_time_s * high


def _row_json(row: Score | RefusedRun) -> dict[str, Any]:
    run = row.run if isinstance(row, Score) else row
    fields = {"row_id": run.row_id, "source": run.source}
    if isinstance(row, RefusedRun):
        nothing = dict.fromkeys(_FIGURES)
        return {**fields, "status": "refused", "reason": row.reason, **nothing, "assumed": []}
    only = row.fits and not row.estimate.fits
    assumed = [*row.run.assumed, *["it fits with more recompute than is assumed"] * only]
    scored = {name: figure(row) for name, figure in _FIGURES.items()}
    return {**fields, "status": "scored", "reason": None, **scored, "assumed": assumed}
