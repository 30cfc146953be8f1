"""Measured runs: reports on how well estimates match them and how they correct estimates."""

from __future__ import annotations

import functools
import json
import re
import sys
from collections import Counter
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

from planner.cost.estimate import Estimate
from planner.cost.scenario import Scenario
from planner.cost.scenario.experience import Experience
from planner.errors import PlannerError, UnknownNameError, shorten
from planner.evidence import learning
from planner.evidence.backtest import GROUP_KEYS, Backtest, score
from planner.evidence.runs.run import RefusedRun, Run
from planner.evidence.runs.run_files import read_runs
from planner.evidence.scores import MISSING_RANKS, Group, Score, ranks_are_known
from planner.tables import Block, Column, Line, Table
from planner.units import counted, format_bytes, format_seconds

if TYPE_CHECKING:
    from rich.console import Console

ODD = 0.5
"""Probability from which a run or a site is called odd."""
_MAX_ASSUMPTIONS = 3
_CAUSES = {
    "compute": "computation",
    "traffic": "communication",
    "host": "host time",
    "offload": "offload",
}


def corrected(learned: learning.Learned) -> str:
    """Say how many measured runs correct the estimates."""
    runs = (score.run for score in learned.scores)
    measured = {x.row_id for x in runs if (x.step_time_s, x.memory_bytes) != (None, None)}
    return f"corrected by {counted(len(measured), 'measured run')}"


def lessons(
    learned: learning.Learned, taught: learning.EstimateChange, next_one: Estimate | None = None
) -> list[str]:
    """List how runs change an estimate, which runs do not fit, and what to measure next."""
    lines = []
    if taught.step_time is not None:
        runs = counted(learned.num_timed, "measured step time")
        lines.append(f"{runs}: {_change('this job takes', taught.step_time)}.")
        causes = taught.step_time.by_cause.items()
        factors = (f"{_CAUSES[cause]} {factor:.2f} x" for cause, factor in causes)
        suspect = taught.step_time.suspect
        check = f"; check first: {suspect}" if suspect else ""
        lines.append(f"By cause: {', '.join(factors)}{check}.")
    if taught.memory is not None:
        runs = counted(learned.num_weighed, "measured peak") + " of memory"
        lines.append(f"{runs}: {_change('this job needs', taught.memory)}.")
    for row, chance in learned.odd_runs.items():
        if chance > ODD:
            lines.append(
                f"Run {row} deviates from the others ({100 * chance:.0f} % probability) and "
                "hardly counts: check its stated job."
            )
    if learned.odd_site > ODD:
        sentences = [sentence for score in learned.scores for sentence in score.run.assumed]
        assumptions = "; ".join(list(dict.fromkeys(sentences))[:_MAX_ASSUMPTIONS])
        lines.append(
            "The runs deviate unusually far from their estimates "
            f"({100 * learned.odd_site:.0f} % probability): check the description of machine, "
            "model or software"
            f"{assumptions and f', and what was assumed ({assumptions})'}."
        )
    if learned.refused:
        first, count = learned.refused[0], counted(len(learned.refused), "run")
        lines.append(f"{count} not used: {first.row_id}: {first.reason}.")
    if next_one is not None:
        lines.append(
            f"Measure next: {next_one.layout} [{next_one.framework}]; its result says most about "
            "the other layouts."
        )
    return lines


def _change(subject: str, change: learning.Change) -> str:
    after, before = (f"{low:.2f}-{high:.2f} x" for low, high in (change.after, change.before))
    return (
        f"{subject} {change.factor:.2f} x its estimate without these runs; 90 % interval now "
        f"{after} of the estimate instead of {before}"
    )


def lessons_dict(
    learned: learning.Learned, taught: learning.EstimateChange, next_one: Estimate | None = None
) -> dict[str, Any]:
    """Return the lessons as plain data."""
    advice = None
    if next_one is not None:
        layout = next_one.layout.model_dump(mode="json")
        advice = {"framework": next_one.framework, "layout": layout}
    return {
        "num_step_times": learned.num_timed,
        "num_memories": learned.num_weighed,
        "step_time": _change_dict(taught.step_time),
        "memory": _change_dict(taught.memory),
        "odd_site_probability": learned.odd_site,
        "odd_run_probability": learned.odd_runs,
        "odd_runs": [row for row, chance in learned.odd_runs.items() if chance > ODD],
        "refused": [{"row": row.row_id, "reason": row.reason} for row in learned.refused],
        "measure_next": advice,
    }


