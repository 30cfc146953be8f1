"""Runs: measured training runs, read from a table in CSV.

Any cell may be empty and any column missing; what is missing is filled by a stated default or
the row is refused with the reason. One bad row never costs the others.
"""

from __future__ import annotations

import csv
import io
import math
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

from planner.cost.parts import MemoryKind
from planner.describe.framework import Framework
from planner.describe.layout import Layout
from planner.describe.machine import Machine
from planner.describe.model.model import Model
from planner.describe.question import Question
from planner.describe.workload import Workload
from planner.errors import CatalogueError, PlannerError, shorten
from planner.evidence.runs.cells import Cells
from planner.evidence.runs.choices import fastest, tuned
from planner.evidence.runs.frameworks import (
    ADAPTER_WORDS,
    LORA_RANK,
    NOT_COMPILED,
    FrameworkRule,
    described_framework,
    framework_rule,
)
from planner.evidence.runs.labels import machine_of, precision_of, year_of
from planner.evidence.runs.layouts import layout_is_stated, layout_of, usual_batch
from planner.evidence.runs.models import model_of
from planner.units import GIB

__all__ = ["RefusedRun", "Run", "read_runs", "runs_from_text"]

ESSENTIAL = (
    "n_gpus",
    "gpu",
    "model",
    "n_layers",
    "hidden",
    "seq_len",
    "framework",
    "dp",
    "tp",
    "pp",
    "micro_batch",
    "global_batch",
    "step_time_s",
    "tokens_per_s_per_gpu",
    "samples_per_s",
)
"""A table needs at least two of these columns to be one of runs."""

_MAX_FILE_BYTES = 200_000_000
_MAX_RANKS = 10_000_000
_GPT_DROPOUT = 0.1
"""Megatron-LM's default; its GPT papers train with it."""


@dataclass(frozen=True, slots=True)
class Run:
    """One measured run: the question it answers, its layout, and what was measured."""

    row_id: str
    source: str
    machine: Machine
    machine_label: str
    """Catalogue name with overrides."""
    framework: Framework
    model: Model
    workload: Workload
    layout: Layout
    step_time_s: float | None
    """Measured time of one optimizer step [s]."""
    memory_bytes: float | None
    """Measured peak memory of the fullest device [B]."""
    memory_kind: MemoryKind
    fits: bool | None
    """Whether the run went through; False: out of memory or a crash that may be one."""
    assumed: tuple[str, ...]
    """One sentence per cell that was filled by a default."""
    guessed: bool = False
    """Whether the job itself was guessed: model shape, software, devices or layout."""
    open_recompute: bool = False
    """Whether the row does not say what is recomputed."""
    reference: str = ""
    """Where in the source the row stands."""
    reliability: str = ""
    """high, medium or low, as the table judges the row; empty where it does not."""


@dataclass(frozen=True, slots=True)
class RefusedRun:
    """A row that cannot be scored, and why."""

    row_id: str
    source: str
    reason: str


def read_runs(path: str | Path) -> list[Run | RefusedRun]:
    """Every row of a CSV of runs, in order.

    CatalogueError where the file is no such table at all.
    """
    return runs_from_text(_decoded(Path(path)), shorten(str(path)))


def runs_from_text(text: str, where: str) -> list[Run | RefusedRun]:
    """Every row of a table of runs as text, in order; `where` names it in messages."""
    return [_read_row(number, row) for number, row in _rows(text, where)]


def _decoded(path: Path) -> str:
    where = shorten(str(path))
    try:
        size = path.stat().st_size
        if size > _MAX_FILE_BYTES:
            raise CatalogueError(
                f"{where} has {size / 1e6:.0f} MB; tables above {_MAX_FILE_BYTES / 1e6:.0f} MB "
                "are refused: split it"
            )
        data = path.read_bytes()
    except OSError as error:
        raise CatalogueError(f"cannot read {where}: {error.strerror}; check the path") from None
    if data[:2] in (b"\xff\xfe", b"\xfe\xff"):
        return data.decode("utf-16", errors="replace")
    try:
        return data.decode("utf-8-sig")
    except UnicodeDecodeError:
        return data.decode("cp1252", errors="replace")


