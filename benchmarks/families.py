"""Families: transformers' code of every family, wrapped as emitted files do, beside the estimate.

    python benchmarks/families.py      # writes docs/reference/families.md; half an hour

Each case is one step of one rank (planner/validate/folder, benchmarks/referee). Needs
transformers, accelerate, deepspeed, and peft for the rows with adapters. Also writes how far
estimates are off for families that the program does not know.
"""

from __future__ import annotations

import contextlib
import itertools
import json
import math
import sys
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from statistics import median
from typing import Any, NamedTuple

import numpy as np

ROOT = Path(__file__).parent.parent
sys.path.insert(0, str(ROOT))

from conformal import distribution, quantiles  # noqa: E402

from planner.choose.jobs.job_spec import JobSpec  # noqa: E402
from planner.choose.planning import estimate_job, scenario_for  # noqa: E402
from planner.cost.memory.peak import device_memory  # noqa: E402
from planner.cost.scenario import Scenario  # noqa: E402
from planner.cost.shards.layouts import Layouts  # noqa: E402
from planner.cost.shards.stages import Stages  # noqa: E402
from planner.cost.uncertainty import memory_outlook  # noqa: E402
from planner.describe.files import read_toml  # noqa: E402
from planner.describe.layout import Layout, Recompute  # noqa: E402
from planner.describe.model.huggingface.config import from_config  # noqa: E402
from planner.describe.workload import Workload  # noqa: E402
from planner.emitters.batch_job import BatchJob  # noqa: E402
from planner.emitters.recipes import deepspeed, fully_shard  # noqa: E402
from planner.validate.trace.compare import NOT_TRACED  # noqa: E402
from planner.validate.trace.tracer import TraceError, Tracer  # noqa: E402

PAGE = ROOT / "docs" / "reference" / "families.md"
SPREAD = ROOT / "planner" / "cost" / "scenario" / "unknown_blocks.toml"
GIB, RANKS = 2**30, 8
_SMALL = {"sequence": 512, "micro_batch": 1}
"""Size of the cases that run on real tensors."""
_PROJECTIONS = ["q_proj", "k_proj", "v_proj", "o_proj"]
_CODE = {
    "accelerate": "planner.validate.folder.huggingface",
    "fsdp2": "planner.validate.folder.huggingface",
    "ddp": "benchmarks.referee.ddp",
    "deepspeed": "benchmarks.referee.deepspeed",
}
"""Module that runs one step of each framework."""


class Case(NamedTuple):
    """One step of one rank of a family's code under a framework."""

    family: str
    framework: str
    recompute: Recompute = "none"
    precision: str = "bf16"
    zero_stage: int = 3
    lora_rank: int = 0
    sequence: int = 1024
    micro_batch: int = 2

    @property
    def fields(self) -> dict[str, Any]:
        """Fields of the family's config.json."""
        return dict(read_toml(Path(__file__).with_suffix(".toml"))[self.family])

    @property
    def layout(self) -> Layout:
        """All ranks as data parallelism."""
        return Layout(
            dp=RANKS,
            zero_stage=self.zero_stage,
            micro_batch=self.micro_batch,
            recompute=self.recompute,
        )

    def job(self, *, traits: bool = True) -> JobSpec:
        """The case as a job; without traits, of a family whose code nobody read."""
        workload = Workload(
            sequence_length=self.sequence,
            global_batch=self.layout.global_batch,
            dropout=0.0,
            precision=self.precision,
            lora_rank=self.lora_rank,
        )
        model = from_config(self.fields, self.family)
        if not traits:
            model = model.replaced(written={})
        return JobSpec(model, "dgx-h100", workload=workload, frameworks=self.framework)

    def cells(self) -> str:
        """First cells of the case's row."""
        stage = f"ZeRO-{self.zero_stage}" if self.framework != "ddp" else "-"
        extra = ", ".join([self.precision, *[f"LoRA {self.lora_rank}"] * bool(self.lora_rank)])
        return f"{self.family} | {self.framework} | {stage} | {self.recompute} | {extra}"


