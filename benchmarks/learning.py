"""Learning report: the prior over errors, its coverage, and the gain from a user's own runs.

    python benchmarks/learning.py       # after benchmarks/accuracy.py, whose residuals it reads

The prior maximises the marginal likelihood of published runs that no fit has seen. Every figure in
docs/reference/learning.md is for runs whose source was left out of the prior.
"""

from __future__ import annotations

import math
from collections import defaultdict
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import ProcessPoolExecutor
from dataclasses import dataclass
from itertools import repeat
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
from planner.cost.scenario.prior import Prior

ROOT = Path(__file__).parent.parent
MOST_ROWS = 24
"""Most rows of one source in the likelihood; more rows add little information."""
BATCH = 6
"""Runs per likelihood term: at most one of them is taken as odd, and users have only a few."""
WEIGHT = 15
"""Largest total weight of one source, in rows."""
COVERAGE = 0.9
"""Share of runs of the next source that an interval is to hold."""
STEPS_APART = 5
"""Optimizer steps with one source left out, starting from the prior of all sources."""
SIZES = (0, 1, 2, 4)
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
    "alone": 0.05,
    "experts_alone": 0.1,
    "traffic_alone": 0.1,
    "host_alone": 0.3,
    "offload": 0.42,  # benchmarks/whole/offload.py: standard deviation of 0.6 over nine published
    "offload_alone": 0.42,  # reports that no constant saw, half of its square in each
    "odd": 0.3,
    "odd_sites": 0.02,
    "odd_runs": 0.05,
    "unmeasured": 0.05,
    "scatter": 2.0,
    "scattered_sites": 0.3,
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
            publication = row.source.partition(",")[0]  # tables of one publication err alike
            groups[publication, row.guessed].append(row)
    return [Source(name, tuple(members), figure) for (name, _), members in sorted(groups.items())]


