"""Megatron-DeepSpeed: Megatron's arguments in that fork's spelling, and DeepSpeed's JSON."""

from __future__ import annotations

from collections.abc import Iterator

from planner.emitters.job import Recipe, Run
from planner.emitters.recipes.deepspeed import ds_config
from planner.emitters.recipes.megatron import batches, check_model, lines
from planner.emitters.syntax import json_text
from planner.errors import EmitError

__all__ = ["recipe"]

_BACKENDS = {"xpu": "ccl", "cpu": "gloo"}


def recipe(run: Run) -> Recipe:
    """`megatron.args` and `ds_config.json`; the data is the user's."""
    model = run.model
    check_model(model, run.framework.name)
    if model.experts is not None or model.qk_norm != "none" or model.qkv_bias != model.mlp_bias:
        raise EmitError(
            f"model {model.name[:60]!r} has experts, normalised queries or biases in some matrices "
            "only, which is not written for Megatron-DeepSpeed; use deepspeed or megatron-lm"
        )
    if run.workload.optimizer not in ("adam", "adamw"):
        raise EmitError(
            f"optimizer {run.workload.optimizer} is not written for Megatron-DeepSpeed; use adamw"
        )
    return Recipe(
        files={
            "megatron.args": lines([*_shape(run), *_job(run), *_layout(run)]),
            "ds_config.json": json_text(ds_config(run)),
        },
        default_program="pretrain_gpt_alcf.py",
        argument_files=("megatron.args", "data.args"),
        arguments=('--lr "${LEARNING_RATE}"',),
        variables={"LEARNING_RATE": "the learning rate of your recipe"},
        needed={"data.args": "write the options of your data and tokenizer into it, one a line"},
        environment={"CUDA_DEVICE_MAX_CONNECTIONS": "1"},
        notes=(
            "`pretrain_gpt_alcf.py` is that of argonne-lcf/Megatron-DeepSpeed: run from its "
            "checkout, or set PROGRAM to its path.",
            "Bring `data.args`: `--data-file-list`, `--tokenizer-type`, `--tokenizer-model` and "
            "the like, one a line as `--name=value`.",
        ),
    )


def _shape(run: Run) -> Iterator[str]:
    model = run.model
    yield f"--num-layers {model.num_layers}"
    yield f"--hidden-size {model.hidden_size}"
    yield f"--ffn-hidden-size {model.ffn_size}"
    yield f"--num-attention-heads {model.num_heads}"
    yield f"--num-key-value-heads {model.num_kv_heads}"
    yield f"--kv-channels {model.head_dim}"
    yield "--normalization " + ("rmsnorm" if model.norm == "rmsnorm" else "layernorm")
    if model.position == "rope":
        yield "--use-rotary-position-embeddings"
    if model.gated_mlp:
        yield "--swiglu"
    if not model.mlp_bias:
        yield "--disable-bias-linear"
    if not model.tied_embeddings:
        yield "--untie-embeddings-and-output-weights"


def _job(run: Run) -> Iterator[str]:
    workload = run.workload
    yield from batches(run)
    yield f"--optimizer {workload.optimizer}"
    yield f"--distributed-backend {_BACKENDS.get(run.machine.device.runtime, 'nccl')}"
    if workload.attention == "flash":
        xpu = run.machine.device.runtime == "xpu"
        yield "--use-flash-attn-builder" if xpu else "--use-flash-attn-v2"
    if workload.precision in ("bf16", "fp16"):
        yield f"--{workload.precision}"
    if workload.precision == "bf16":
        yield "--accumulate-allreduce-grads-in-fp32"


def _layout(run: Run) -> Iterator[str]:
    layout = run.layout
    yield f"--tensor-model-parallel-size {layout.tp}"
    yield f"--pipeline-model-parallel-size {layout.pp}"
    if layout.sequence_parallel:
        yield "--sequence-parallel"
    yield "--deepspeed"
    if layout.pp == 1:
        yield "--no-pipeline-parallel"
    yield "--deepspeed_config ds_config.json"
    yield f"--zero-stage {layout.zero_stage}"
    if layout.offload != "none":
        yield "--cpu-optimizer"
    if layout.recompute == "full":
        yield "--deepspeed-activation-checkpointing"
        yield "--checkpoint-activations"
        yield "--checkpoint-num-layers 1"
