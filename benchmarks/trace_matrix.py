"""Trace matrix: torch's own sharding next to the estimate, layout by layout.

    python benchmarks/trace_matrix.py    # writes docs/reference/validation.md; about 20 minutes

It also writes `tests/validate/trace/kept.jsonl`: 260 of the traces, for a test that compares them
with the estimate without torch.

Two sets of cases: three models of real widths and few layers, over every ZeRO stage, tensor and
sequence parallelism, pipelines and recompute modes at three world sizes; and models of full depth
(traced at two depths and extended), with peaks as in real trainings. Traces are stored in a file
(`--traces`): a stopped run resumes, and a changed formula is compared again without tracing.
"""

from __future__ import annotations

import itertools
import json
import queue
import random
import sys
import threading
import time
from collections import defaultdict
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Annotated, Any

import typer

from planner.cost.scenario import Scenario
from planner.describe.catalogue import load_framework, load_machine, load_model
from planner.describe.layout import Layout
from planner.describe.workload import Workload
from planner.errors import PlannerError
from planner.validate.trace.compare import Comparison, compare
from planner.validate.trace.expected_collectives import Collective
from planner.validate.trace.stage_trace import Trace, trace
from planner.validate.trace.tracer import Tracer

ROOT = Path(__file__).parent.parent
KEPT, PAGE = Path("trace_matrix.jsonl"), ROOT / "docs" / "reference" / "validation.md"
FIXTURE, FIXED = ROOT / "tests" / "validate" / "trace" / "kept.jsonl", 260
WORLDS = (8, 64, 1024)
MODELS = {"GPT": "gpt3-175b", "Llama": "llama-3-8b", "MoE": "mixtral-8x7b"}
DEEP = {"GPT": ("ptdp-18b", 2048), "Llama": ("llama-3-8b", 8192), "MoE": ("mixtral-8x7b", 4096)}
"""Models of full depth and their sequence lengths, by family."""
OTHERS = {
    "Gemma 2": ("gemma-2-27b", 4096, 3),
    "OLMo 2": ("olmo-2-7b", 4096, 3),
    "DeepSeek-V3": ("deepseek-v3", 4096, 3),
    "gpt-oss": ("gpt-oss-20b", 4096, 3),
    "BLOOM": ("bloom-176b", 2048, 3),
    "BERT": ("bert-large", 512, 3),
    "ViT": ("vit-h-14", 257, 3),
    "Llama, context": ("llama-3-8b", 16384, 3),
    "Llama, interleaved": ("llama-3-8b", 2048, 14),
    "Mixtral, experts": ("mixtral-8x7b", 4096, 0),
    "Qwen3, experts": ("qwen3-30b-a3b", 4096, 0),
    "gpt-oss, experts": ("gpt-oss-20b", 4096, 0),
    "DeepSeek-V3, experts": ("deepseek-v3", 4096, 0),
}
"""Other families and axes: model, sequence length and layers, 0 for all of them."""
SPLITS = ((1, False), (2, False), (2, True), (8, False), (8, True))
RECOMPUTE = ("none", "selective", "full")
STAGES = (0, 1, 3)
LAYERS = {1: 3, 4: 6}
"""Layers by pipeline stages; with four stages these hold 1, 2, 2 and 1 of them."""
PASSES = {1: 2, 4: 5}
DEEP_PASSES = {1: 2, 4: 8}
EXACT = ("weights", "gradients", "optimizer_states")
COMPARED = {
    "start_of_backward_bytes": ("activations", "gathered_parameters", "receive_buffers"),
    "loss_parts_bytes": ("logits", "temporaries"),
    "peak_parts_bytes": (),
    "phases_bytes": (),
}
"""Entries of a trace's tables that a comparison reads."""


