"""Learning: a user's own measured runs as experience that corrects further estimates.

What they say carries over as far as the prior knows from published runs that errors do: to other
layouts and models on the same machine with the same software most, to other machines least.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import asdict, dataclass, replace
from pathlib import Path
from typing import Literal

import numpy as np

from planner.cost.estimate import Estimate
from planner.cost.scenario import Scenario
from planner.cost.scenario.experience import Experience, Known, Outlook, likelihoods, telling
from planner.cost.scenario.prior import priors
from planner.cost.scenario.traits import Traits
from planner.cost.shards.layouts import Layouts
from planner.cost.uncertainty.memory_spread import memory_outlook
from planner.cost.uncertainty.step_time_spread import step_outlook, traits_of
from planner.describe.machine import Machine
from planner.describe.model.model import Model
from planner.errors import CatalogueError
from planner.evidence.backtest import score
from planner.evidence.measured import read_measured
from planner.evidence.runs.run import RefusedRun, Run
from planner.evidence.runs.table import runs_from_text
from planner.evidence.scores import Score
from planner.tables import Table, Tabular

__all__ = [
    "Change",
    "Learned",
    "Taught",
    "learn",
    "learn_from",
    "learn_from_text",
    "most_telling",
    "taught",
]

MOST_RUNS = 60
"""Measured figures that count: more say the same again, and every search asks them."""


LearnedTable = Literal["runs", "refused"]
"""Tables of what was learned: runs beside their estimates, and runs that taught nothing."""


@dataclass(frozen=True, slots=True)
class Learned(Tabular[LearnedTable]):
    """What some measured runs taught."""

    experience: Experience
    scores: tuple[Score, ...]
    """Of the runs, by estimates that know nothing of them."""
    refused: tuple[RefusedRun, ...]
    odd_site: float
    """Probability that the site is not what it is described as [1]."""
    odd_runs: dict[str, float]
    """The same of every timed run, by its row."""

    def tables(self) -> dict[str, Table]:
        """Return the runs beside their estimates, and the runs that taught nothing."""
        runs = ({**s.record(), "odd": self.odd_runs.get(s.run.row_id)} for s in self.scores)
        return {
            "runs": Table(tuple(runs)),
            "refused": Table(tuple(asdict(run) for run in self.refused)),
        }

    @property
    def num_timed(self) -> int:
        """Step times that count."""
        return 0 if self.experience.step_time is None else len(self.experience.step_time)

    @property
    def num_weighed(self) -> int:
        """Memories that count."""
        return 0 if self.experience.memory is None else len(self.experience.memory)


def learn_from(
    *given: str | Path, machine: Machine | None = None, model: Model | None = None
) -> Learned:
    """What measured runs teach: CSVs of runs, logs (LOG=JOB.json), results of `planner compare`.

    `machine` and `model` are those asked about, which files may call by their names. Raises
    CatalogueError where nothing can be learned from a file.

    """
    runs: list[Run | RefusedRun] = []
    for one in given:
        found = read_measured(one, machine, model)
        _check(found, str(one))
        runs += found
    return learn(runs)


def learn_from_text(text: str, where: str, machine: Machine | None = None) -> Learned:
    """What the runs of a CSV teach that is given as text; `where` names it in messages.

    >>> from planner import Layout, estimate
    >>> slow = learn_from_text("system,gpu,n_gpus,model,seq_len,framework,dp,tp,zero_stage,"
    ...     "micro_batch,global_batch,step_time_s\\n"
    ...     "Polaris,A100,16,Llama-3-8B,8192,Megatron-LM,4,4,1,1,64,60\\n", "runs.csv")
    >>> job = Layout(dp=4, tp=4, zero_stage=1)
    >>> after = estimate("llama-3-8b", "polaris", job, experience=slow.experience)
    >>> after.step_time_s > estimate("llama-3-8b", "polaris", job).step_time_s
    True
    """
    found = runs_from_text(text, where, machine)
    _check(found, where)
    return learn(found)


def _check(runs: Sequence[Run | RefusedRun], where: str) -> None:
    """Raise CatalogueError where no run can teach anything."""
    if any(
        isinstance(run, Run) and (run.step_time_s is not None or run.memory_bytes is not None)
        for run in runs
    ):
        return
    reason = next((run.reason for run in runs if isinstance(run, RefusedRun)), "")
    raise CatalogueError(
        f"{Path(where).name} holds no run with a step time or a memory that can be estimated"
        f"{f' ({reason})' if reason else ''}; see docs/runs.md for its columns"
    )


def learn(runs: Iterable[Run | RefusedRun]) -> Learned:
    """What measured runs teach: their log ratios to estimates that know nothing of them.

    Counted: every run with a step time or a memory, of very many some that lie evenly among them.
    Left out: whether a run is odd is weighed where it is used. method.md#intervals.
    """
    backtest = score(runs)
    timed = _some([(s, e) for s in backtest.scores if (e := s.error) is not None])
    weighed = _some([(s, e) for s in backtest.scores if (e := s.memory_error) is not None])
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


def _some(scores: list[tuple[Score, float]]) -> list[tuple[Score, float]]:
    """At most `MOST_RUNS`, evenly."""
    if len(scores) <= MOST_RUNS:
        return scores
    return [scores[i] for i in np.linspace(0, len(scores) - 1, MOST_RUNS).round().astype(int)]


def _known(runs: list[tuple[Traits, float]]) -> Known | None:
    """Of runs with the errors of their estimates; None where there are none."""
    if not runs:
        return None
    errors = np.array([error for _, error in runs])
    return Known(Traits.joined([traits for traits, _ in runs]), -np.log1p(errors))


def _traits(item: Score, parts_s: Mapping[str, float]) -> Traits:
    run = item.run
    scenario = Scenario(run.model, run.machine, run.workload, run.framework)
    return traits_of(scenario, Layouts.of(run.layout), parts_s, guessed=bool(run.guessed))


# --- what that changes ------------------------------------------------------------------------


@dataclass(frozen=True, slots=True)
class Change:
    """What measured runs change of one figure of an estimate; factors of the estimate alone."""

    factor: float
    """Expected now [1]."""
    before: tuple[float, float]
    """90 % interval over the estimate, before."""
    after: tuple[float, float]
    """90 % interval over the corrected estimate."""


@dataclass(frozen=True, slots=True)
class Taught:
    """What measured runs change of one estimate; None where they say nothing of a figure."""

    step_time: Change | None
    memory: Change | None


def taught(scenario: Scenario, estimate: Estimate) -> Taught:
    """What the experience of a scenario changed of an estimate of its."""
    alone, known = replace(scenario, experience=Experience()), scenario.experience
    layouts, parts = Layouts.stack([estimate.layout]), estimate.step_time_parts_s
    step = memory = None
    if known.step_time is not None:
        before = step_outlook(alone, layouts, parts)
        step = _change(before, step_outlook(scenario, layouts, parts))
    if known.memory is not None:
        memory = _change(memory_outlook(alone, layouts), memory_outlook(scenario, layouts))
    return Taught(step, memory)


def _change(before: Outlook, after: Outlook) -> Change:
    return Change(float(after.expected[0]), before.around(), after.around())


def most_telling(asked: Sequence[tuple[Scenario, Estimate]]) -> Estimate | None:
    """The estimate whose measurement would say most of the others; None of fewer than three."""
    if len(asked) < 3:
        return None
    traits = [
        traits_of(scenario, Layouts.stack([one.layout]), one.step_time_parts_s)
        for scenario, one in asked
    ]
    known = asked[0][0].experience.step_time
    return asked[telling(priors().step_time, Traits.joined(traits), known)][1]