def _change_dict(change: learning.Change | None) -> dict[str, Any] | None:
    if change is None:
        return None
    before, after = list(change.before), list(change.after)
    intervals = {"interval_before": before, "interval_after": after}
    causes = {"by_cause": change.by_cause, "suspect": change.suspect}
    return {"factor": change.factor, **causes, **intervals}


@dataclass(frozen=True, slots=True)
class LearnedAnswer:
    """An answer's estimates with the lessons of measured runs, if any."""

    learned: learning.Learned | None
    estimates: Sequence[tuple[Scenario, Estimate]]
    """The answer's own estimate first, then others that could be measured."""

    def lines(self) -> list[str]:
        """Return the lessons as sentences; none without measured runs."""
        return [] if self.learned is None else lessons(self.learned, *self._comparison())

    def to_json(self, data: dict[str, Any]) -> str:
        """Write an answer's data as JSON text, with the lessons, if any, as `measured`."""
        if self.learned is not None:
            data = {**data, "measured": lessons_dict(self.learned, *self._comparison())}
        return json.dumps(data, indent=1, allow_nan=False)

    def _comparison(self) -> tuple[learning.EstimateChange, Estimate | None]:
        """Return the correction of the first estimate, and the estimate to measure next."""
        if not self.estimates:
            return learning.EstimateChange(None, None), None
        return learning.change_by_experience(*self.estimates[0]), learning.most_informative(
            self.estimates
        )


_NUM_WORST = 10
_NUM_REASONS = 20
_ROWS_REFUSED = 3
"""Exit code if rows were refused."""


def main(
    path: str | Path,
    json_output: bool = False,
    group_by: Sequence[str] = ("source",),
    console: Console | None = None,
    measured: Sequence[Path] = (),
) -> int:
    """Score the runs of a CSV and print the result; return 0, or 3 if rows were refused."""
    keys = tuple(filter(None, map(str.strip, group_by))) or ("source",)
    for key in keys:
        if key not in GROUP_KEYS:
            raise UnknownNameError("group", key, GROUP_KEYS, f"use {', '.join(GROUP_KEYS)}")
    learned = learning.learn_from(*measured) if measured else None
    backtest = score(*_without_learned(read_runs(path), learned))
    if json_output:
        json.dump(backtest.to_json(keys), sys.stdout, indent=2, allow_nan=False)
        sys.stdout.write("\n")
        if not ranks_are_known():
            print(MISSING_RANKS, file=sys.stderr)
    else:
        from rich.console import Console

        from planner.show.terminal import print_page

        page = backtest_page(backtest, keys)
        if learned is not None:
            page.insert(0, Line(f"All estimates are {corrected(learned)}, which are not scored."))
        print_page(page, console or Console())
    return _ROWS_REFUSED if backtest.refused else 0


def _without_learned(
    runs: Sequence[Run | RefusedRun], learned: learning.Learned | None
) -> tuple[Sequence[Run | RefusedRun], Experience]:
    """Return the runs that were not learned from, and what was learned."""
    if learned is None:
        return runs, Experience()
    used = {(item.run.source, item.run.row_id) for item in learned.scores}
    return [run for run in runs if (run.source, run.row_id) not in used], learned.experience


def backtest_page(backtest: Backtest, keys: Sequence[str]) -> list[Block]:
    """Return step times and memory by group, the worst rows, and the refused rows by reason."""
    if not backtest.rows:
        raise PlannerError("the table has no rows below its header; add runs")
    scored, refused = len(backtest.scores), len(backtest.refused)
    groups, group_title = backtest.groups(keys), ", ".join(keys)
    return [
        Line(f"{scored} runs scored, {refused} refused; errors are estimate over measurement"),
        _time_table(groups, group_title),
        Line(_LEGEND if ranks_are_known() else f"{_LEGEND}; {MISSING_RANKS}"),
        _memory_table(groups, group_title),
        *([worst_table(backtest.scores)] if _worst(backtest.scores) else []),
        *([_refused_table(backtest)] if backtest.refused else []),
    ]


_LEGEND = (
    "bias: geometric mean; covered: share in the 90 % interval; spread: standard deviation of "
    "log(estimate / measured); rank: Spearman; job: the same training measured in several "
    "layouts; regret: time of the layout ranked first over the best measured"
)


def _percent(value: float) -> str:
    return f"{100 * value:.1f} %"


def _signed_percent(value: float) -> str:
    return f"{100 * value:+.1f} %"


