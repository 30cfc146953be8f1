"""Blind scores: published rows, scored before any constant may be fitted on them.

    python benchmarks/blind.py            # score the rows of benchmarks/evidence without a line
    python benchmarks/blind.py --again    # score every row once more, with this version

Lines are appended to benchmarks/blind.csv and never changed. docs/reference/blind.md shows them.
"""

from __future__ import annotations

import csv
import datetime
import subprocess
from collections.abc import Iterable, Sequence
from pathlib import Path
from typing import Annotated, NamedTuple

import numpy as np
import typer
from known import reason, remarks
from published import published_runs

import planner
from planner.evidence.backtest import score
from planner.evidence.scores import Score

ROOT = Path(__file__).parent.parent
EVIDENCE = ROOT / "benchmarks" / "evidence"
LEDGER = ROOT / "benchmarks" / "blind.csv"
PAGE = ROOT / "docs" / "reference" / "blind.md"
FAR = 0.3
"""Error of a row from which on the page lists it, with the reason."""


class Line(NamedTuple):
    """One scored row, as the ledger keeps it."""

    scored: str
    """Day of the scoring."""
    version: str
    """Version of the program, and the last commit that changed what it estimates."""
    row: str
    source: str
    published: str
    """Date of the source."""
    reliability: str
    """Rating of the row in its table: high, medium or low."""
    layout: str
    measured_s: float
    estimated_s: float
    low_s: float
    """Lower bound of the 90 % interval of the step time [s]."""
    high_s: float
    """Upper bound of the 90 % interval of the step time [s]."""

    @property
    def error(self) -> float:
        """Estimated over measured step time, minus one."""
        return self.estimated_s / self.measured_s - 1


def tables() -> list[Path]:
    """List the tables of published rows that stand in the repository."""
    return sorted(EVIDENCE.glob("*.csv"))


def read_ledger(path: Path = LEDGER) -> list[Line]:
    """Read every line of the ledger, the oldest first; an empty list without a ledger."""
    if not path.exists():
        return []
    with path.open(encoding="utf-8", newline="") as file:
        return [
            Line._make([*row[:7], *map(float, row[7:])])
            for row in csv.reader(file)
            if row != list(Line._fields)
        ]


def append(lines: Iterable[Line], path: Path = LEDGER) -> None:
    """Add lines to the end of the ledger, and a header to a new one."""
    is_new = not path.exists()
    with path.open("a", encoding="utf-8", newline="") as file:
        writer = csv.writer(file, lineterminator="\n")
        if is_new:
            writer.writerow(Line._fields)
        for line in lines:
            writer.writerow([*line[:7], *(f"{value:.5g}" for value in line[7:])])


def dates() -> dict[str, str]:
    """Map every row of the tables to the date of its source."""
    found: dict[str, str] = {}
    for path in tables():
        with path.open(encoding="utf-8", newline="") as file:
            found |= {row["row_id"]: row["date"] for row in csv.DictReader(file)}
    return found


def line_of(item: Score, day: str, version: str, published: str) -> Line:
    """Make the line of a scored row."""
    run, bounds = item.run, item.interval_s
    assert run.step_time_s is not None
    assert bounds is not None
    reliability = getattr(run, "reliability", "")
    return Line(
        day,
        version,
        run.row_id,
        run.source,
        published,
        reliability,
        str(item.estimate.layout),
        run.step_time_s,
        item.estimate.step_time_s,
        *bounds,
    )


def unscored(lines: Sequence[Line], again: bool) -> list[Score]:
    """Estimate the timed rows of the tables that have no line, or all of them."""
    known = set() if again else {line.row for line in lines}
    runs = [run for path in tables() for run in published_runs(path)]
    backtest = score([run for run in runs if run.row_id not in known])
    return [item for item in backtest.scores if item.run.step_time_s is not None]


def version() -> str:
    """Return the program's version and the last commit that changed what it estimates."""
    parts = ["git", "log", "-1", "--format=%h", "--", "planner", "models", "hardware_profiles"]
    commit = subprocess.run(parts, cwd=ROOT, capture_output=True, text=True, check=True)
    return f"{planner.__version__} ({commit.stdout.strip()})"


# --- the page ---------------------------------------------------------------------------------


def groups(lines: Iterable[Line]) -> dict[tuple[str, str, str], list[Line]]:
    """Group lines by day, version and source, in the order of the ledger."""
    found: dict[tuple[str, str, str], list[Line]] = {}
    for line in lines:
        found.setdefault((line.scored, line.version, line.source), []).append(line)
    return found


