"""Megatron: the arguments of Megatron-LM, one a line, for the model, the job and the layout."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from dataclasses import replace

import numpy as np

from planner.cost.shards.layers_per_stage import layer_split, layers_on_stage
from planner.cost.shards.layouts import Layouts
from planner.describe.layout import Layout
from planner.describe.workload import parse_ramp
from planner.emitters.batch_job import CHECKPOINTS, BatchJob
from planner.emitters.limits import ExpressibleLayouts, FrameworkNames, built
from planner.emitters.queue import slot_of
from planner.emitters.recipe import File, Recipe, from_checkout
from planner.emitters.text import arguments_text

__all__ = ["EXPRESSIBLE", "START", "arguments_file", "common_options", "recipe", "uneven_stages"]

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
_OPTIMIZERS = FrameworkNames(
    "optimizer", _FRAMEWORK, {"adam": "adam", "adamw": "adam", "sgd": "sgd", "sgd-momentum": "sgd"}
)
_PRECISIONS: FrameworkNames[tuple[str, ...]] = FrameworkNames(
    "precision",
    _FRAMEWORK,
    {
        "bf16": ("--bf16",),
        "fp8": ("--bf16", "--fp8-format hybrid"),
        "fp16": ("--fp16",),
        "fp32": (),
        "tf32": (),
    },
)
_POSITIONS = {"rope": "rope", "learned": "learned_absolute"}
_NORMS = {"rmsnorm": "RMSNorm", "layernorm": "LayerNorm"}
_GATES: dict[str, tuple[str, ...]] = {
    "": ("--swiglu",),
    "latent": ("--swiglu",),
    # github.com/openai/gpt-oss torch/model.py: swiglu(alpha=1.702, limit=7.0) times (linear + 1)
    "gpt-oss": (
        "--quick-geglu",
        "--glu-linear-offset 1.0",
        "--activation-func-clamp-value 7.0",
        "--softmax-type learnable",
    ),
}
"""Gates of the feed-forward, by the module that builds the model."""
_ACTIVATIONS = {
    # transformer_config.py: bias is fused with GELU and SwiGLU only
    "squared-relu": ("--squared-relu", "--no-bias-gelu-fusion"),
}
"""Non-linearities without a gate that are not its default, GELU."""

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
"""How Megatron-LM and its forks are started."""


def recipe(job: BatchJob) -> Recipe:
    """`megatron.args`, and `data.args` with mock data for a first run."""
    program = "pretrain_gpt.py"
    data = ["--mock-data", "--tokenizer-type NullTokenizer", f"--vocab-size {job.model.vocab_size}"]
    meaning = "the arguments for data and tokenizer, one a line"
    activation = _ACTIVATIONS.get(job.model.activation, ())
    gate = _GATES[built(job).module] if job.model.gated_mlp else activation
    parts = [common_options(job), gate, _shape(job), _training(job), _layout(job)]
    return replace(
        START,
        files=(
            arguments_file(option for part in parts for option in part),
            File("data.args", meaning, arguments_text(data)),
        ),
        default_program=program,
        environment=_environment(job),
        notes=(
            from_checkout(program, f"{_FRAMEWORK}'s own"),
            "`data.args` asks for mock data, enough to measure time and memory. Write your "
            "`--data-path` and tokenizer into it to train.",
            "What changes neither time nor memory is Megatron-LM's default: base and scaling of "
            "the rotary positions, initialisation, decay of the learning rate, scores and "
            "balance of a router. Write your model's own into `data.args`.",
            *_packages(job),
            *_documents(job),
        ),
    )


def _documents(job: BatchJob) -> Iterator[str]:
    """What keeps documents apart, and how long they are."""
    if job.workload.document_lengths:
        yield (
            "Documents of a sequence attend to themselves alone "
            "(`--dataloader-inter-document-masking`, Megatron Core 0.19 and newer). Their lengths "
            "are those of your data; mock data has documents of 1 to 4,095 tokens."
        )


def _packages(job: BatchJob) -> Iterator[str]:
    """What Megatron-LM does not bring along."""
    if _flexible(job):
        yield (
            "Tokens go to their experts through DeepEP (package `deep_ep`), which is installed on "
            "its own: https://github.com/deepseek-ai/DeepEP. Without it, plan with megatron-lm."
        )


def arguments_file(options: Iterable[str]) -> File:
    """`megatron.args`."""
    meaning = "the arguments of Megatron, one a line"
    return File("megatron.args", meaning, arguments_text(options))


def common_options(job: BatchJob) -> Iterator[str]:
    """Sizes, batch, length, degrees and checkpoints: what Megatron-LM and its forks spell alike."""
    model, layout = job.model, job.layout
    yield f"--num-layers {model.num_layers}"
    yield f"--hidden-size {model.hidden_size}"
    # a model of experts only has no dense width; its layers take the experts'
    yield f"--ffn-hidden-size {model.ffn_size or (model.experts and model.experts.ffn_size)}"
    yield f"--num-attention-heads {model.num_heads}"
    if not (model.mlp_bias or model.out_bias):
        yield "--disable-bias-linear"
    if not model.tied_embeddings:
        yield "--untie-embeddings-and-output-weights"
    yield f"--seq-length {job.workload.sequence_length}"
    yield f"--max-position-embeddings {job.num_positions}"
    yield f"--micro-batch-size {layout.micro_batch}"
    yield _batch(job)
    yield f"--train-iters {job.steps}"
    yield "--log-interval 1"
    yield f"--hidden-dropout {job.dropout:g}"
    yield f"--attention-dropout {job.dropout:g}"
    yield f"--tensor-model-parallel-size {layout.tp}"
    yield f"--pipeline-model-parallel-size {layout.pp}"
    if layout.sequence_parallel:
        yield "--sequence-parallel"
    yield f"--save {CHECKPOINTS}"
    yield f"--load {CHECKPOINTS}"
    yield f"--save-interval {slot_of(job).save_every}"


def _batch(job: BatchJob) -> str:
    """The global batch, or the schedule that ends with it: batches by the tokens they begin at."""
    batch, ramp = job.layout.global_batch, parse_ramp(job.workload.ramp)
    if not ramp:
        return f"--global-batch-size {batch}"
    starts = [0.0, *(until for until, _ in ramp)]
    sizes = [*(size for _, size in ramp), batch]
    steps = (f"{start:.0f}:{size}" for start, size in zip(starts, sizes, strict=True))
    return f"--step-batch-size-schedule {','.join(steps)}"


def _shape(job: BatchJob) -> Iterator[str]:
    """The rest of the architecture."""
    model = job.model
    yield f"--position-embedding-type {_POSITIONS[model.position]}"
    yield f"--normalization {_NORMS[model.norm]}"
    yield from _heads(job)
    if model.qkv_bias and not (model.mlp_bias or model.out_bias):
        yield "--add-qkv-bias"
    yield from _window(job)
    yield from _experts(job)


def _heads(job: BatchJob) -> Iterator[str]:
    """Widths of attention."""
    model, latent = job.model, job.model.latent_attention
    if latent is not None:
        yield "--multi-latent-attention"
        if latent.q_lora_rank:
            yield f"--q-lora-rank {latent.q_lora_rank}"
        yield f"--kv-lora-rank {latent.kv_lora_rank}"
        yield f"--qk-head-dim {latent.qk_nope_head_dim}"
        yield f"--qk-pos-emb-head-dim {latent.qk_rope_head_dim}"
        yield f"--v-head-dim {latent.v_head_dim}"
        yield "--qk-layernorm"
        return
    yield f"--kv-channels {model.head_dim}"
    if model.num_kv_heads != model.num_heads:
        yield "--group-query-attention"
        yield f"--num-query-groups {model.num_kv_heads}"
    if model.qk_norm == "head":
        yield "--qk-layernorm"


def _window(job: BatchJob) -> Iterator[str]:
    """The attention window, and which layers have none: every n-th, else the last."""
    model = job.model
    if not 0 < model.sliding_window < job.workload.sequence_length or not model.num_window_layers:
        return
    yield f"--window-size {model.sliding_window - 1},0"
    layers, windows = model.num_layers, model.num_window_layers
    if windows == layers:
        return
    period, rest = divmod(layers, layers - windows)
    yield f"--window-attn-skip-freq {f'([1]*{windows}+[0]*{layers - windows})' if rest else period}"


def _experts(job: BatchJob) -> Iterator[str]:
    experts = job.model.experts
    if experts is None:
        return
    yield f"--num-experts {experts.num_experts}"
    yield f"--moe-router-topk {experts.top_k}"
    yield f"--moe-ffn-hidden-size {experts.ffn_size}"
    if experts.num_groups > 1:
        yield f"--moe-router-num-groups {experts.num_groups}"
        yield f"--moe-router-group-topk {experts.top_groups}"
    if experts.num_dense_layers:
        sparse = job.model.num_layers - experts.num_dense_layers
        yield f"--moe-layer-freq ([0]*{experts.num_dense_layers}+[1]*{sparse})"
    shared = experts.shared_ffn_size or experts.num_shared * experts.ffn_size
    if shared:
        yield f"--moe-shared-expert-intermediate-size {shared}"
    if experts.shared_gate:
        yield "--moe-shared-expert-gate"
    yield "--moe-grouped-gemm"
    if job.workload.expert_capacity:
        yield f"--moe-expert-capacity-factor {job.workload.expert_capacity:g}"
    if job.workload.pad_experts:
        yield "--moe-pad-expert-input-to-capacity"
    yield from _exchange(job)
    yield f"--expert-model-parallel-size {job.layout.ep}"
    yield f"--expert-tensor-parallel-size {_expert_tp(job)}"


def _expert_tp(job: BatchJob) -> int:
    return int(Layouts.of(job.layout).settled(job.framework).expert_tp)


def _flexible(job: BatchJob) -> bool:
    """Whether tokens go through DeepEP, whose dispatcher takes no rank alone
    (core/transformer/moe/token_dispatcher.py:1836 @d98e8a64)."""
    shared = job.layout.ep * _expert_tp(job) > 1
    return bool(job.model.experts) and shared and job.framework.communication.experts_once_per_node


def _exchange(job: BatchJob) -> Iterator[str]:
    """How tokens reach their experts, as it is counted."""
    if _flexible(job):
        yield "--moe-token-dispatcher-type flex"
        yield "--moe-flex-dispatcher-backend deepep"
        yield "--moe-router-dtype fp32"  # DeepEP takes no other
    else:
        yield "--moe-token-dispatcher-type alltoall"
    if _merges_passes(job):
        yield "--overlap-moe-expert-parallel-comm"


def _merges_passes(job: BatchJob) -> bool:
    return bool(Layouts.of(job.layout).merges_passes(job.framework))


def _training(job: BatchJob) -> Iterator[str]:
    """Precision, optimizer and attention."""
    workload = job.workload
    yield "--eval-iters 0"
    yield f"--optimizer {_OPTIMIZERS[workload.optimizer]}"
    if workload.optimizer == "sgd":
        yield "--sgd-momentum 0"
    yield f"--attention-backend {'flash' if workload.attention == 'flash' else 'unfused'}"
    if workload.document_lengths:
        yield "--dataloader-inter-document-masking"
    yield from _PRECISIONS[workload.precision]


def _layout(job: BatchJob) -> Iterator[str]:
    """Context, stages, sharding and recompute."""
    layout, overlaps = job.layout, job.framework.communication
    yield f"--context-parallel-size {layout.cp}"
    yield from _context(job)
    yield from _stages(job)
    if layout.zero_stage == 1:
        yield "--use-distributed-optimizer"
    if layout.dp * layout.cp > 1 and overlaps.overlap_gradients:
        yield "--overlap-grad-reduce"
        if layout.zero_stage == 1 and overlaps.overlap_parameters:
            yield "--overlap-param-gather"
    yield from _recompute(layout)
    if layout.offload_activations:
        # the last layer's are needed at once
        yield f"--cpu-offloading-num-layers {job.model.num_layers - 1}"


def _recompute(layout: Layout) -> Iterator[str]:
    """Layers of every chunk of a stage, or modules of every layer."""
    if layout.recompute != "none":
        yield f"--recompute-granularity {layout.recompute}"
    if layout.recompute == "full":
        yield f"--recompute-method {'block' if layout.recompute_layers else 'uniform'}"
        yield f"--recompute-num-layers {layout.recompute_layers or layout.recompute_span}"
    if layout.recompute_modules:
        yield f"--recompute-modules {' '.join(layout.recompute_modules)}"


def _context(job: BatchJob) -> Iterator[str]:
    """How context ranks attend to each other's tokens, where it is not Megatron-LM's default."""
    layout = job.layout
    if layout.ulysses == layout.cp > 1:
        yield "--cp-comm-type a2a"
    elif layout.ulysses > 1:
        yield "--cp-comm-type a2a+p2p"
        degrees = f"{layout.ulysses} {layout.cp // layout.ulysses}"
        yield f"--hierarchical-context-parallel-sizes {degrees}"


def _stages(job: BatchJob) -> Iterator[str]:
    """The chunks of the pipeline: in Megatron's counts where it has them for that, else one by
    one."""
    layout, layers = job.layout, job.model.num_layers
    chunks = layout.pp * layout.vpp
    deal = layer_split(layers, layout)
    counts = layers_on_stage(layers, chunks, np.arange(chunks), deal)[1].astype(int).tolist()
    arguments = list(_uneven_stage_flags(layout, layers, counts))
    if arguments:
        yield from arguments
        if layout.vpp > 1:
            yield f"--num-virtual-stages-per-pipeline-rank {layout.vpp}"
    elif len(set(counts)) > 1:
        yield f"--pipeline-model-parallel-layout {uneven_stages(counts)}"
    elif layout.vpp > 1:
        yield f"--num-layers-per-virtual-pipeline-stage {layers // chunks}"


def _uneven_stage_flags(layout: Layout, layers: int, counts: list[int]) -> Iterator[str]:
    """Ends that count as layers, or layers of the first and last stage; nothing where Megatron
    would not deal the rest evenly."""
    first, last = max(layout.embedding_slots, 0), max(layout.head_slots, 0)
    if first + last and max(first, last) == 1 and not (layers + first + last) % len(counts):
        if first:
            yield "--account-for-embedding-in-pipeline-split"
        if last:
            yield "--account-for-loss-in-pipeline-split"
    ends = {"first": layout.first_layers, "last": layout.last_layers}
    middle_counts = counts[bool(ends["first"]) : layout.pp - bool(ends["last"])]
    if counts == counts[: layout.pp] * layout.vpp and len(set(middle_counts)) <= 1:
        for end, number in ends.items():
            if number:
                yield f"--decoder-{end}-pipeline-num-layers {number}"


def uneven_stages(counts: Iterable[int]) -> str:
    """Layers of every chunk in Megatron's notation.

    >>> uneven_stages([2, 2, 1]), uneven_stages([0, 1, 0])
    ('Et*2|t*2|t*1L', 'E|t*1|L')
    """
    return "E" + "|".join(f"t*{count}" if count else "" for count in counts) + "L"


def _environment(job: BatchJob) -> dict[str, str]:
    """Megatron's own demand where communication overlaps with tensor or context parallelism."""
    if _merges_passes(job):
        # perf_plugins.py of Megatron-Bridge v0.2.0, with a flexible dispatcher and without
        return {"CUDA_DEVICE_MAX_CONNECTIONS": "32" if _flexible(job) else "8"}
    several = job.layout.tp > 1 or job.layout.cp > 1
    return {"CUDA_DEVICE_MAX_CONNECTIONS": "1"} if several else {}
