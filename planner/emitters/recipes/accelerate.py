"""Accelerate: `accelerate.yaml` with the FSDP2 plugin and a parallelism configuration.

Beside it stands `training_arguments.json` for a program on the Hugging Face Trainer, which reads
batch, steps and precision there and the mesh from the launcher.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from planner.emitters.batch_job import CHECKPOINTS, BatchJob
from planner.emitters.limits import ExpressibleLayouts, FrameworkNames
from planner.emitters.queue import slot_of
from planner.emitters.recipe import File, Recipe
from planner.emitters.text import json_text, yaml_text

__all__ = ["EXPRESSIBLE", "TRAINER", "launch_file", "recipe", "trainer_file"]

EXPRESSIBLE = ExpressibleLayouts(axes=("tp", "cp"), offload=("none", "all-cpu"), hybrid=True)

_PRECISIONS = FrameworkNames(
    "precision",
    "Accelerate",
    {"bf16": "bf16", "fp16": "fp16", "fp32": "no", "tf32": "no", "fp8": "fp8"},
)


_EACH = (
    "Gradients are reduced after every batch, which no file says: give `Accelerator` a "
    "`GradientAccumulationPlugin(num_steps={}, sync_each_batch=True)`. Without it every rank sums "
    "whole gradients, which the estimate does not count."
)
"""What the user's own program says; `training_arguments.json` says it for the Trainer."""


def launch_file(job: BatchJob, distributed_type: str, settings: Mapping[str, Any]) -> File:
    """`accelerate.yaml`: the processes of the job, and what one type of distribution needs."""
    config = {
        "compute_environment": "LOCAL_MACHINE",
        "distributed_type": distributed_type,
        "num_machines": job.nodes,
        "num_processes": job.layout.world,
        "machine_rank": 0,
        "rdzv_backend": "c10d",
    }
    return File("accelerate.yaml", "Accelerate's configuration", yaml_text({**config, **settings}))


_OPTIMIZERS = {
    "adam": "adamw_torch",
    "adamw": "adamw_torch",
    "adam-8bit": "adamw_bnb_8bit",
    "paged-adamw": "paged_adamw_32bit",
    "paged-adam-8bit": "paged_adamw_8bit",
    "lion": "lion_32bit",
    "adafactor": "adafactor",
    "sgd": "sgd",
}
"""Optimizers of TrainingArguments; the estimate counts torch's AdamW over lists of tensors."""

TRAINER = (
    "For a program on the Hugging Face Trainer, such as `run_clm.py` of transformers, write "
    "`export TRAINING_ARGUMENTS=training_arguments.json` into `environment.sh`: `HfArgumentParser` "
    "reads that file where it is the only argument. Add `learning_rate`, `warmup_steps` and what "
    "your program asks for (model, data, sequence length) to it; let `trainer.train` resume from "
    "the last checkpoint."
)
"""How a program on the Trainer is started."""
TRAINER_ARGUMENT = '${TRAINING_ARGUMENTS:+"${TRAINING_ARGUMENTS}"}'
"""The path of its arguments, where the user set it."""


def trainer_file(job: BatchJob, **more: Any) -> tuple[File, ...]:
    """`training_arguments.json`; none where the Trainer has no word for precision or optimizer."""
    layout, workload = job.layout, job.workload
    if workload.optimizer not in _OPTIMIZERS or workload.precision == "fp8":
        return ()
    arguments: dict[str, Any] = {
        "output_dir": CHECKPOINTS,
        "per_device_train_batch_size": layout.micro_batch,
        "gradient_accumulation_steps": layout.grad_accumulation,
        "max_steps": job.steps,
        "optim": _OPTIMIZERS[workload.optimizer],
        "gradient_checkpointing": layout.recompute == "full",
        "logging_steps": 1,
        "save_strategy": "steps",
        "save_steps": slot_of(job).save_every,
        **more,
    }
    if workload.precision != "fp32":
        arguments[workload.precision] = True
    purpose = "arguments of the Hugging Face Trainer, for a program that uses it"
    return (File("training_arguments.json", purpose, json_text(arguments)),)


def recipe(job: BatchJob) -> Recipe:
    """`accelerate.yaml` for the user's own program."""
    layout = job.layout
    precision = {"mixed_precision": _PRECISIONS[job.workload.precision]}
    if layout.world == 1:
        launched = launch_file(job, "NO", precision)
    else:
        launched = launch_file(job, "FSDP", {**precision, **_fsdp(job)})
    more: dict[str, Any] = {}
    if job.layout.grad_accumulation > 1 and layout.world > 1:
        more["accelerator_config"] = {"gradient_accumulation_kwargs": {"sync_each_batch": True}}
    # the launcher's own checkpointing wraps whole layers: the Trainer's would do it twice
    arguments = trainer_file(job, gradient_checkpointing=False, **more)
    return Recipe(
        files=(launched, *arguments),
        arguments=(TRAINER_ARGUMENT,),
        launcher="accelerate",
        # `accelerate launch` has no key for it outside DeepSpeed; the library reads this
        environment={"ACCELERATE_GRADIENT_ACCUMULATION_STEPS": str(layout.grad_accumulation)},
        notes=(
            "`train.py` is your program on Accelerate. Its data loader gives batches of "
            f"{layout.micro_batch} sequences; {layout.grad_accumulation} of them make a step.",
            *([_EACH.format(layout.grad_accumulation)] if more else []),
            "Layers are wrapped by the classes that the model itself names (`_no_split_modules`).",
            *([TRAINER] if arguments else []),
        ),
    )


def _fsdp(job: BatchJob) -> dict[str, Any]:
    """The plugin's settings and the mesh."""
    layout = job.layout
    replicate, shard = job.sharding
    plugin = {
        "fsdp_version": 2,
        "fsdp_reshard_after_forward": layout.shards_weights,
        "fsdp_auto_wrap_policy": "TRANSFORMER_BASED_WRAP",
        "fsdp_offload_params": layout.offload == "all-cpu",
        "fsdp_cpu_ram_efficient_loading": True,
        "fsdp_activation_checkpointing": layout.recompute == "full",
        "fsdp_state_dict_type": "SHARDED_STATE_DICT",
    }
    mesh = {
        "parallelism_config_dp_replicate_size": replicate,
        "parallelism_config_dp_shard_size": shard,
        "parallelism_config_tp_size": layout.tp,
        "parallelism_config_cp_size": layout.cp,
    }
    return {"fsdp_config": plugin, "parallelism_config": mesh}
