"""Ablation: remove each framework trait and each part of the cost model, and score again.

    python benchmarks/ablation.py --data DIR    # writes docs/reference/ablation.md; a few minutes

A trait is set to its neutral value (the default of its field), a part of the step time or of the
memory to zero. The score covers measured runs that no fit has seen, peaks of third-party code
(docs/reference/real_code.md) and the stored torch traces. A trait that changes none of these is
tried on a grid of layouts, to separate traits with an unmeasured effect from traits without any
effect.
"""

from __future__ import annotations

import functools
import itertools
import json
import re
import sys
import types
from collections import defaultdict
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Annotated, Any, Union, get_args, get_origin

import accuracy
import numpy as np
import trace_matrix
import typer
from numpy.typing import NDArray

from planner.cost.estimate import estimate_layouts
from planner.cost.memory.footprint import stage_memory
from planner.cost.memory.peak import device_memory
from planner.cost.parts import unseen_parts
from planner.cost.scenario import Scenario
from planner.cost.shards.layouts import Layouts
from planner.cost.shards.stages import Stages
from planner.describe.base import Description, Factor, Fraction, Quantity
from planner.describe.catalogue import folder, load_framework, load_machine, load_model, names
from planner.describe.files import read_toml
from planner.describe.framework.framework import Framework
from planner.describe.framework.switches import merge_tables
from planner.describe.layout import Layout
from planner.describe.workload import Workload
from planner.evidence.backtest import score
from planner.evidence.runs.run import Run
from planner.evidence.scores import rank_correlation

ROOT = Path(__file__).parent.parent
sys.path.insert(0, str(ROOT))

import benchmarks.real_code as real_code  # noqa: E402

PAGE = ROOT / "docs" / "reference" / "ablation.md"
TRACES = ROOT / "tests" / "validate" / "trace" / "kept.jsonl"
GIB = 2**30
UNSEEN = ("runtime_context", "allocator_reserve")
"""Parts of memory that neither third-party code nor traces include."""
Array = NDArray[np.float64]

STATED = re.compile(
    r"code\.|requires\.|(name|title|like|labels|source|notes|configuration|effort|searched|devices"
    r"|stands_in_for|instead_of|runtimes|axes|zero_stages.*|unsharded_precisions|hybrid_stages"
    r"|second_shards|context_alone|schedules|recompute.*|deferred_.*|offload_.*|tiling"
    r"|uneven_stages|custom_pipeline_split|replicates_kv_heads|stalls|context|sequence_parallel"
    r"|offloading\.activations_piped)$"
)
"""Traits that decide which layouts and files exist, or printed text, but change no estimate."""


REQUIRED: dict[str, Any] = {"loss": "eager"}
"""Neutral values of required fields that have no empty value."""


# --- removing a trait ------------------------------------------------------------------------


def leaves(table: dict[str, Any], prefix: str = "") -> Iterator[str]:
    """Yield the dotted name of every trait of a description."""
    for key, value in table.items():
        if isinstance(value, dict) and not {"value", "kind"} <= set(value):
            yield from leaves(value, f"{prefix}{key}.")
        else:
            yield prefix + key


def stated_traits() -> dict[str, list[str]]:
    """Map every trait to the frameworks whose file or bundle states it."""
    stating: dict[str, list[str]] = defaultdict(list)
    for name in names("framework"):
        table = read_toml(folder("framework") / f"{name}.toml")
        table.pop("switches", None)
        for bundle in table.pop("bundles", ()):
            table = merge_tables(read_toml(folder("bundle") / f"{bundle}.toml"), table)
        for trait in leaves(table):
            stating[trait].append(name)
    return dict(sorted(stating.items()))


def plain_type(annotation: Any) -> Any:
    """Return the type of a field without `None`."""
    if get_origin(annotation) in (Union, types.UnionType):
        return next(part for part in get_args(annotation) if part is not type(None))
    return annotation


