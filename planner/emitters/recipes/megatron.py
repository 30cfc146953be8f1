"""Megatron: the arguments of Megatron-LM, one a line, for the model, the job and the layout."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from dataclasses import replace

from planner.cost.shards.pipeline import layers_on_stage
from planner.emitters.batch_job import BatchJob
from planner.emitters.limits import Decoders, Words
from planner.emitters.recipe import File, Recipe, from_checkout
from planner.emitters.text import arguments_text

__all__ = ["DECODERS", "START", "arguments_file", "common_options", "recipe", "uneven_stages"]

_FRAMEWORK = "Megatron-LM"
DECODERS = Decoders(
    positions=("rope", "learned"),
    norms=("rmsnorm", "layernorm"),
    feed_forwards=("gated silu", "gelu"),
    biases=("none", "qkv", "all"),
    qk_norms=("none", "head"),
    experts=True,
    windows=True,
)
"""What Megatron-LM's options describe."""

_OPTIMIZERS = Words(
    "optimizer", _FRAMEWORK, {"adam": "adam", "adamw": "adam", "sgd": "sgd", "sgd-momentum": "sgd"}
)
_PRECISIONS: Words[tuple[str, ...]] = Words(
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

START = Recipe(
    files=(),
    argument_files=("megatron.args", "data.args"),
    arguments=('--lr "${LEARNING_RATE}"',),
    variables={"LEARNING_RATE": "the learning rate of your recipe"},
)
"""How Megatron-LM and its forks are started."""


def recipe(job: BatchJob) -> Recipe:
    """`megatron.args`, and `data.args` with mock data for a first run."""
    DECODERS.check(job, _FRAMEWORK)
    program = "pretrain_gpt.py"
    data = ["--mock-data", "--tokenizer-type NullTokenizer", f"--vocab-size {job.model.vocab_size}"]
    meaning = "the arguments for data and tokenizer, one a line"
    return replace(
        START,
        files=(
            arguments_file([*common_options(job), *_shape(job), *_training(job), *_layout(job)]),
            File("data.args", meaning, arguments_text(data)),
        ),
        default_program=program,
        environment=_environment(job),
        notes=(
            from_checkout(program, f"{_FRAMEWORK}'s own"),
            "`data.args` asks for mock data, enough to measure time and memory. Write your "
            "`--data-path` and tokenizer into it to train.",
            "The base of the rotary positions and the initialisation are Megatron-LM's defaults; "
            "neither changes time or memory.",
        ),
    )


def arguments_file(options: Iterable[str]) -> File:
    """`megatron.args`."""
    meaning = "the arguments of Megatron, one a line"
    return File("megatron.args", meaning, arguments_text(options))


def common_options(job: BatchJob) -> Iterator[str]:
    """Sizes, batch, length and degrees: what Megatron-LM and its forks spell alike."""
    model, layout = job.model, job.layout
    yield f"--num-layers {model.num_layers}"
    yield f"--hidden-size {model.hidden_size}"
    # a model of experts only has no dense width; its layers take the experts'
    yield f"--ffn-hidden-size {model.ffn_size or (model.experts and model.experts.ffn_size)}"
    yield f"--num-attention-heads {model.num_heads}"
    yield f"--kv-channels {model.head_dim}"
    if model.gated_mlp:
        yield "--swiglu"
    if not model.mlp_bias:
        yield "--disable-bias-linear"
    if not model.tied_embeddings:
        yield "--untie-embeddings-and-output-weights"
    yield f"--seq-length {job.workload.sequence_length}"
    yield f"--max-position-embeddings {job.num_positions}"
    yield f"--micro-batch-size {layout.micro_batch}"
    yield f"--global-batch-size {layout.global_batch}"
    yield f"--train-iters {job.steps}"
    yield "--log-interval 1"
    yield f"--hidden-dropout {job.dropout:g}"
    yield f"--attention-dropout {job.dropout:g}"
    yield f"--tensor-model-parallel-size {layout.tp}"
    yield f"--pipeline-model-parallel-size {layout.pp}"
    if layout.sequence_parallel:
        yield "--sequence-parallel"


def _shape(job: BatchJob) -> Iterator[str]:
    """The rest of the architecture."""
    model = job.model
    if model.num_kv_heads != model.num_heads:
        yield "--group-query-attention"
        yield f"--num-query-groups {model.num_kv_heads}"
    yield f"--position-embedding-type {_POSITIONS[model.position]}"
    yield f"--normalization {_NORMS[model.norm]}"
    if model.qkv_bias and not model.mlp_bias:
        yield "--add-qkv-bias"
    if model.qk_norm == "head":
        yield "--qk-layernorm"
    if 0 < model.sliding_window < job.workload.sequence_length:
        yield f"--window-size {model.sliding_window - 1},0"
    yield from _experts(job)


def _experts(job: BatchJob) -> Iterator[str]:
    experts = job.model.experts
    if experts is None:
        return
    yield f"--num-experts {experts.num_experts}"
    yield f"--moe-router-topk {experts.top_k}"
    yield f"--moe-ffn-hidden-size {experts.ffn_size}"
    if experts.num_dense_layers:
        sparse = job.model.num_layers - experts.num_dense_layers
        yield f"--moe-layer-freq ([0]*{experts.num_dense_layers}+[1]*{sparse})"
    shared = experts.shared_ffn_size or experts.num_shared * experts.ffn_size
    if shared:
        yield f"--moe-shared-expert-intermediate-size {shared}"
    yield "--moe-grouped-gemm"
    yield "--moe-token-dispatcher-type alltoall"
    yield f"--expert-model-parallel-size {job.layout.ep}"
    yield f"--expert-tensor-parallel-size {job.layout.tp}"


def _training(job: BatchJob) -> Iterator[str]:
    """Precision, optimizer and attention."""
    workload = job.workload
    yield "--eval-iters 0"
    yield f"--optimizer {_OPTIMIZERS[workload.optimizer]}"
    yield f"--attention-backend {'flash' if workload.attention == 'flash' else 'unfused'}"
    yield from _PRECISIONS[workload.precision]


def _layout(job: BatchJob) -> Iterator[str]:
    """Context, stages, sharding and recompute."""
    layout, overlaps = job.layout, job.framework.communication
    yield f"--context-parallel-size {layout.cp}"
    yield from _stages(job)
    if layout.zero_stage == 1:
        yield "--use-distributed-optimizer"
    if layout.dp * layout.cp > 1 and overlaps.overlap_gradients:
        yield "--overlap-grad-reduce"
        if layout.zero_stage == 1 and overlaps.overlap_parameters:
            yield "--overlap-param-gather"
    if layout.recompute != "none":
        yield f"--recompute-granularity {layout.recompute}"
    if layout.recompute == "full":
        yield "--recompute-method uniform"
        yield "--recompute-num-layers 1"


def _stages(job: BatchJob) -> Iterator[str]:
    """The chunks of the pipeline, spelled out where layers do not divide evenly."""
    layout, layers = job.layout, job.model.num_layers
    chunks = layout.pp * layout.vpp
    if layers % chunks:
        yield f"--pipeline-model-parallel-layout {uneven_stages(layers, chunks)}"
    elif layout.vpp > 1:
        yield f"--num-layers-per-virtual-pipeline-stage {layers // chunks}"


def uneven_stages(layers: int, chunks: int) -> str:
    """Layers of every chunk in Megatron's notation, as the estimate deals them.

    >>> uneven_stages(5, 3)
    'Et*2|t*2|t*1L'
    """
    counts = [int(layers_on_stage(layers, chunks, chunk)[1]) for chunk in range(chunks)]
    return "E" + "|".join(f"t*{count}" for count in counts) + "L"


def _environment(job: BatchJob) -> dict[str, str]:
    """Megatron's own demand where communication overlaps with tensor or context parallelism."""
    several = job.layout.tp > 1 or job.layout.cp > 1
    return {"CUDA_DEVICE_MAX_CONNECTIONS": "1"} if several else {}