def cases() -> Iterator[Case]:
    """Yield all cases: every family under both kinds of fully_shard, and samples of the rest."""
    families = read_toml(Path(__file__).with_suffix(".toml"))
    modes: tuple[Recompute, ...] = ("none", "full")
    decoders = [family for family in families if family not in ("bert", "roberta")]
    for family, framework in itertools.product(decoders, ("accelerate", "fsdp2")):
        yield from (Case(family, framework, recompute) for recompute in modes)
    for family in ("mistral", "gpt2", "bloom", "gpt_neox"):
        yield Case(family, "accelerate", precision="fp32")
    for family in ("mistral", "gemma2", "mixtral"):
        yield from (Case(family, "accelerate", recompute, zero_stage=2) for recompute in modes)
    for family in ("mistral", "qwen2", "granite", "llama", "qwen3", "gemma", "stablelm", "olmo2"):
        yield Case(family, "accelerate", lora_rank=16)
    for family in ("llama", "gemma"):
        yield Case(family, "accelerate", "full", lora_rank=16)
        yield Case(family, "accelerate", lora_rank=64)
    for family in ("llama", "qwen2", "gemma", "gpt2", "bloom", "opt", "gpt_neox"):
        for precision in ("bf16", "fp32"):
            yield Case(family, "ddp", precision=precision, zero_stage=0, **_SMALL)
    yield Case("llama", "ddp", "full", zero_stage=0, **_SMALL)
    yield Case("bloom", "ddp", "full", zero_stage=0, **_SMALL)
    for family, stage in itertools.product(
        ("llama", "qwen2", "gpt2", "bloom", "opt", "bert", "roberta"), (1, 2, 3)
    ):
        yield Case(family, "deepspeed", zero_stage=stage, **_SMALL)
    yield Case("llama", "deepspeed", "full", zero_stage=2, **_SMALL)
    yield Case("llama", "deepspeed", "full", zero_stage=3, **_SMALL)
    yield Case("llama", "deepspeed", precision="fp32", zero_stage=3, **_SMALL)


def measure(case: Case, tracers: Mapping[str, Tracer]) -> tuple[float, Figures] | None:
    """Traced peak of a case [B], and what the program says of it.

    None for a model that torchtitan builds, whose folder has no `sharding.py`.
    """
    job = case.job()
    scenario = scenario_for(job, case.layout)
    if case.framework == "fsdp2" and not scenario.framework.kernels.transformers_blocks:
        return None
    request: dict[str, Any] = {
        "config": case.fields,
        "layout": case.layout.model_dump(),
        "sequence": case.sequence,
        "attention": "default",
        "precision": case.precision,
        "code": _CODE[case.framework],
        "wrap": "accelerate",
        "kind": scenario.model.kind,
    }
    if case.lora_rank:
        adapters = {"target_modules": _PROJECTIONS, "lora_alpha": 16, "r": case.lora_rank}
        request["lora"] = adapters
    batch = BatchJob(scenario, estimate_job(job, case.layout), 1, 1)
    if case.framework == "fsdp2":
        text = next(file.text for file in fully_shard.recipe(batch).files)
        request |= {"wrap": "sharding.py", "fused": True, "sharding": text}
    if case.framework == "deepspeed":
        request["engine"] = json.loads(deepspeed.config_file(batch).text)
    if case.framework == "deepspeed":
        # its engine runs once in a process
        with Tracer() as tracer:
            return tracer.ask(request)["peak"], Figures.of(case)
    real = tracers[_CODE[case.framework]].ask(request)["peak"]
    return real, Figures.of(case)


class Figures(NamedTuple):
    """What the program says of a case."""

    estimate: float
    """Peak without the device's context and the allocator's reserve [B]."""
    without_traits: float
    """The same for a family whose code nobody read [B]."""
    low: float
    """5 % quantile of measured / estimated."""
    high: float
    """95 % quantile of measured / estimated."""
    known: bool
    """Whether the program knows the blocks of the family under the framework."""

    @classmethod
    def of(cls, case: Case) -> Figures:
        """Estimate a case, with and without the traits of its family."""
        scenario = scenario_for(case.job(), case.layout)
        spread = memory_outlook(scenario, Layouts.of(case.layout))
        return cls(
            _peak(scenario, case.layout),
            _peak(scenario_for(case.job(traits=False), case.layout), case.layout),
            float(np.min(spread.low)),
            float(np.max(spread.high)),
            # rows of ddp run transformers' models, not those of nanoGPT that it counts
            scenario.knows_blocks and case.framework != "ddp",
        )


def _peak(scenario: Scenario, layout: Layout) -> float:
    parts, _ = device_memory(Stages.of_pipeline(scenario, layout))
    return sum(float(np.max(size)) for name, size in parts.items() if name not in NOT_TRACED)


