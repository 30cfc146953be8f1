"""Regret: what a recommended layout loses against the best layout that was measured.

    python benchmarks/regret.py --data ../shared/data          # writes docs/reference/regret.md

Many layouts of one job were measured. A rule chooses one of them by its estimates alone.
"""

from __future__ import annotations

import sys
from collections import defaultdict
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Annotated, Any

import numpy as np
import typer
from canonical import PublishedRun
from known import doubtful, fitted
from published import published_runs

from planner.choose.search import Candidates, rank_fastest
from planner.choose.search.recommendation import recommend
from planner.cost.estimate import Estimate, estimate_fitting
from planner.cost.scenario import Scenario
from planner.cost.shards.layouts import Layouts
from planner.describe.layout import Layout
from planner.evidence.runs.run import RefusedRun

ROOT = Path(__file__).parent.parent
FILES = ("ultrascale.csv", "runs.csv")
LEAST_LAYOUTS = 4
"""Layouts that a job must have been tried in; two of them must have run."""
SIZES = ((4, 15), (16, 63), (64, 1000))
COLUMNS = ("jobs", "mean", "median", "worst", "first choice failed", "failed tries", "no answer")
_ABOUT = f"""\
Written by `benchmarks/regret.py`; do not edit by hand. Jobs that were measured in at least
{LEAST_LAYOUTS} layouts of one framework, two of which ran; rows that their table marks low are left
out. A rule chooses among the layouts that were tried, by their estimates. Regret is the measured
step time of its choice over the least measured, minus one.

A layout that did not run costs a failed try, and the rule chooses again among the rest; the regret
is that of the first choice that ran. The tables do not tell a crash from running out of memory.
*Without*: the recommendation with one ingredient of the expected time taken away; the stalls of
nanotron were counted on rows of 1B models, so that those of 8B and 80B are held out. *Effort* is
the tolerance for simpler layouts.

*No answer*: no layout that ran fits by the estimates; such a job has no regret. *Random* draws
among all tried layouts until one runs; its figures are means.

Measured memory is hidden from the estimates: elsewhere it tells which build of a framework ran,
which no failed run shows. *Seen*: a constant of the estimates was fitted on rows of the job. What
is not seen is not fully held out: the chance to run out of memory was learned from unseen rows of
the ultrascale set too. Most layouts ran once, so that a stall that comes and goes decides rows."""

Rule = Callable[[Candidates], Estimate | None]


def fastest(candidates: Candidates) -> Estimate | None:
    """The layout of the least estimated time among those that fit."""
    first = rank_fastest(candidates.estimates, 1)
    return candidates.estimates[int(first[0])] if len(first) else None


def _without(*causes: str) -> Rule:
    """The recommendation where some causes do not count."""
    return lambda candidates: recommend([candidates], without=causes)


RULES: dict[str, Rule] = {
    "recommended": _without(),
    "without memory": _without("memory"),
    "without stalls": _without("stall"),
    "without spread": _without("spread"),
    "without habits": _without("wires", "slices", "depth", "starved", "offload"),
    "without effort": lambda candidates: recommend([candidates], tolerance=0.0),
    "fastest estimate": fastest,
}
"""Rules by the name that tables print; a new rule is one more line."""


@dataclass(frozen=True, eq=False)
class Job:
    """One job, the layouts it was tried in, and what they took."""

    name: str
    framework: str
    candidates: Candidates
    times_s: Mapping[Layout, float | None]
    """Measured step time, a mean where a layout ran again; None where it never ran [s]."""
    seen: bool = False

    @property
    def ran_s(self) -> list[float]:
        """Measured step times [s]."""
        return [time_s for time_s in self.times_s.values() if time_s is not None]


@dataclass(frozen=True, eq=False)
class Choice:
    """What a rule chose for a job."""

    job: Job
    estimate: Estimate | None
    """The first choice that ran; None where the rule has no answer, or none left."""
    num_failed: int

    @property
    def regret(self) -> float | None:
        """Measured time of the choice over the least measured, minus one [1]."""
        time_s = self.job.times_s[self.estimate.layout] if self.estimate else None
        return None if time_s is None else time_s / min(self.job.ran_s) - 1