@dataclass(frozen=True)
class Case:
    """One rank of one layout."""

    family: str
    layout: Layout
    stage: int
    deep: bool = False

    @property
    def key(self) -> str:
        """Name of the case in the file of traces."""
        # trace files are older than the text for sequence parallelism
        words = self.layout.replaced(sequence_parallel=False)
        name = f"{self.family} {words} sp{int(self.layout.sequence_parallel)} s{self.stage}"
        return f"deep {name}" if self.deep else name

    @property
    def scenario(self) -> Scenario:
        """The shortened or full model with its workload, as a scenario."""
        name, rows = DEEP[self.family] if self.deep else (MODELS.get(self.family, ""), 2048)
        layers = LAYERS[self.layout.pp]
        if self.family in OTHERS:
            name, rows, layers = OTHERS[self.family]
        model = load_model(name).replaced(dropout=0.0)
        if not self.deep and layers:
            dense = (
                {"num_dense_layers": min(model.experts.num_dense_layers, 1)}
                if model.experts
                else {}
            )
            experts = model.experts and model.experts.replaced(**dense).model_dump()
            model = model.replaced(num_layers=layers, experts=experts)
        workload = Workload(sequence_length=rows, global_batch=self.layout.global_batch)
        return Scenario(
            model, load_machine("dgx-h100"), workload, load_framework("fsdp2").with_own_blocks()
        )


def cases() -> Iterator[Case]:
    """Yield all legal combinations with few layers, then those of full depth on 64 ranks.

    A ZeRO stage needs replicas to shard over. A pipeline's first, second and last stage take
    turns. Other families and axes follow.
    """
    for deep in (False, True):
        worlds = (64,) if deep else WORLDS
        for family, world, pp, split in itertools.product(MODELS, worlds, (1, 4), SPLITS):
            tp, sequence = split
            if world % (tp * pp) or (deep and split not in ((1, False), (8, True))):
                continue
            if deep and pp > 1 and tp > 1:
                continue
            for zero, recompute in itertools.product(range(4 if world > tp * pp else 1), range(3)):
                turn = (zero + recompute + WORLDS.index(world)) % 3
                layout = Layout(
                    dp=world // (tp * pp),
                    tp=tp,
                    sequence_parallel=sequence,
                    pp=pp,
                    zero_stage=zero,
                    recompute=RECOMPUTE[recompute],
                    schedule="1f1b" if pp > 1 else "none",
                    grad_accumulation=(DEEP_PASSES if deep else PASSES)[pp],
                )
                yield Case(family, layout, STAGES[turn] if pp > 1 else 0, deep)