def neutral_value(cls: type[Description], field: str, value: Any) -> Any:
    """Return a field's default; for required fields an empty value, 0, or a ratio of 1."""
    info = cls.model_fields[field]
    if not info.is_required():
        return info.get_default(call_default_factory=True)
    if isinstance(value, Quantity):
        ratio = isinstance(value, (Factor, Fraction))
        return type(value)(value=1.0 if ratio else 0.0, kind="assumed", source="neutral")
    return REQUIRED.get(field, type(value)())


def without_trait(framework: Framework, trait: str) -> Framework:
    """Return the framework with one neutral trait; unchanged if the trait is already neutral."""
    table, _, field = trait.rpartition(".")
    owner: Any = getattr(framework, table) if table else framework
    if owner is None or not hasattr(owner, field):
        return framework
    value = getattr(owner, field)
    neutral = neutral_value(type(owner), field, value)
    if table == "bf16":
        neutral = getattr(framework.mixed, field)
    if neutral == value:
        return framework
    changed = owner.model_copy(update={field: neutral})
    return framework.model_copy(update={table: changed}) if table else changed


# --- the measurements ------------------------------------------------------------------------


@dataclass(frozen=True)
class Estimates:
    """Logarithms of estimate over measurement; nan if nothing was measured."""

    times: Array
    """Step time of every run."""
    memory: Array
    """Memory of every run."""
    peaks: Array
    """Memory peak of every third-party case and of every trace."""


Change = Callable[[Framework], Framework]
Term = tuple[str, str] | None
"""A part that is set to zero: `("time" or "memory", name)`."""


@dataclass(frozen=True)
class Peak:
    """A memory peak of real code, on one stage or on the worst (`stage` None)."""

    scenario: Scenario
    layout: Layout
    stage: int | None
    real: float

    def estimate(self, framework: Framework, term: Term = None) -> float:
        """Estimated peak without the parts that real code does not show [B]."""
        scenario = Scenario(
            self.scenario.model, self.scenario.machine, self.scenario.workload, framework
        )
        stages = (
            Stages.of_pipeline(scenario, self.layout)
            if self.stage is None
            else Stages.of(scenario, Layouts.of(self.layout), self.stage)
        )
        parts, _ = device_memory(stages)
        skipped = {*UNSEEN, *([term[1]] if term and term[0] == "memory" else [])}
        return float(np.max(sum(size for name, size in parts.items() if name not in skipped)))


def real_code_peaks() -> list[Peak]:
    """Read the peaks of third-party code from docs/reference/real_code.md."""
    lines = real_code.PAGE.read_text("utf-8").splitlines()
    rows = {tuple(cells[1:7]): cells for line in lines if len(cells := line.split("|")) > 9}
    peaks = []
    for case in real_code.cases():
        key = tuple(str(real_code.Row(case, 1.0, 1.0)).split("|")[1:7])
        if key in rows:
            real = float(rows[key][7]) * GIB
            peaks.append(Peak(case.scenario, case.layout, None, real))
    return peaks


def trace_peaks() -> list[Peak]:
    """Read the peaks of torch's own sharding from the stored traces."""
    cases = {case.key: case for case in (*trace_matrix.cases(), *trace_matrix.others())}
    return [
        Peak(
            cases[row["key"]].scenario,
            cases[row["key"]].layout,
            row["trace"]["stage"],
            row["trace"]["peak_bytes"],
        )
        for row in map(json.loads, TRACES.read_text("utf-8").splitlines())
        if row["key"] in cases
    ]


