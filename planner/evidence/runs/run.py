"""Run: one measured training run, read from the cells of a row."""

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
from planner.evidence.runs import labels, run_layout
from planner.evidence.runs.cells import Cells, Note
from planner.evidence.runs.run_machine import Place, machine_of
from planner.evidence.runs.run_model import model_of
from planner.units import GIB

_MAX_RANKS = 10_000_000


@dataclass(frozen=True, slots=True)
class Run:
    """One measured run: its scenario, its layout, and the measurements."""

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
    """True if the run succeeded; False: out of memory, or a crash that may be; None: unknown."""
    assumed: tuple[str, ...]
    """One sentence per cell that was filled with a default."""
    guessed: bool = False
    """True if the job itself was guessed: model shape, software, devices or layout."""
    open_recompute: bool = False
    """True if the row does not state the recompute mode."""
    first_stage: bool = False
    """True if memory was measured on the first pipeline stage; False: on the fullest."""
    told_by_memory: bool = False
    """True if the measured memory decided the build, and so cannot test memory estimates."""

    @property
    def scenario(self) -> Scenario:
        """Model, machine, workload and framework."""
        return Scenario(self.model, self.machine, self.workload, self.framework)


@dataclass(frozen=True, slots=True)
class RefusedRun:
    """A row that cannot be scored, with the reason."""

    row_id: str
    source: str
    reason: str


@dataclass(frozen=True, slots=True)
class _Setting:
    """Machine, software and model of a run."""

    num_ranks: int
    place: Place
    software: labels.Software
    framework: Framework
    model: Model

    def scenario(self, workload: Workload) -> Scenario:
        return Scenario(self.model, self.place.machine, workload, self.framework)


def run_of(row_id: str, source: str, cells: Cells, own_machine: Machine | None = None) -> Run:
    """Read the run of a row; PlannerError if its cells do not determine a run."""
    _check_waits(cells)
    sentences = (sentence.strip() for sentence in cells.text("assumed").split(";"))
    cells.notes.extend(Note(sentence) for sentence in sentences if sentence)
    open_recompute, cells = not cells.text("recompute"), labels.canonical(cells)
    setting = _setting(cells, own_machine)
    workload, layout, contradicted = _job(cells, setting)
    step = _step_time_s(cells, workload, setting.num_ranks, contradicted)
    peak, kind = _memory(cells)
    framework, told_by_memory = run_layout.choose_build(
        cells, setting.software, setting.scenario(workload), layout, (peak, kind)
    )
    failed = cells.flag("oom")
    ran = step is not None or peak is not None or failed is False
    return Run(
        row_id,
        source,
        setting.place.machine,
        setting.place.label,
        labels.configured(framework, setting.software, layout),
        setting.model,
        workload,
        layout,
        step,
        peak,
        kind,
        False if failed else True if ran else None,
        tuple(note.sentence for note in cells.notes),
        any(note.guess for note in cells.notes),
        open_recompute,
        setting.software.first_stage_memory,
        told_by_memory,
    )


def _check_waits(cells: Cells) -> None:
    notes = labels.normalised(cells.text("notes"))
    if reason := next((w for w in labels.known_labels().words["waiting"] if w in notes), ""):
        raise PlannerError(
            f"notes say {reason!r}: a step is estimated without waiting for its input; give the "
            "time without it"
        )


def _setting(cells: Cells, own_machine: Machine | None) -> _Setting:
    num_ranks = _num_ranks(cells)
    if num_ranks > _MAX_RANKS:
        raise PlannerError(f"n_gpus = {num_ranks} exceeds {_MAX_RANKS:,}; correct the cell")
    place = _place(cells, own_machine)
    software = labels.software_of(cells)
    month = labels.month_of(cells.text("date") or cells.text("year"))
    framework = labels.described_framework(software, labels.switches_of(cells, software), month)
    model = model_of(cells, labels.usual(software).dropout)
    return _Setting(num_ranks, place, software, framework, model)


def _num_ranks(cells: Cells) -> int:
    degrees = [cells.count(axis) for axis in ("dp", "tp", "pp", "cp")]
    if cells.count("n_gpus") is None and any(degrees):
        ranks = math.prod(degree or 1 for degree in degrees)
        return cells.assume(ranks, f"n_gpus missing: dp * tp * pp * cp = {ranks}", guess=True)
    return cells.need("n_gpus")


