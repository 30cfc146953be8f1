"""One measured training run, read from the cells of a row."""

from __future__ import annotations

import math
from dataclasses import dataclass

from planner.cost.parts import MemoryKind
from planner.cost.scenario import Scenario
from planner.describe.framework.framework import Framework
from planner.describe.layout import Layout
from planner.describe.machine import Machine
from planner.describe.model.model import Model
from planner.describe.workload import Workload
from planner.errors import PlannerError
from planner.evidence.runs.cells import Cells
from planner.evidence.runs.labels import (
    Software,
    known_labels,
    normalised,
    precision_of,
    year_of,
)
from planner.evidence.runs.open_choices import choose_build, choose_layout, tune_layout
from planner.evidence.runs.reading import Note, Reading, as_stated, assumed, guessed, together
from planner.evidence.runs.run_layout import layout_is_stated, layout_of, usual_batch
from planner.evidence.runs.run_machine import Place, machine_of
from planner.evidence.runs.run_model import model_of
from planner.evidence.runs.run_software import (
    configured,
    described_framework,
    is_compiled,
    software_of,
    switches_of,
    usual,
)
from planner.units import GIB

__all__ = ["RefusedRun", "Run", "run_of"]


_MAX_RANKS = 10_000_000


@dataclass(frozen=True, slots=True)
class Run:
    """One measured run: the scenario it answers, its layout, and what was measured."""

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
    first_stage: bool = False
    """Whether the measured memory is that of the pipeline's first stage; else the fullest's."""
    told_by_memory: bool = False
    """Whether the measured memory told which build ran, so that it says nothing of estimates."""
    reference: str = ""
    """Place of the row in the source."""
    reliability: str = ""
    """high, medium or low, as the table judges the row; empty where it does not."""


@dataclass(frozen=True, slots=True)
class RefusedRun:
    """A row that cannot be scored, with the reason."""

    row_id: str
    source: str
    reason: str


@dataclass(frozen=True, slots=True)
class _Setting:
    """Machine, software and model of a run."""

    year: int | None
    num_ranks: int
    place: Place
    software: Software
    framework: Framework
    model: Model


@dataclass(frozen=True, slots=True)
class _Job:
    """Workload and layout of a run."""

    workload: Workload
    layout: Layout
    contradicted: bool = False
    """Whether the row's global batch is another one than that of its layout."""


def run_of(row_id: str, source: str, cells: Cells, own_machine: Machine | None = None) -> Run:
    """The run of a row; of a system called like `here`, on that machine.

    PlannerError where the cells do not tell one.
    """
    _check_waits(cells)
    setting = _setting(cells, own_machine)
    job = _job(cells, setting.value)
    setup, run_job = setting.value, job.value
    step = _step_time_s(cells, run_job, setup.num_ranks)
    memory = _memory(cells)
    peak, kind = memory.value
    scenario = _scenario(setup, run_job.workload)
    framework = choose_build(setup.software, scenario, run_job.layout, memory.value)
    notes = (*_notes_of_table(cells), *setting.notes, *job.notes, *memory.notes, *framework.notes)
    return Run(
        row_id,
        source,
        setup.place.machine,
        setup.place.label,
        configured(framework.value, setup.software, run_job.layout),
        setup.model,
        run_job.workload,
        run_job.layout,
        step,
        peak,
        kind,
        _fits(cells, step, peak),
        tuple(note.sentence for note in notes),
        any(note.guess for note in notes),
        not cells.text("recompute"),
        setup.software.first_stage_memory,
        bool(framework.notes),
        cells.text("source_ref"),
        cells.text("reliability").lower(),
    )


def _check_waits(cells: Cells) -> None:
    """Raise PlannerError where a row's own notes say that its step is not what is estimated."""
    noted = normalised(cells.text("notes"))
    if reason := next((word for word in known_labels().words.waiting if word in noted), ""):
        raise PlannerError(
            f"notes say {reason!r}: a step is estimated without waiting for its input; give the "
            "time without it"
        )


def _notes_of_table(cells: Cells) -> tuple[Note, ...]:
    """Assumptions in the table's own column `assumed`, sentence by sentence."""
    sentences = (sentence.strip() for sentence in cells.text("assumed").split(";"))
    return tuple(Note(sentence) for sentence in sentences if sentence)


def _setting(cells: Cells, own_machine: Machine | None) -> Reading[_Setting]:
    year = year_of(cells.text("year"))
    num_ranks = _num_ranks(cells)
    if num_ranks.value > _MAX_RANKS:
        raise PlannerError(f"n_gpus = {num_ranks.value} exceeds {_MAX_RANKS:,}; correct the cell")
    place = _place(cells, own_machine)
    software = software_of(cells, year)
    compiled = is_compiled(cells, software.value)
    framework = described_framework(software.value, switches_of(cells, compiled.value))
    model = model_of(cells, usual(software.value).dropout)
    notes = (num_ranks, place, software, compiled, model)
    return Reading(
        _Setting(year, num_ranks.value, place.value, software.value, framework, model.value),
        tuple(note for part in notes for note in part.notes),
    )


def _place(cells: Cells, own_machine: Machine | None) -> Reading[Place]:
    system = cells.text("system")
    if own_machine is not None and system.strip().lower() == own_machine.name:
        return as_stated(Place(own_machine, own_machine.name))
    machine = machine_of(
        system,
        cells.text("gpu"),
        cells.number("gpu_mem_gb"),
        cells.count("gpus_per_node"),
        cells.text("interconnect"),
    )
    if own_machine is not None and machine.value.label == own_machine.name:
        return Reading(Place(own_machine, own_machine.name), machine.notes)
    return machine