class Evidence:
    """Measured runs and peaks, estimated in batches; unchanged estimates are reused."""

    def __init__(self, data: Path) -> None:
        rows = [row for name in accuracy.FILES for row in accuracy.published_runs(data / name)]
        rows += accuracy.simumax_runs(data / "simumax.csv")
        rows += accuracy.amp_runs(data / "amp_measured.csv")
        scores = score(rows).scores
        self.runs: list[Run] = [item.run for item in scores]
        self.unseen = np.array([not accuracy.fitted(run) for run in self.runs])
        weighed = {item.run.row_id for item in accuracy.weighed(scores)}
        self.weighed = np.array([run.row_id in weighed for run in self.runs])
        self.peaks = [*real_code_peaks(), *trace_peaks()]
        self.batches: dict[int, tuple[Scenario, Any]] = {}
        self.groups: dict[Any, list[int]] = defaultdict(list)
        for place, run in enumerate(self.runs):
            key = (run.machine_label, run.framework, run.model, run.workload)
            self.groups[key].append(place)
        self.base = Estimates(
            *(np.full(len(self.runs), np.nan) for _ in range(2)), np.zeros(len(self.peaks))
        )
        self.base = self.estimates(lambda framework: framework, anew=True)

    def estimates(self, change: Change, term: Term = None, *, anew: bool = False) -> Estimates:
        """Estimate all runs and peaks with changed frameworks or without one part."""
        times, memory, peaks = (
            column.copy() for column in (self.base.times, self.base.memory, self.base.peaks)
        )
        for (_, framework, *_), places in self.groups.items():
            changed = change(framework)
            if anew or term or changed is not framework:
                self._fill(places, changed, term, times, memory)
        for place, peak in enumerate(self.peaks):
            framework = peak.scenario.framework
            changed = change(framework)
            if anew or (term and term[0] == "memory") or changed is not framework:
                peaks[place] = np.log(peak.estimate(changed, term) / peak.real)
        return Estimates(times, memory, peaks)

    def _fill(
        self, places: list[int], framework: Framework, term: Term, times: Array, memory: Array
    ) -> None:
        runs = [self.runs[place] for place in places]
        scenario, batch = self._estimate(places, framework)
        step = sum(value for name, value in batch.time_parts_s.items() if term != ("time", name))
        for number, (place, run) in enumerate(zip(places, runs, strict=True)):
            if run.step_time_s:
                times[place] = np.log(np.asarray(step).flat[number] / run.step_time_s)
            if run.memory_bytes:
                size = self._memory(run, scenario, batch.memory_parts_bytes, number, term)
                memory[place] = np.log(size / run.memory_bytes)

    def _estimate(self, places: list[int], framework: Framework) -> tuple[Scenario, Any]:
        """Estimate runs of one scenario; results with the unchanged framework are cached."""
        first = self.runs[places[0]]
        if framework is first.framework and places[0] in self.batches:
            return self.batches[places[0]]
        scenario = Scenario(first.model, first.machine, first.workload, framework)
        layouts = Layouts.stack(self.runs[place].layout for place in places)
        batch = scenario, estimate_layouts(scenario, layouts)
        if framework is first.framework:
            self.batches[places[0]] = batch
        return batch

    @staticmethod
    def _memory(
        run: Run, scenario: Scenario, parts: dict[str, Any], number: int, term: Term
    ) -> float:
        skipped = {*unseen_parts(run.memory_kind), *([term[1]] if term else [])}
        sizes = {name: values.flat[number] for name, values in parts.items()}
        if run.first_stage and run.layout.pp > 1:
            sizes = stage_memory(scenario, run.layout)[0]
        return float(sum(size for name, size in sizes.items() if name not in skipped))

    @functools.cached_property
    def jobs(self) -> list[list[int]]:
        """Groups of four or more timed, unseen runs of one job, which differ in layout."""
        jobs: dict[Any, list[int]] = defaultdict(list)
        for place, run in enumerate(self.runs):
            work = run.workload
            if run.step_time_s and self.unseen[place]:
                key = (
                    *(run.source, run.machine_label, run.framework.name, run.model.name),
                    *(run.layout.world, work.sequence_length, work.global_batch, work.precision),
                )
                jobs[key].append(place)
        return [places for places in jobs.values() if len(places) > 3]

    def figures(self, found: Estimates) -> dict[str, float]:
        """Compute the errors and the rank correlation of a set of estimates."""
        times = np.abs(found.times[self.unseen & np.isfinite(found.times)])
        memory = np.abs(found.memory[self.weighed & np.isfinite(found.memory)])
        measured = np.log([run.step_time_s or np.nan for run in self.runs])
        ranks = [
            rank_correlation(measured[places], (measured + found.times)[places])
            for places in self.jobs
        ]
        known = [rank for rank in ranks if rank is not None]
        return {
            "median": float(np.median(times)),
            "mean": float(np.mean(times)),
            "rank": float(np.mean(known)),
            "memory": float(np.mean(memory)),
            "peaks": float(np.mean(np.abs(found.peaks))),
        }