def others() -> Iterator[Case]:
    """Yield other families, context and expert parallelism, and an interleaved schedule."""
    alone = {"BERT": 32, "ViT": 64}  # micro-batch of families with short sequences
    for family in OTHERS:
        if ", " in family:
            continue
        batch = alone.get(family, 1)
        yield Case(family, Layout(dp=64, zero_stage=3, micro_batch=batch), 0)
        yield Case(family, Layout(dp=64, zero_stage=2, micro_batch=batch, recompute="full"), 0)
        if family in ("Gemma 2", "gpt-oss", "BLOOM"):
            yield Case(family, Layout(dp=8, tp=8, sequence_parallel=True, zero_stage=3), 0)
    for cp, tp, recompute in ((4, 1, "none"), (2, 2, "full"), (8, 8, "none")):
        layout = Layout(dp=64 // (cp * tp), cp=cp, tp=tp, zero_stage=3, recompute=recompute)
        yield Case("Llama, context", layout.replaced(sequence_parallel=tp > 1), 0)
    piped = Layout(dp=16, pp=4, vpp=2, schedule="interleaved-1f1b", grad_accumulation=8)
    for stage, zero in ((1, 2), (2, 3), (0, 2), (3, 2)):
        yield Case("Llama, interleaved", piped.replaced(zero_stage=zero), stage)
    yield from _expert_parallel()


def _expert_parallel() -> Iterator[Case]:
    """Yield cases with expert parallelism and all layers of their models."""
    eight = Layout(dp=64, ep=8, zero_stage=3)
    for layout in (
        eight,
        eight.replaced(recompute="selective"),
        eight.replaced(zero_stage=2, recompute="full", grad_accumulation=2),
        eight.replaced(dp_shard=16),
        eight.replaced(dp=16, cp=4),
    ):
        yield Case("Mixtral, experts", layout, 0)
    piped = eight.replaced(dp=16, pp=4, zero_stage=2, schedule="1f1b", grad_accumulation=8)
    yield Case("Mixtral, experts", piped, 1)
    yield Case("Qwen3, experts", eight.replaced(ep=16), 0)
    yield Case("Qwen3, experts", eight.replaced(ep=64, recompute="selective"), 0)
    yield Case("gpt-oss, experts", eight.replaced(dp=32, micro_batch=2), 0)
    for ep, recompute in ((64, "full"), (32, "none")):
        layout = Layout(dp=512, ep=ep, zero_stage=3, recompute=recompute)
        yield Case("DeepSeek-V3, experts", layout, 0)


# --- tracing ---------------------------------------------------------------------------------


def traced(path: Path, chosen: list[Case], jobs: int) -> dict[str, dict[str, Any]]:
    """Return traces or errors by key; traces only the cases that are missing in the file."""
    found = {}
    if path.exists():
        found = {row["key"]: row for row in map(json.loads, path.read_text().splitlines())}
    todo: queue.SimpleQueue[Case] = queue.SimpleQueue()
    for case in chosen:
        if case.key not in found:
            todo.put(case)
    start, total, lock = time.monotonic(), todo.qsize(), threading.Lock()

    def keep(case: Case, made: dict[str, Any]) -> None:
        with lock, path.open("a") as file:
            found[case.key] = {"key": case.key, "trace": made}
            file.write(json.dumps(found[case.key]) + "\n")
            done = total - todo.qsize()
            passed = time.monotonic() - start
            print(f"\r{done} of {total}, {passed:.0f} s  ", end="", file=sys.stderr, flush=True)

    def work() -> None:
        with Tracer() as tracer:
            while not todo.empty():
                case = todo.get()
                try:
                    made = trace(case.scenario, case.layout, stage=case.stage, tracer=tracer)
                    keep(case, made.as_dict())
                except PlannerError as error:
                    keep(case, {"error": str(error)})

    # each thread only waits for its own worker process
    threads = [threading.Thread(target=work) for _ in range(jobs)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    return found


def compared(case: Case, made: dict[str, Any]) -> Comparison:
    """Compare a stored trace with today's estimate."""
    collectives = tuple(Collective(**item) for item in made["collectives"])
    again = Trace(**{**made, "layout": case.layout, "collectives": collectives})
    return compare(case.scenario, case.layout, again)


# --- fixture ---------------------------------------------------------------------------------


def fixture(pairs: list[tuple[Case, Comparison]]) -> str:
    """Return a sample of the traces, only entries that are compared, with estimate errors."""
    lines = []
    for case, comparison in sorted(random.Random(9).sample(pairs, FIXED), key=lambda p: p[0].key):
        made = comparison.trace.as_dict()
        del made["layout"]
        for name, parts in COMPARED.items():
            made[name] = {part: made[name][part] for part in parts if part in made[name]}
        off = {p.name: round(p.error, 6) for p in comparison.parts if p.name not in EXACT}
        row = {"key": case.key, "differences": off, "trace": made}
        lines.append(json.dumps(row, separators=(",", ":")) + "\n")
    return "".join(lines)


# --- page ------------------------------------------------------------------------------------


@dataclass(frozen=True)
class Row:
    """One figure of one case: its relative error, and the phase of the traced peak."""

    error: float
    equal: bool
    case: Case
    phase: str


def differences(pairs: list[tuple[Case, Comparison]]) -> dict[str, list[Row]]:
    """Return rows by memory part and by collective."""
    found: dict[str, list[Row]] = defaultdict(list)
    for case, comparison in pairs:
        phase = comparison.trace.peak_phase
        for part in comparison.parts:
            equal = part.traced_bytes == part.estimated_bytes
            found[part.name].append(Row(part.error, equal, case, phase))
        for item in comparison.collectives:
            equal = (item.traced_bytes, item.count) == (item.estimated_bytes, item.estimated_count)
            found[f"{item.name} over {item.group}"].append(Row(item.error, equal, case, phase))
    return found


def worst(rows: list[Row]) -> Row:
    """Return the row with the largest error."""
    return max(rows, key=lambda row: abs(row.error))


def table(found: dict[str, list[Row]], names: list[str]) -> list[str]:
    """Make a table with one line per part: cases, equal, within 1, 2 and 5 %, worst error."""
    lines = [
        "| | cases | equal to the byte | within 1 % | 2 % | 5 % | worst |",
        "|---|" + "---:|" * 6,
    ]
    for name in names:
        rows = found[name]
        near = [sum(abs(row.error) < bound for row in rows) for bound in (0.01, 0.02, 0.05)]
        lines.append(
            f"| {name} | {len(rows)} | {sum(row.equal for row in rows)} | {near[0]} | {near[1]} "
            f"| {near[2]} | {100 * worst(rows).error:+.2f} % |"
        )
    return lines


def furthest(rows: list[Row], count: int) -> list[str]:
    """List the peaks with the largest errors, with the phase of the traced peak."""
    lines = ["| model | layout | stage | peak falls in | difference |", "|---|---|---:|---|---:|"]
    for row in sorted(rows, key=lambda row: -abs(row.error))[:count]:
        lines.append(
            f"| {row.case.family} | {row.case.layout} | {row.case.stage} | {row.phase} "
            f"| {100 * row.error:+.1f} % |"
        )
    return lines


def section(pairs: list[tuple[Case, Comparison]], count: int) -> list[str]:
    """Make the tables of one set of cases."""
    found = differences(pairs)
    parts = [name for name in found if " over " not in name]
    collectives = sorted(name for name in found if " over " in name)
    return [
        *table(found, parts),
        "",
        *table(found, collectives),
        "",
        "The peaks furthest off:",
        "",
        *furthest(found["peak"], count),
        "",
    ]


def page(pairs: list[tuple[Case, Comparison]], failed: list[tuple[Case, str]], version: str) -> str:
    """Return the text of docs/reference/validation.md."""
    few = [pair for pair in pairs if pair[0].family in MODELS and not pair[0].deep]
    other = [pair for pair in pairs if pair[0].family in OTHERS]
    deep = [pair for pair in pairs if pair[0].deep]
    lines = [
        INTRODUCTION.format(version=version, worlds=", ".join(map(str, WORLDS))),
        "## Few layers, every combination",
        "",
        FEW,
        "",
        *section(few, 12),
        "## Full depth",
        "",
        DEPTH,
        "",
        *section(deep, 6),
        "## Other families and axes",
        "",
        OTHER,
        "",
        *section(other, 8),
        EXCEPTIONS,
    ]
    if failed:
        lines += ["## Not traced", "", *(f"- {case.key}: {reason}" for case, reason in failed), ""]
    return "\n".join(lines)


INTRODUCTION = """\
# Validation against torch

Written by `benchmarks/trace_matrix.py` with torch {version}; do not edit by hand.

A trace builds the model from torch modules and shards it with torch's own FSDP2, DTensor,
activation checkpointing and pipeline schedules, under a process group of which one rank exists
and on tensors without data. It yields the bytes of every storage over a step and every
collective. Here the trace stands beside the estimate for the framework `fsdp2`.

`planner validate trace llama-3-8b --world 64 --tp 4 --zero 3` does the same for one layout.

- **weights, gradients, optimizer_states**: resident on the rank; AdamW's counters of steps, one
  number per tensor, are left out on both sides.
- **activations**: alive when a backward pass starts, with most micro-batches in flight.
- **logits_and_loss**: at the highest point of the loss.
- **peak**: of the whole step, without the device's context and the allocator's reserve.
- **collectives**: equal means the number of calls and the bytes of full buffers.

ZeRO-0 is `replicate`, the form of FSDP2 that only replicates. ZeRO-1 is `fully_shard` that keeps
gathered weights and whole gradients over the micro-batches of a step and reduces once;
torchtitan has no switch for it, so the search does not offer it. ZeRO-2 and 3 reduce after every
micro-batch, in a pipeline once per step. Worlds: {worlds} ranks.

torch's own recorders were tried on the same steps (torch 2.13) and are not exact: `CommDebugMode`
counts the same collectives but neither their bytes nor their groups, and fails in pipelines; the
peaks of `MemTracker` and `FSDPMemTracker` lack the buffers of reduce-scatters (GPT-2: dp 8 -19 %,
with full recompute -23 %, dp 8 x tp 2 -16 %); `FlopCounterMode` gives sums without sizes, and 0 for
fused attention on a CPU.
"""
FEW = """\
GPT-3 175B, Llama 3 8B and Mixtral 8x7B in their real widths with 3 layers (6 in a pipeline of 4
stages), 2048 tokens, 2 micro-batches (5 in a pipeline, schedule 1F1B); ZeRO 0 to 3, tp 1, 2, 8
with and without sequence parallelism, pp 1 and 4, recompute none, selective and full. With so few
layers a peak is decided by one layer's or the embedding's temporaries, which is harder than any
real training."""
DEPTH = """\
GPT 18B (2048 tokens), Llama 3 8B (8192) and Mixtral 8x7B (4096) with all their layers on 64
ranks, traced at two depths and extended linearly."""
OTHER = """\
Gemma 2 27B (four norms a layer, tied table), OLMo 2 7B (norms over all heads), DeepSeek-V3
(latent attention, a dense layer, 256 experts and a shared one), gpt-oss 20B (sinks, biases of
experts and router), BLOOM 176B (ALiBi, norm of the embedding), BERT large (token types, pooler,
no logits) and ViT-H/14 (patches) with 3 layers on 64 ranks; Llama 3 8B with context parallelism
(3 layers, 16384 tokens) and interleaved pipelines (14 layers, 2 chunks a stage); Mixtral 8x7B,
Qwen3 30B-A3B, gpt-oss 20B and DeepSeek-V3 with expert parallelism and all their layers. Attention
that torch has no CPU kernel for (two head widths, ALiBi, sinks, rings) runs through one of the
package's own, which keeps what the kernels of accelerators keep; its values equal torch's. Norms
of OLMo 2 stand before each half, where its own stand behind: as many bytes. Clamps of gpt-oss are
left out, in the trace and in the estimate."""
EXCEPTIONS = """\
## Why what differs differs

- **activations** below 1 %: q/k norms and fp32 rows of norms that the inventory of saved tensors
  leaves out, token numbers that it counts. Above: the patches of ViT, which it counts too.
- **logits_and_loss** below 0.1 %: per-token scalars of the loss.
- **peak**: the estimate looks at ten moments of a step; between them, weight gradients appear
  one by one while temporaries disappear. Where one layer's weights are as large as all
  activations, as in stages of one or two layers, that order shows.
  The two-depth extension is exact: a test holds it against a full trace.
- Groups of one rank move nothing and are not listed.
- The peak of an interleaved pipeline's last stage: the estimate takes its loss while most layers'
  activations are held; the loss falls where one layer less is.
- The peak of few layers where experts follow a dense layer: the estimate takes the largest layer
  for the first one as well.
- Experts over `ep` are sharded over the ranks that hold the same ones (`edp`), as in torchtitan
  0.3; tokens are taken to spread evenly over experts.
- Not traced: expert beside tensor parallelism, tensor parallelism of latent attention and of norms
  over all heads, encoder-decoders, offload, fp8, dropout; adapters and frozen parts beside other
  axes than `dp`, experts and tied tables. The command says so.

## Full traces, and real ranks

Traced layer by layer on one core in November 2026: Llama 3 8B on 64 ranks in 9 s and 0.33 GiB of
host memory, Llama 3.1 405B on 16,384 ranks (tp = 8, ZeRO-3, full recompute) in 47 s and 1.1 GiB.

`tests/validate/trace/test_trace_ranks.py` runs the same step on 2 and 4 real ranks with gloo:
bytes and calls of every collective, and resident states, equal the trace for ZeRO 0 to 3, hybrid
sharding, tensor and sequence parallelism, experts and pipelines. Peaks are equal to the byte
without tp and pipeline and within 1.5 % with a pipeline; with tp they are not compared, because
gloo's threads hold on to the tensors of their last operations.
"""


def main(
    traces: Annotated[Path, typer.Option(help="Where traces are kept.")] = KEPT,
    output: Annotated[Path, typer.Option(help="The page to write.")] = PAGE,
    jobs: Annotated[int, typer.Option(help="Worker processes.")] = 2,
) -> None:
    """Trace the missing cases, and write the page."""
    chosen = [*cases(), *others()]
    found = traced(traces, chosen, jobs)
    made = [(case, found[case.key]["trace"]) for case in chosen]
    failed = [(case, item["error"]) for case, item in made if "error" in item]
    pairs = [(case, compared(case, item)) for case, item in made if "error" not in item]
    output.write_text(page(pairs, failed, pairs[0][1].trace.torch.split("+")[0]))
    FIXTURE.write_text(fixture(pairs))
    print(f"\n{len(pairs)} cases, {len(failed)} not traced; wrote {output}", file=sys.stderr)


if __name__ == "__main__":
    typer.run(main)
