"""Layouts of runs: degrees, batches and choices from the cells of a row.

Stated cells must be consistent; a missing one follows from the others, or a default with a note
fills it in.
"""

from __future__ import annotations

import re
from dataclasses import dataclass

from planner.describe.framework.framework import Framework
from planner.describe.layout import Layout
from planner.errors import PlannerError, shorten
from planner.evidence.runs.cells import Cells
from planner.evidence.runs.labels import Software, known_labels, normalised, precision_of
from planner.evidence.runs.reading import Note, Reading, as_stated, assumed, together
from planner.evidence.runs.run_software import usual

__all__ = ["StatedLayout", "layout_is_stated", "layout_of", "usual_batch"]


_USUAL_TOKENS = 2**22
"""Tokens per step of large models: 3.2 to 4 million in GPT-3 (arXiv:2005.14165, table 2.1),
LLaMA (arXiv:2302.13971, table 2) and BLOOM (arXiv:2211.05100, table 3)."""


@dataclass(frozen=True, slots=True)
class Batches:
    """Split of a global batch."""

    micro_batch: int
    grad_accumulation: int
    global_batch: int
    contradicted: bool = False
    """Whether the row's global batch differs from that of its layout."""
    micro_batch_is_open: bool = False
    """Whether the micro-batch is unknown, so that a tuned run may have had any."""


@dataclass(frozen=True, slots=True)
class StatedLayout:
    """The layout of a row that states its degrees."""

    layout: Layout
    batches: Batches


def layout_is_stated(cells: Cells, software: Software, framework: Framework) -> bool:
    """Whether a row states its degrees, or its framework leaves no choice."""
    only_data = not {"tp", "pp"} & set(framework.axes)
    if only_data or usual(software).data_parallel_unless_stated:
        return True
    return any(cells.count(axis) is not None for axis in ("dp", "tp", "pp"))


