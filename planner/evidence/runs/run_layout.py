"""Layouts of runs: degrees, batches and choices from the cells of a row, or the usual ones."""

import itertools
import math
import re
from dataclasses import dataclass, replace

import numpy as np
from numpy.typing import NDArray

from planner.choose.legality import legal
from planner.choose.search import enumerate_layouts, rank_fastest
from planner.cost.estimate import estimate_layouts
from planner.cost.memory.footprint import stage_memory
from planner.cost.operators.backward import selective_frees_nothing
from planner.cost.parts import MemoryKind, unseen_parts
from planner.cost.scenario import Scenario
from planner.cost.shards.layouts import Layouts
from planner.describe.framework.framework import Framework
from planner.describe.layout import RECOMPUTE, Layout
from planner.errors import PlannerError, shorten
from planner.evidence.runs.cells import Cells
from planner.evidence.runs.labels import Software, changed, normalised, usual

_USUAL_TOKENS = 2**22
"""Tokens per step of large models: 3.2 to 4 million in arXiv:2005.14165, 2302.13971, 2211.05100."""
_SAME_SIZE = 0.01
"""Relative difference in memory below which two builds cannot be told apart."""
_MICRO_BATCHES = (1, 2, 4, 8, 16, 32, 64)
_STATED_COLUMNS = {
    "grad_accumulation": "grad_accum",
    **{name: name for name in ("micro_batch", "cp", "ep", "vpp", "zero_stage")},
}
"""Columns by layout field; a chosen layout must agree with their cells."""


@dataclass(frozen=True, slots=True)
class Batches:
    """Split of a global batch."""

    micro_batch: int
    grad_accumulation: int
    global_batch: int
    contradicted: bool = False
    """True if the row's global batch differs from that of its layout."""
    micro_batch_is_open: bool = False
    """True if the micro-batch is unknown, so that a tuned run may have had any."""


def layout_is_stated(cells: Cells, software: Software, framework: Framework) -> bool:
    """True if a row states its degrees, or its framework leaves no choice."""
    only_data = not {"tp", "pp"} & set(framework.axes)
    if only_data or usual(software).data_parallel_unless_stated:
        return True
    return any(cells.count(axis) is not None for axis in ("dp", "tp", "pp"))


