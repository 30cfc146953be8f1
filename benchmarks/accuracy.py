"""Accuracy report: score measured runs; write the page, residuals and memory quantiles.

    python benchmarks/accuracy.py --data DIR            # DIR holds CSV files of measured runs
    python benchmarks/accuracy.py                       # benchmarks/evidence alone: only a table

Rows of benchmarks/evidence are scored beside those of DIR.

Rows that a constant was fitted on are separate from rows that no fit has seen. Run
`benchmarks/learning.py` next: it learns from the residuals of unseen rows how far new runs err.
"""

from __future__ import annotations

import math
import sys
from collections import defaultdict
from collections.abc import Iterable
from pathlib import Path
from typing import Annotated

import numpy as np
import typer
from amp import amp_runs
from blind import tables as evidence
from conformal import distribution, quantiles
from known import cause, doubtful, fitted, memory_cause
from published import published_runs
from residual_table import TeachingResidual, write_table
from simumax import simumax_runs
from whole.report import tables

from planner.cost.scenario.prior import MEMORY_CLASSES, memory_class
from planner.cost.shards.layouts import Layouts
from planner.cost.uncertainty import traits_of
from planner.evidence.backtest import Backtest, score
from planner.evidence.runs.run import RefusedRun, Run
from planner.evidence.scores import MISSING_RANKS, Score, ranks_are_known

ROOT = Path(__file__).parent.parent
FILES = ("runs.csv", "ultrascale.csv")
LARGE_MEMORY_ERROR = 0.15
"""A relative error of memory above this is listed with its cause."""
STALLED = 0.6
"""A run whose framework awaits collectives stalled if estimate / measured is below this."""


def ratio(item: Score) -> float:
    """Return measured over estimated step time."""
    assert item.run.step_time_s is not None
    return item.run.step_time_s / item.estimate.step_time_s


def figures(items: list[Score]) -> dict[str, float]:
    """Compute count, MAPE, bias, median and worst error of scored rows."""
    errors = np.array([1 / ratio(item) - 1 for item in items])
    return {
        "n": len(errors),
        "mape": float(np.mean(np.abs(errors))),
        "bias": float(np.expm1(np.mean(np.log1p(errors)))),
        "median": float(np.median(np.abs(errors))),
        "worst": float(errors[np.argmax(np.abs(errors))]),
    }


def sound(item: Score) -> bool:
    """True if a row may enter the intervals: not marked low in its table, and not doubtful."""
    return item.run.reliability != "low" and not doubtful(item.run)


def stalled(item: Score) -> bool:
    """True if a run was slow enough to count as stalled, and its framework awaits collectives."""
    awaits = item.run.framework.host.awaits_collectives
    return awaits and item.run.step_time_s is not None and ratio(item) > 1 / STALLED


def memory_ratio(item: Score) -> float:
    """Return measured over estimated memory, for the parts that the measurement includes."""
    assert item.run.memory_bytes is not None
    return item.run.memory_bytes / item.estimated_memory_bytes


def weighed(rows: Iterable[Score]) -> list[Score]:
    """Select sound rows of stated jobs with a memory measurement beyond allocated tensors.

    No memory constant was fitted on any of them. Allocated tensors alone do not tell whether a job
    fits: the allocator holds more.
    """
    return [
        item
        for item in rows
        if item.run.memory_bytes is not None
        and item.run.memory_kind != "allocated"
        and not item.run.told_by_memory
        and sound(item)
        and not item.run.guessed
    ]


def by_memory_class(items: list[Score]) -> dict[str, list[Score]]:
    """Group rows by memory class, without empty classes."""
    found = {
        name: [item for item in items if memory_class(item.run.framework) == name]
        for name in MEMORY_CLASSES
    }
    return {name: members for name, members in found.items() if members}


def memory_quantiles(items: list[Score]) -> dict[str, tuple[float, float, int, int]]:
    """Compute conformal quantiles, rows and sources of each memory class."""
    found = {}
    for name, members in by_memory_class(items).items():
        low, high = quantiles([memory_ratio(item) for item in members])
        found[name] = (low, high, len(members), len({item.run.source for item in members}))
    return found


