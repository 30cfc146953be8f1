"""Advice: recommendations for real jobs, next to the fastest layout and the one that ran.

    python benchmarks/advice.py --data ../shared/data          # writes docs/reference/advice.md

Each job of `advice_jobs.json` has a machine, a model, a batch, and in most cases the published
layout; each of `megatron_bridge_jobs.toml`, beside this file, also has the recipe that ran. Scored:
whether there is an answer and files for it, choices that no practitioner would make, the estimated
loss against the fastest layout, and whether the published layout is estimated to fit.
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
from planner.choose.verdicts.answer_lines import percent_chance
from planner.choose.verdicts.decision_guide import GuideCase as Guide
from planner.cost.arrays import Mask
from planner.cost.estimate import Estimate
from planner.cost.scenario import Scenario
from planner.cost.shards.layouts import Layouts
from planner.describe.catalogue import load_framework, load_machine, load_model
from planner.describe.files import read_toml
from planner.describe.framework.framework import Framework
from planner.describe.layout import RECOMPUTE
from planner.describe.machine import Machine
from planner.describe.machine.variants import override_fields
from planner.describe.model.model import Model
from planner.describe.workload import Workload
from planner.emitters import emit
from planner.errors import PlannerError
from planner.units import GIB, format_seconds

ROOT = Path(__file__).parent.parent
_ABOUT = """\
Written by `benchmarks/advice.py`; do not edit by hand. Jobs that were published, and some of every
day: what `planner plan` recommends, the fastest layout by its own clock, and the layout that ran,
with the choices that nobody published (recompute, ZeRO stage, chunks) as they are fastest. All
times are estimates: the page says whether the advice is sane, not whether the clock is right
([accuracy.md](accuracy.md) does).

What recommends a layout (tolerance, efforts, what is usual;
[recommendation](../explanation/recommendation.md)) was chosen with these jobs in sight: that few
have odd habits is no proof for others.

*Habits* that nobody has: context parallelism at 4,096 tokens or less, or over more than 2 at 8,192;
8 chunks a stage or more where production had less; 24 stages or more below 300 B parameters;
micro-batches of 32 or more above 1 B; more than 95 % of memory."""
_GUIDE = """\
A job for each case of the decision guide that HPC centres teach
([advice](../explanation/search.md#advice)), what is recommended for it, and why where that is not
what the guide names."""
_RECIPES = """\
Jobs with all that their recipes set, of `benchmarks/megatron_bridge_jobs.toml`: what is estimated
for the layout that ran, beside its published step time."""
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
    recipe: str
    """Where its recipe is published, which states every field of the layout; empty: none."""
    tokens_per_s: float
    """Published tokens per second and device of a recipe."""

    @property
    def published_s(self) -> float:
        """Published step time of a recipe [s]."""
        tokens = self.workload.global_batch * self.workload.sequence_length
        return tokens / (self.tokens_per_s * self.nodes * self.machine.node.num_devices)

    @classmethod
    def read(cls, row: dict[str, Any], data: Path) -> Job:
        """Read one row of the file; its own model files are in the same folder."""
        own = data / row["model"]
        stated = ("global_batch", "precision", "lora_rank")
        workload = {name: row[name] for name in stated if name in row}
        return cls(
            row["id"],
            load_model(str(own) if own.suffix == ".toml" else row["model"]),
            override_fields(load_machine(row["machine"]), tuple(row.get("set", ()))),
            row["nodes"],
            Workload(sequence_length=row["seq_length"], **workload),
            row["framework"],
            row["published"],
            row.get("recipe", ""),
            row.get("tokens_per_s", 0.0),
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
        production = estimate_published(job)
    except PlannerError as error:
        refused = str(error)
    return Advice(job, answer, production, refused, _files(job, answer))


def _files(job: Job, answer: Plan) -> str:
    if answer.recommended is None:
        return "nothing fits"
    try:
        emit(answer, answer.recommended, model=job.model, machine=job.machine)
    except PlannerError as error:
        return str(error)
    return ""


def estimate_published(job: Job) -> Estimate | None:
    """Estimate the published layout, with the fastest values for unpublished fields.

    If none of these fits, estimates the one with the most recompute; PlannerError if the framework
    has no such layout.
    """
    if not job.published:
        return None
    framework = load_framework(job.framework)
    if job.recipe:
        return _estimate_stated(job, framework, job.published)
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
    most = {"recompute": framework.recompute[-1], **job.published}
    return _estimate_stated(job, framework, most)


def _estimate_stated(job: Job, framework: Framework, layout: dict[str, Any]) -> Estimate:
    done = complete_layout(
        job.model,
        job.machine,
        nodes=job.nodes,
        layout=layout,
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
    """Print one line per job and the score, and write docs/reference/advice.md."""
    rows = json.loads((data / "advice_jobs.json").read_text("utf-8"))
    rows += read_toml(Path(__file__).with_name("megatron_bridge_jobs.toml"))["jobs"]
    found = []
    for row in rows:
        if only in row["id"]:
            found.append(advise(Job.read(row, data)))
            print(_line(found[-1]), flush=True)
    print("\n".join(score(found)))
    if not only:
        (ROOT / "docs" / "reference" / "advice.md").write_text(report(found), encoding="utf-8")


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
    return "\n".join([*lines, *recipes(found), *guided()])


def recipes(found: list[Advice]) -> Iterator[str]:
    """Yield a table of the jobs with a recipe: whether it fits, and its published step time."""
    yield from ("## Published recipes", "", _RECIPES, "")
    yield "| job | ran | memory | out of memory | step | published | estimate | recipe |"
    yield "|---|---|---|---:|---:|---:|---|---|"
    for advice in found:
        job, ran = advice.job, advice.production
        if ran is None or not job.recipe:
            continue
        total, (low, high) = ran.memory_bytes["total"], ran.interval_step_time_s
        limit = job.machine.device.memory_bytes.value
        fate = "fits" if ran.fits else "**does not fit**"
        within = "within" if low <= job.published_s <= high else "outside"
        cells = [
            job.name,
            _named(ran),
            f"{fate}, {total / GIB:.1f} of {limit / GIB:.1f} GiB",
            percent_chance(ran.out_of_memory_probability),
            format_seconds(ran.step_time_s),
            format_seconds(job.published_s),
            f"{within} its interval, {100 * (ran.step_time_s / job.published_s - 1):+.0f} %",
            job.recipe,
        ]
        yield f"| {' | '.join(cells)} |"
    yield ""


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
