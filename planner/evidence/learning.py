"""Learning: correct estimates by a user's own measured runs."""

import math
import operator
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import asdict, dataclass, replace
from pathlib import Path
from typing import Literal, get_args

import numpy as np

from planner.cost.estimate import Estimate, estimate_layouts
from planner.cost.parts import TIME_CAUSES, TimeCause
from planner.cost.scenario import Scenario
from planner.cost.scenario.experience import (
    Experience,
    MeasuredRuns,
    likelihoods,
    most_informative_run,
)
from planner.cost.scenario.prior import Traits, priors
from planner.cost.shards.layouts import Layouts
from planner.cost.uncertainty import memory_outlook, step_outlook, traits_of
from planner.describe.layout import Layout
from planner.describe.machine import Machine
from planner.describe.model.model import Model
from planner.errors import CatalogueError
from planner.evidence.backtest import score
from planner.evidence.runs.run import RefusedRun, Run
from planner.evidence.runs.run_files import read_measured, runs_from_text
from planner.evidence.scores import Score
from planner.tables import Table, Tabular

MOST_RUNS = 60
"""Largest number of measured values used: more add little, and every search evaluates all."""
LearnedTable = Literal["runs", "refused"]
"""Names of the tables: runs with their estimates, and refused runs."""


@dataclass(frozen=True, slots=True)
class Learned(Tabular[LearnedTable]):
    """Experience learned from measured runs, with the runs and their estimates."""

    experience: Experience
    scores: tuple[Score, ...]
    """Runs scored against estimates without the experience."""
    refused: tuple[RefusedRun, ...]
    odd_site: float
    """Probability that the site differs from its description [1]."""
    odd_runs: dict[str, float]
    """Probability that a timed run does not fit the others, by row [1]."""

    def tables(self) -> dict[str, Table]:
        """Return the runs with their estimates, and the refused runs."""
        runs = ({**s.record(), "odd": self.odd_runs.get(s.run.row_id)} for s in self.scores)
        return {
            "runs": Table(tuple(runs)),
            "refused": Table(tuple(asdict(run) for run in self.refused)),
        }

    @property
    def num_timed(self) -> int:
        """Number of measured step times used."""
        return 0 if self.experience.step_time is None else len(self.experience.step_time)

    @property
    def num_weighed(self) -> int:
        """Number of measured memory peaks used."""
        return 0 if self.experience.memory is None else len(self.experience.memory)


def learn_from(
    *files: str | Path, machine: Machine | None = None, model: Model | None = None
) -> Learned:
    """Learn from CSVs, logs (LOG=JOB.json), comparisons, probes; CatalogueError without runs."""
    runs: list[Run | RefusedRun] = []
    for file in files:
        file_runs = read_measured(file, machine, model)
        _check(file_runs, str(file))
        runs += file_runs
    return learn(runs)


def learn_from_text(text: str, where: str, machine: Machine | None = None) -> Learned:
    """Learn from the text of a CSV of runs; `where` names it in messages."""
    runs = runs_from_text(text, where, machine)
    _check(runs, where)
    return learn(runs)


def _check(runs: Sequence[Run | RefusedRun], where: str) -> None:
    """Raise CatalogueError if no run has a measured step time or memory."""
    read = (run for run in runs if isinstance(run, Run))
    if all(run.step_time_s is None and run.memory_bytes is None for run in read):
        reason = next((f" ({run.reason})" for run in runs if isinstance(run, RefusedRun)), "")
        raise CatalogueError(
            f"{Path(where).name} holds no run with a step time or a memory that can be estimated"
            f"{reason}; see docs/howto/own-runs.md for its columns"
        )


def learn(runs: Iterable[Run | RefusedRun]) -> Learned:
    """Learn from log(measured / estimated) of at most `MOST_RUNS` runs, an even sample."""
    backtest = score(runs)
    timed = _sample([(s, e) for s in backtest.scores if (e := s.error) is not None])
    with_memory = _sample([(s, e) for s in backtest.scores if (e := s.memory_error) is not None])
    times = _experience([(_traits(s, s.estimate.step_time_parts_s), error) for s, error in timed])
    memory = _experience([(_traits(s, {}), error) for s, error in with_memory])
    odd_site, odd_runs = priors().step_time.odd_sites, {}
    if times is not None:
        likelihood = likelihoods(priors().step_time, times)
        odd_site = likelihood.odd_site
        names = (s.run.row_id for s, _ in timed)
        odd_runs = dict(zip(names, map(float, likelihood.odd_runs), strict=True))
    return Learned(Experience(times, memory), backtest.scores, backtest.refused, odd_site, odd_runs)