def memory_distribution(items: list[Score]) -> dict[str, list[str]]:
    """Write lines of the intervals file: cumulative distribution of ratios by memory class."""
    found = {}
    for name, members in by_memory_class(items).items():
        parts, ratios = distribution([memory_ratio(item) for item in members])
        found[name] = [
            f"{key} = [{', '.join(f'{value:.4f}' for value in values)}]"
            for key, values in (("parts", parts), ("ratios", ratios))
        ]
    return found


def percent(value: float) -> str:
    return f"{100 * value:+.1f} %"


def source_table(items: list[Score]) -> list[str]:
    """Make the table of figures per source, with fitted and unseen rows separate."""
    groups: dict[tuple[str, str], list[Score]] = defaultdict(list)
    for item in items:
        unseen = "no, job guessed" if item.run.guessed else "no"
        groups[item.run.source, fitted(item.run) or unseen].append(item)
    lines = [
        "| source | rows | seen by a fit | MAPE | bias | worst |",
        "|---|---:|---|---:|---:|---:|",
    ]
    for (source, what), members in sorted(groups.items()):
        f = figures(members)
        lines.append(
            f"| {source} | {f['n']:.0f} | {what} | {100 * f['mape']:.1f} % | "
            f"{percent(f['bias'])} | {percent(f['worst'])} |"
        )
    return lines


def plot(items: list[Score], width: int = 64, height: int = 24) -> list[str]:
    """Plot predicted against measured step time as text, log axes: o unseen rows, x fitted."""
    points = [
        (item.run.step_time_s or 1.0, item.estimate.step_time_s, bool(fitted(item.run)))
        for item in items
    ]
    logs = [math.log10(v) for a, b, _ in points for v in (a, b)]
    low, high = math.floor(min(logs)), math.ceil(max(logs))
    grid = [[" "] * width for _ in range(height)]

    def cell(value: float, size: int) -> int:
        return min(int((math.log10(value) - low) / (high - low) * size), size - 1)

    for x in range(width):
        grid[height - 1 - int(x / width * height)][x] = "."
    for measured, estimated, seen in points:
        grid[height - 1 - cell(estimated, height)][cell(measured, width)] = "x" if seen else "o"
    lines = [f"{'estimated' if i == 0 else '':>10} |{''.join(row)}" for i, row in enumerate(grid)]
    axis = f"{'':>10} +{'-' * width}\n{'':>11} 1e{low} s{'':^{width - 20}}1e{high} s measured"
    return ["```", *lines, axis, "```"]


def worst(items: list[Score]) -> list[Score]:
    """Sort rows by descending error; factors above and below 1 count equally."""
    return sorted(items, key=lambda item: -abs(math.log(ratio(item))))


def worst_of_each(items: list[Score]) -> list[Score]:
    """Return the worst row of each source, worst first."""
    found: dict[str, Score] = {}
    for item in worst(items):
        found.setdefault(item.run.source, item)
    return list(found.values())


def worst_table(items: list[Score]) -> list[str]:
    """Make a table of rows with their largest part and the known cause of the error."""
    lines = [
        "| row | source | layout | measured | estimated | error | largest part | cause |",
        "|---|---|---|---:|---:|---:|---|---|",
    ]
    for item in items:
        parts = item.estimate.step_time_parts_s
        largest = max(parts, key=lambda name: parts[name]).replace("_", " ")
        lines.append(
            f"| {item.run.row_id} | {item.run.source} | {item.estimate.layout} | "
            f"{item.run.step_time_s:.3g} s | {item.estimate.step_time_s:.3g} s | "
            f"{percent(1 / ratio(item) - 1)} | {largest} | {cause(item.run)} |"
        )
    return lines