def _rows(text: str, where: str) -> Iterator[tuple[int, dict[str, str] | str]]:
    """Line number and cells of every row, or what is wrong with its text."""
    text = text.replace("\0", "")
    first = text.split("\n", 1)[0]
    delimiter = max(",;\t", key=first.count)
    reader = csv.reader(io.StringIO(text, newline=""), delimiter=delimiter)
    try:
        header = [name.strip().lower() for name in next(reader, [])]
    except csv.Error:
        header = []
    if len(set(header) & set(ESSENTIAL)) < 2:
        raise CatalogueError(
            f"{where} is no table of runs: its first line must name columns such as "
            f"{', '.join(ESSENTIAL[:8])}"
        )
    while True:
        try:
            cells = next(reader)
        except StopIteration:
            return
        except csv.Error as error:
            yield reader.line_num, str(error)
            continue
        if any(cell.strip() for cell in cells):
            # a short row leaves its last columns empty, a long one has nothing to name them
            yield reader.line_num, dict(zip(header, cells, strict=False))


def _read_row(number: int, row: dict[str, str] | str) -> Run | RefusedRun:
    if isinstance(row, str):
        return RefusedRun(f"line {number}", "", f"line {number} is not readable as CSV: {row}")
    cells = Cells(row)
    row_id = shorten(cells.text("row_id") or f"line {number}")
    source = shorten(cells.text("source") or "not stated", 120)
    try:
        return _run(row_id, source, cells)
    except PlannerError as error:
        return RefusedRun(row_id, source, str(error))


def _run(row_id: str, source: str, cells: Cells) -> Run:
    year = year_of(cells.text("year"))
    num_ranks = _num_ranks(cells)
    if num_ranks > _MAX_RANKS:
        raise PlannerError(f"n_gpus = {num_ranks} exceeds {_MAX_RANKS:,}; correct the cell")
    memory = cells.number("gpu_mem_gb")
    machine, label, assumed = machine_of(
        cells.text("system"), cells.text("gpu"), memory, cells.count("gpus_per_node")
    )
    cells.assumed.extend(assumed)
    rule = _rule(cells, year)
    liger = "liger" in cells.text("framework").lower()
    framework = described_framework(rule, _compiled(cells, rule), liger)
    model = model_of(cells, _GPT_DROPOUT if "megatron" in framework.name else 0.0)
    if layout_is_stated(cells, framework):
        layout, batch = layout_of(cells, rule, framework, num_ranks)
        workload = _workload(cells, machine, rule, year, batch)
        layout = tuned(cells, Question(model, machine, workload, framework), layout)
    else:
        batch = usual_batch(cells, num_ranks)
        workload = _workload(cells, machine, rule, year, batch)
        question = Question(model, machine, workload, framework)
        layout = fastest(cells, rule, question, num_ranks)
    step = _step_time_s(cells, workload, num_ranks)
    peak, kind = _memory(cells)
    return Run(
        row_id,
        source,
        machine,
        label,
        framework,
        model,
        workload,
        layout,
        step,
        peak,
        kind,
        _fits(cells, step, peak),
        tuple(cells.assumed),
        cells.guessed,
        not cells.text("recompute"),
        cells.text("source_ref"),
        cells.text("reliability").lower(),
    )


def _num_ranks(cells: Cells) -> int:
    degrees = [cells.count(axis) for axis in ("dp", "tp", "pp", "cp")]
    if cells.count("n_gpus") is None and any(degrees):
        ranks = math.prod(degree or 1 for degree in degrees)
        return cells.guess(ranks, f"n_gpus missing: dp * tp * pp * cp = {ranks}")
    return cells.need("n_gpus")