def _job(cells: Cells, setting: _Setting) -> Reading[_Job]:
    if layout_is_stated(cells, setting.software, setting.framework):
        stated_layout = layout_of(cells, setting.software, setting.framework, setting.num_ranks)
        batches = stated_layout.value.batches
        stage = stated_layout.value.layout.zero_stage
        workload = _workload(cells, setting, batches.global_batch, stage)
        layout = tune_layout(cells, _scenario(setting, workload.value), stated_layout.value)
        notes = (*stated_layout.notes, *workload.notes, *layout.notes)
        return Reading(_Job(workload.value, layout.value, batches.contradicted), notes)
    batch = usual_batch(cells, setting.num_ranks)
    workload = _workload(cells, setting, batch.value)
    layout = choose_layout(
        cells, setting.software, _scenario(setting, workload.value), setting.num_ranks
    )
    return Reading(
        _Job(workload.value, layout.value), (*batch.notes, *workload.notes, *layout.notes)
    )


def _scenario(of: _Setting, workload: Workload) -> Scenario:
    return Scenario(of.model, of.place.machine, workload, of.framework)


def _num_ranks(cells: Cells) -> Reading[int]:
    degrees = [cells.count(axis) for axis in ("dp", "tp", "pp", "cp")]
    if cells.count("n_gpus") is None and any(degrees):
        ranks = math.prod(degree or 1 for degree in degrees)
        return guessed(ranks, f"n_gpus missing: dp * tp * pp * cp = {ranks}")
    return as_stated(cells.need("n_gpus"))


def _workload(
    cells: Cells, of: _Setting, batch: int, zero_stage: int | None = None
) -> Reading[Workload]:
    precision = _precision(cells, of, zero_stage)
    of.place.machine.peak(precision.value)
    fields = together(
        {
            "sequence_length": as_stated(1 if of.model.counts_samples else cells.need("seq_len")),
            "global_batch": as_stated(batch),
            "precision": precision,
            "attention": _attention(cells, of),
            "lora_rank": _lora_rank(cells),
        }
    )
    return Reading(Workload.described(fields.value, where="workload"), fields.notes)


def _precision(cells: Cells, of: _Setting, zero_stage: int | None) -> Reading[str]:
    """Stated, else the usual one, or fp16 where the software does not shard so little in that."""
    precision_cell = precision_of(cells.text("precision"))
    if precision_cell is not None:
        return as_stated(precision_cell)
    has_bf16 = "bf16" in of.place.machine.device.peak_flop_per_s
    precision = usual(of.software).precision or ("bf16" if has_bf16 else "fp16")
    if zero_stage is not None and zero_stage not in of.framework.zero_stages_for(precision):
        sentence = f"precision missing: fp16, as {precision} goes not with ZeRO-{zero_stage}"
        return assumed("fp16", sentence)
    return assumed(precision, f"precision missing: {precision}")


def _attention(cells: Cells, of: _Setting) -> Reading[str]:
    is_flash = cells.flag("flash_attention")
    if is_flash is not None:
        return as_stated("flash" if is_flash else "eager")
    late = (of.year if of.year is not None else 9999) >= of.software.flash_since
    # fused attention kernels need the matrix units that came with bf16
    kind = "flash" if late and "bf16" in of.place.machine.device.peak_flop_per_s else "eager"
    return assumed(kind, f"flash_attention missing: {kind} attention, usual then")


def _lora_rank(cells: Cells) -> Reading[int]:
    if not any(word in cells.text("model").lower() for word in known_labels().words.adapters):
        return as_stated(0)
    rank = int(known_labels().adapter_rank.value)
    return assumed(rank, f"LoRA without a rank: {rank}, usual there")


def _step_time_s(cells: Cells, job: _Job, num_ranks: int) -> float | None:
    step_time, rate = cells.number("step_time_s"), cells.number("tokens_per_s_per_gpu")
    samples = cells.number("samples_per_s")
    if rate is None and samples is not None:
        rate = samples * job.workload.sequence_length / num_ranks
    if rate is not None and (step_time is None or job.contradicted):
        return job.workload.tokens_per_step / (rate * num_ranks)
    return step_time


def _memory(cells: Cells) -> Reading[tuple[float | None, MemoryKind]]:
    peak, text = cells.number("peak_memory_gib"), cells.text("memory_kind").lower()
    if peak is None or cells.flag("oom"):
        # what a run had when it failed is less than it needs
        return as_stated((None, "allocated"))
    peak *= GIB
    if "smi" in text or "gb per gpu" in text:
        return as_stated((peak, "device"))
    if "alloc" in text and "reserved" in text:
        # such peaks grow with the number of micro-batches, as only reserved memory does
        return assumed((peak, "reserved"), "allocated or reserved: compared with reserved")
    if "alloc" in text or text.startswith("active"):
        return as_stated((peak, "allocated"))
    if "reserved" in text:
        return as_stated((peak, "reserved"))
    return assumed((peak, "allocated"), "memory_kind not known: compared with allocated memory")


def _fits(cells: Cells, step: float | None, peak: float | None) -> bool | None:
    failed = cells.flag("oom")
    if failed:
        return False
    return True if step is not None or peak is not None or failed is False else None