INTRODUCTION = """\
# Families of transformers beside the estimate

Written by `benchmarks/families.py`; do not edit by hand.

One step of one rank of transformers' own code for each family: 8 ranks, 8 layers of width 1,024.
Attention is what transformers takes by default. Rows of accelerate run its
`fsdp2_prepare_model`, those of fsdp2 the emitted `sharding.py`, for families that torchtitan does
not build: two sequences of 1,024 tokens on tensors without data. Rows of ddp run torch's
DistributedDataParallel, with autocast in bf16; rows of deepspeed run `deepspeed.initialize` with
the emitted configuration: one sequence of 512 tokens on real tensors, with matrix products left
out. Every storage is followed; *real* is the highest sum. The estimate leaves out the device's
context and the allocator's reserve.

Traits of families were set by reading this code, with most of these rows in sight. *Without
traits* is the estimate for a model of the same sizes whose family the program does not know.
Framework ddp counts the blocks of nanoGPT for every family. An estimate of a pair that is not here
says so, and its interval is widened by the errors of estimates without traits.
"""


class Row(NamedTuple):
    """A case with its traced peak [B] and what the program says of it."""

    case: Case
    real: float
    figures: Figures

    @property
    def error(self) -> float:
        """Estimate / real - 1."""
        return self.figures.estimate / self.real - 1

    @property
    def inside(self) -> bool:
        """Whether the traced peak is inside the 90 % interval."""
        return self.figures.low <= self.real / self.figures.estimate <= self.figures.high

    @property
    def unknown(self) -> float:
        """Measured / estimated of a pair of family and library that the program does not know."""
        known = self.figures.known
        return self.real / (self.figures.without_traits if known else self.figures.estimate)

    def __str__(self) -> str:
        plain = 100 * (self.figures.without_traits / self.real - 1)
        return (
            f"| {self.case.cells()} | {self.real / GIB:.2f} | {self.figures.estimate / GIB:.2f} "
            f"| {100 * self.error:+.2f} % | {plain:+.1f} % |"
        )


def _summary(name: str, rows: Sequence[Row]) -> str:
    sizes = [abs(row.error) for row in rows]
    inside = sum(row.inside for row in rows)
    return (
        f"{len(sizes)} cases {name}: median {100 * median(sizes):.2f} %, worst "
        f"{100 * max(sizes):.2f} %, {sum(size <= 0.01 for size in sizes)} within 1 %, {inside} "
        "inside the 90 % interval."
    )


def write_page(rows: Sequence[Row]) -> None:
    """Write the page of all cases."""
    names = ("family", "framework", "shards", "recompute", "precision", "real", "estimate", " ")
    head = f"| {' | '.join(names)} | without traits |"
    known, unknown = ([r for r in rows if r.figures.known == each] for each in (True, False))
    summary = [_summary("of known pairs", known)]
    summary += ["", _summary("of unknown pairs", unknown)] if unknown else []
    table = [head, "|---|---|---|---|---|---:|---:|---:|---:|", *map(str, rows)]
    PAGE.write_text("\n".join([INTRODUCTION, *summary, "", "In GiB:", "", *table]) + "\n")


def write_spread(rows: Sequence[Row]) -> None:
    """Write measured over estimated memory of unknown pairs, as `memory_spread.toml` has it."""
    # recompute, precision and stages of one family repeat its error: one row per family and code
    worst: dict[tuple[str, str], float] = {}
    for row in rows:
        key = row.case.family, row.case.framework
        worst[key] = max(worst.get(key, 1.0), row.unknown, key=lambda ratio: abs(math.log(ratio)))
    low, high = quantiles(list(worst.values()))
    parts, ratios = distribution(list(worst.values()))
    lines = [
        "# Written by benchmarks/families.py: traced over estimated memory of models whose family",
        "# the program does not know: estimates without traits of their families, or with the",
        "# blocks of another program; the worst case of each family and framework.",
        "",
        '["unknown blocks"]',
        f"low = {low:.4f}",
        f"high = {high:.4f}",
        f"num_runs = {len(worst)}",
        f"num_sources = {len({family for family, _ in worst})}",
        f"parts = [{', '.join(f'{part:.4f}' for part in parts)}]",
        f"ratios = [{', '.join(f'{ratio:.4f}' for ratio in ratios)}]",
    ]
    SPREAD.write_text("\n".join(lines) + "\n", encoding="utf-8")


def main() -> None:
    """Run every case; write the page and the spread of unknown pairs."""
    rows = []
    with contextlib.ExitStack() as stack:
        tracers = {code: stack.enter_context(Tracer()) for code in {*_CODE.values()}}
        for case in cases():
            try:
                found = measure(case, tracers)
            except TraceError as error:
                print(case, error, file=sys.stderr, flush=True)
                continue
            if found is not None:
                rows.append(Row(case, *found))
                print(rows[-1], file=sys.stderr, flush=True)
    write_page(rows)
    write_spread(rows)


if __name__ == "__main__":
    main()
