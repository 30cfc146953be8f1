"""The backtest as tables for people, and as the command `planner backtest`."""

from __future__ import annotations

import json
import re
import sys
from collections import Counter
from collections.abc import Sequence
from pathlib import Path

from rich.console import Console
from rich.table import Table

from planner.errors import PlannerError, UnknownNameError, shorten
from planner.evidence.backtest import GROUP_KEYS, Backtest, score
from planner.evidence.runs.table import read_runs
from planner.evidence.scores import Score
from planner.evidence.statistics import MISSING_RANKS, Group, ranks_are_known
from planner.units import format_bytes, format_seconds

__all__ = ["main", "render"]

_NUM_WORST = 10
_NUM_REASONS = 20
_SOME_REFUSED = 3
"""Exit code where rows were refused."""


def main(
    path: str | Path,
    json_output: bool = False,
    group_by: Sequence[str] = ("source",),
    console: Console | None = None,
) -> int:
    """Score the runs of a CSV and print the result; 0, or 3 where rows were refused."""
    keys = _checked(group_by)
    backtest = score(read_runs(path))
    if json_output:
        json.dump(backtest.to_json(keys), sys.stdout, indent=2, allow_nan=False)
        sys.stdout.write("\n")
        if not ranks_are_known():
            print(MISSING_RANKS, file=sys.stderr)
    else:
        render(backtest, keys, console or Console())
    return _SOME_REFUSED if backtest.refused else 0


def _checked(group_by: Sequence[str]) -> tuple[str, ...]:
    keys = tuple(key.strip() for key in group_by if key.strip()) or ("source",)
    for key in keys:
        if key not in GROUP_KEYS:
            raise UnknownNameError("group", key, GROUP_KEYS, f"use {', '.join(GROUP_KEYS)}")
    return keys


def render(backtest: Backtest, keys: Sequence[str], console: Console) -> None:
    """Step times per group, then memory and fit, the worst rows, the refused rows by reason."""
    if not backtest.rows:
        raise PlannerError("the table has no rows below its header; add runs")
    scored, refused = len(backtest.scores), len(backtest.refused)
    console.print(f"{scored} runs scored, {refused} refused; errors are estimate over measurement")
    groups = backtest.groups(keys)
    console.print(_time_table(groups, ", ".join(keys)))
    console.print(_memory_table(groups, ", ".join(keys)))
    worst = _worst(backtest.scores)
    if worst:
        console.print(_worst_table(worst))
    if backtest.refused:
        console.print(_refused_table(backtest))


def _percent(value: float | None, signed: bool = False) -> str:
    if value is None:
        return "-"
    return f"{100 * value:+.1f} %" if signed else f"{100 * value:.1f} %"


def _plain(value: float | None) -> str:
    return "-" if value is None else f"{value:.2f}"


def _table(title: str, names: Sequence[str]) -> Table:
    table = Table(title=title, title_justify="left")
    table.add_column(names[0], overflow="fold")
    for name in names[1:]:
        table.add_column(name, justify="right")
    return table


def _time_table(groups: Sequence[Group], by: str) -> Table:
    table = _table(
        "Step time",
        (
            by,
            "runs",
            "MAPE",
            "bias",
            "median",
            "spread",
            "covered",
            "rank",
            "jobs",
            "rank in job",
            "regret",
            "worst row",
        ),
    )
    for g in groups:
        if not g.num_times:
            continue
        table.add_row(
            shorten(g.name, 60),
            str(g.num_times),
            _percent(g.mape),
            _percent(g.bias, True),
            _percent(g.median_error, True),
            _plain(g.log_spread),
            _percent(g.coverage),
            _plain(g.rank_correlation),
            str(g.num_jobs),
            _plain(g.job_rank_correlation),
            _percent(g.regret),
            f"{g.worst_row} {_percent(g.worst_error, True)}",
        )
    table.caption = (
        "bias: geometric mean; covered: share in the 90 % interval; spread: standard deviation of "
        "log(estimate / measured); rank: Spearman; job: the same training measured in several "
        "layouts; regret: time of the layout ranked first over the best measured"
    )
    if not ranks_are_known():
        table.caption += f"; {MISSING_RANKS}"
    return table


def _memory_table(groups: Sequence[Group], by: str) -> Table:
    table = _table(
        "Memory and fit",
        (
            by,
            "runs",
            "with memory",
            "MAPE",
            "bias",
            "ran and fits",
            "failed and does not fit",
            "does not fit and failed",
        ),
    )
    for g in groups:
        table.add_row(
            shorten(g.name, 60),
            str(g.num_runs),
            str(g.num_memories),
            _percent(g.memory_mape),
            _percent(g.memory_bias, True),
            _percent(g.fit_recall),
            _percent(g.oom_recall),
            _percent(g.oom_precision),
        )
    return table


def _worst(scores: Sequence[Score]) -> list[Score]:
    timed = [item for item in scores if item.error is not None]

    def ratio(item: Score) -> float:
        quotient = item.estimate.step_time_s / (item.run.step_time_s or 1.0)
        return max(quotient, 1 / quotient)

    return sorted(timed, key=lambda item: (-ratio(item), item.run.row_id))[:_NUM_WORST]


def _worst_table(worst: Sequence[Score]) -> Table:
    table = _table(
        f"The {len(worst)} worst rows",
        ("row", "model", "machine", "layout", "measured", "estimated", "error", "memory"),
    )
    for item in worst:
        run = item.run
        table.add_row(
            run.row_id,
            shorten(run.model.name, 24),
            run.machine_label,
            str(run.layout),
            format_seconds(run.step_time_s or 0.0),
            format_seconds(item.estimate.step_time_s),
            _percent(item.error, True),
            format_bytes(item.estimated_memory_bytes),
        )
    return table


def _refused_table(backtest: Backtest) -> Table:
    reasons: Counter[str] = Counter()
    examples: dict[str, str] = {}
    for row in backtest.refused:
        # rows that differ only in a number share their reason
        kind = re.sub(r"\b\d[\d,.]*\b", "#", row.reason)
        reasons[kind] += 1
        examples.setdefault(kind, f"{row.row_id}: {row.reason}")
    table = _table("Refused rows", ("reason (first such row)", "rows"))
    ordered = sorted(reasons.items(), key=lambda pair: (-pair[1], pair[0]))
    for kind, count in ordered[:_NUM_REASONS]:
        table.add_row(examples[kind], str(count))
    if len(ordered) > _NUM_REASONS:
        rest = sum(count for _, count in ordered[_NUM_REASONS:])
        table.add_row(f"{len(ordered) - _NUM_REASONS} other reasons", str(rest))
    return table