def usual_batch(cells: Cells, multiple: int) -> int:
    """Return the stated global batch, else about four million tokens if no time depends on it."""
    global_batch = cells.count("global_batch")
    if global_batch is not None:
        return global_batch
    if not _rate_is_stated(cells) or cells.number("step_time_s") is not None:
        raise PlannerError(
            "global_batch and grad_accum are empty, and the step depends on them; fill one in"
        )
    batch = -(-_USUAL_TOKENS // cells.need("seq_len") // multiple) * multiple
    return cells.assume(batch, f"global_batch missing: {batch}, about 4 million tokens")


def _rate_is_stated(cells: Cells) -> bool:
    rates = ("tokens_per_s_per_gpu", "samples_per_s")
    return any(cells.number(column) is not None for column in rates)


def layout_of(
    cells: Cells, software: Software, framework: Framework, num_ranks: int
) -> tuple[Layout, Batches]:
    """Read layout and batches of a row. Raises PlannerError if the cells contradict each other."""
    degrees = _degrees(cells, num_ranks)
    dp, tp, pp, cp = degrees.values()
    batches = _batches(cells, software, dp, pp)
    vpp, ep = cells.count("vpp") or 1, cells.count("ep") or 1
    fields = {
        **degrees,
        "vpp": vpp if pp > 1 else 1,
        "ep": ep,
        "etp": _split_experts(cells, software, dp * cp, tp, ep),
        "micro_batch": batches.micro_batch,
        "grad_accumulation": batches.grad_accumulation,
        "schedule": "none" if pp == 1 else "interleaved-1f1b" if vpp > 1 else "1f1b",
        "ulysses": cp if framework.context[0] == "ulysses" else 1,
        "reshard": _second_shards(cells, framework),
        "zero_stage": _zero_stage(cells, software, framework, pp),
        "sequence_parallel": _sequence_parallel(cells, software, framework, tp),
        "recompute": _recompute(cells, software),
        "offload": _offload(cells),
    }
    if _ends_are_layers(cells, framework, pp, vpp):
        fields |= dict.fromkeys(("embedding_slots", "head_slots"), 1)
    return Layout.described(fields, where="layout"), batches


def _degrees(cells: Cells, num_ranks: int) -> dict[str, int]:
    dp, tp, pp, cp = (cells.count(axis) for axis in ("dp", "tp", "pp", "cp"))
    model_ranks = (tp or 1) * (pp or 1) * (cp or 1)
    if dp is None:
        if num_ranks % model_ranks:
            raise PlannerError(
                f"tp * pp * cp = {model_ranks} does not divide n_gpus = {num_ranks}; correct one"
            )
        dp = num_ranks // model_ranks
        cells.assume(dp, f"dp missing: n_gpus / (tp * pp * cp) = {dp}")
    if dp * model_ranks != num_ranks:
        raise PlannerError(
            f"dp * tp * pp * cp = {dp * model_ranks} differs from n_gpus = {num_ranks}; "
            "correct one of them"
        )
    return {"dp": dp, "tp": tp or 1, "pp": pp or 1, "cp": cp or 1}


def _batches(cells: Cells, software: Software, dp: int, pp: int) -> Batches:
    """Complete micro-batch, gradient accumulation and global batch from the stated ones."""
    micro, accumulation = cells.count("micro_batch"), cells.count("grad_accum")
    batch = cells.count("global_batch")
    is_open = not micro and not accumulation
    if micro is None and accumulation and batch and batch % (dp * accumulation) == 0:
        micro = batch // (dp * accumulation)
    rate_only = cells.number("step_time_s") is None and _rate_is_stated(cells)
    if batch is None and accumulation is None and (pp > 1 or (micro is None and rate_only)):
        batch = usual_batch(cells, dp * (micro or 1))
    if micro is None:
        tuned = batch is not None and (pp == 1 or software.pipeline_micro_batches == "tuned")
        # if nothing limits it, the fastest one is chosen later
        micro = 1 if tuned else _default_micro_batch(cells, software, dp * pp, batch)
        is_open = is_open and tuned
    if batch is None:
        accumulation = accumulation or cells.assume(1, "grad_accum missing: 1")
        batch = micro * accumulation * dp
        cells.assume(batch, f"global_batch missing: micro_batch * grad_accum * dp = {batch}")
    elif accumulation is None:
        if batch % (micro * dp):
            raise PlannerError(
                f"micro_batch * dp = {micro * dp} does not divide global_batch = {batch}; "
                "correct one of them"
            )
        accumulation = batch // (micro * dp)
    product = micro * accumulation * dp
    if product != batch and not _rate_is_stated(cells) and not cells.text("oom"):
        raise PlannerError(
            f"micro_batch * grad_accum * dp = {product} differs from global_batch = {batch}; "
            "correct one of them, or fill in tokens_per_s_per_gpu, which gives the step time"
        )
    if product != batch:
        text = f"global_batch contradicts the layout: {product}, time from tokens/s"
        cells.assume(product, text)
    return Batches(micro, accumulation, product, product != batch, is_open)


def _default_micro_batch(cells: Cells, software: Software, ranks: int, batch: int | None) -> int:
    if batch is None:
        return cells.assume(1, "micro_batch missing: 1")
    if software.pipeline_micro_batches == "stages" and batch % ranks == 0:
        micro = batch // ranks
        return cells.assume(micro, f"micro_batch missing: {micro}, as many micro-batches as stages")
    return cells.assume(1, "micro_batch missing: 1, the framework's default")


def _ends_are_layers(cells: Cells, framework: Framework, pp: int, vpp: int) -> bool:
    """True if embedding and head count as layers, as Megatron needs where layers do not divide."""
    layers, chunks = cells.count("n_layers"), pp * vpp
    if pp == 1 or not layers or not framework.custom_pipeline_split:
        return False
    if framework.balance != "layers" or layers % chunks == 0 or (layers + 2) % chunks:
        return False
    text = f"{layers} layers do not divide over {chunks} chunks: both ends are taken as layers"
    return cells.assume(True, text)


def _split_experts(cells: Cells, software: Software, replicas: int, tp: int, ep: int) -> int:
    """Return the ranks that split each expert; 0: the framework's default."""
    expert_tp = cells.count("etp") or 0
    if ep == 1:
        return 0
    if not expert_tp and replicas % ep and replicas * tp % ep == 0:
        sentence = f"etp missing: 1, as ep = {ep} does not divide dp * cp = {replicas}"
        return cells.assume(1, sentence)
    etp = expert_tp or (1 if software.whole_experts else tp)
    ranks_per_expert = replicas * tp // etp
    if replicas * tp % etp or ranks_per_expert % ep:
        raise PlannerError(
            f"ep = {ep} must divide dp * cp * tp / etp = {ranks_per_expert}; correct one of them"
        )
    if etp == tp:
        return 0
    return expert_tp or cells.assume(etp, f"etp missing: {etp}, as its recipes set it")


def _zero_stage(cells: Cells, software: Software, framework: Framework, pp: int) -> int:
    stage = cells.count("zero_stage", zero=True)
    with_pipeline = usual(software).zero_stage_with_pipeline
    if stage == 3 and pp > 1 and with_pipeline is not None:
        text = f"with a pipeline FSDP keeps weights gathered: ZeRO-{with_pipeline}"
        return cells.assume(with_pipeline, text)
    if stage is None:
        stage = software.zero_stage
        return cells.assume(stage, f"zero_stage missing: {stage}, usual with {framework.name}")
    if stage > 3:
        raise PlannerError(f"zero_stage = {stage} must be 0, 1, 2 or 3; correct the cell")
    return stage


def _second_shards(cells: Cells, framework: Framework) -> int:
    """Return the ranks over which weights stay sharded from forward to backward (ZeRO++'s hpZ)."""
    match = re.search(r"\bhpz\b\D*(\d+)", normalised(cells.text("fsdp_sharding")))
    return int(match[1]) if match and framework.second_shards else 0


def _sequence_parallel(cells: Cells, software: Software, framework: Framework, tp: int) -> bool:
    if tp == 1 or framework.sequence_parallel == "never":
        return False
    is_parallel = cells.flag("sequence_parallel")
    if is_parallel is not None:
        return is_parallel
    usually = framework.sequence_parallel != "optional" or software.sequence_parallel
    word = "yes" if usually else "no"
    return cells.assume(usually, f"sequence_parallel missing: {word}, usual there")


def _recompute(cells: Cells, software: Software) -> str:
    text = cells.text("recompute").lower()
    if text in ("none", "no", "off"):
        return "none"
    for mode in ("selective", "full"):
        if mode in text:
            return mode
    if text:
        raise PlannerError(
            f"recompute = {shorten(text, 40)!r} is not known; use none, selective or full"
        )
    mode = software.recompute
    return cells.assume(mode, f"recompute missing: {mode}, usual there")


def _offload(cells: Cells) -> str:
    text = cells.text("offload").lower()
    if text in ("", "none", "no"):
        return "none"
    where = "nvme" if "nvme" in text else "cpu"
    return f"all-{where}" if "param" in text else f"optimizer-{where}"


def tune_layout(cells: Cells, scenario: Scenario, layout: Layout) -> Layout:
    """Give a row's layout the fastest micro-batch and chunks; unchanged if none fit."""
    options = _options(cells, scenario, layout)
    best = rank_fastest(estimate_layouts(scenario, options), 1)
    if cells.flag("oom") or not len(best):
        return cells.assume(layout, f"micro_batch missing: {layout.micro_batch}")
    layout = options[int(best[0])]
    cells.assume(layout, f"micro_batch missing: {layout.micro_batch}, the fastest that fits")
    if layout.pp > 1 and cells.count("vpp") is None:
        cells.assume(layout, f"vpp missing: {layout.vpp}, the fastest that fits")
    return layout


def _options(cells: Cells, scenario: Scenario, layout: Layout) -> Layouts:
    per_replica = layout.micro_batch * layout.grad_accumulation
    micro = [m for m in _MICRO_BATCHES if per_replica % m == 0]
    vpp = [layout.vpp]
    if layout.pp > 1 and cells.count("vpp") is None:
        vpp = list(range(1, scenario.model.num_layers // layout.pp + 1))
    layouts = Layouts.stack(
        layout.replaced(
            micro_batch=m,
            grad_accumulation=per_replica // m,
            vpp=v,
            schedule="interleaved-1f1b" if v > 1 else layout.schedule,
        )
        for m, v in itertools.product(micro, vpp)
    )
    mask, _ = legal(scenario, layouts, {"pp", "vpp", "schedule", "grad_accumulation"})
    return layouts.take(mask)


def choose_layout(cells: Cells, software: Software, scenario: Scenario, num_ranks: int) -> Layout:
    """Choose the fastest layout that fits and agrees with the row; raises PlannerError if none."""
    layouts = _run_by_people(scenario, enumerate_layouts(scenario, num_ranks)[0])
    layouts = layouts.take(_agreeing(cells, layouts))
    usual_ones = layouts.take(
        (layouts.recompute == RECOMPUTE.index(software.recompute))
        & (layouts.zero_stage == software.zero_stage)
    )
    for offered in (usual_ones, layouts):
        if len(offered) and len(best := rank_fastest(estimate_layouts(scenario, offered), 1)):
            layout = offered[int(best[0])]
            sentence = f"dp, tp and pp missing: {layout}, the fastest that fits"
            return cells.assume(layout, sentence, guess=True)
    raise PlannerError("dp, tp and pp are empty, and no such layout fits; fill them in")


def _run_by_people(scenario: Scenario, layouts: Layouts) -> Layouts:
    """Add layouts whose selective recompute frees nothing: runs use it, the search skips it."""
    if "selective" not in scenario.framework.recompute or not selective_frees_nothing(scenario):
        return layouts
    none = layouts.take(layouts.recompute == RECOMPUTE.index("none"))
    mode = np.full_like(none.recompute, RECOMPUTE.index("selective"))
    return Layouts.joined([layouts, replace(none, recompute=mode)])


def _agreeing(cells: Cells, layouts: Layouts) -> NDArray[np.bool_]:
    mask = layouts.offload == 0
    for name, column in _STATED_COLUMNS.items():
        value = cells.count(column, zero=True)
        if value is not None:
            mask = mask & (getattr(layouts, name) == value)
    modes = [mode for mode in RECOMPUTE if mode in cells.text("recompute").lower()]
    if modes:
        mask = mask & (layouts.recompute == RECOMPUTE.index(modes[0]))
    return np.asarray(mask)


def choose_build(
    cells: Cells,
    software: Software,
    scenario: Scenario,
    layout: Layout,
    memory: tuple[float | None, MemoryKind],
) -> tuple[Framework, bool]:
    """Choose the build whose memory is nearer to the run's; also return whether memory decided."""
    framework, (peak, kind) = scenario.framework, memory
    if not software.other_build or peak is None or layout.tp == 1:
        return framework, False
    builds = (framework, changed(framework, software.other_build))
    sizes = [_first_stage_bytes(replace(scenario, framework=b), layout, kind) for b in builds]
    if math.isclose(*sizes, rel_tol=_SAME_SIZE):
        return framework, False
    distance, second = (abs(math.log(size / peak)) for size in sizes)
    traits = " and ".join(path.split(".")[-1].replace("_", " ") for path in software.other_build)
    sentence = f"build missing: {traits}{' not' * (distance <= second)}, nearer to the memory"
    return cells.assume((builds[distance > second], True), sentence)


def _first_stage_bytes(scenario: Scenario, layout: Layout, kind: MemoryKind) -> float:
    parts = stage_memory(scenario, layout)[0]
    return sum(parts.values()) - sum(parts[name] for name in unseen_parts(kind))