def candidates_of(scenario: Scenario, layouts: Iterable[Layout]) -> Candidates:
    """Candidates of exactly these layouts."""
    return Candidates(scenario, *estimate_fitting(scenario, Layouts.stack(layouts)), dropped={})


def choose(job: Job, rule: Rule) -> Choice:
    """Let a rule choose until a choice ran."""
    failed: set[Layout] = set()
    while True:
        rest = job.candidates.only(lambda x: np.array([x[i] not in failed for i in range(len(x))]))
        estimate = rule(rest) if len(rest.estimates) else None
        if estimate is None or job.times_s[estimate.layout] is not None:
            return Choice(job, estimate, len(failed))
        failed.add(estimate.layout)


def measured_runs(path: Path) -> list[PublishedRun]:
    """Runs of a table that can be estimated, without their measured memory."""
    runs = published_runs(path, without=("peak_memory_gib",))
    return with_tied_shapes([run for run in runs if not isinstance(run, RefusedRun)])


def with_tied_shapes(runs: Sequence[PublishedRun]) -> list[PublishedRun]:
    """The runs, with embeddings tied in a pipeline, which holds them twice, as they are without."""
    tied = {run.model for run in runs if run.model.tied_embeddings and run.layout.pp == 1}
    models = {model.replaced(tied_embeddings=False): model for model in tied}
    return [replace(run, model=models.get(run.model, run.model)) for run in runs]


def jobs_of(runs: Iterable[PublishedRun]) -> list[Job]:
    """The jobs that were measured in enough layouts, in order of first appearance."""
    groups: dict[Any, list[PublishedRun]] = defaultdict(list)
    for run in runs:
        is_sound = run.reliability != "low" and not (doubtful(run) or run.guessed)
        if is_sound and run.fits is not None:
            job = run.framework, run.model, run.workload, run.layout.world
            groups[run.source, run.machine_label, job].append(run)
    jobs = map(job_of, groups.values())
    return [job for job in jobs if len(job.times_s) >= LEAST_LAYOUTS and len(job.ran_s) > 1]


def job_of(runs: Sequence[PublishedRun]) -> Job:
    """The job of some runs of one scenario on as many devices."""
    measured_s: dict[Layout, list[float]] = {run.layout: [] for run in runs}
    for run in runs:
        if run.step_time_s is not None:
            measured_s[run.layout].append(run.step_time_s)
    times_s = {layout: float(np.mean(x)) if x else None for layout, x in measured_s.items()}
    first = runs[0]
    size = f"{first.model.name} ({first.model.num_params / 1e9:.3g} B)"
    name = f"{size}, {first.layout.world} devices, batch {first.workload.global_batch}"
    candidates = candidates_of(first.scenario, times_s)
    return Job(name, first.framework.name, candidates, times_s, any(map(fitted, runs)))


def cells_of(jobs: Sequence[Job], regrets: Sequence[float], failed: tuple[float, float]) -> str:
    """Cells of COLUMNS; `failed` counts first choices that failed, and all failed tries."""
    figures = [np.mean(regrets), np.median(regrets), max(regrets)] if regrets else []
    percents = [f"{100 * figure:.1f} %" for figure in figures] or ["-"] * 3
    numbers = [f"{round(number, 1):g}" for number in failed]
    return " | ".join([str(len(jobs)), *percents, *numbers, str(len(jobs) - len(regrets))])


def rule_cells(jobs: Sequence[Job], rule: Rule) -> str:
    """Cells of a rule."""
    choices = [choose(job, rule) for job in jobs]
    regrets = [choice.regret for choice in choices if choice.regret is not None]
    tries = [choice.num_failed for choice in choices]
    return cells_of(jobs, regrets, (np.count_nonzero(tries), sum(tries)))