def cells(name: str, members: Sequence[Line]) -> str:
    """Make the cells of a group: its figures leave out rows that are marked low."""
    sound = [line for line in members if line.reliability != "low"]
    low = len(members) - len(sound)
    when = sorted({line.published for line in members})
    span = when[0] if len(when) == 1 else f"{when[0]} to {when[-1]}"
    count = f"{len(members)}, {low} low" if low else f"{len(members)}"
    if not sound:
        return f"{name} | {span} | {count} | - | - | - | - | -"
    errors = np.array([line.error for line in sound])
    held = np.mean([line.low_s <= line.measured_s <= line.high_s for line in sound])
    bias = np.expm1(np.log1p(errors).mean())
    return (
        f"{name} | {span} | {count} | {100 * np.abs(errors).mean():.1f} % | "
        f"{100 * np.median(np.abs(errors)):.1f} % | {100 * bias:+.1f} % | {100 * held:.0f} % | "
        f"{100 * errors[np.argmax(np.abs(errors))]:+.1f} %"
    )


def source_table(lines: Sequence[Line]) -> list[str]:
    """Make the table of figures by scoring and source, each scoring with a total."""
    table = [
        "| scored | version | source | published | rows | MAPE | median | bias | in 90 % | worst |",
        "|---|---|---|---|---:|---:|---:|---:|---:|---:|",
    ]
    found = groups(lines)
    for day, made_by in dict.fromkeys(key[:2] for key in found):
        ours = {key[2]: found[key] for key in found if key[:2] == (day, made_by)}
        table += [f"| {day} | {made_by} | {cells(name, ours[name])} |" for name in ours]
        every = [line for members in ours.values() for line in members]
        table.append(f"| {day} | {made_by} | {cells('**all**', every)} |")
    return table


def far_table(lines: Sequence[Line]) -> list[str]:
    """Make the table of rows that were far off when they were first scored, with the reason."""
    first: dict[str, Line] = {}
    for line in lines:
        first.setdefault(line.row, line)
    table = [
        "| row | source | layout | measured | estimated | error | reason |",
        "|---|---|---|---:|---:|---:|---|",
    ]
    far = [line for line in first.values() if abs(line.error) > FAR]
    for line in sorted(far, key=lambda line: -abs(np.log1p(line.error))):
        why = reason(line.source, line.row)
        table.append(
            f"| {line.row} | {line.source} | {line.layout} | {line.measured_s:.3g} s | "
            f"{line.estimated_s:.3g} s | {100 * line.error:+.0f} % | {why} |"
        )
    return table


def page(lines: Sequence[Line]) -> str:
    """Make the text of the page."""
    return "\n".join(
        [
            "# Blind scores",
            "",
            "Written by `benchmarks/blind.py` from `benchmarks/blind.csv`; do not edit. Rows that "
            "were published, scored before any constant was fitted on them. Errors are estimate "
            "over measurement minus one; bias is the geometric mean; *in 90 %* is the share of "
            "measured step times inside the interval that was foretold. Rows that their table "
            "marks low are counted and left out of the figures. A line is never changed: a later "
            "version is scored on new lines.",
            "",
            "## By source",
            "",
            *source_table(lines),
            "",
            *(f"{item.version}: {item.text}." for item in remarks().scorings),
            "",
            f"## Rows off by more than {100 * FAR:.0f} %",
            "",
            "When first scored; their configurations were read a second time.",
            "",
            *far_table(lines),
            "",
            "## How a row is added",
            "",
            "Write it into a CSV of `benchmarks/evidence/`, one per source. Its columns are in "
            "[own-runs.md](../howto/own-runs.md#what-the-row-of-a-run-leaves-open). `source_ref` "
            "names the document, or the repository with its commit; `date` is when it was "
            "published, `software` what it ran with, `added` the day. A cell that the source does "
            "not state stays empty. A row that a reader would doubt is marked `low` in "
            "`reliability`. Then run `python benchmarks/blind.py`. Only then look at what could be "
            "fitted: a test refuses a fit in `benchmarks/known.py` on rows without a line here. "
            "Of a row that is far off read the configuration again, and write what is known of "
            "its cause into `benchmarks/blind.toml`.",
            "",
        ]
    )


def main(
    again: Annotated[bool, typer.Option(help="Score every row once more.")] = False,
) -> None:
    """Score rows of benchmarks/evidence, append them to the ledger, and write the page."""
    day, made_by, published = datetime.date.today().isoformat(), version(), dates()
    items = unscored(read_ledger(), again)
    append([line_of(item, day, made_by, published[item.run.row_id]) for item in items])
    PAGE.write_text(page(read_ledger()), encoding="utf-8")
    print(f"{len(items)} rows scored; blind.csv, blind.md")


if __name__ == "__main__":
    typer.run(main)