# --- a grid, for traits that change no measured estimate ---------------------------------------

LAYOUTS = [
    Layout(dp=8),
    Layout(dp=8, zero_stage=1, grad_accumulation=4),
    Layout(dp=8, zero_stage=2, grad_accumulation=4, recompute="full"),
    Layout(dp=8, zero_stage=3, grad_accumulation=2, micro_batch=2, recompute="selective"),
    Layout(dp=8, dp_shard=4, zero_stage=3, reshard=2, recompute="full", recompute_span=2),
    Layout(dp=1, tp=8, sequence_parallel=True),
    Layout(dp=2, tp=4, zero_stage=3, sequence_parallel=True, recompute="full"),
    Layout(dp=2, tp=2, pp=2, schedule="1f1b", grad_accumulation=8, zero_stage=1),
    Layout(dp=2, pp=4, schedule="1f1b", grad_accumulation=8, zero_stage=2),
    Layout(dp=2, tp=2, pp=2, vpp=2, schedule="interleaved-1f1b", grad_accumulation=8),
    Layout(dp=2, pp=4, vpp=2, schedule="dualpipe-v", grad_accumulation=16, ep=2, zero_stage=2),
    Layout(dp=2, pp=4, vpp=2, schedule="zero-bubble-v", grad_accumulation=16, zero_stage=3),
    Layout(dp=16, dp_shard=8, zero_stage=3, grad_accumulation=4),
    Layout(dp=2, cp=4, zero_stage=3),
    Layout(dp=2, cp=4, ulysses=4, zero_stage=1),
    Layout(dp=8, ep=8, zero_stage=1),
    Layout(dp=4, tp=2, ep=4, etp=1, sequence_parallel=True, zero_stage=1),
    Layout(dp=2, tp=2, pp=2, ep=2, schedule="1f1b", grad_accumulation=4, recompute="full"),
    *(Layout(dp=8, zero_stage=z, offload="optimizer-cpu", grad_accumulation=2) for z in (1, 2, 3)),
    Layout(dp=8, zero_stage=3, offload="all-cpu", grad_accumulation=2, recompute="full"),
    Layout(dp=8, zero_stage=3, offload="all-nvme", recompute="full", tiles=4),
    Layout(dp=8, zero_stage=3, offload_activations=True, recompute="full"),
    Layout(dp=2, tp=4, pp=2, schedule="1f1b", grad_accumulation=8, offload_activations=True),
]
GRID = [
    Layouts.stack(layout for layout in LAYOUTS if layout.pp == 1 and "nvme" not in layout.offload),
    Layouts.stack(layout for layout in LAYOUTS if layout.pp > 1),
    Layouts.stack(layout for layout in LAYOUTS if "nvme" in layout.offload),
]
MODELS = ("llama-3-8b", "gpt2-xl", "mixtral-8x7b", "deepseek-v2", "gpt-oss-20b", "bert-large")
WORKLOADS = (
    {},
    {"precision": "fp16", "attention": "eager"},
    {"precision": "fp8"},
    {"precision": "fp32", "optimizer": "sgd"},
    {"lora_rank": 16, "base_format": "nf4"},
)


