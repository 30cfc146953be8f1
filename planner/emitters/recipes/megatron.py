"""Megatron: Megatron-LM's arguments for the model, the job and the layout, one per line."""

import math
from collections.abc import Iterable, Mapping
from dataclasses import replace

import numpy as np

from planner.cost.shards.layers_per_stage import layer_split, layers_on_stage
from planner.cost.shards.layouts import Layouts
from planner.describe.layout import Layout
from planner.describe.workload import parse_ramp
from planner.emitters.batch_job import BatchJob
from planner.emitters.limits import WORDS, ExpressibleLayouts, built, framework_names
from planner.emitters.recipe import Page, Recipe

_FRAMEWORK = "Megatron-LM"
EXPRESSIBLE = ExpressibleLayouts(
    axes=("tp", "pp", "cp", "ep", "etp"),
    recompute=("none", "selective", "full"),
    recompute_by=("layers", "span"),
    modules=True,
    activations=True,
    ulysses=True,
    stages=True,
    ramp=True,
)
_Options = Mapping[str, object]
"""Values of options by name, for the template filter `options`."""
_PRECISIONS = framework_names("precision", _FRAMEWORK)
_OPTIMIZERS = framework_names("optimizer", _FRAMEWORK)
_GATES, _ACTIVATIONS = WORDS[_FRAMEWORK]["gates"], WORDS[_FRAMEWORK]["activations"]

ARGUMENTS = "the arguments of Megatron, one per line"
"""Purpose of `megatron.args`, for the README."""
START = Recipe(
    files=(),
    argument_files=("megatron.args", "data.args"),
    arguments=('--lr "${LEARNING_RATE}"', '--lr-warmup-iters "${WARMUP_STEPS}"'),
    variables={
        "LEARNING_RATE": "the learning rate of your recipe",
        "WARMUP_STEPS": "the steps over which it warms up",
    },
    saves=True,
)
"""Base recipe of Megatron-LM and its forks, without files."""


def recipe(job: BatchJob) -> Recipe:
    """Write `megatron.args`, and `data.args` with mock data for a first run."""
    model, workload = job.model, job.workload
    page = Page(
        "megatron",
        job,
        feed_forward=_GATES[built(job).module]
        if model.gated_mlp
        else _ACTIVATIONS.get(model.activation, {}),
        **_common(job),
        window=_window(job),
        expert_layers=_expert_layers(job),
        flexible=_flexible(job),
        merges_passes=_merges_passes(job),
        expert_tp=_expert_tp(job),
        optimizer=_OPTIMIZERS[workload.optimizer],
        precision=_PRECISIONS[workload.precision],
        stages=_stages(job),
        overlaps=job.framework.communication,
    )
    return replace(
        START,
        files=(
            page.file("megatron.args", ARGUMENTS),
            page.file("data.args", "the arguments for data and tokenizer, one per line"),
        ),
        default_program="pretrain_gpt.py",
        environment=_environment(job),
        notes=page.notes(),
    )


def common_options(job: BatchJob) -> str:
    """Write the argument lines that Megatron-LM and its forks share."""
    return Page("megatron", job, **_common(job)).text("common")


def _common(job: BatchJob) -> dict[str, object]:
    """Values of the shared options: the save interval, and the ramp as START_TOKENS:BATCH."""
    ramp = parse_ramp(job.workload.ramp)
    starts = [0.0, *(until for until, _ in ramp)]
    sizes = [*(size for _, size in ramp), job.layout.global_batch]
    steps = (f"{start:.0f}:{size}" for start, size in zip(starts, sizes, strict=True))
    return {"ramp": ",".join(steps) if ramp else "", "save_every": job.slot.save_every}