def batches(source: Source) -> list[tuple[MeasuredRuns, float]]:
    """Split a source's rows at random into batches; return each with its weight per source."""
    order = np.random.default_rng(1).permutation(len(source.rows))[:MOST_ROWS]
    weight = min(1.0, WEIGHT / len(order))
    rows = source.experience
    return [(rows.take(part), weight) for part in np.array_split(order, -(-len(order) // BATCH))]


def published(groups: Sequence[Source], without: str = "") -> dict[str, dict[str, int]]:
    """Count the sources with rows by architecture and framework."""
    names: dict[tuple[str, str], set[str]] = defaultdict(set)
    for group in groups:
        traits = group.experience.traits
        for pair in zip(traits.architecture.tolist(), traits.framework.tolist(), strict=True):
            names[pair] |= {group.name} - {without}
    counts: dict[str, dict[str, int]] = defaultdict(dict)
    for (architecture, framework), sources in sorted(names.items()):
        if sources:
            counts[architecture][framework] = len(sources)
    return dict(counts)


def fit_prior(groups: Sequence[Source], start: Prior | None = None, steps: int = 60) -> Prior:
    """Fit the prior that makes the rows of each source most likely, given those of the others."""
    drawn = [(*part, published(groups, group.name)) for group in groups for part in batches(group)]
    names = list(START)
    first = np.log([getattr(start, name) if start else START[name] for name in names])
    middle = np.log(list(START.values()))

    def prior_of(logs: NDArray[np.float64]) -> Prior:
        values = dict(zip(names, np.exp(logs), strict=True))
        for name, limit in (("odd_sites", 0.45), ("odd_runs", 0.45), ("scattered_sites", 0.9)):
            values[name] = min(values[name], limit)
        values["scatter"] = max(values["scatter"], 1.0)
        return Prior.model_construct(**values)

    def cost(logs: NDArray[np.float64]) -> float:
        found = prior_of(logs)
        log_likelihood = sum(
            weight * likelihoods(found.model_copy(update={"published": others}), rows).total
            for rows, weight, others in drawn
        )
        return float(np.sum((logs - middle) ** 2) / 2 - log_likelihood)

    best = minimize(cost, first, method="L-BFGS-B", options={"maxiter": steps})
    return prior_of(best.x).model_copy(update={"published": published(groups)})


def scores(prior: Prior, group: Source) -> NDArray[np.float64]:
    """Standardised errors of the rows of a source that a prior has not seen."""
    rows = group.experience
    return rows.log_ratios / np.sqrt(prior.variance(rows.traits))


def quantiles(by_source: Sequence[NDArray[np.float64]]) -> tuple[float, float]:
    """Shortest conformal range over sources: holds one run drawn from the next source at 90 %.

    Every source weighs 1 / (n + 1), its rows alike; the next source has the last 1 / (n + 1), which
    counts as outside (Vovk et al. 2005; weighted as in Tibshirani et al. 2019, arXiv:1904.06019).
    """
    value = np.concatenate(by_source)
    share = 1 / (len(by_source) + 1)
    weight = np.concatenate([np.full(len(rows), share / len(rows)) for rows in by_source])
    order = np.argsort(value)
    value, mass = value[order], np.concatenate([[0.0], np.cumsum(weight[order])])
    last = np.searchsorted(mass, mass[:-1] + COVERAGE - 1e-9)  # for each first value
    ends = [
        (value[k - 1] - value[i], value[i], value[k - 1])
        for i, k in enumerate(last)
        if k < len(mass)
    ]
    _, low, high = min(ends)
    return float(low), float(high)


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


def plain_ratio(group: Source, size: int = 1) -> HeldOutResult | None:
    """Average the errors when the mean ratio of some rows corrects all others; None if too few."""
    logs = group.experience.log_ratios
    if len(logs) <= size:
        return None
    lots = np.random.default_rng(0)
    raw, after = [], []
    for _ in range(DRAWS):
        order = lots.permutation(len(logs))
        mean, rest = logs[order[:size]].mean(), logs[order[size:]]
        raw.append(np.mean(np.abs(np.expm1(-rest))))
        after.append(np.mean(np.abs(np.expm1(mean - rest))))
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
    names = sorted({group.name for group in groups})
    with ProcessPoolExecutor() as pool:
        rests = ([group for group in groups if group.name != name] for name in names)
        priors = pool.map(fit_prior, rests, repeat(prior), repeat(STEPS_APART))
        apart = dict(zip(names, priors, strict=True))
    by_source = {g.name: scores(apart[g.name], g) for g in groups if not g.rows[0].guessed}

    def scaled(prior: Prior, without: str = "") -> Prior:
        low, high = quantiles([rows for name, rows in by_source.items() if name != without])
        return prior.model_copy(update={"low": low, "high": high})

    leave_one_out = {name: scaled(found, name) for name, found in apart.items()}
    return Learned(title, scaled(prior), leave_one_out, groups)


def write_priors(step_time: Prior, memory: Prior) -> None:
    lines = ["# Written by benchmarks/learning.py"]
    for name, prior in (("step_time", step_time), ("memory", memory)):
        lines += ["", f"[{name}]"]
        numbers = [field for field in Prior.model_fields if field != "published"]
        lines += [f"{field} = {getattr(prior, field):.4f}" for field in numbers]
        for architecture, counts in prior.published.items():
            lines += ["", f'[{name}.published."{architecture}"]']
            lines += [f"{framework} = {count}" for framework, count in counts.items()]
    path = ROOT / "planner" / "cost" / "scenario" / "prior.toml"
    path.write_text("\n".join(lines) + "\n", encoding="utf-8")


def report(figures: Sequence[Learned]) -> str:
    lines = [
        "# Learning",
        "",
        "Written by `benchmarks/learning.py`; do not edit. Every figure is of runs whose source "
        "neither the prior nor the quantiles of intervals had seen. Rows that a constant was "
        "fitted on, that are marked low in their table or "
        "that stalled for a cause that is not known take no part; what stalls is said with a "
        "probability of its own (see [accuracy.md](accuracy.md)).",
        "",
    ]
    for found in figures:
        if found.groups[0].figure == "step_time":  # memory intervals come from its own classes
            lines += [f"## {found.title}: intervals", "", *coverage_tables(found)]
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


KEYS: dict[str, Callable[[Source], list[str]]] = {
    "source": lambda of: [of.name] * len(of.rows),
    "architecture": lambda of: of.experience.traits.architecture.tolist(),
    "framework": lambda of: of.experience.traits.framework.tolist(),
    "parameters": lambda of: [_decade(row.traits.size[0, 0]) for row in of.rows],
}
"""Keys of the tables of coverage."""


def _decade(log_parameters: float) -> str:
    low = 10 ** math.floor(log_parameters / math.log(10) - 9)
    return f"{low:g} to {10 * low:g} billion"


def coverage_tables(of: Learned) -> list[str]:
    """Make tables of coverage and width before any own measurement, by each key."""
    lines = []
    for key, names_of in KEYS.items():
        found: dict[str, list[tuple[bool, float, float]]] = defaultdict(list)
        by_source: dict[str, list[tuple[bool, float, float]]] = defaultdict(list)
        for group in of.groups:
            if group.rows[0].guessed:
                continue
            rows = group.experience
            expected = outlook(of.leave_one_out[group.name], None, rows.traits)
            measured = np.exp(rows.log_ratios)
            inside = (expected.low <= measured) & (measured <= expected.high)
            widths, errors = expected.high / expected.low, np.abs(1 / measured - 1)
            for name, *item in zip(names_of(group), inside, widths, errors, strict=True):
                found[name].append(tuple(item))
                by_source[group.name].append(tuple(item))
        means = [np.array(items, dtype=float).mean(axis=0) for items in by_source.values()]
        inside_share, _, error = np.mean(means, axis=0)
        medians = [np.median([width for _, width, _ in i]) for i in by_source.values()]
        lines += [
            f"By {key}:",
            "",
            f"| {key} | rows | inside | median width | MAPE |",
            "|---|---:|---:|---:|---:|",
            *(_coverage_row(name, items) for name, items in sorted(found.items())),
            _coverage_row("all rows", [item for items in found.values() for item in items]),
            f"| all sources alike | {len(means)} sources | {100 * inside_share:.0f} % | "
            f"{np.median(medians):.2f} | {100 * error:.1f} % |",
            "",
        ]
    return lines


def _coverage_row(name: str, items: Sequence[tuple[bool, float, float]]) -> str:
    inside, widths, errors = np.array(items, dtype=float).T
    return (
        f"| {name} | {len(items)} | {100 * inside.mean():.0f} % | {np.median(widths):.2f} | "
        f"{100 * errors.mean():.1f} % |"
    )


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
            cells.append(
                f"{100 * one.error:.1f} % ({100 * (one.error - one.raw):+.1f}), "
                f"{100 * one.inside:.0f} %, {one.width:.2f}"
            )
        lines.append(f"| {group.title} | {len(group.rows)} | " + " | ".join(cells) + " |")
    lines += [
        "",
        "Mean error of the other rows (in brackets: its change by the row, in points), part inside "
        "the interval, median width (high over low). A plain ratio is what rows took over their "
        "estimates, times every other estimate.",
        "",
        "| after | sources | better | more than 1 point worse | most worse | mean error before | "
        "after | inside |",
        "|---|---:|---:|---:|---:|---:|---:|---:|",
    ]
    for size in SIZES[1:]:
        ratios = (plain_ratio(g, size) for g in of.groups if len(g.rows) >= 3)
        every[f"{size} row{'s' * (size != 1)}, plain ratio"] = [r for r in ratios if r]
    for name in [name for name in every if name != kinds[0][0]]:
        items = every[name]
        change = np.array([item.error - item.raw for item in items])
        lines.append(
            f"| {name} | {len(items)} | {100 * np.mean(change < 0):.0f} % | "
            f"{np.sum(change > 0.01)} | {100 * max(change.max(), 0):.1f} points | "
            f"{100 * np.mean([i.raw for i in items]):.1f} % | "
            f"{100 * np.mean([i.error for i in items]):.1f} % | "
            f"{'-' if 'plain' in name else f'{100 * np.mean([i.inside for i in items]):.0f} %'} |"
        )
    return lines


def prior_table(prior: Prior) -> list[str]:
    return [
        "| | value |",
        "|---|---:|",
        *(
            f"| `{name}` | {getattr(prior, name):.3f} |"
            for name in Prior.model_fields
            if name != "published"
        ),
    ]


if __name__ == "__main__":
    main()