def _group_columns(
    head: str, *columns: tuple[str, str, Callable[[Any], str]]
) -> tuple[Column, ...]:
    """Return columns of groups: their name, then others by attribute, title and format."""
    texts = (
        Column("group", title, functools.partial(_group_text, name, text))
        for name, title, text in columns
    )
    return Column("group", head, lambda group: shorten(group.name, 60), min_width=16), *texts


def _group_text(name: str, text: Callable[[Any], str], group: Group) -> str:
    """Format a figure of a group; an unknown one becomes a dash."""
    value = getattr(group, name)
    return "-" if value is None else text(value)


def _time_table(groups: Sequence[Group], group_title: str) -> Table:
    columns = _group_columns(
        group_title,
        ("num_times", "runs", str),
        ("mape", "MAPE", _percent),
        ("bias", "bias", _signed_percent),
        ("median_error", "median", _signed_percent),
        ("log_spread", "spread", "{:.2f}".format),
        ("coverage", "covered", _percent),
        ("rank_correlation", "rank", "{:.2f}".format),
        ("num_jobs", "jobs", str),
        ("job_rank_correlation", "rank in job", "{:.2f}".format),
        ("regret", "regret", _percent),
    )
    error = functools.partial(_group_text, "worst_error", _signed_percent)
    worst = Column("group", "worst row", lambda g: f"{g.worst_row} {error(g)}", min_width=14)
    records = tuple({"group": group} for group in groups if group.num_times)
    return Table(records, "Step time", (*columns, worst))


def _memory_table(groups: Sequence[Group], group_title: str) -> Table:
    columns = _group_columns(
        group_title,
        ("num_runs", "runs", str),
        ("num_memories", "with memory", str),
        ("memory_mape", "MAPE", _percent),
        ("memory_bias", "bias", _signed_percent),
        ("fit_recall", "ran and fits", _percent),
        ("oom_recall", "failed and does not fit", _percent),
        ("oom_precision", "does not fit and failed", _percent),
    )
    return Table(tuple({"group": group} for group in groups), "Memory and fit", columns)


def _worst(scores: Sequence[Score]) -> list[Score]:

    def ratio(score: Score) -> float:
        quotient = score.estimate.step_time_s / (score.run.step_time_s or 1.0)
        return max(quotient, 1 / quotient)

    timed = [score for score in scores if score.error is not None]
    return sorted(timed, key=lambda score: (-ratio(score), score.run.row_id))[:_NUM_WORST]


def worst_table(scores: Sequence[Score]) -> Table:
    """Return the runs with the largest errors of the step time, the worst first."""
    worst = _worst(scores)
    return runs_table(worst, f"The {len(worst)} worst rows")


def runs_table(scores: Sequence[Score], title: str = "") -> Table:
    """Return measured runs with their estimates."""
    columns = (
        Column("row", "row", min_width=12),
        Column("model", "model"),
        Column("machine", "machine", min_width=12),
        Column("layout", "layout", min_width=24),
        Column("measured_s", "measured", format_seconds),
        Column("estimated_s", "estimated", format_seconds),
        Column("error", "error", _signed_percent),
        Column("memory_bytes", "memory", format_bytes),
    )
    records = (
        {
            "row": score.run.row_id,
            "model": shorten(score.run.model.name, 24),
            "machine": score.run.machine_label,
            "layout": str(score.run.layout),
            "measured_s": score.run.step_time_s,
            "estimated_s": score.estimate.step_time_s,
            "error": score.error,
            "memory_bytes": score.estimated_memory_bytes,
        }
        for score in scores
    )
    return Table(tuple(records), title, columns)


def _refused_table(backtest: Backtest) -> Table:
    """Return the reasons for refused rows, the most frequent first, each with its first row."""
    counts: Counter[str] = Counter()
    examples: dict[str, str] = {}
    for row in backtest.refused:
        # rows that differ only in a number share their reason
        reason = re.sub(r"\b\d[\d,.]*\b", "#", row.reason)
        counts[reason] += 1
        examples.setdefault(reason, f"{row.row_id}: {row.reason}")
    ordered = sorted(counts.items(), key=lambda pair: (-pair[1], pair[0]))
    records = [
        {"reason": examples[reason], "rows": count} for reason, count in ordered[:_NUM_REASONS]
    ]
    if rest := ordered[_NUM_REASONS:]:
        rows = sum(count for _, count in rest)
        records.append({"reason": f"{len(rest)} other reasons", "rows": rows})
    columns = (Column("reason", "reason (first such row)", min_width=40), Column("rows", "rows"))
    return Table(tuple(records), "Refused rows", columns)
