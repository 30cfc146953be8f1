"""Command line: `planner plan` and `estimate`."""

from __future__ import annotations

import json
from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Annotated, Any

import typer

from planner.cli.jobs.one_layout import OneLayout
from planner.cli.jobs.training import TrainingOptions
from planner.cli.options import (
    FITS,
    NOTHING_FITS,
    AsCsv,
    AsJson,
    Job,
    Tokens,
    Tolerance,
    experience_of,
    share_of,
    spread,
)
from planner.describe.catalogue import load_framework

if TYPE_CHECKING:
    from planner.cost.estimate import Estimate
    from planner.cost.scenario import Scenario
    from planner.describe.training_run import Training
    from planner.evidence.learning import Learned, Taught
    from planner.training.answer import WholeTraining

__all__ = ["register"]


def register(app: typer.Typer) -> None:
    """Add the commands to the application."""
    app.command("plan")(spread(plan_command))
    app.command("estimate")(spread(estimate_command))


def plan_command(
    job: Job,
    whole: TrainingOptions,
    top: Annotated[int, typer.Option(min=1, max=1000, help="Ranked layouts to keep.")] = 20,
    tolerance: Tolerance = None,
    as_json: AsJson = False,
    as_csv: AsCsv = False,
) -> int:
    """Search every layout: which strategy fits, how much memory, how long a step."""
    from planner.choose.planning import plan
    from planner.cost.scenario import Scenario

    model, machine, workload, frameworks = job.described()
    learned = job.learned()
    experience = experience_of(learned)
    answer = plan(
        model,
        machine,
        nodes=job.nodes,
        workload=workload,
        frameworks=frameworks,
        top=top,
        tolerance=share_of(tolerance),
        experience=experience,
        training=whole.described(),
    )

    def asked(one: Estimate) -> tuple[Scenario, Estimate]:
        given = {framework.name: framework for framework in frameworks}
        framework = given.get(one.framework) or load_framework(one.framework)
        return Scenario(model, machine, answer.workload, framework, experience), one

    said = None if learned is None else _Said(learned, [asked(one) for one in answer.listed])
    if as_json:
        print(answer.to_json() if said is None else said.json(answer.as_dict()))
    elif as_csv:
        from planner.show.report import estimate_csv

        print(estimate_csv(answer.ranked), end="")
    else:
        from planner.show.report import console, show_plan

        show_plan(answer, console(), () if said is None else said.lines())
    return FITS if answer.fits else NOTHING_FITS


def estimate_command(
    given: OneLayout,
    whole: TrainingOptions,
    tokens: Tokens = None,
    as_json: AsJson = False,
    as_csv: AsCsv = False,
) -> int:
    """Estimate one layout: memory by part and stage, step time by part.

    With --from, the layout is that of configuration files that you have: of DeepSpeed, Accelerate,
    torchtitan, Megatron, nanotron, nanoGPT, wordplay or the Hugging Face Trainer. Options count
    before them.
    """
    from planner.choose.planning import estimate
    from planner.choose.user_layouts.configuration_estimate import faster_layout
    from planner.cost.scenario import Scenario

    described, place, job = given.completed()
    learned = given.learned(described)
    experience = experience_of(learned)
    answer = estimate(
        described,
        place,
        job.layout,
        workload=job.workload,
        framework=job.framework,
        experience=experience,
    )
    chosen = job.framework or load_framework(answer.framework)
    scenario = Scenario(described, place, job.workload, chosen, experience)
    better = faster_layout(described, place, job, answer, experience) if given.files else None
    said = None if learned is None else _Said(learned, [(scenario, answer)])
    read = (better, job.notes) if given.files else None
    training = _training(scenario, answer, tokens, whole.described())
    _print_estimate(scenario, answer, read, said, training, as_json, as_csv)
    return FITS if answer.fits else NOTHING_FITS


@dataclass(frozen=True, slots=True)
class _Said:
    """What measured runs say of an answer, of its first estimate most."""

    learned: Learned
    asked: Sequence[tuple[Scenario, Estimate]]

    def lines(self) -> list[str]:
        from planner.show.lessons import lessons

        return lessons(*self._found())

    def json(self, data: dict[str, Any]) -> str:
        from planner.show.lessons import lessons_dict

        return json.dumps({**data, "measured": lessons_dict(*self._found())}, indent=1)

    def _found(self) -> tuple[Learned, Taught, Estimate | None]:
        from planner.evidence.learning import Taught, most_telling, taught

        if not self.asked:
            return self.learned, Taught(None, None), None
        return self.learned, taught(*self.asked[0]), most_telling(self.asked)


def _training(
    scenario: Scenario, answer: Estimate, tokens: float | None, asked: Training
) -> WholeTraining | None:
    """The whole training of some tokens on the layout; None where none are asked for."""
    from planner.training.whole import whole_training

    if tokens is None:
        return None
    job = replace(scenario, workload=scenario.workload.replaced(tokens=tokens))
    nodes = -(-answer.layout.world // scenario.machine.node.num_devices)
    return whole_training(job, answer, nodes, asked)


def _print_estimate(
    scenario: Scenario,
    answer: Estimate,
    read: tuple[Estimate | None, tuple[str, ...]] | None,
    said: _Said | None,
    training: WholeTraining | None,
    as_json: bool,
    as_csv: bool,
) -> None:
    from planner.choose.plan import estimate_dict
    from planner.cost.memory.footprint import stage_memory

    stages = stage_memory(scenario, answer.layout)
    if as_json:
        data = {**estimate_dict(answer), "stages": stages}
        if training is not None:
            data["training"] = training.as_dict()
        if read:
            better, notes = read
            data["workload"] = scenario.workload.model_dump(mode="json")
            data["better"] = None if better is None else estimate_dict(better)
            data["notes"] = notes
        print(json.dumps(data, indent=1, allow_nan=False) if said is None else said.json(data))
    elif as_csv:
        from planner.show.report import estimate_csv

        print(estimate_csv([answer]), end="")
    else:
        from planner.choose.verdicts.plan_notes import evidence_notes, utilisation_notes
        from planner.show.report import (
            console,
            show_estimate,
            show_notes,
            show_reading,
            show_training,
        )

        out = console()
        show_estimate(answer, scenario.machine, stages, out)
        if training is not None:
            show_training(training, out)
        show_notes([] if said is None else said.lines(), out)
        nodes = -(-answer.layout.world // scenario.machine.node.num_devices)
        show_notes([*utilisation_notes(scenario, answer), *evidence_notes(scenario, nodes)], out)
        if read:
            show_reading(answer, *read, out)