def _window(job: BatchJob) -> _Options:
    """Options of the attention window, and of layers without one: every n-th, else the last."""
    model = job.model
    layers, windows = model.num_layers, model.num_window_layers
    if not 0 < model.sliding_window < job.workload.sequence_length or not windows:
        return {}
    window = {"window-size": f"{model.sliding_window - 1},0"}
    if windows == layers:
        return window
    period, rest = divmod(layers, layers - windows)
    skips = f"([1]*{windows}+[0]*{layers - windows})" if rest else period
    return {**window, "window-attn-skip-freq": skips}


def _expert_layers(job: BatchJob) -> str:
    experts = job.model.experts
    if experts is None or not experts.num_dense_layers:
        return ""
    dense, sparse = experts.num_dense_layers, job.model.num_layers - experts.num_dense_layers
    times = math.gcd(dense, sparse) if experts.interleaved else 1
    pattern = f"([0]*{dense // times}+[1]*{sparse // times})"
    return f"{pattern}*{times}" if times > 1 else pattern


def _expert_tp(job: BatchJob) -> int:
    return int(Layouts.of(job.layout).with_default_etp(job.framework).expert_tp)


def _flexible(job: BatchJob) -> bool:
    # its dispatcher refuses a single rank (moe/token_dispatcher.py:1836 @d98e8a64)
    shared = job.layout.ep * _expert_tp(job) > 1
    return bool(job.model.experts) and shared and job.framework.communication.experts_once_per_node


def _merges_passes(job: BatchJob) -> bool:
    return bool(Layouts.of(job.layout).merges_passes(job.framework))


def _stages(job: BatchJob) -> _Options:
    """Options that place layers on chunks: Megatron's counts if they suffice, else a layout."""
    layout, layers = job.layout, job.model.num_layers
    chunks = layout.pp * layout.vpp
    deal = layer_split(layers, layout)
    counts = layers_on_stage(layers, chunks, np.arange(chunks), deal)[1].astype(int).tolist()
    ends = _uneven_ends(layout, layers, counts)
    if ends:
        virtual = layout.vpp if layout.vpp > 1 else None
        return {**ends, "num-virtual-stages-per-pipeline-rank": virtual}
    if len(set(counts)) > 1:
        return {"pipeline-model-parallel-layout": uneven_stages(counts)}
    return {"num-layers-per-virtual-pipeline-stage": layers // chunks} if layout.vpp > 1 else {}


def _uneven_ends(layout: Layout, layers: int, counts: list[int]) -> _Options:
    """Options for ends that count as layers, or for layers of the first and last stage."""
    options: dict[str, object] = {}
    first, last = max(layout.embedding_slots, 0), max(layout.head_slots, 0)
    if first + last and max(first, last) == 1 and not (layers + first + last) % len(counts):
        options["account-for-embedding-in-pipeline-split"] = bool(first)
        options["account-for-loss-in-pipeline-split"] = bool(last)
    ends = {"first": layout.first_layers, "last": layout.last_layers}
    middle_counts = counts[bool(ends["first"]) : layout.pp - bool(ends["last"])]
    if counts == counts[: layout.pp] * layout.vpp and len(set(middle_counts)) <= 1:
        for end, number in ends.items():
            if number:
                options[f"decoder-{end}-pipeline-num-layers"] = number
    return options


def uneven_stages(counts: Iterable[int]) -> str:
    """Write the layers of every chunk in Megatron's layout notation."""
    return "E" + "|".join(f"t*{count}" if count else "" for count in counts) + "L"


def _environment(job: BatchJob) -> dict[str, str]:
    """Variables that Megatron requires for overlap with tensor, context or expert parallelism."""
    if _merges_passes(job):
        # perf_plugins.py of Megatron-Bridge v0.2.0, with a flexible dispatcher and without
        return {"CUDA_DEVICE_MAX_CONNECTIONS": "32" if _flexible(job) else "8"}
    several = job.layout.tp > 1 or job.layout.cp > 1
    return {"CUDA_DEVICE_MAX_CONNECTIONS": "1"} if several else {}