def _rule(cells: Cells, year: int | None) -> FrameworkRule:
    label = cells.text("framework")
    rule = framework_rule(label, year)
    if rule is None:
        name = _usual_framework(cells)
        missing = f"{shorten(label, 40)!r} is not described; as {name}" if label else ""
        rule = framework_rule(cells.guess(name, missing or f"framework missing: {name}"), year)
        assert rule is not None
    elif rule.stands_in:
        cells.assumed.append(f"{shorten(label, 40)} is not described; as {rule.framework}")
    return rule


def _compiled(cells: Cells, rule: FrameworkRule) -> bool:
    stated = cells.text("compile").lower()
    if rule.compiles and not stated:
        return cells.default(True, "compile missing: yes, usual there")
    return stated not in NOT_COMPILED


def _usual_framework(cells: Cells) -> str:
    """What trains with such degrees and such sharding, where the framework is not known."""
    if max(cells.count(axis) or 1 for axis in ("tp", "pp", "cp", "ep")) > 1:
        return "megatron-lm"
    sharded = cells.count("zero_stage", zero=True)
    if sharded is None:
        return "fsdp2" if cells.text("framework") else "ddp"
    return "fsdp2" if sharded >= 2 else "deepspeed" if sharded else "ddp"


def _workload(
    cells: Cells, machine: Machine, rule: FrameworkRule, year: int | None, batch: int
) -> Workload:
    precision = precision_of(cells.text("precision"))
    if precision is None:
        early = rule.framework in ("megatron-lm-2021", "horovod")
        peaks = machine.device.peak_flop_per_s
        usual = "fp16" if early or "bf16" not in peaks else "bf16"
        precision = cells.default(usual, f"precision missing: {usual}")
    machine.peak(precision)
    fields = {
        "sequence_length": cells.need("seq_len"),
        "global_batch": batch,
        "precision": precision,
        "attention": _attention(cells, machine, rule, year),
        "lora_rank": _lora_rank(cells),
    }
    return Workload.described(fields, where="workload")


def _attention(cells: Cells, machine: Machine, rule: FrameworkRule, year: int | None) -> str:
    stated = cells.flag("flash_attention")
    if stated is not None:
        return "flash" if stated else "eager"
    late = (year if year is not None else 9999) >= rule.flash_since
    # fused attention kernels need the matrix units that came with bf16
    kind = "flash" if late and "bf16" in machine.device.peak_flop_per_s else "eager"
    return cells.default(kind, f"flash_attention missing: {kind} attention, usual then")


def _lora_rank(cells: Cells) -> int:
    if not any(word in cells.text("model").lower() for word in ADAPTER_WORDS):
        return 0
    return cells.default(LORA_RANK, f"LoRA without a rank: {LORA_RANK}, usual there")


def _step_time_s(cells: Cells, workload: Workload, num_ranks: int) -> float | None:
    stated, rate = cells.number("step_time_s"), cells.number("tokens_per_s_per_gpu")
    samples = cells.number("samples_per_s")
    if rate is None and samples is not None:
        rate = samples * workload.sequence_length / num_ranks
    contradicted = any("contradicts the layout" in sentence for sentence in cells.assumed)
    if rate is not None and (stated is None or contradicted):
        return workload.tokens_per_step / (rate * num_ranks)
    return stated


def _memory(cells: Cells) -> tuple[float | None, MemoryKind]:
    peak, text = cells.number("peak_memory_gib"), cells.text("memory_kind").lower()
    if peak is None:
        return None, "allocated"
    peak *= GIB
    if "smi" in text or "gb per gpu" in text:
        return peak, "device"
    if "alloc" in text and "reserved" in text:
        # such peaks grow with the number of micro-batches, as only reserved memory does
        return peak, cells.default("reserved", "allocated or reserved: compared with reserved")
    if "alloc" in text or text.startswith("active"):
        return peak, "allocated"
    if "reserved" in text:
        return peak, "reserved"
    kind: MemoryKind = "allocated"
    return peak, cells.default(kind, "memory_kind not known: compared with allocated memory")


def _fits(cells: Cells, step: float | None, peak: float | None) -> bool | None:
    failed = cells.flag("oom")
    if failed:
        return False
    return True if step is not None or peak is not None or failed is False else None
