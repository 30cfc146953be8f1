"""Learning: a user's own measured runs as experience that corrects further estimates.

What they say carries over as far as the prior knows from published runs that errors do: to other
layouts and models on the same machine with the same software most, to other machines least.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from pathlib import Path

import numpy as np

from planner.cost.question import Question
from planner.cost.shards.layouts import Layouts
from planner.cost.uncertainty.experience import Experience, Known, likelihoods
from planner.cost.uncertainty.prior import priors
from planner.cost.uncertainty.runs import traits_of
from planner.cost.uncertainty.traits import Traits
from planner.errors import CatalogueError
from planner.evidence.backtest import score
from planner.evidence.runs.run import RefusedRun, Run
from planner.evidence.runs.table import read_runs
from planner.evidence.scores import Score

__all__ = ["Learned", "learn", "learn_from"]


@dataclass(frozen=True, slots=True)
class Learned:
    """What some measured runs taught."""

    experience: Experience
    scores: tuple[Score, ...]
    """Of the runs, by estimates that know nothing of them."""
    refused: tuple[RefusedRun, ...]
    odd_site: float
    """Probability that the site is not what it is described as [1]."""
    odd_runs: dict[str, float]
    """The same of every timed run, by its row."""


def learn_from(path: Path) -> Learned:
    """What the runs of a CSV teach; CatalogueError where none can be scored."""
    found = learn(read_runs(path))
    if found.experience == Experience():
        reasons = "; ".join(row.reason for row in found.refused[:1])
        raise CatalogueError(
            f"{path.name} holds no run with a step time or a memory that can be estimated"
            f"{f' ({reasons})' if reasons else ''}; see docs/runs.md for its columns"
        )
    return found


def learn(runs: Iterable[Run | RefusedRun]) -> Learned:
    """What measured runs teach: their log ratios to estimates that know nothing of them.

    Counted: every run with a step time or a memory. Left out: whether a run is odd is weighed
    where it is used. method.md#intervals.
    """
    backtest = score(runs)
    timed = [(s, error) for s in backtest.scores if (error := s.error) is not None]
    weighed = [(s, error) for s in backtest.scores if (error := s.memory_error) is not None]
    times = _known([(_traits(s, s.estimate.step_time_parts_s), error) for s, error in timed])
    memory = _known([(_traits(s, {}), error) for s, error in weighed])
    found = likelihoods(priors().step_time, times) if times is not None else None
    return Learned(
        Experience(times, memory),
        backtest.scores,
        backtest.refused,
        found.odd_site if found else priors().step_time.odd_sites,
        {s.run.row_id: float(p) for (s, _), p in zip(timed, found.odd_runs, strict=True)}
        if found
        else {},
    )


def _known(runs: list[tuple[Traits, float]]) -> Known | None:
    """Of runs with the errors of their estimates; None where there are none."""
    if not runs:
        return None
    errors = np.array([error for _, error in runs])
    return Known(Traits.joined([traits for traits, _ in runs]), -np.log1p(errors))


def _traits(item: Score, parts_s: Mapping[str, float]) -> Traits:
    run = item.run
    question = Question(run.model, run.machine, run.workload, run.framework)
    return traits_of(question, Layouts.of(run.layout), parts_s, guessed=bool(run.guessed))