def random_cells(jobs: Sequence[Job]) -> str:
    """Cells of draws among all tried layouts, without replacement, until one runs: means."""
    ran = np.array([len(job.ran_s) for job in jobs])
    failed = np.array([len(job.times_s) for job in jobs]) - ran
    regrets = [float(np.mean(job.ran_s)) / min(job.ran_s) - 1 for job in jobs]
    return cells_of(jobs, regrets, (np.sum(failed / (failed + ran)), np.sum(failed / (ran + 1))))


def parts_of(jobs: Sequence[Job]) -> dict[str, list[Job]]:
    """Jobs in parts: all, seen or not, by framework, by number of layouts."""
    parts = {"all": list(jobs)}
    for name, is_seen in (("not seen", False), ("seen", True)):
        parts[name] = [job for job in jobs if job.seen == is_seen]
    for framework in dict.fromkeys(job.framework for job in jobs):
        parts[framework] = [job for job in jobs if job.framework == framework]
    for low, high in SIZES:
        parts[f"{low} to {high} layouts"] = [j for j in jobs if low <= len(j.times_s) <= high]
    return {name: members for name, members in parts.items() if members}


def report(jobs: Sequence[Job], rules: Mapping[str, Rule]) -> list[str]:
    """Lines of both tables: figures of every rule, and every job by falling regret of the first."""
    lines = [f"| part | rule | {' | '.join(COLUMNS)} |", "|---|---|" + "---:|" * len(COLUMNS)]
    for part, members in parts_of(jobs).items():
        cells = {name: rule_cells(members, rule) for name, rule in rules.items()}
        cells["random"] = random_cells(members)
        lines += [f"| {part} | {name} | {row} |" for name, row in cells.items()]
    name, rule = next(iter(rules.items()))
    order = sorted((choose(job, rule) for job in jobs), key=lambda c: -(c.regret or 0.0))
    lines += [
        "",
        f"## Jobs, by the regret of what is {name}",
        "",
        "Times: estimate, measurement.",
        "",
    ]
    lines += ["| job | tried, ran | failed tries | regret | chosen | times | best | times |"]
    return [*lines, "|---|---:|---:|---:|---|---:|---|---:|", *map(job_row, order)]


def job_row(choice: Choice) -> str:
    """One job: the choice and the best layout, each as estimated and as measured."""
    job, estimate, fitting = choice.job, choice.estimate, choice.job.candidates.estimates
    best = min((t, str(x), x) for x, t in job.times_s.items() if t is not None)[2]
    estimated_s = {fitting.layouts[i]: fitting.step_time_s[i] for i in range(len(fitting))}

    def times(layout: Layout) -> str:
        text = f"{estimated_s[layout]:.3g} s" if layout in estimated_s else "does not fit"
        return f"{text}, {job.times_s[layout]:.3g} s"

    cells = [
        f"{job.name}, {job.framework}{' (seen)' if job.seen else ''}",
        f"{len(job.times_s)}, {len(job.ran_s)}",
        str(choice.num_failed),
        "no answer" if choice.regret is None else f"{100 * choice.regret:.1f} %",
        *((str(estimate.layout), times(estimate.layout)) if estimate else ("-", "-")),
        *(str(best), times(best)),
    ]
    return f"| {' | '.join(cells)} |"


def main(data: Annotated[Path, typer.Option(help="Folder with tables of measured runs.")]) -> None:
    """Print the regret of every rule and write docs/reference/regret.md."""
    paths = [data / name for name in FILES]
    if missing := [path for path in paths if not path.exists()]:
        sys.exit(f"no such file: {missing[0]}; give --data the folder of measured runs")
    jobs = jobs_of(run for path in paths for run in measured_runs(path))
    lines = report(jobs, RULES)
    print("\n".join(lines))
    text = "\n".join(["# Regret of what is recommended", "", _ABOUT, "", *lines, ""])
    (ROOT / "docs" / "reference" / "regret.md").write_text(text, encoding="utf-8")


if __name__ == "__main__":
    typer.run(main)