def main(
    data: Annotated[
        Path | None, typer.Option(help="Folder with CSV files of measured runs.")
    ] = None,
) -> None:
    """Score every measured run; write docs/reference/accuracy.md and the residuals."""
    rows = [row for path in evidence() for row in published_runs(path)]
    if data is None:
        timed = [item for item in score(rows).scores if item.run.step_time_s is not None]
        print("\n".join(source_table(timed)))
        return
    paths = [data / name for name in FILES]
    missing = [path for path in paths if not path.exists()]
    if missing:
        sys.exit(f"no such file: {missing[0]}; give --data the folder of measured runs")
    if not ranks_are_known():
        sys.exit(MISSING_RANKS)
    rows = [row for path in paths for row in published_runs(path)] + rows
    for name, read in (("simumax.csv", simumax_runs), ("amp_measured.csv", amp_runs)):
        if (data / name).exists():
            rows += read(data / name)
    backtest = score(rows)
    items = [item for item in backtest.scores if item.run.step_time_s is not None]
    unseen = [item for item in items if not fitted(item.run)]
    write_memory(weighed(backtest.scores))
    write_residuals(backtest.scores)
    text = report(backtest, items, unseen, len(rows), tables(data))
    (ROOT / "docs" / "reference" / "accuracy.md").write_text(text, encoding="utf-8")
    print(f"accuracy.md, memory_spread.toml and residuals of {len(items)} timed rows")


def write_memory(items: list[Score]) -> None:
    """Write the memory quantiles by class."""
    lines = [
        "# Written by benchmarks/accuracy.py: measured over estimated memory, conformal quantiles",
        "# over rows that no fit of memory has seen.",
    ]
    for name, (low, high, runs, sources) in memory_quantiles(items).items():
        lines += [
            "",
            f'["{name}"]',
            f"low = {low:.4f}",
            f"high = {high:.4f}",
            f"num_runs = {runs}",
            f"num_sources = {sources}",
            *memory_distribution(items)[name],
        ]
    path = ROOT / "planner" / "cost" / "scenario" / "memory_spread.toml"
    path.write_text("\n".join(lines) + "\n", encoding="utf-8")


def write_residuals(rows: Iterable[Score]) -> None:
    """Write the residual of every scored row: only ratios to the estimate, no measurements."""
    found = [
        TeachingResidual(
            row=item.run.row_id,
            source=item.run.source,
            site=item.run.machine_label,
            seen=bool(fitted(item.run)),
            doubtful=not sound(item) or stalled(item),
            step_time=None if item.run.step_time_s is None else ratio(item),
            memory=None if item.run.memory_bytes is None else memory_ratio(item),
            memory_kind=item.run.memory_kind if item.run.memory_bytes else "",
            told_by_memory=bool(item.run.told_by_memory),
            traits=traits_of(
                item.run.scenario,
                Layouts.of(item.run.layout),
                item.estimate.step_time_parts_s,
                guessed=bool(item.run.guessed),
            ),
        )
        for item in rows
    ]
    write_table([row for row in found if row.step_time or row.memory])


def share(value: float | None) -> str:
    return "-" if value is None else f"{100 * value:.1f} %"


def choice_table(backtest: Backtest) -> list[str]:
    """Make the table of ranking and fit predictions per model of the ultrascale set."""
    lines = [
        "| model | timed | median error | rank correlation | regret | ran: fits | failed: bursts |",
        "|---|---:|---:|---:|---:|---:|---:|",
    ]
    several = [row for row in backtest.scores if "ultrascale" in row.run.source]
    seen = {row.run.model.name for row in several if fitted(row.run)}
    for group in Backtest(tuple(several)).groups(("model",)):
        errors = [abs(i.error) for i in several if i.run.model.name == group.name and i.error]
        lines.append(
            f"| {group.name}{' (fitted)' if group.name in seen else ''} | {group.num_times} | "
            f"{share(float(np.median(errors)))} | "
            f"{group.job_rank_correlation or 0:.2f} | {share(group.regret)} | "
            f"{share(group.fit_recall)} | {share(group.oom_recall)} |"
        )
    return lines


def told_rows(backtest: Backtest) -> list[Score]:
    """Select the timed rows of the ultrascale set whose memory tells their build."""
    timed = [row for row in backtest.scores if row.error is not None]
    return [row for row in timed if row.run.told_by_memory and "ultrascale" in row.run.source]


