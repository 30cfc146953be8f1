"""Learning report: the prior over errors, its coverage, and the gain from a user's own runs.

    python benchmarks/learning.py       # after benchmarks/accuracy.py, whose residuals it reads

The prior maximises the marginal likelihood of published runs that no fit has seen. Every figure in
docs/reference/learning.md is for runs whose source was left out of the prior.
"""

from __future__ import annotations

import math
from collections import defaultdict
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path

import numpy as np
from numpy.typing import NDArray
from residual_table import Figure, TeachingResidual, experience_of, read_table
from scipy.optimize import minimize

from planner.cost.scenario.experience import (
    MeasuredRuns,
    likelihoods,
    most_informative_run,
    outlook,
)
from planner.cost.scenario.prior import GAUSSIAN, Prior

ROOT = Path(__file__).parent.parent
MOST_ROWS = 48
"""Most rows of one source in the likelihood; more rows add little information."""
BATCH = 6
"""Runs per likelihood term: at most one of them is taken as odd, and users have only a few."""
WEIGHT = 15
"""Largest total weight of one source, in rows."""
STEPS_APART = 8
"""Optimizer steps with one source left out, starting from the prior of all sources."""
SIZES = (0, 1, 2, 5)
DRAWS = 40

START = {
    "common": 0.03,
    "compute": 0.03,
    "assumed_rate": 0.03,
    "traffic": 0.1,
    "assumed_links": 0.1,
    "host": 0.1,
    "model": 0.04,
    "layout": 0.08,
    "growth": 0.005,
    "alone": 0.05,
    "experts_alone": 0.1,
    "traffic_alone": 0.1,
    "host_alone": 0.3,
    "odd": 0.3,
    "odd_sites": 0.1,
    "odd_runs": 0.03,
    "size_reach": 1.5,
    "shape_reach": 2.0,
}
"""Start of the search; each value is known to a factor of e (one standard deviation) before it."""


@dataclass(frozen=True)
class Source:
    """Runs of one publication or log, either all with stated jobs or all with guessed jobs."""

    name: str
    rows: tuple[TeachingResidual, ...]
    figure: Figure

    @property
    def experience(self) -> MeasuredRuns:
        return experience_of(self.rows, self.figure)

    @property
    def machines(self) -> list[str]:
        """Machines of the source's rows."""
        return sorted({str(row.traits.machine[0]) for row in self.rows})

    def on(self, machine: str, *, other: bool = False) -> Source | None:
        """Return the rows on a machine, or on all other machines; None if there are none."""
        rows = [row for row in self.rows if (row.traits.machine[0] == machine) != other]
        return Source(self.name, tuple(rows), self.figure) if rows else None

    @property
    def title(self) -> str:
        return self.name + (" (guessed)" if self.rows[0].guessed else "")


def sources(rows: Sequence[TeachingResidual], figure: Figure) -> list[Source]:
    """Group the rows that a prior may learn from by source."""
    groups: dict[tuple[str, bool], list[TeachingResidual]] = defaultdict(list)
    for row in rows:
        if row.teaches(figure):
            groups[row.source, row.guessed].append(row)
    return [Source(name, tuple(members), figure) for (name, _), members in sorted(groups.items())]


