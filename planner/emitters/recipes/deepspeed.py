"""DeepSpeed: `ds_config.json` with every value written out, and an `accelerate.yaml` beside it.

Buckets and limits are those that the estimate counted (the framework's description); what the
description leaves open is written as DeepSpeed 0.19.8's own default, because its documentation
and its code differ.
"""

from __future__ import annotations

from typing import Any

from planner.describe.layout import OFFLOAD
from planner.emitters.batch_job import BatchJob
from planner.emitters.limits import ExpressibleLayouts, FrameworkNames
from planner.emitters.recipe import File, Recipe
from planner.emitters.recipes.accelerate import launch_file, trainer_file
from planner.emitters.text import json_text

__all__ = ["EXPRESSIBLE", "config_file", "disk_folder", "recipe"]

EXPRESSIBLE = ExpressibleLayouts(offload=OFFLOAD, hybrid=True, reshard=True, tiles=True)

_OWN_DISK = "nvme/"
_PREFETCH_ELEMENTS = 50_000_000
_PERSISTENT_ELEMENTS = 100_000
_SUB_GROUP_ELEMENTS = 1_000_000_000
_SWAP_ELEMENTS = 100_000_000
_SWAP_BUFFERS = {"offload_optimizer": 4, "offload_param": 5}
_IN_HOST_ELEMENTS = 1_000_000_000
_PRECISIONS = FrameworkNames(
    "precision",
    "DeepSpeed",
    {"bf16": "bf16", "fp16": "fp16", "fp32": "fp32", "tf32": "fp32"},
)


def config_file(job: BatchJob) -> File:
    """`ds_config.json`."""
    return File("ds_config.json", "DeepSpeed's configuration", json_text(_config(job)))


def _config(job: BatchJob) -> dict[str, Any]:
    """DeepSpeed's configuration as plain data; the batch arithmetic closes."""
    layout = job.layout
    precision = _PRECISIONS[job.workload.precision]
    states = job.framework.states(job.workload.precision)
    # a whole fp32 buffer beside 16-bit gradients is what accumulating in fp32 takes
    accumulate = "fp32" if states.gradient_bytes + states.unsharded_gradient_bytes >= 4 else None
    config: dict[str, Any] = {
        "train_batch_size": layout.global_batch,
        "train_micro_batch_size_per_gpu": layout.micro_batch,
        "gradient_accumulation_steps": layout.grad_accumulation,
        "steps_per_print": 10,
        "wall_clock_breakdown": False,
        "communication_data_type": "fp32" if states.reduce_bytes == 4 else precision,
        "data_types": {"grad_accum_dtype": accumulate or precision},
    }
    if precision != "fp32":
        config[precision] = {"enabled": True}
    config["zero_optimization"] = _zero(job)
    if "nvme" in layout.offload:
        config["aio"] = {
            "block_size": 1_048_576,
            "queue_depth": 8,
            "single_submit": False,
            "overlap_events": True,
        }
    return config


def _zero(job: BatchJob) -> dict[str, Any]:
    layout, buffers = job.layout, job.framework.buffers
    zero: dict[str, Any] = {"stage": layout.zero_stage}
    if not layout.shards_states:
        return zero
    zero |= {
        "contiguous_gradients": True,
        "overlap_comm": job.framework.communication.overlap_gradients,
        "reduce_bucket_size": int(buffers.reduce_bucket_elements),
    }
    if not layout.shards_weights:
        zero["allgather_bucket_size"] = int(buffers.gather_bucket_elements)
    else:
        zero |= {
            "stage3_prefetch_bucket_size": _PREFETCH_ELEMENTS,
            "stage3_param_persistence_threshold": _PERSISTENT_ELEMENTS,
            "stage3_max_live_parameters": int(buffers.live_elements),
            "stage3_max_reuse_distance": int(buffers.live_elements),
            "sub_group_size": _SUB_GROUP_ELEMENTS,
            "stage3_gather_16bit_weights_on_model_save": True,
            **_groups(job),
        }
    if layout.offload != "none":
        zero["offload_optimizer"] = _offload(job, "offload_optimizer")
    if layout.offload.startswith("all-"):
        zero["offload_param"] = _offload(job, "offload_param")
    return zero


