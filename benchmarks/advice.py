"""Advice: recommendations for real jobs, next to the fastest layout and the one that ran.

    python benchmarks/advice.py --data ../shared/data          # writes docs/advice.md

Each job of `advice_jobs.json` has a machine, a model, a batch, and in most cases the published
layout. Scored: whether there is an answer and files for it, choices that no practitioner would
make, the estimated loss against the fastest layout, and whether the published layout is estimated
to fit.
"""

from __future__ import annotations

import csv
import json
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Annotated, Any

import numpy as np
import typer

from planner.choose.plan import Plan
from planner.choose.planning import estimate, plan
from planner.choose.search import rank_fastest, search
from planner.choose.user_layouts import complete_layout
from planner.choose.verdicts.decision_guide import GuideCase as Guide
from planner.cost.arrays import Mask
from planner.cost.estimate import Estimate
from planner.cost.scenario import Scenario
from planner.cost.shards.layouts import Layouts
from planner.describe.catalogue import load_framework, load_machine, load_model
from planner.describe.layout import RECOMPUTE
from planner.describe.machine import Machine
from planner.describe.machine.variants import override_fields
from planner.describe.model.model import Model
from planner.describe.workload import Workload
from planner.emitters import emit_estimate
from planner.errors import PlannerError
from planner.show.words import percent_chance
from planner.units import format_seconds

ROOT = Path(__file__).parent.parent
_ABOUT = """\
Written by `benchmarks/advice.py`; do not edit by hand. Jobs that were published, and some of every
day: what `planner plan` recommends, the fastest layout by its own clock, and the layout that ran,
with the choices that nobody published (recompute, ZeRO stage, chunks) as they are fastest. All
times are estimates: the page says whether the advice is sane, not whether the clock is right
([accuracy.md](accuracy.md) does).

What recommends a layout (tolerance, efforts, what is usual; [method.md](method.md#recommended)) was
chosen with these jobs in sight: that few have odd habits is no proof for others.

*Habits* that nobody has: context parallelism at 4,096 tokens or less, or over more than 2 at 8,192;
8 chunks a stage or more where production had less; 24 stages or more below 300 B parameters;
micro-batches of 32 or more above 1 B; more than 95 % of memory."""
_GUIDE = """\
A job for each case of the decision guide that HPC centres teach ([method.md](method.md#advice)),
what is recommended for it, and why where that is not what the guide names."""
_JOBS = ROOT / "tests" / "choose" / "verdicts" / "guide"


@dataclass(frozen=True)
class Job:
    """One job and its published layout."""

    name: str
    model: Model
    machine: Machine
    nodes: int
    workload: Workload
    framework: str
    published: dict[str, Any] | None

    @classmethod
    def read(cls, row: dict[str, Any], data: Path) -> Job:
        """Read one row of the file; its own model files are in the same folder."""
        own = data / row["model"]
        workload = {name: row[name] for name in ("global_batch", "precision", "lora_rank")}
        return cls(
            row["id"],
            load_model(str(own) if own.suffix == ".toml" else row["model"]),
            override_fields(load_machine(row["machine"]), tuple(row["set"])),
            row["nodes"],
            Workload(sequence_length=row["seq_length"], **workload),
            row["framework"],
            row["published"],
        )


@dataclass(frozen=True)
class Advice:
    """The planner's answer to a job."""

    job: Job
    answer: Plan
    production: Estimate | None
    """The published layout; unpublished fields have the values that make it fastest."""
    refused: str
    """Why the published layout cannot be estimated; empty if it can."""
    files: str
    """Why no files can be written; empty if they can."""

    @property
    def habits(self) -> list[str]:
        """Choices of the recommended layout that no practitioner would make."""
        found = self.answer.recommended
        return list(_habits(found, self)) if found else ["no answer"]