def batches(source: Source) -> list[tuple[MeasuredRuns, float]]:
    """Split a source's rows at random into batches; return each with its weight per source."""
    order = np.random.default_rng(1).permutation(len(source.rows))[:MOST_ROWS]
    weight = min(1.0, WEIGHT / len(order))
    rows = source.experience
    return [(rows.take(part), weight) for part in np.array_split(order, -(-len(order) // BATCH))]


def fit_prior(groups: Sequence[Source], start: Prior | None = None, steps: int = 60) -> Prior:
    """Fit the prior that makes the rows of the sources most likely."""
    drawn = [part for group in groups for part in batches(group)]
    names = list(START)
    first = np.log([getattr(start, name) if start else START[name] for name in names])
    middle = np.log(list(START.values()))

    def prior_of(logs: NDArray[np.float64]) -> Prior:
        values = dict(zip(names, np.exp(logs), strict=True))
        for name in ("odd_sites", "odd_runs"):
            values[name] = min(values[name], 0.45)
        return Prior.model_construct(**values)

    def cost(logs: NDArray[np.float64]) -> float:
        found = prior_of(logs)
        log_likelihood = sum(weight * likelihoods(found, rows).total for rows, weight in drawn)
        return float(np.sum((logs - middle) ** 2) / 2 - log_likelihood)

    best = minimize(cost, first, method="L-BFGS-B", options={"maxiter": steps})
    return prior_of(best.x)


def quantiles(prior: Prior, groups: Sequence[Source], experts: bool) -> tuple[float, float]:
    """Compute 5 % and 95 % quantiles of standardised errors of stated dense or expert-model jobs.

    Every row counts once, up to a total of `WEIGHT` rows per source. Never narrower than a
    Gaussian's: known sources are closer to their estimates than a new one.
    """
    values, weights = [], []
    for group in groups:
        rows = group.experience
        chosen = (rows.traits.experts > 0) == experts
        if group.rows[0].guessed or not chosen.any():
            continue
        values.append((rows.log_ratios / np.sqrt(prior.variance(rows.traits)))[chosen])
        weights.append(np.full(chosen.sum(), min(1.0, WEIGHT / chosen.sum())))
    if not values:
        return -GAUSSIAN, GAUSSIAN
    value, weight = np.concatenate(values), np.concatenate(weights)
    order = np.argsort(value)
    places = (np.cumsum(weight[order]) - weight[order] / 2) / weight.sum()
    low, high = np.interp([0.05, 0.95], places, value[order])
    return min(float(low), -GAUSSIAN), max(float(high), GAUSSIAN)


@dataclass(frozen=True)
class HeldOutResult:
    """Result for one source that the prior had not seen, after n of its runs."""

    raw: float
    """Mean |error| of the other rows' uncorrected estimates."""
    error: float
    """Mean |error| of the other rows' estimates, corrected by n runs."""
    inside: float
    """Share of the other rows inside their interval."""
    width: float
    """Median of the interval's high over low."""


def held_out(prior: Prior, group: Source, size: int, chosen: bool = False) -> HeldOutResult | None:
    """Average results after `size` random rows or the most informative row; None if too few."""
    rows, n = group.experience, len(group.rows)
    if n <= size:
        return None
    found = [_one(prior, rows, draw) for draw in _draws(prior, rows, size, chosen)]
    return HeldOutResult(
        *(float(np.mean([getattr(f, k) for f in found])) for k in HeldOutResult.__annotations__)
    )


def _draws(prior: Prior, rows: MeasuredRuns, size: int, chosen: bool) -> Iterator[list[int]]:
    lots, n = np.random.default_rng(0), len(rows)
    if chosen:
        yield [most_informative_run(prior, rows.traits)]
    elif size == 0:
        yield []
    elif size == 1:
        yield from ([int(i)] for i in lots.permutation(n)[:DRAWS])
    else:
        yield from (list(map(int, lots.permutation(n)[:size])) for _ in range(DRAWS // 2))


def _one(prior: Prior, rows: MeasuredRuns, draw: list[int]) -> HeldOutResult:
    rest = np.setdiff1d(np.arange(len(rows)), draw)
    if len(rest) > 80:
        rest = np.random.default_rng(2).permutation(rest)[:80]
    others, measured = rows.take(rest), np.exp(rows.log_ratios[rest])
    found = outlook(prior, rows.take(np.array(draw, dtype=int)) if draw else None, others.traits)
    return HeldOutResult(
        raw=float(np.mean(np.abs(1 / measured - 1))),
        error=float(np.mean(np.abs(found.expected / measured - 1))),
        inside=float(np.mean((found.low <= measured) & (measured <= found.high))),
        width=float(np.median(found.high / found.low)),
    )


@dataclass(frozen=True)
class Learned:
    """The prior of one figure, and the priors with one source left out."""

    title: str
    prior: Prior
    leave_one_out: dict[str, Prior]
    groups: list[Source]


def plain_ratio(group: Source) -> HeldOutResult:
    """Average the errors when one row's ratio corrects all others, over every row in turn."""
    logs = group.experience.log_ratios
    raw, after = [], []
    for row in range(len(logs)):
        rest = np.delete(logs, row)
        raw.append(np.mean(np.abs(np.expm1(-rest))))
        after.append(np.mean(np.abs(np.expm1(logs[row] - rest))))
    return HeldOutResult(float(np.mean(raw)), float(np.mean(after)), math.nan, math.nan)


def main() -> None:
    """Fit the priors; write prior.toml and docs/reference/learning.md."""
    step_time = _learned("step_time", "Step time")
    memory = _learned("memory", "Memory of a device")
    write_priors(step_time.prior, memory.prior)
    path = ROOT / "docs" / "reference" / "learning.md"
    path.write_text(report([step_time, memory]), encoding="utf-8")
    print("docs/reference/learning.md and planner/cost/scenario/prior.toml")


def _learned(figure: Figure, title: str) -> Learned:
    groups = sources(read_table(), figure)
    prior = fit_prior(groups)
    leave_one_out = {}
    for name in sorted({group.name for group in groups}):
        rest = [group for group in groups if group.name != name]
        leave_one_out[name] = _scaled(fit_prior(rest, prior, STEPS_APART), rest)
    return Learned(title, _scaled(prior, groups), leave_one_out, groups)


def _scaled(prior: Prior, groups: Sequence[Source]) -> Prior:
    """Return the prior with the quantiles of its groups' stated rows."""
    low, high = quantiles(prior, groups, experts=False)
    found = {"low": low, "high": high}
    low, high = quantiles(prior, groups, experts=True)
    return prior.model_copy(update={**found, "experts_low": low, "experts_high": high})


def write_priors(step_time: Prior, memory: Prior) -> None:
    lines = ["# Written by benchmarks/learning.py"]
    for name, prior in (("step_time", step_time), ("memory", memory)):
        lines += ["", f"[{name}]"]
        lines += [f"{field} = {getattr(prior, field):.4f}" for field in Prior.model_fields]
    path = ROOT / "planner" / "cost" / "scenario" / "prior.toml"
    path.write_text("\n".join(lines) + "\n", encoding="utf-8")


def report(figures: Sequence[Learned]) -> str:
    lines = [
        "# Learning",
        "",
        "Written by `benchmarks/learning.py`; do not edit. Every figure is of runs whose source "
        "the prior had not seen; the quantiles of intervals had not seen the source's runs on "
        "that machine. Rows that a constant was fitted on, that are marked low in their table or "
        "that stalled for a cause that is not known take no part; what stalls is said with a "
        "probability of its own (see [accuracy.md](accuracy.md)).",
        "",
    ]
    for found in figures:
        if found.groups[0].figure == "step_time":  # memory intervals come from its own classes
            lines += [f"## {found.title}: intervals by machine", "", *machine_table(found), ""]
        lines += [
            f"## {found.title}: after some runs of one's own",
            "",
            *source_table(found),
            "",
            f"## {found.title}: what is shared",
            "",
            *prior_table(found.prior),
            "",
        ]
    return "\n".join(lines)


def machine_table(of: Learned) -> list[str]:
    """Make the table of coverage and width before any own measurement, by machine."""
    found: dict[str, list[tuple[bool, float]]] = defaultdict(list)
    for group in of.groups:
        if group.rows[0].guessed:
            continue
        for machine in group.machines:
            own = group.on(machine)
            rest = [g for g in of.groups if g is not group] + [group.on(machine, other=True)]
            scaled = _scaled(of.leave_one_out[group.name], [g for g in rest if g])
            rows = own.experience
            expected = outlook(scaled, None, rows.traits)
            measured = np.exp(rows.log_ratios)
            inside = (expected.low <= measured) & (measured <= expected.high)
            widths = expected.high / expected.low
            found[machine] += list(zip(map(bool, inside), map(float, widths), strict=True))
    every = [item for items in found.values() for item in items]
    return [
        "| machine | rows | inside | median width |",
        "|---|---:|---:|---:|",
        *(
            f"| {name} | {len(items)} | {100 * np.mean([h for h, _ in items]):.0f} % | "
            f"{np.median([w for _, w in items]):.2f} |"
            for name, items in [*sorted(found.items()), ("all", every)]
        ),
    ]


def source_table(of: Learned) -> list[str]:
    """Make the table of error, coverage and width after a number of rows of a source."""
    kinds = [(f"{n} row{'s' * (n != 1)}", n, False) for n in SIZES]
    kinds.insert(2, ("the row that tells most", 1, True))
    lines = [
        "| source | rows | " + " | ".join(name for name, _, _ in kinds) + " |",
        "|---|---:|" + "---:|" * len(kinds),
    ]
    every: dict[str, list[HeldOutResult]] = defaultdict(list)
    for group in of.groups:
        if len(group.rows) < 3:
            continue
        cells = []
        for name, size, chosen in kinds:
            one = held_out(of.leave_one_out[group.name], group, size, chosen)
            if one is None:
                cells.append("-")
                continue
            every[name].append(one)
            cells.append(f"{100 * one.error:.1f} %, {100 * one.inside:.0f} %, {one.width:.2f}")
        lines.append(f"| {group.title} | {len(group.rows)} | " + " | ".join(cells) + " |")
    lines += [
        "",
        "Mean error, part inside the interval, median width (high over low). A plain ratio is what "
        "a row took over its estimate, times every other estimate.",
        "",
        "| after | sources | better than the estimate | mean error before | after | inside |",
        "|---|---:|---:|---:|---:|---:|",
    ]
    every["1 row, plain ratio"] = [plain_ratio(g) for g in of.groups if len(g.rows) >= 3]
    for name in [*(name for name, _, _ in kinds[1:]), "1 row, plain ratio"]:
        items = every[name]
        better = np.mean([item.error < item.raw for item in items])
        lines.append(
            f"| {name} | {len(items)} | {100 * better:.0f} % | "
            f"{100 * np.mean([i.raw for i in items]):.1f} % | "
            f"{100 * np.mean([i.error for i in items]):.1f} % | "
            f"{'-' if 'plain' in name else f'{100 * np.mean([i.inside for i in items]):.0f} %'} |"
        )
    return lines


def prior_table(prior: Prior) -> list[str]:
    return [
        "| | value |",
        "|---|---:|",
        *(f"| `{name}` | {getattr(prior, name):.3f} |" for name in Prior.model_fields),
    ]


if __name__ == "__main__":
    main()