def usual_batch(cells: Cells, multiple: int) -> Reading[int]:
    """Stated global batch, else about four million tokens, as a multiple of `multiple`.

    PlannerError where a time was measured that depends on it.
    """
    global_batch = cells.count("global_batch")
    if global_batch is not None:
        return as_stated(global_batch)
    if not _rate_is_stated(cells) or cells.number("step_time_s") is not None:
        raise PlannerError(
            "global_batch and grad_accum are empty, and the step depends on them; fill one in"
        )
    batch = -(-_USUAL_TOKENS // cells.need("seq_len") // multiple) * multiple
    return assumed(batch, f"global_batch missing: {batch}, about 4 million tokens")


def _rate_is_stated(cells: Cells) -> bool:
    rates = ("tokens_per_s_per_gpu", "samples_per_s")
    return any(cells.number(column) is not None for column in rates)


def layout_of(
    cells: Cells, software: Software, framework: Framework, num_ranks: int
) -> Reading[StatedLayout]:
    """Layout and batches of a row. PlannerError where the cells contradict each other."""
    degrees = _degrees(cells, num_ranks)
    dp, tp, pp, cp = (degrees.value[axis] for axis in ("dp", "tp", "pp", "cp"))
    batches = _batches(cells, software, dp, pp)
    vpp, ep = cells.count("vpp") or 1, cells.count("ep") or 1
    split = _split_experts(cells, software, dp * cp, tp, ep)
    choices = together(
        {
            "zero_stage": _zero_stage(cells, software, framework, pp),
            "sequence_parallel": _sequence_parallel(cells, software, framework, tp),
            "recompute": _recompute(cells, software),
            "offload": as_stated(_offload(cells)),
            "slots": _slots(cells, framework, pp, vpp),
        }
    )
    slots = choices.value.pop("slots")
    layout = Layout.described(
        {
            **degrees.value,
            "vpp": vpp if pp > 1 else 1,
            "ep": ep,
            "etp": split.value,
            "micro_batch": batches.value.micro_batch,
            "grad_accumulation": batches.value.grad_accumulation,
            "schedule": "none" if pp == 1 else "interleaved-1f1b" if vpp > 1 else "1f1b",
            "ulysses": cp if framework.context[0] == "ulysses" else 1,
            "reshard": _second_shards(cells, framework),
            **choices.value,
            **(dict.fromkeys(("embedding_slots", "head_slots"), 1) if slots else {}),
        },
        where="layout",
    )
    notes = (*degrees.notes, *split.notes, *batches.notes, *choices.notes)
    return Reading(StatedLayout(layout, batches.value), notes)


def _degrees(cells: Cells, num_ranks: int) -> Reading[dict[str, int]]:
    cell_values = {axis: cells.count(axis) for axis in ("dp", "tp", "pp", "cp")}
    degrees = {axis: value or 1 for axis, value in cell_values.items()}
    rest = degrees["tp"] * degrees["pp"] * degrees["cp"]
    notes: tuple[Note, ...] = ()
    if cell_values["dp"] is None:
        if num_ranks % rest:
            raise PlannerError(
                f"tp * pp * cp = {rest} does not divide n_gpus = {num_ranks}; correct one of them"
            )
        degrees["dp"] = num_ranks // rest
        notes = (Note(f"dp missing: n_gpus / (tp * pp * cp) = {num_ranks // rest}"),)
    world = degrees["dp"] * rest
    if world != num_ranks:
        raise PlannerError(
            f"dp * tp * pp * cp = {world} differs from n_gpus = {num_ranks}; correct one of them"
        )
    return Reading(degrees, notes)


def _batches(cells: Cells, software: Software, dp: int, pp: int) -> Reading[Batches]:
    """Complete micro-batch, gradient accumulation and global batch from the stated ones."""
    micro, accumulation = cells.count("micro_batch"), cells.count("grad_accum")
    batch, notes = cells.count("global_batch"), tuple[Note, ...]()
    is_open = not micro and not accumulation
    if micro is None and accumulation and batch and batch % (dp * accumulation) == 0:
        micro = batch // (dp * accumulation)
    if micro is None and batch is None and (sizes := software.micro_batches):
        precision = precision_of(cells.text("precision"))
        micro = next((row.size for row in sizes if row.precision == precision), sizes[0].size)
        notes = (Note(f"micro_batch missing: {micro}, as its scripts set it"),)
        is_open = False
    rate_only = cells.number("step_time_s") is None and _rate_is_stated(cells)
    if batch is None and accumulation is None and (pp > 1 or (micro is None and rate_only)):
        usual_value = usual_batch(cells, dp * (micro or 1))
        batch, notes = usual_value.value, usual_value.notes
    if micro is None:
        default = _default_micro_batch(software, dp, pp, batch)
        micro, notes = default.value, (*notes, *default.notes)
        is_open = is_open and not default.notes
    if batch is None:
        if not accumulation:
            accumulation, notes = 1, (*notes, Note("grad_accum missing: 1"))
        batch = micro * accumulation * dp
        text = f"global_batch missing: micro_batch * grad_accum * dp = {batch}"
        return Reading(Batches(micro, accumulation, batch, False, is_open), (*notes, Note(text)))
    split = _split(cells, batch, micro, accumulation, dp)
    batches = Batches(micro, split.value, micro * split.value * dp, bool(split.notes), is_open)
    return Reading(batches, (*notes, *split.notes))


def _split(cells: Cells, batch: int, micro: int, accumulation: int | None, dp: int) -> Reading[int]:
    """Micro-batches of a step; with a note where they make another global batch."""
    if accumulation is None:
        if batch % (micro * dp):
            raise PlannerError(
                f"micro_batch * dp = {micro * dp} does not divide global_batch = {batch}; "
                "correct one of them"
            )
        return as_stated(batch // (micro * dp))
    product = micro * accumulation * dp
    if product == batch:
        return as_stated(accumulation)
    if not _rate_is_stated(cells) and not cells.text("oom"):
        raise PlannerError(
            f"micro_batch * grad_accum * dp = {product} differs from "
            f"global_batch = {batch}, and no tokens_per_s_per_gpu tells the time of a step"
        )
    text = f"global_batch contradicts the layout: {product}, time from tokens/s"
    return assumed(accumulation, text)


def _default_micro_batch(software: Software, dp: int, pp: int, batch: int | None) -> Reading[int]:
    """Sequences at a time that a row does not state; without a note where nothing tells them."""
    if batch is None:
        return assumed(1, "micro_batch missing: 1")
    if pp == 1 and software.micro_batch is not None:
        micro = software.micro_batch
        return assumed(micro, f"micro_batch missing: {micro}, as its scripts set it")
    if pp == 1 or software.pipeline_micro_batches == "tuned":
        # where nothing limits it, the fastest one is chosen later
        return as_stated(1)
    if software.pipeline_micro_batches == "stages" and batch % (dp * pp) == 0:
        micro = batch // (dp * pp)
        return assumed(micro, f"micro_batch missing: {micro}, as many micro-batches as stages")
    return assumed(1, "micro_batch missing: 1, the framework's default")


def _slots(cells: Cells, framework: Framework, pp: int, vpp: int) -> Reading[bool]:
    """Whether both ends count as layers, where the layers alone do not divide.

    Megatron-LM @d98e8a64, arguments.py: it refuses layers that do not divide, unless ends count or
    a layout is spelled out; Megatron-Bridge's recipes of Llama 3.1 405B count both.
    """
    layers, chunks = cells.count("n_layers"), pp * vpp
    if (
        pp == 1
        or not layers
        or not framework.custom_pipeline_split
        or framework.balance != "layers"
    ):
        return as_stated(False)
    if layers % chunks == 0 or (layers + 2) % chunks:
        return as_stated(False)
    text = f"{layers} layers do not divide over {chunks} chunks: both ends are taken as layers"
    return assumed(True, text)


def _split_experts(
    cells: Cells, software: Software, replicas: int, tp: int, ep: int
) -> Reading[int]:
    """Ranks that split each expert; 0 as the framework does unasked."""
    expert_tp = cells.count("etp") or 0
    if ep == 1:
        return as_stated(0)
    if not expert_tp and replicas % ep and replicas * tp % ep == 0:
        return assumed(1, f"etp missing: 1, as ep = {ep} does not divide dp * cp = {replicas}")
    etp = expert_tp or (1 if software.whole_experts else tp)
    ranks_per_expert = replicas * tp // etp
    if replicas * tp % etp or ranks_per_expert % ep:
        raise PlannerError(
            f"ep = {ep} must divide dp * cp * tp / etp = {ranks_per_expert}; correct one of them"
        )
    if etp == tp:
        return as_stated(0)
    if expert_tp:
        return as_stated(etp)
    return assumed(etp, f"etp missing: {etp}, as its recipes set it")


def _zero_stage(cells: Cells, software: Software, framework: Framework, pp: int) -> Reading[int]:
    stage_cell = cells.count("zero_stage", zero=True)
    sharding = normalised(cells.text("fsdp_sharding"))
    if not stage_cell and any(word in sharding for word in known_labels().words.optimizer_sharded):
        return assumed(1, f"fsdp_sharding {shorten(sharding, 40)!r} is taken as ZeRO-1")
    with_pipeline = usual(software).zero_stage_with_pipeline
    if stage_cell == 3 and pp > 1 and with_pipeline is not None:
        text = f"with a pipeline FSDP keeps weights gathered: ZeRO-{with_pipeline}"
        return assumed(with_pipeline, text)
    if stage_cell is None:
        stage = software.zero_stage
        return assumed(stage, f"zero_stage missing: {stage}, usual with {framework.name}")
    if stage_cell > 3:
        raise PlannerError(f"zero_stage = {stage_cell} must be 0, 1, 2 or 3; correct the cell")
    return as_stated(stage_cell)


def _second_shards(cells: Cells, framework: Framework) -> int:
    """Ranks over which weights stay sharded from forward to backward (ZeRO++'s hpZ), where the row
    says so."""
    match = re.search(r"\bhpz\b\D*(\d+)", normalised(cells.text("fsdp_sharding")))
    return int(match[1]) if match and framework.second_shards else 0


def _sequence_parallel(
    cells: Cells, software: Software, framework: Framework, tp: int
) -> Reading[bool]:
    if tp == 1 or framework.sequence_parallel == "never":
        return as_stated(False)
    is_parallel = cells.flag("sequence_parallel")
    if is_parallel is not None:
        return as_stated(is_parallel)
    usually = framework.sequence_parallel == "with-tp" or software.sequence_parallel
    word = "yes" if usually else "no"
    return assumed(usually, f"sequence_parallel missing: {word}, usual there")


def _recompute(cells: Cells, software: Software) -> Reading[str]:
    text = cells.text("recompute").lower()
    if text in ("none", "no", "off"):
        return as_stated("none")
    for mode in ("selective", "full"):
        if mode in text:
            return as_stated(mode)
    if text:
        raise PlannerError(
            f"recompute = {shorten(text, 40)!r} is not known; use none, selective or full"
        )
    mode = software.recompute
    return assumed(mode, f"recompute missing: {mode}, usual there")


def _offload(cells: Cells) -> str:
    text = cells.text("offload").lower()
    if text in ("", "none", "no"):
        return "none"
    where = "nvme" if "nvme" in text else "cpu"
    return f"all-{where}" if "param" in text else f"optimizer-{where}"
