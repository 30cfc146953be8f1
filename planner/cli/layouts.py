"""Command line: `planner plan`, and `estimate`, `simulate` and `emit` for one layout."""

from __future__ import annotations

import json
import sys
from dataclasses import dataclass, replace
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from planner.cli.options.help_panels import PanelCommand
from planner.cli.options.job_options import (
    JobOptions,
    LayoutOptions,
    TrainingOptions,
    experience_of,
)
from planner.cli.options.option_groups import spread
from planner.cli.options.option_styles import AsCsv, AsJson, Tokens
from planner.cli.settings import value_of
from planner.cli.waiting import waiting
from planner.describe.files import write_atomically
from planner.errors import FITS, NOTHING_FITS, EmitError

if TYPE_CHECKING:
    from planner.choose.plan import Plan
    from planner.cost.estimate import Estimate
    from planner.cost.scenario import Scenario
    from planner.describe.machine import Machine
    from planner.job import Job
    from planner.show.measured_runs import LearnedAnswer
    from planner.training.whole_training import WholeTraining


def register(app: typer.Typer) -> None:
    """Add the commands to the application."""
    app.command("plan", cls=PanelCommand)(spread(plan_command))
    app.command("estimate", cls=PanelCommand)(spread(estimate_command))
    app.command("simulate", cls=PanelCommand)(spread(simulate_command))
    app.command("emit", cls=PanelCommand)(spread(emit_command))


def plan_command(
    options: JobOptions,
    training: TrainingOptions,
    top: Annotated[int, typer.Option(min=1, max=1000, help="Ranked layouts to keep.")] = 20,
    explained: Annotated[
        bool, typer.Option("--explain", "-v", help="All: parts, fixes, notes, rejected.")
    ] = False,
    quiet: Annotated[bool, typer.Option("--quiet", "-q", help="Only the answer's lines.")] = False,
    report: Annotated[
        Path | None,
        typer.Option(metavar="FILE.html", help="Also write a document to print, with sources."),
    ] = None,
    as_json: AsJson = False,
    as_csv: AsCsv = False,
) -> int:
    """Search every layout: which strategy fits, how much memory, how long a step."""
    from planner.show.job_texts import address
    from planner.show.measured_runs import LearnedAnswer
    from planner.show.plan_report import Detail, show_plan
    from planner.show.terminal import console, print_link

    job, learned = options.load(training=training.fields())
    training.check_length(job.workload.all_tokens)
    with waiting("searching layouts"):
        answer = job.plan(top)
    answered = job.replaced(workload=answer.workload)
    lessons = LearnedAnswer(
        learned, [(answered.scenario_of(candidate), candidate) for candidate in answer.listed]
    )
    if report is not None:
        write_atomically(report, answer.report(job.model, job.machine))
    if as_json:
        print(lessons.to_json(answer.as_dict()))
    elif as_csv:
        print(answer.table().to_csv(), end="")
    else:
        detail: Detail = "lines" if quiet else "all" if explained else "screen"
        show_plan(answer, console(), lessons.lines(), detail)
        if not quiet:
            print_link(address(options.description()), console())
    return FITS if answer.fits else NOTHING_FITS


def estimate_command(
    options: LayoutOptions,
    training: TrainingOptions,
    tokens: Tokens = None,
    as_json: AsJson = False,
    as_csv: AsCsv = False,
) -> int:
    """Estimate one layout: memory by part and stage, step time by part.

    With --from, the layout is read from your configuration files of DeepSpeed, Accelerate,
    torchtitan, Megatron, nanotron, nanoGPT, wordplay or the Hugging Face Trainer. Options override
    the files.
    """
    from planner.choose.micro_batch import micro_batch_note
    from planner.choose.planning import estimate_job, job_of_layout, scenario_for
    from planner.choose.user_layouts import faster_layout
    from planner.show.measured_runs import LearnedAnswer

    model, machine, setup = options.completed()
    learned = options.learned()
    experience = experience_of(learned)
    job = job_of_layout(model, machine, setup.layout, setup.workload, setup.framework, experience)
    answer, scenario = estimate_job(job, setup.layout), scenario_for(job, setup.layout)
    notes = setup.notes
    if not (options.files or "micro_batch" in options.layout or "global_batch" in options.workload):
        notes += (micro_batch_note(job, setup.layout),)
    report = _Report(
        scenario,
        answer,
        LearnedAnswer(learned, [(scenario, answer)]),
        _training(scenario, answer, tokens, training),
        read_files=bool(options.files),
        better=faster_layout(model, machine, setup, answer, experience) if options.files else None,
        notes=notes,
    )
    if as_json:
        print(report.to_json())
    elif as_csv:
        print(answer.table().to_csv(), end="")
    else:
        report.show()
        _print_link(options, scenario.machine, answer)
    return FITS if answer.fits else NOTHING_FITS