def moves_grid(framework: Framework, changed: Framework) -> bool:
    """True if a change affects any estimate on the grid."""
    for model, fields, machine in itertools.product(MODELS, WORKLOADS, ("dgx-h100", "aurora")):
        if fields.get("precision") == "fp8" and machine == "aurora":
            continue
        workload = Workload(global_batch=64, **fields)
        job = (load_model(model), load_machine(machine), workload)
        for layouts in GRID if job[1].node.local_disk else GRID[:-1]:
            before, after = (
                estimate_layouts(Scenario(*job, one), layouts) for one in (framework, changed)
            )
            if differ(before.time_parts_s, after.time_parts_s) or differ(
                before.memory_parts_bytes | before.host_parts_bytes,
                after.memory_parts_bytes | after.host_parts_bytes,
            ):
                return True
    return False


def differ(before: dict[str, Any], after: dict[str, Any]) -> bool:
    """True if any part differs."""
    return any(np.any(before[name] != after[name]) for name in before)


# --- the page ----------------------------------------------------------------------------------


def signed(value: float, digits: int) -> str:
    """Format a difference with its sign; "0" if it rounds to zero."""
    return f"{value:+.{digits}f}" if round(value, digits) else "0"


@dataclass(frozen=True)
class Row:
    """One ablation: how many estimates change, and how much worse the scores get."""

    name: str
    frameworks: tuple[str, ...]
    num_times: int
    num_memories: int
    num_peaks: int
    buys: dict[str, float]

    @property
    def moved(self) -> int:
        """Number of measurements whose estimate changes."""
        return self.num_times + self.num_memories + self.num_peaks

    def __str__(self) -> str:
        cells = [f"`{self.name}`", f"{len(self.frameworks)}" if self.frameworks else ""]
        cells += [f"{self.num_times}", f"{self.num_memories}", f"{self.num_peaks}"]
        cells += [signed(100 * self.buys[key], 2) for key in ("median", "mean")]
        cells += [signed(self.buys["rank"], 3)]
        cells += [signed(100 * self.buys[key], 2) for key in ("memory", "peaks")]
        return f"| {' | '.join(cells)} |"


def ablate(
    evidence: Evidence, name: str, frameworks: tuple[str, ...], change: Change, term: Term = None
) -> Row:
    """Score again without one trait or part."""
    base, found = evidence.base, evidence.estimates(change, term)

    def moved(column: str) -> int:
        before, after = getattr(base, column), getattr(found, column)
        return int(np.sum(np.isfinite(before) & (np.abs(before - after) > 1e-12)))

    counts = (moved("times"), moved("memory"), moved("peaks"))
    before, after = evidence.figures(base), evidence.figures(found)
    buys = {key: after[key] - before[key] for key in before}
    buys["rank"] = -buys["rank"]
    return Row(name, frameworks, *counts, buys)


HEAD = [
    "| | files | times | memories | peaks | median | mean | rank | memory | peak |",
    "|---|---:|---:|---:|---:|---:|---:|---:|---:|---:|",
]