def build_table(backtest: Backtest) -> list[str]:
    """Make the table of errors and ranking of sound layouts of one job within one build."""
    told = told_rows(backtest)
    lines = [
        "| model | gathered inputs | sound | of | median error | mean error | rank correlation | "
        "with the others | regret |",
        "|---|---|---:|---:|---:|---:|---:|---:|---:|",
    ]
    for kept in (False, True):
        rows = [row for row in told if row.run.framework.kernels.saves_gathered == kept]
        unstalled = tuple(row for row in rows if ratio(row) <= 1 / STALLED)
        whole = {group.name: group for group in Backtest(tuple(rows)).groups(("model",))}
        for group in Backtest(unstalled).groups(("model",)):
            errors = [abs(i.error) for i in unstalled if i.run.model.name == group.name and i.error]
            lines.append(
                f"| {group.name} | {'kept' if kept else 'gathered again'} | {group.num_times} | "
                f"{whole[group.name].num_times} | {share(float(np.median(errors)))} | "
                f"{share(group.mape)} | {group.job_rank_correlation or 0:.2f} | "
                f"{whole[group.name].job_rank_correlation or 0:.2f} | {share(group.regret)} |"
            )
    return lines


def stall_table(backtest: Backtest) -> list[str]:
    """Make the table of stalled runs, by build and with or without a pipeline."""
    told = told_rows(backtest)
    counts: dict[tuple[bool, bool], list[bool]] = defaultdict(list)
    for row in told:
        key = row.run.framework.kernels.saves_gathered, row.run.layout.pp > 1
        counts[key].append(ratio(row) > 1 / STALLED)
    return [
        "| gathered inputs | pipeline | runs | stalled |",
        "|---|---|---:|---:|",
        *(
            f"| {'kept' if kept else 'gathered again'} | {'yes' if piped else 'no'} | "
            f"{len(stalled)} | {sum(stalled)} |"
            for (kept, piped), stalled in sorted(counts.items())
        ),
    ]


def stated_for_memory(run: Run) -> str:
    """Name the basis of a row's memory estimate: the stated job, a guess, or its memory."""
    if run.told_by_memory:
        return "build told by it"
    return "guessed" if run.guessed else "stated"


def memory_table(backtest: Backtest) -> list[str]:
    """Make the table of memory errors per source; weak evidence is listed separately."""
    lines = ["| source | rows | job | MAPE | bias |", "|---|---:|---|---:|---:|"]
    for job in ("stated", "guessed", "build told by it"):
        rows = tuple(row for row in backtest.scores if stated_for_memory(row.run) == job)
        lines += [
            f"| {group.name} | {group.num_memories} | {job} | "
            f"{share(group.memory_mape)} | {percent(group.memory_bias or 0.0)} |"
            for group in Backtest(rows).groups()
            if group.num_memories
        ]
    return lines


def memory_causes_table(backtest: Backtest) -> list[str]:
    """Make the table of large memory errors, by source and cause."""
    groups: dict[tuple[str, str], list[float]] = defaultdict(list)
    counts: dict[str, int] = defaultdict(int)
    for item in backtest.scores:
        if item.run.memory_bytes is None:
            continue
        error = 1 / memory_ratio(item) - 1
        counts[item.run.source] += 1
        if abs(error) > LARGE_MEMORY_ERROR:
            groups[item.run.source, memory_cause(item.run)].append(error)
    return [
        "| source | rows | of | from | to | cause |",
        "|---|---:|---:|---:|---:|---|",
        *(
            f"| {source} | {len(errors)} | {counts[source]} | {percent(min(errors))} | "
            f"{percent(max(errors))} | {text} |"
            for (source, text), errors in sorted(groups.items())
        ),
    ]