def _print_link(options: LayoutOptions, machine: Machine, answer: Estimate) -> None:
    from planner.show.job_texts import address, pack_layout
    from planner.show.terminal import console, print_link

    job, layout = options.description(), answer.layout
    workload = {**job.workload, "global_batch": layout.global_batch}
    sized = job.replaced(nodes=-(-layout.world // machine.node.num_devices), workload=workload)
    packed = pack_layout(layout, answer.framework)
    print_link("" if options.files else address(sized, "layout", layout=packed), console())


def _training(
    scenario: Scenario, answer: Estimate, tokens: float | None, options: TrainingOptions
) -> WholeTraining | None:
    from planner.describe.training.training_run import Training
    from planner.training.campaign import whole_training

    training = Training.described(options.fields(), where="training")
    options.check_length(tokens)
    if tokens is None:
        return None
    longer = replace(scenario, workload=scenario.workload.replaced(tokens=tokens))
    return whole_training(longer, answer, _nodes(scenario, answer), training)


def _nodes(scenario: Scenario, answer: Estimate) -> int:
    return -(-answer.layout.world // scenario.machine.node.num_devices)


@dataclass(frozen=True, slots=True)
class _Report:
    """An estimate and everything that is printed with it."""

    scenario: Scenario
    answer: Estimate
    lessons: LearnedAnswer
    training: WholeTraining | None
    read_files: bool
    """True if the layout came from configuration files."""
    better: Estimate | None
    """A faster layout of the same framework; None if none is known."""
    notes: tuple[str, ...]

    def to_json(self) -> str:
        """Return the report as JSON text."""
        from planner.choose.plan import estimate_dict
        from planner.cost.memory.footprint import stage_memory

        stages = stage_memory(self.scenario, self.answer.layout)
        data: dict[str, Any] = {**estimate_dict(self.answer), "stages": stages}
        if self.training is not None:
            data["training"] = self.training.as_dict()
        if self.read_files:
            data["workload"] = self.scenario.workload.model_dump(mode="json")
            data["better"] = None if self.better is None else estimate_dict(self.better)
            data["notes"] = self.notes
        return self.lessons.to_json(data)

    def show(self) -> None:
        """Print the report."""
        from planner.choose.jobs.alternatives import network_choice
        from planner.choose.verdicts.plan_notes import evidence_notes, utilisation_notes
        from planner.cost.memory.footprint import stage_memory
        from planner.show.plan_report import show_estimate, show_reading
        from planner.show.terminal import console, print_notes, show

        out, nodes = console(), _nodes(self.scenario, self.answer)
        stages = stage_memory(self.scenario, self.answer.layout)
        show_estimate(self.answer, self.scenario.machine, stages, out)
        if self.training is not None:
            show(self.training, out)
        print_notes(self.lessons.lines(), out)
        notes = utilisation_notes(self.scenario, self.answer)
        own_notes = () if self.read_files else self.notes
        if choice := network_choice(self.scenario, self.answer):
            own_notes = (*own_notes, f"The step is {choice}; --network chooses.")
        print_notes([*own_notes, *notes, *evidence_notes(self.scenario, nodes)], out)
        if self.read_files:
            show_reading(self.answer, self.better, self.notes, out)


def simulate_command(
    options: LayoutOptions,
    trace: Annotated[
        Path | None,
        typer.Option(
            "--trace",
            metavar="FILE.json",
            help="Write the step as a trace: open it at ui.perfetto.dev or in chrome://tracing.",
        ),
    ] = None,
    as_json: AsJson = False,
) -> int:
    """Simulate one step of a layout event by event: waiting times, and what would speed it up.

    State the layout as for `planner estimate`; the simulation uses the same times.
    """
    from planner.choose.simulation.step_simulation import simulate

    model, machine, job = options.completed()
    step = simulate(
        model,
        machine,
        job.layout,
        workload=job.workload,
        framework=job.framework,
        experience=experience_of(options.learned()),
    )
    if trace is not None:
        write_atomically(trace, json.dumps(step.to_trace(), allow_nan=False))
    if as_json:
        print(json.dumps(step.to_dict(), indent=1, allow_nan=False))
    else:
        from planner.show.plan_report import show_simulation
        from planner.show.terminal import console

        show_simulation(step, machine, console())
        if trace is not None:
            print(f"\nThe trace is in {trace}: open it at ui.perfetto.dev or in chrome://tracing.")
        _print_link(options, machine, step.estimate)
    return FITS if step.estimate.fits else NOTHING_FITS


_LONGEST = 120
"""Longest model name in a folder name; names of the hub have up to 96 letters and a revision."""
_LEAST_TOP = 200
"""Smallest number of ranked layouts, to find one with files if the requested one has none."""


def emit_command(
    options: JobOptions,
    rank: Annotated[
        int | None,
        typer.Option(
            min=1,
            max=1000,
            help="Rank of the layout in the plan; 1 is the fastest. Default: the recommended one.",
        ),
    ] = None,
    steps: Annotated[
        int | None, typer.Option(min=1, help="Steps; default: those of --tokens, or 1000.")
    ] = None,
    queue: Annotated[
        str, typer.Option(help="Queue; default: the shortest that fits the run.")
    ] = "",
    account: Annotated[
        str | None,
        typer.Option(help="Account that pays; default: that of `planner config`, else you set it."),
    ] = None,
    benchmark: Annotated[
        bool,
        typer.Option("--benchmark", help="Also a script that times collectives on these nodes."),
    ] = False,
    probe: Annotated[
        bool,
        typer.Option("--probe", help="Instead small runs of ten minutes that narrow its interval."),
    ] = False,
    output: Annotated[
        Path | None, typer.Option("--output", "-o", help="Folder; default: named after the job.")
    ] = None,
    force: Annotated[bool, typer.Option("--force", help="Overwrite files.")] = False,
    dry_run: Annotated[bool, typer.Option("--dry-run", help="Print the files only.")] = False,
) -> int:
    """Write the files that run a layout: job script, framework configuration, README."""
    from planner.choose.verdicts.answer_lines import headline

    job, _ = options.load()
    with waiting("searching layouts"):
        answer = job.plan(top=max(rank or 1, _LEAST_TOP))
    if not answer.fits:
        print(
            f"nothing fits: {answer.model} on {job.nodes} nodes of {answer.machine}; "
            "`planner plan` says why and what would help",
            file=sys.stderr,
        )
        return NOTHING_FITS
    if instead := headline(answer):
        print(instead, file=sys.stderr)
    account = value_of("account") or "" if account is None else account
    if probe:
        from planner.emitters.probe_files import probe_files

        runs = job.probe(rank, answer=answer)
        print("\n".join(runs.lines()), file=sys.stderr)
        files = probe_files(runs, queue=queue, account=account)
    else:
        choices = {"steps": steps, "queue": queue, "account": account, "benchmark": benchmark}
        files = _files(job, answer, rank, choices)
    if dry_run:
        print("\n".join(f"==> {name} <==\n{text}" for name, text in files.items()))
        return FITS
    from planner.emitters.batch_job import slug
    from planner.emitters.folder import write_folder

    name = f"{slug(job.model.name, _LONGEST)}-{slug(job.machine.name)}"
    folder = output or Path(f"{name}-probe" if probe else name)
    write_folder(files, folder, force=force)
    print(f"{folder}: {', '.join(files)}")
    return FITS


def _files(job: Job, answer: Plan, rank: int | None, settings: dict[str, Any]) -> dict[str, str]:
    """Return the files of a layout; without any, the error names the fastest layout with files."""

    def can_be_written(number: int) -> bool:
        try:
            return bool(job.emit(number, answer=answer, **settings))
        except EmitError:
            return False

    try:
        return job.emit(rank, answer=answer, **settings)
    except EmitError as refusal:
        for number in range(1, len(answer.ranked) + 1):
            if can_be_written(number):
                raise EmitError(f"{refusal}; --rank {number} can be written") from None
        raise
