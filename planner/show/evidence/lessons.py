"""Lessons: what measured runs taught, in sentences and as plain data."""

from __future__ import annotations

import json
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

from planner.cost.estimate import Estimate
from planner.cost.scenario import Scenario
from planner.evidence.learning import (
    Change,
    EstimateChange,
    Learned,
    change_by_experience,
    most_informative,
)
from planner.units import counted

__all__ = ["ODD", "LearnedAnswer", "corrected", "lessons", "lessons_dict"]

ODD = 0.5
"""Probability from which a run or a site is called odd."""


_MAX_ASSUMPTIONS = 3


def corrected(learned: Learned) -> str:
    """Say how many measured runs correct the estimates."""
    runs = len({s.run.row_id for s in learned.scores if _is_measured(s.run)})
    return f"corrected by {counted(runs, 'measured run')}"


def _is_measured(run: Any) -> bool:
    return run.step_time_s is not None or run.memory_bytes is not None


def lessons(
    learned: Learned, taught: EstimateChange, next_one: Estimate | None = None
) -> list[str]:
    """List what runs teach about an estimate, runs that do not fit, and what to measure next."""
    lines = []
    if taught.step_time is not None:
        runs = counted(learned.num_timed, "measured step time")
        lines.append(f"{runs}: {_change('this job takes', taught.step_time)}.")
    if taught.memory is not None:
        runs = counted(learned.num_weighed, "measured peak") + " of memory"
        lines.append(f"{runs}: {_change('this job needs', taught.memory)}.")
    for row, chance in learned.odd_runs.items():
        if chance > ODD:
            lines.append(
                f"Run {row} does not fit the others ({100 * chance:.0f} % sure) and hardly "
                "counts: check what it says of its job."
            )
    if learned.odd_site > ODD:
        assumed = _assumed(learned)
        lines.append(
            f"The runs differ from their estimates as hardly any do ({100 * learned.odd_site:.0f} "
            "% sure): check the description of machine, model or software"
            + (f", and what was assumed ({'; '.join(assumed)})." if assumed else ".")
        )
    if learned.refused:
        first = learned.refused[0]
        lines.append(
            f"{counted(len(learned.refused), 'run')} taught nothing: {first.row_id}: "
            f"{first.reason}."
        )
    if next_one is not None:
        lines.append(
            f"Of the listed layouts, {next_one.layout} [{next_one.framework}] would tell most of "
            "the others: measure it next."
        )
    return lines


def _assumed(learned: Learned) -> list[str]:
    """List the assumptions about runs that their tables leave open, each once."""
    sentences = [sentence for score in learned.scores for sentence in score.run.assumed]
    return list(dict.fromkeys(sentences))[:_MAX_ASSUMPTIONS]


def _change(subject: str, change: Change) -> str:
    after, before = (f"{low:.2f}-{high:.2f} x" for low, high in (change.after, change.before))
    return (
        f"{subject} {change.factor:.2f} x of what was estimated without; 90 % interval now {after} "
        f"of the estimate instead of {before}"
    )


def lessons_dict(
    learned: Learned, taught: EstimateChange, next_one: Estimate | None = None
) -> dict[str, Any]:
    """Return the lessons as plain data."""
    return {
        "num_step_times": learned.num_timed,
        "num_memories": learned.num_weighed,
        "step_time": _change_dict(taught.step_time),
        "memory": _change_dict(taught.memory),
        "odd_site_probability": learned.odd_site,
        "odd_run_probability": learned.odd_runs,
        "odd_runs": [row for row, chance in learned.odd_runs.items() if chance > ODD],
        "refused": [{"row": row.row_id, "reason": row.reason} for row in learned.refused],
        "measure_next": None
        if next_one is None
        else {
            "framework": next_one.framework,
            "layout": next_one.layout.model_dump(mode="json"),
        },
    }


def _change_dict(change: Change | None) -> dict[str, Any] | None:
    if change is None:
        return None
    return {
        "factor": change.factor,
        "interval_before": list(change.before),
        "interval_after": list(change.after),
    }


@dataclass(frozen=True, slots=True)
class LearnedAnswer:
    """An answer's estimates with the lessons of measured runs, if there are any."""

    learned: Learned | None
    estimates: Sequence[tuple[Scenario, Estimate]]
    """The answer's own estimate first, then others that could be measured."""

    def lines(self) -> list[str]:
        """The lessons in sentences; none without measured runs."""
        return [] if self.learned is None else lessons(self.learned, *self._comparison())

    def to_json(self, data: dict[str, Any]) -> str:
        """Data of an answer as JSON text, with the lessons as `measured` if there are any."""
        if self.learned is not None:
            data = {**data, "measured": lessons_dict(self.learned, *self._comparison())}
        return json.dumps(data, indent=1, allow_nan=False)

    def _comparison(self) -> tuple[EstimateChange, Estimate | None]:
        """The correction of the first estimate, and the estimate to measure next."""
        if not self.estimates:
            return EstimateChange(None, None), None
        return change_by_experience(*self.estimates[0]), most_informative(self.estimates)