def page(evidence: Evidence, traits: list[Row], terms: list[Row], grid: dict[str, bool]) -> str:
    """Return the text of docs/reference/ablation.md."""
    base = evidence.figures(evidence.base)
    measured = sorted((row for row in traits if row.moved), key=lambda row: -sum_of(row))
    silent = [row for row in traits if not row.moved]
    listed = {
        "They decide which layouts and files there are, or what is printed": [
            row for row in silent if STATED.match(row.name)
        ],
        "They move estimates, but of nothing that was measured": [
            row for row in silent if not STATED.match(row.name) and grid[row.name]
        ],
        "They move nothing": [
            row for row in silent if not STATED.match(row.name) and not grid[row.name]
        ],
    }
    lines = [
        INTRODUCTION.format(
            runs=int(np.sum(evidence.unseen & np.isfinite(evidence.base.times))),
            memories=int(np.sum(evidence.weighed & np.isfinite(evidence.base.memory))),
            peaks=len(evidence.peaks),
            jobs=len(evidence.jobs),
            median=f"{100 * base['median']:.2f}",
            mean=f"{100 * base['mean']:.2f}",
            memory=f"{100 * base['memory']:.2f}",
            peak_error=f"{100 * base['peaks']:.2f}",
            rank=f"{base['rank']:.3f}",
        ),
        "## Parts of the cost model",
        "",
        *HEAD,
        *map(str, sorted(terms, key=lambda row: -sum_of(row))),
        "",
        "## Traits of frameworks",
        "",
        *HEAD,
        *map(str, measured),
    ]
    for title, rows in listed.items():
        lines += ["", f"## {title}", ""]
        lines += [f"- `{row.name}` ({', '.join(row.frameworks)})" for row in rows] or ["None."]
    return "\n".join(lines) + "\n"


def sum_of(row: Row) -> float:
    """Total benefit of a row: mean error of times plus those of memory and of peaks."""
    return row.buys["mean"] + row.buys["memory"] + row.buys["peaks"]


INTRODUCTION = """\
# What each trait and each part buys

Written by `benchmarks/ablation.py`; do not edit by hand.

Each row takes one trait of the frameworks, or one part of the cost model, away: the trait gets its
neutral value (the default of its field), the part counts nothing. Everything is then estimated
again, and the table says how much larger the errors are without it. A negative number says that
measurements would be met better without: the trait is true of the code, and another error hides
behind it. Nothing is tuned on this page.

- *files*: files of frameworks that state the trait;
- *times*, *memories*, *peaks*: measurements whose estimate moves;
- *median*, *mean*: absolute log error of the step time of {runs} runs that no fit has seen
  ({median} and {mean} % today), in points;
- *rank*: mean rank correlation of the layouts of {jobs} jobs ({rank} today);
- *memory*: mean absolute log error of the memory of {memories} runs ({memory} % today), in points;
- *peak*: the same of {peaks} peaks of third-party code and of torch's sharding ({peak_error} %
  today), in points.
"""


def main(
    data: Annotated[Path, typer.Option(help="Folder with CSV files of measured runs.")],
    output: Annotated[Path, typer.Option(help="The page to write.")] = PAGE,
) -> None:
    """Remove each trait and each part once, and write the page."""
    evidence = Evidence(data)
    rows, grid = [], {}
    for trait, stating in stated_traits().items():
        if STATED.match(trait):
            row = Row(trait, tuple(stating), 0, 0, 0, {})
        else:
            row = ablate(
                evidence, trait, tuple(stating), functools.partial(without_trait, trait=trait)
            )
        rows.append(row)
        if not row.moved and not STATED.match(trait):
            frameworks = [load_framework(name) for name in names("framework")]
            pairs = [(one, without_trait(one, trait)) for one in frameworks]
            grid[trait] = any(moves_grid(*pair) for pair in pairs if pair[0] is not pair[1])
        print(trait, row.moved, grid.get(trait, ""), file=sys.stderr, flush=True)
    terms = [
        ablate(evidence, name, (), lambda framework: framework, (kind, name))
        for kind, names_of in part_names(evidence).items()
        for name in names_of
    ]
    output.write_text(page(evidence, rows, [term for term in terms if term.moved], grid))
    print(f"{len(rows)} traits, {len(terms)} parts; wrote {output}", file=sys.stderr)


def part_names(evidence: Evidence) -> dict[str, list[str]]:
    """Return the names of the parts of step time and memory."""
    run = evidence.runs[0]
    batch = estimate_layouts(run.scenario, Layouts.of(run.layout))
    return {"time": list(batch.time_parts_s), "memory": list(batch.memory_parts_bytes)}


if __name__ == "__main__":
    typer.run(main)
