"""Megatron: the arguments of Megatron-LM, one a line, for the model, the job and the layout."""

from __future__ import annotations

from collections.abc import Iterator

from planner.cost.shards.pipeline import layers_on_stage
from planner.describe.model.model import Model
from planner.emitters.job import Recipe, Run
from planner.errors import EmitError

__all__ = ["batches", "check_model", "lines", "recipe", "uneven_stages"]

_OPTIMIZERS = {"adam": "adam", "adamw": "adam", "sgd": "sgd", "sgd-momentum": "sgd"}


def recipe(run: Run) -> Recipe:
    """`megatron.args`, and `data.args` with mock data for a first run."""
    check_model(run.model, run.framework.name)
    if run.workload.optimizer not in _OPTIMIZERS:
        raise EmitError(
            f"optimizer {run.workload.optimizer} is not written for Megatron-LM; use adamw or sgd"
        )
    arguments = [*_shape(run), *_job(run), *_layout(run)]
    data = ["--mock-data", "--tokenizer-type NullTokenizer", f"--vocab-size {run.model.vocab_size}"]
    return Recipe(
        files={"megatron.args": lines(arguments), "data.args": lines(data)},
        default_program="pretrain_gpt.py",
        argument_files=("megatron.args", "data.args"),
        arguments=('--lr "${LEARNING_RATE}"',),
        variables={"LEARNING_RATE": "the learning rate of your recipe"},
        environment=_environment(run),
        notes=(
            "`pretrain_gpt.py` is Megatron-LM's own: run from its checkout, or set PROGRAM to its "
            "path.",
            "`data.args` asks for mock data, enough to measure time and memory. Write your "
            "`--data-path` and tokenizer into it to train.",
            "The base of the rotary positions and the initialisation are Megatron-LM's defaults; "
            "neither changes time or memory.",
        ),
    )


def lines(options: Iterator[str] | list[str]) -> str:
    """Options as a file of one a line, values after an equals sign.

    >>> lines(["--bf16", "--num-layers 32"])
    '--bf16\\n--num-layers=32\\n'
    """
    return "".join(option.replace(" ", "=", 1) + "\n" for option in options)


def check_model(model: Model, framework: str) -> None:
    """Raise EmitError for a model that Megatron's options cannot describe."""
    trouble = {
        f"is no decoder but {model.kind}": model.kind != "decoder",
        "has latent attention": model.latent_attention is not None,
        f"has {model.position} positions": model.position not in ("rope", "learned"),
        "normalises its embedding": model.embedding_norm,
        f"has {model.norms_per_layer} normalisations a layer": model.norms_per_layer != 2,
        f"normalises with {model.norm}": model.norm == "layernorm-nobias",
        "normalises queries and keys over all heads": model.qk_norm == "full",
        "has attention sinks": model.attention_sinks,
        "runs attention and feed-forward side by side": model.parallel_residual,
        "has a bias in its output projection": model.head_bias,
        "has a projected embedding": bool(model.embedding_size),
        f"has a gated {model.activation}": model.gated_mlp and model.activation != "silu",
        f"has a plain {model.activation}": not model.gated_mlp and model.activation != "gelu",
        "has biases in some matrices only": model.out_bias != model.mlp_bias
        or (model.out_bias and not model.qkv_bias),
        "has biased experts": model.experts is not None
        and (model.experts.expert_bias or model.experts.router_bias),
    }
    for what, found in trouble.items():
        if found:
            raise EmitError(
                f"model {model.name[:60]!r} {what}, which the options of {framework} do not "
                "describe; use a framework that runs the model's own code, such as deepspeed or "
                "accelerate"
            )


def _shape(run: Run) -> Iterator[str]:
    """The architecture."""
    model = run.model
    yield f"--num-layers {model.num_layers}"
    yield f"--hidden-size {model.hidden_size}"
    # a model of experts only has no dense width; its layers take the experts'
    yield f"--ffn-hidden-size {model.ffn_size or (model.experts and model.experts.ffn_size)}"
    yield f"--num-attention-heads {model.num_heads}"
    yield f"--kv-channels {model.head_dim}"
    if model.num_kv_heads != model.num_heads:
        yield "--group-query-attention"
        yield f"--num-query-groups {model.num_kv_heads}"
    yield "--position-embedding-type " + ("rope" if model.position == "rope" else _LEARNED)
    yield "--normalization " + ("RMSNorm" if model.norm == "rmsnorm" else "LayerNorm")
    if model.gated_mlp:
        yield "--swiglu"
    if not model.mlp_bias:
        yield "--disable-bias-linear"
        if model.qkv_bias:
            yield "--add-qkv-bias"
    if model.qk_norm == "head":
        yield "--qk-layernorm"
    if not model.tied_embeddings:
        yield "--untie-embeddings-and-output-weights"
    yield from _window(run)
    yield from _experts(run)