def _habits(found: Estimate, advice: Advice) -> Iterator[str]:
    layout, job = found.layout, advice.job
    tokens, params = job.workload.sequence_length, job.model.num_params
    if (layout.cp > 1 and tokens <= 4096) or (layout.cp > 2 and tokens <= 8192):
        yield f"cp {layout.cp} at {tokens} tokens"
    if layout.vpp >= 8 and (job.published or {}).get("vpp", 1) < layout.vpp:
        yield f"vpp {layout.vpp}"
    if layout.pp >= 24 and params < 300e9:
        yield f"pp {layout.pp}"
    if layout.micro_batch >= 32 and params > 1e9:
        yield f"micro-batch {layout.micro_batch}"
    if found.memory_bytes["total"] > 0.95 * job.machine.device.memory_bytes.value:
        yield "more than 95 % of memory"


def advise(job: Job) -> Advice:
    """Plan a job, try to write its files, and estimate the published layout."""
    answer = plan(job.model, job.machine, nodes=job.nodes, workload=job.workload)
    production, refused = None, ""
    try:
        production = _production(job)
    except PlannerError as error:
        refused = str(error)
    return Advice(job, answer, production, refused, _files(job, answer))


def _files(job: Job, answer: Plan) -> str:
    if answer.recommended is None:
        return "nothing fits"
    try:
        emit_estimate(answer, answer.recommended, model=job.model, machine=job.machine)
    except PlannerError as error:
        return str(error)
    return ""


def _production(job: Job) -> Estimate | None:
    """Estimate the published layout, with the fastest values for unpublished fields.

    If none of these fits, estimates the one with the most recompute; PlannerError if the framework
    has no such layout.
    """
    if not job.published:
        return None
    framework = load_framework(job.framework)
    scenario = Scenario(job.model, job.machine, job.workload, framework)
    wanted, world = _stated(job.published), job.nodes * job.machine.node.num_devices

    def ran(layouts: Layouts) -> Mask:
        return np.logical_and.reduce([getattr(layouts, name) == value for name, value in wanted])

    # a full search includes chunks that are even only with embedding and head as layers
    found = search(scenario, world, ran), search(scenario, world).only(ran)
    fastest = [
        kind.estimates[int(one)] for kind in found for one in rank_fastest(kind.estimates, 1)
    ]
    if fastest:
        return min(fastest, key=lambda one: one.step_time_s)
    done = complete_layout(
        job.model,
        job.machine,
        nodes=job.nodes,
        layout={"recompute": framework.recompute[-1], **job.published},
        workload=job.workload.model_dump(),
        framework=framework,
    )
    return estimate(
        job.model, job.machine, done.layout, workload=done.workload, framework=framework
    )


def _stated(published: dict[str, Any]) -> list[tuple[str, Any]]:
    """Return layout columns and their published values."""
    codes = {"recompute": RECOMPUTE}
    return [(k, codes[k].index(v) if k in codes else v) for k, v in published.items()]


def main(
    data: Annotated[Path, typer.Option(help="Folder with advice_jobs.json.")],
    only: Annotated[str, typer.Option(help="Jobs whose name holds this; writes nothing.")] = "",
) -> None:
    """Print one line per job and the score, and write docs/advice.md."""
    rows = json.loads((data / "advice_jobs.json").read_text("utf-8"))
    found = []
    for row in rows:
        if only in row["id"]:
            found.append(advise(Job.read(row, data)))
            print(_line(found[-1]), flush=True)
    print("\n".join(score(found)))
    if not only:
        (ROOT / "docs" / "advice.md").write_text(report(found), encoding="utf-8")


def _line(advice: Advice) -> str:
    best, found, ran = advice.answer.best, advice.answer.recommended, advice.production
    if best is None or found is None:
        return f"{advice.job.name}: nothing fits"
    slower = found.step_time_s / best.step_time_s - 1
    text = (
        f"{advice.job.name}: {found.layout} [{found.framework}] "
        f"{format_seconds(found.step_time_s)} (+{100 * slower:.0f} %; {best.layout} "
        f"[{best.framework}])"
    )
    if ran:
        text += f"; ran {ran.layout} {format_seconds(ran.step_time_s)}"
        text += "" if ran.fits else " DOES NOT FIT"
    if advice.refused:
        text += f"; ran, but {advice.refused}"
    return "; ".join([text, *advice.habits, *([advice.files] if advice.files else [])])