def _groups(job: BatchJob) -> dict[str, Any]:
    """MiCS and ZeRO++'s hpZ: smaller groups."""
    layout = job.layout
    settings: dict[str, Any] = {}
    if layout.dp_shard not in (0, layout.dp):
        settings["mics_shard_size"] = layout.dp_shard * layout.cp
    if layout.reshard:
        settings["zero_hpz_partition_size"] = layout.reshard
    return settings


def _offload(job: BatchJob, target: str) -> dict[str, Any]:
    """Where optimizer states or parameters go."""
    if job.layout.offload.endswith("-cpu"):
        return {"device": "cpu", "pin_memory": True}
    place: dict[str, Any] = {
        "device": "nvme",
        "nvme_path": _stated_disk(job) or _OWN_DISK,
        "pin_memory": True,
        "buffer_count": _SWAP_BUFFERS[target],
    }
    if target == "offload_param":
        # a buffer must hold the largest parameter
        largest = _largest_parameter(job)
        place |= {"buffer_size": max(_SWAP_ELEMENTS, largest), "max_in_cpu": _IN_HOST_ELEMENTS}
    return place


def _stated_disk(job: BatchJob) -> str:
    """The folder of the node's disk that the machine's profile states, or empty."""
    launch = job.machine.scheduler.launch
    return launch.local_disk if launch is not None else ""


def disk_folder(job: BatchJob) -> dict[str, str]:
    """The folder that a user must bring where a job needs the node's disk and none is stated."""
    if "nvme" not in job.layout.offload or _stated_disk(job):
        return {}
    return {_OWN_DISK: "make it a folder on the disk of every node, or a link to one"}


def _largest_parameter(job: BatchJob) -> int:
    """Elements of the model's largest matrix, in whole millions upwards."""
    model = job.model
    width = max(model.vocab_size, model.ffn_size)
    return -(-width * model.hidden_size // 1_000_000) * 1_000_000


def recipe(job: BatchJob) -> Recipe:
    """`ds_config.json` for the user's own program, and how Accelerate would read it."""
    config = config_file(job)
    settings = {
        "deepspeed_config_file": config.name,
        "deepspeed_multinode_launcher": "standard",
        "zero3_init_flag": job.layout.shards_weights,
    }
    launched = launch_file(job, "DEEPSPEED", {"deepspeed_config": settings})
    return Recipe(
        files=(config, launched, *trainer_file(job, deepspeed=config.name)),
        arguments=("--deepspeed", "--deepspeed_config", config.name),
        needed=disk_folder(job),
        notes=_notes(job),
    )


def _notes(job: BatchJob) -> tuple[str, ...]:
    notes = [
        "`train.py` is your program: it calls `deepspeed.initialize` and takes `--deepspeed` and "
        "`--deepspeed_config`. The optimizer, its learning rate and gradient clipping are its "
        "own; add them to `ds_config.json` if you want them there.",
        "`accelerate.yaml` is for programs on Accelerate: start those with `accelerate launch "
        "--config_file accelerate.yaml`. A program on the Hugging Face Trainer takes "
        "`training_arguments.json` in place of `--deepspeed --deepspeed_config ds_config.json` in "
        "`job.sh`; add learning rate, warm-up and data there.",
    ]
    if job.layout.recompute == "full":
        notes.append("Recompute every layer: `model.gradient_checkpointing_enable()`.")
    if job.layout.offload.startswith(("optimizer-", "all-")):
        notes.append(
            "With the optimizer off the device, use `deepspeed.ops.adam.DeepSpeedCPUAdam`."
        )
    for name, meaning in disk_folder(job).items():
        notes.append(f"States go to `{name}` beside `job.sh`: {meaning}.")
    if job.layout.tiles > 1:
        notes.append(
            f"The largest matrix is split into {job.layout.tiles} tiles, which no JSON key says: "
            "replace its module by `deepspeed.zero.TiledLinear(inputs, outputs, in_splits=1, "
            f"out_splits={job.layout.tiles})`."
        )
    if job.layout.shards_weights:
        init = "MiCS_Init" if job.layout.dp_shard not in (0, job.layout.dp) else "Init"
        notes.append(
            f"Build the model inside `deepspeed.zero.{init}()` so that no host holds it all."
        )
    return tuple(notes)
