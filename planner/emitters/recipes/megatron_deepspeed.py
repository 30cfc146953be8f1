"""Megatron-DeepSpeed: Megatron's arguments in that fork's spelling, and DeepSpeed's JSON."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace

from planner.emitters.batch_job import BatchJob
from planner.emitters.limits import ExpressibleLayouts, FrameworkNames, built
from planner.emitters.recipe import Recipe, from_checkout
from planner.emitters.recipes.deepspeed import config_file, disk_folder
from planner.emitters.recipes.megatron import START, arguments_file, common_options

__all__ = ["EXPRESSIBLE", "recipe"]

_FRAMEWORK = "Megatron-DeepSpeed"
EXPRESSIBLE = ExpressibleLayouts(
    axes=("tp", "pp", "cp"),
    offload=("none", "optimizer-cpu", "optimizer-nvme"),
    hybrid=True,
    reshard=True,
    ulysses=True,
    activations=True,
)
_OPTIMIZERS = FrameworkNames("optimizer", _FRAMEWORK, {"adam": "adam", "adamw": "adamw"})
_PRECISIONS: FrameworkNames[tuple[str, ...]] = FrameworkNames(
    "precision",
    _FRAMEWORK,
    {
        "bf16": ("--bf16", "--accumulate-allreduce-grads-in-fp32"),
        "fp16": ("--fp16",),
        "fp32": (),
        "tf32": (),
    },
)


def recipe(job: BatchJob) -> Recipe:
    """`megatron.args` and `ds_config.json`; the data is the user's."""
    built(job)
    config = config_file(job)
    options = [*common_options(job), *_shape(job), *_training(job), *_layout(job, config.name)]
    program = "pretrain_gpt_alcf.py"
    return replace(
        START,
        files=(arguments_file(options), config),
        default_program=program,
        needed={
            "data.args": "write the options of your data and tokenizer into it, one a line",
            **disk_folder(job),
        },
        environment={"CUDA_DEVICE_MAX_CONNECTIONS": "1"},
        notes=(
            from_checkout(program, "that of argonne-lcf/Megatron-DeepSpeed"),
            "Bring `data.args`: `--data-file-list`, `--tokenizer-type`, `--tokenizer-model` and "
            "the like, one a line as `--name=value`.",
        ),
    )


def _shape(job: BatchJob) -> Iterator[str]:
    """The rest of the architecture."""
    model = job.model
    yield f"--kv-channels {model.head_dim}"
    if model.gated_mlp:
        yield "--swiglu"
    yield f"--num-key-value-heads {model.num_kv_heads}"
    yield f"--normalization {model.norm}"
    if model.position == "rope":
        yield "--use-rotary-position-embeddings"


def _training(job: BatchJob) -> Iterator[str]:
    """Precision, optimizer and attention; DeepSpeed itself chooses the backend."""
    workload, runtime = job.workload, job.machine.device.runtime
    optimizer = _OPTIMIZERS[workload.optimizer]
    if job.layout.offload != "none":
        # DeepSpeedCPUAdam decays weights as AdamW does, and is asked for by this name only
        optimizer = "adam"
        yield "--cpu-optimizer"
    yield f"--optimizer {optimizer}"
    if workload.attention == "flash":
        yield "--use-flash-attn-builder" if runtime == "xpu" else "--use-flash-attn-v2"
    yield from _PRECISIONS[workload.precision]


def _layout(job: BatchJob, config: str) -> Iterator[str]:
    """DeepSpeed's part: sharding, offload and recompute."""
    layout = job.layout
    yield "--deepspeed"
    if layout.pp == 1:
        yield "--no-pipeline-parallel"
    yield f"--deepspeed_config {config}"
    yield f"--zero-stage {layout.zero_stage}"
    if layout.cp > 1:
        yield f"--ds-sequence-parallel-size {layout.cp}"
    if layout.dp_shard not in (0, layout.dp):
        yield "--use-mics"
    if layout.recompute == "full":
        yield "--deepspeed-activation-checkpointing"
        yield "--checkpoint-activations"
        yield "--checkpoint-num-layers 1"
    if layout.offload_activations:
        yield "--checkpoint-in-cpu"