def score(found: list[Advice]) -> list[str]:
    """Summarize the figures of all jobs."""
    num = len(found)
    pairs = [(x.answer.recommended, x.answer.best) for x in found]
    answered = [(one, best) for one, best in pairs if one and best]
    ran = [x.production for x in found if x.production]
    near = sum(one.step_time_s <= 1.25 * best.step_time_s for one, best in answered)
    published = [x for x in found if x.production and x.answer.recommended]
    slower = sum(_beside_production(x) > 1.25 for x in published)
    return [
        f"jobs with an answer: {len(answered)} of {num}",
        f"files of the recommended layout: {sum(not x.files for x in found)} of {num}",
        f"a habit that nobody has: {sum(bool(x.habits) for x in found)} of {num}",
        f"within 25 % of the fastest, by our own clock: {near} of {num}",
        f"published layouts said to fit: {sum(one.fits for one in ran)} of {len(ran)}",
        f"recommended more than 25 % slower than the published: {slower} of {len(published)}",
    ]


def _beside_production(advice: Advice) -> float:
    """Return time per token of the recommended layout over that of the published layout."""
    one, ran = advice.answer.recommended, advice.production
    assert one is not None
    assert ran is not None
    return ran.tokens_per_s / one.tokens_per_s


def report(found: list[Advice]) -> str:
    """Return the page: the score, one row per job, and why files are missing."""
    lines = [
        "# Advice beside real jobs",
        "",
        _ABOUT,
        "",
        *(f"- {line}" for line in score(found)),
        "",
        "| job | recommended | step | out of memory | fastest | ran | recommended / ran | habits |",
        "|---|---|---:|---:|---|---|---:|---|",
        *map(_row, found),
        "",
    ]
    reasons = [f"- {x.job.name}: {x.files}." for x in found if x.files]
    lines += ["## No files", "", *reasons, ""] if reasons else []
    refused = [f"- {x.job.name}: {x.refused}." for x in found if x.refused]
    lines += ["## Published layouts that are refused", "", *refused, ""] if refused else []
    return "\n".join([*lines, *guided()])


def guided() -> Iterator[str]:
    """Yield a table of the guide's cases, with our answer and the guide's."""
    yield from ("## Beside the field's guide", "", _GUIDE, "")
    yield from ("| job | the guide | recommended | where they differ |", "|---|---|---|---|")
    for row in csv.DictReader((_JOBS / "jobs.csv").read_text("utf-8").splitlines()):
        own = _JOBS / row["model"]
        model = load_model(str(own) if own.suffix == ".toml" else row["model"])
        batch, tokens, nodes = (int(row[name]) for name in ("batch", "length", "nodes"))
        workload = Workload(global_batch=batch, sequence_length=tokens)
        answer = plan(model, row["machine"], nodes=nodes, workload=workload)
        differ = [note for note in answer.notes if note.startswith("They differ: ")]
        job = f"{model.name}, {nodes} x {row['machine']}, {batch} x {tokens:,} tokens"
        found = answer.recommended
        cells = [
            job,
            Guide[row["advice"]].value.text,
            _named(found) if found else "nothing fits",
            "".join(differ).removeprefix("They differ: "),
        ]
        yield f"| {' | '.join(cells)} |"
    yield ""


def _row(advice: Advice) -> str:
    one, best, ran = advice.answer.recommended, advice.answer.best, advice.production
    if one is None or best is None:
        return f"| {advice.job.name} | nothing fits | | | | | | |"
    gain = 100 * (1 - best.step_time_s / one.step_time_s)
    fastest = "the same" if best == one else f"{_named(best)}, {gain:.0f} % less"
    fate = "" if ran is None or ran.fits else ", **does not fit**"
    cells = [
        advice.job.name,
        _named(one),
        format_seconds(one.step_time_s),
        percent_chance(one.out_of_memory_probability),
        fastest,
        f"{_named(ran)}{fate}" if ran else "",
        f"{_beside_production(advice):.2f}" if ran else "",
        ", ".join(advice.habits),
    ]
    return f"| {' | '.join(cells)} |"


def _named(estimate: Estimate) -> str:
    return f"{estimate.layout} [{estimate.framework}]"


if __name__ == "__main__":
    typer.run(main)