def _place(cells: Cells, own_machine: Machine | None) -> Place:
    system = cells.text("system")
    if own_machine is not None and system.strip().lower() == own_machine.name:
        return Place(own_machine, own_machine.name)
    place = machine_of(
        system,
        cells.text("gpu"),
        cells.number("gpu_mem_gb"),
        cells.count("gpus_per_node"),
        cells.text("interconnect"),
    )
    cells.notes.extend(map(Note, place.notes))
    if own_machine is not None and place.label == own_machine.name:
        return Place(own_machine, own_machine.name)
    return place


def _job(cells: Cells, of: _Setting) -> tuple[Workload, Layout, bool]:
    """Return workload, layout, and whether the row's global batch differs from its layout's."""
    if not run_layout.layout_is_stated(cells, of.software, of.framework):
        workload = _workload(cells, of, run_layout.usual_batch(cells, of.num_ranks))
        layout = run_layout.choose_layout(cells, of.software, of.scenario(workload), of.num_ranks)
        return workload, layout, False
    layout, batches = run_layout.layout_of(cells, of.software, of.framework, of.num_ranks)
    workload = _workload(cells, of, batches.global_batch, layout.zero_stage)
    if batches.micro_batch_is_open:
        layout = run_layout.tune_layout(cells, of.scenario(workload), layout)
    return workload, layout, batches.contradicted


def _workload(cells: Cells, of: _Setting, batch: int, zero_stage: int | None = None) -> Workload:
    precision = _precision(cells, of, zero_stage)
    of.place.machine.peak(precision)
    fields = {
        "sequence_length": 1 if of.model.counts_samples else cells.need("seq_len"),
        "global_batch": batch,
        "precision": precision,
        "attention": _attention(cells, of),
        "optimizer": cells.text("optimizer") or "adamw",
        "lora_rank": _lora_rank(cells),
    }
    return Workload.described(fields, where="workload")


def _precision(cells: Cells, of: _Setting, zero_stage: int | None) -> str:
    """Return the stated precision, else the usual one, or fp16 if the ZeRO stage rules that out."""
    precision_cell = labels.precision_of(cells.text("precision"))
    if precision_cell is not None:
        return precision_cell
    has_bf16 = "bf16" in of.place.machine.device.peak_flop_per_s
    precision = labels.usual(of.software).precision or ("bf16" if has_bf16 else "fp16")
    if zero_stage is not None and zero_stage not in of.framework.zero_stages_for(precision):
        sentence = f"precision missing: fp16, as ZeRO-{zero_stage} excludes {precision}"
        return cells.assume("fp16", sentence)
    return cells.assume(precision, f"precision missing: {precision}")


def _attention(cells: Cells, of: _Setting) -> str:
    is_flash = cells.flag("flash_attention")
    if is_flash is not None:
        return "flash" if is_flash else "eager"
    late = (labels.year_of(cells.text("year")) or 9999) >= of.software.flash_since
    # fused attention kernels need the matrix units that came with bf16
    fused = late and "bf16" in of.place.machine.device.peak_flop_per_s
    kind = of.framework.with_attention(Workload(), of.model).attention if fused else "eager"
    return cells.assume(kind, f"flash_attention missing: {kind} attention, usual then")


def _lora_rank(cells: Cells) -> int:
    if not any(
        word in cells.text("model").lower() for word in labels.known_labels().words["adapters"]
    ):
        return 0
    rank = int(labels.known_labels().adapter_rank.value)
    return cells.assume(rank, f"LoRA without a rank: {rank}, usual there")


def _step_time_s(
    cells: Cells, workload: Workload, num_ranks: int, contradicted: bool
) -> float | None:
    step_time, rate = cells.number("step_time_s"), cells.number("tokens_per_s_per_gpu")
    samples = cells.number("samples_per_s")
    if rate is None and samples is not None:
        rate = samples * workload.sequence_length / num_ranks
    if rate is not None and (step_time is None or contradicted):
        return workload.tokens_per_step / (rate * num_ranks)
    return step_time


def _memory(cells: Cells) -> tuple[float | None, MemoryKind]:
    peak, text = cells.number("peak_memory_gib"), cells.text("memory_kind").lower()
    if peak is None or cells.flag("oom"):
        # the memory of a failed run is less than it needs
        return None, "allocated"
    peak *= GIB
    if "smi" in text:
        return peak, "device"
    if "alloc" in text and "reserved" in text:
        # such peaks grow with the number of micro-batches, which only reserved memory does
        return cells.assume((peak, "reserved"), "allocated or reserved: compared with reserved")
    if "reserved" in text and not text.startswith("active"):
        return peak, "reserved"
    if "alloc" not in text and not text.startswith("active"):
        cells.assume(peak, "memory_kind unknown: compared with allocated memory")
    return peak, "allocated"