_LEARNED = "learned_absolute"


def _window(run: Run) -> Iterator[str]:
    """A window that is shorter than the sequence."""
    model = run.model
    if not 0 < model.sliding_window < run.workload.sequence_length:
        return
    if model.num_window_layers != model.num_layers:
        raise EmitError(
            f"only {model.num_window_layers} of {model.num_layers} layers of "
            f"{model.name[:60]!r} have a window of {model.sliding_window} tokens, which is not "
            "written for Megatron-LM; use sequences no longer than the window"
        )
    yield f"--window-size {model.sliding_window - 1},0"


def _experts(run: Run) -> Iterator[str]:
    experts = run.model.experts
    if experts is None:
        return
    yield f"--num-experts {experts.num_experts}"
    yield f"--moe-router-topk {experts.top_k}"
    yield f"--moe-ffn-hidden-size {experts.ffn_size}"
    if experts.num_dense_layers:
        sparse = run.model.num_layers - experts.num_dense_layers
        yield f"--moe-layer-freq ([0]*{experts.num_dense_layers}+[1]*{sparse})"
    shared = experts.shared_ffn_size or experts.num_shared * experts.ffn_size
    if shared:
        yield f"--moe-shared-expert-intermediate-size {shared}"
    yield "--moe-grouped-gemm"
    yield "--moe-token-dispatcher-type alltoall"
    yield f"--expert-model-parallel-size {run.layout.ep}"
    yield f"--expert-tensor-parallel-size {run.layout.tp}"


def batches(run: Run) -> Iterator[str]:
    """Sequence, batch, length and dropout, as Megatron-LM and its forks spell them."""
    workload, layout = run.workload, run.layout
    yield f"--seq-length {workload.sequence_length}"
    longest = max(run.model.max_sequence_length, workload.sequence_length)
    yield f"--max-position-embeddings {longest}"
    yield f"--micro-batch-size {layout.micro_batch}"
    yield f"--global-batch-size {layout.global_batch}"
    yield f"--train-iters {run.steps}"
    yield "--log-interval 1"
    dropout = run.model.dropout if workload.dropout is None else workload.dropout
    yield f"--hidden-dropout {dropout:g}"
    yield f"--attention-dropout {dropout:g}"


def _job(run: Run) -> Iterator[str]:
    """Batch, sequence, precision, optimizer, length."""
    workload = run.workload
    yield from batches(run)
    yield "--eval-iters 0"
    yield f"--optimizer {_OPTIMIZERS[workload.optimizer]}"
    yield f"--attention-backend {'flash' if workload.attention == 'flash' else 'unfused'}"
    if workload.precision in ("bf16", "fp8"):
        yield "--bf16"
    if workload.precision == "fp8":
        yield "--fp8-format hybrid"
    if workload.precision == "fp16":
        yield "--fp16"


def _layout(run: Run) -> Iterator[str]:
    """The degrees, sharding and recompute."""
    layout = run.layout
    yield f"--tensor-model-parallel-size {layout.tp}"
    if layout.sequence_parallel:
        yield "--sequence-parallel"
    yield f"--context-parallel-size {layout.cp}"
    yield from _stages(run)
    if layout.zero_stage == 1:
        yield "--use-distributed-optimizer"
    if layout.dp * layout.cp > 1 and run.framework.communication.overlap_gradients:
        yield "--overlap-grad-reduce"
        if layout.zero_stage == 1 and run.framework.communication.overlap_parameters:
            yield "--overlap-param-gather"
    if layout.recompute != "none":
        yield f"--recompute-granularity {layout.recompute}"
    if layout.recompute == "full":
        yield "--recompute-method uniform"
        yield "--recompute-num-layers 1"


def _stages(run: Run) -> Iterator[str]:
    """The pipeline, with its chunks spelled out where layers do not divide evenly."""
    layout, layers = run.layout, run.model.num_layers
    yield f"--pipeline-model-parallel-size {layout.pp}"
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


def _environment(run: Run) -> dict[str, str]:
    """Megatron's own demand where communication overlaps with tensor or context parallelism."""
    several = run.layout.tp > 1 or run.layout.cp > 1
    return {"CUDA_DEVICE_MAX_CONNECTIONS": "1"} if several else {}