def report(
    backtest: Backtest,
    items: list[Score],
    unseen: list[Score],
    num_rows: int,
    beside: list[str],
) -> str:
    refused = backtest.refused
    whole = figures(unseen)
    clean = [item for item in unseen if sound(item) and not stalled(item)]
    stated = figures([item for item in clean if not item.run.guessed])
    lines = [
        "# Accuracy",
        "",
        "Written by `benchmarks/accuracy.py`; do not edit. Errors are estimate over measurement "
        "minus one; bias is the geometric mean.",
        "",
        f"{num_rows} rows read, {len(items)} with a step time scored, {len(refused)} refused. "
        f"Rows that no fit has seen: {len(unseen)}, MAPE {100 * whole['mape']:.1f} %, median "
        f"{100 * whole['median']:.1f} %, bias {percent(whole['bias'])}.",
        "",
        f"Of these {stated['n']:.0f} ran a stated job, are not marked low in the table and did not "
        f"stall for a cause that is not known: MAPE {100 * stated['mape']:.1f} %, median "
        f"{100 * stated['median']:.1f} %, bias {percent(stated['bias'])}. What their intervals "
        "hold is in [learning.md](learning.md).",
        "",
        "## Step time by source",
        "",
        *source_table(items),
        "",
        "Of a guessed job the model's shape, the software, the devices or the layout is not stated "
        "in the source (see own-runs.md). The rows of `benchmarks/evidence/` were first scored "
        "before anything could be fitted on them: [blind.md](blind.md). Features with few rows or "
        "none are in [features.md](features.md), figures of papers and notes in "
        "[cited.md](cited.md).",
        "",
        "## Many layouts of one job",
        "",
        *choice_table(backtest),
        "",
        "Fits: of the layouts that ran, those said to fit; of those that failed (a crash and "
        "exhausted memory are one class there), those said not to fit. Regret: measured time of "
        "the layout that is ranked first over the best measured, mean over the jobs.",
        "",
        "Two builds are mixed in that set. Those runs whose memory tells which ran, and of them "
        "those that did not stall (measured at most 1 / 0.6 of the estimate), beside each other:",
        "",
        *build_table(backtest),
        "",
        "## Memory by source",
        "",
        *memory_table(backtest),
        "",
        "Of a guessed job the source does not state what memory depends on (see step time). "
        "A source that mixes two builds of its software does not say which ran; the build that is "
        "nearer to the measured memory is taken. Such a row says nothing of the estimate of memory "
        "and shapes no interval.",
        "",
        f"Rows whose memory is off by more than {100 * LARGE_MEMORY_ERROR:.0f} %, in bytes of the "
        "hidden size h, the sequence s, the micro-batch b and the vocabulary V:",
        "",
        *memory_causes_table(backtest),
        "",
        "Of whole devices, as the driver sees them or with what the allocator holds, lay measured "
        "over estimated memory",
        "",
        "| class of run | 5 % | 95 % | rows | sources |",
        "|---|---:|---:|---:|---:|",
        *(
            f"| {name} | {low:.2f} | {high:.2f} | {runs} | {sources} |"
            for name, (low, high, runs, sources) in memory_quantiles(
                weighed(backtest.scores)
            ).items()
        ),
        "",
        "## Predicted against measured",
        "",
        *plot(items),
        "",
        "`o` rows that no fit has seen, `x` rows that a constant was fitted on, `.` equality.",
        "",
        "## The ten worst rows that no fit has seen",
        "",
        *worst_table(worst(unseen)[:10]),
        "",
        "The worst row of each source:",
        "",
        *worst_table(worst_of_each(unseen)[:10]),
        "",
        "Stalls: with a pipeline, runs of the ultrascale set either take what the model says or "
        "lose about 1 s per micro-batch, whatever the model and the message: all on 64 nodes "
        "(modelled as a wait of that cluster), about half on 32 nodes, one in ten below. Their "
        "cause is not known. The memory of a row tells part of it; of the runs whose memory told "
        "which build ran, there stalled",
        "",
        *stall_table(backtest),
        "",
        "Stalled: measured above 1 / 0.6 of the estimate. What a framework's description says of "
        "it (`stalls`) ranks and warns, and is no part of a step time.",
        "",
        "## Beside the steps of language models",
        "",
        "Whole trainings, input, start-up, checkpoints, failures, images, data parallelism and "
        "collectives against single published numbers. What was fitted and what was held out "
        "stands beside each row; docs/explanation says how each is estimated.",
        *beside,
        "",
        "## Refused rows",
        "",
        *refused_table(refused),
        "",
    ]
    return "\n".join(lines)


def refused_table(refused: tuple[RefusedRun, ...]) -> list[str]:
    counts: dict[str, int] = defaultdict(int)
    for row in refused:
        counts[row.reason[:100]] += 1
    return [
        "| reason | rows |",
        "|---|---:|",
        *(
            f"| {reason} | {n} |"
            for reason, n in sorted(counts.items(), key=lambda pair: -pair[1])[:25]
        ),
    ]


if __name__ == "__main__":
    typer.run(main)