def _sample(scores: list[tuple[Score, float]]) -> list[tuple[Score, float]]:
    if len(scores) <= MOST_RUNS:
        return scores
    return [scores[i] for i in np.linspace(0, len(scores) - 1, MOST_RUNS).round().astype(int)]


def _experience(runs: list[tuple[Traits, float]]) -> MeasuredRuns | None:
    if not runs:
        return None
    errors = np.array([error for _, error in runs])
    return MeasuredRuns(Traits.joined([traits for traits, _ in runs]), -np.log1p(errors))


def _traits(item: Score, parts_s: Mapping[str, float]) -> Traits:
    run = item.run
    return traits_of(run.scenario, Layouts.of(run.layout), parts_s, guessed=run.guessed)


@dataclass(frozen=True, slots=True)
class Change:
    """Change of one figure of an estimate by measured runs, as factors."""

    factor: float
    """Corrected over uncorrected estimate [1]."""
    before: tuple[float, float]
    """90 % interval relative to the uncorrected estimate."""
    after: tuple[float, float]
    """90 % interval relative to the corrected estimate."""
    by_cause: dict[TimeCause, float]
    """Factor of each cause of step time that this job has [1]; empty for memory."""
    suspect: str = ""
    """The assumption behind the cause that deviates most; empty if all causes deviate alike."""


@dataclass(frozen=True, slots=True)
class EstimateChange:
    """Change of one estimate by measured runs; None for a figure that no run measured."""

    step_time: Change | None
    memory: Change | None


def change_by_experience(scenario: Scenario, estimate: Estimate) -> EstimateChange:
    """Compare an estimate with and without the experience of its scenario."""
    uncorrected = replace(scenario, experience=Experience())
    layouts = Layouts.stack([estimate.layout])
    step, memory = None, None
    if scenario.experience.step_time is not None:
        parts = estimate_layouts(uncorrected, layouts)[0].step_time_parts_s
        before, after = (step_outlook(each, layouts, parts) for each in (uncorrected, scenario))
        present = {TIME_CAUSES[name] for name, part_s in parts.items() if part_s > 0}
        by_cause = zip(get_args(TimeCause), after.by_cause[0].tolist(), strict=True)
        factors = {cause: factor for cause, factor in by_cause if cause in present}
        corrected = step_outlook(scenario, layouts, estimate.step_time_parts_s)
        factor, suspect = float(after.expected[0]), _suspect(scenario, estimate.layout, factors)
        step = Change(factor, before.around(), corrected.around(), factors, suspect)
    if scenario.experience.memory is not None:
        before, after = (memory_outlook(each, layouts) for each in (uncorrected, scenario))
        memory = Change(float(after.expected[0]), before.around(), after.around(), {})
    return EstimateChange(step, memory)


_NOTABLE, _ALIKE = 0.03, 0.002
"""Deviation from which a cause is suspected, and by which it must exceed the next one's."""
_ASSUMPTIONS = {"compute": "device.sustained_fraction", "traffic": "network.efficiency"}
"""The figure of a machine that decides a cause."""


def _suspect(scenario: Scenario, layout: Layout, factors: Mapping[TimeCause, float]) -> str:
    """Name the assumption behind the cause that deviates most, with its kind and machine."""
    deviations = {cause: abs(math.log(factor)) for cause, factor in factors.items()}
    worst = max(deviations, key=lambda cause: deviations[cause])
    second = max((value for cause, value in deviations.items() if cause != worst), default=0.0)
    if deviations[worst] < max(_NOTABLE, second + _ALIKE):
        return ""
    machine = scenario.machine
    is_inside = machine.network is None or layout.world <= machine.node.num_devices
    name = "node.fabric.efficiency" if worst == "traffic" and is_inside else _ASSUMPTIONS.get(worst)
    if name is None:
        return f"{worst} times of {scenario.framework.name}"
    return f"{name} of {machine.name} ({operator.attrgetter(name)(machine).kind})"


def most_informative(candidates: Sequence[tuple[Scenario, Estimate]]) -> Estimate | None:
    """Choose the candidate whose measurement says most about the others; None below three."""
    if len(candidates) < 3:
        return None
    traits = [
        traits_of(scenario, Layouts.stack([estimate.layout]), estimate.step_time_parts_s)
        for scenario, estimate in candidates
    ]
    measured = candidates[0][0].experience.step_time
    before = None if measured is None else measured.traits
    return candidates[most_informative_run(priors().step_time, Traits.joined(traits), before)][1]
