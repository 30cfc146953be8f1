"""DeepSpeed: `ds_config.json` with every value written out, and an `accelerate.yaml` beside it.

Buckets and limits are those that the estimate counted (the framework's description); what the
description leaves open is written as DeepSpeed 0.19.8's own default, because its documentation
and its code differ.
"""

from __future__ import annotations

from typing import Any

from planner.emitters.job import Recipe, Run
from planner.emitters.syntax import json_text, yaml_text
from planner.errors import EmitError

__all__ = ["ds_config", "recipe"]

_PREFETCH_ELEMENTS = 50_000_000
_PERSISTENT_ELEMENTS = 100_000
_SUB_GROUP_ELEMENTS = 1_000_000_000
_SWAP_ELEMENTS = 100_000_000
_SWAP_BUFFERS = {"offload_optimizer": 4, "offload_param": 5}
_IN_HOST_ELEMENTS = 1_000_000_000
_TYPES = {"bf16": "bf16", "fp16": "fp16", "fp32": "fp32", "tf32": "fp32"}


def ds_config(run: Run) -> dict[str, Any]:
    """DeepSpeed's configuration of a run as plain data; the batch arithmetic closes."""
    layout, workload = run.layout, run.workload
    if workload.precision not in _TYPES:
        raise EmitError(
            f"precision {workload.precision} has no DeepSpeed setting here; use bf16, fp16 or fp32"
        )
    states = run.framework.states(workload.precision)
    sixteen = workload.precision in ("bf16", "fp16")
    # a whole fp32 buffer beside 16-bit gradients is what accumulating in fp32 takes
    accumulate = "fp32" if states.gradient_bytes + states.unsharded_gradient_bytes >= 4 else None
    config: dict[str, Any] = {
        "train_batch_size": layout.global_batch,
        "train_micro_batch_size_per_gpu": layout.micro_batch,
        "gradient_accumulation_steps": layout.grad_accumulation,
        "steps_per_print": 10,
        "wall_clock_breakdown": False,
        "communication_data_type": "fp32" if states.reduce_bytes == 4 else workload.precision,
        "data_types": {"grad_accum_dtype": accumulate or _TYPES[workload.precision]},
    }
    if sixteen:
        config[workload.precision] = {"enabled": True}
    config["zero_optimization"] = _zero(run)
    if "nvme" in layout.offload:
        config["aio"] = {
            "block_size": 1_048_576,
            "queue_depth": 8,
            "single_submit": False,
            "overlap_events": True,
        }
    return config


def _zero(run: Run) -> dict[str, Any]:
    layout, buffers = run.layout, run.framework.buffers
    zero: dict[str, Any] = {"stage": layout.zero_stage}
    if layout.zero_stage == 0:
        return zero
    zero |= {
        "contiguous_gradients": True,
        "overlap_comm": run.framework.communication.overlap_gradients,
        "reduce_bucket_size": int(buffers.reduce_bucket_elements),
    }
    if layout.zero_stage < 3:
        zero["allgather_bucket_size"] = int(buffers.gather_bucket_elements)
    else:
        zero |= {
            "stage3_prefetch_bucket_size": _PREFETCH_ELEMENTS,
            "stage3_param_persistence_threshold": _PERSISTENT_ELEMENTS,
            "stage3_max_live_parameters": int(buffers.live_elements),
            "stage3_max_reuse_distance": int(buffers.live_elements),
            "sub_group_size": _SUB_GROUP_ELEMENTS,
            "stage3_gather_16bit_weights_on_model_save": True,
        }
    if layout.offload != "none":
        zero["offload_optimizer"] = _offload(run, "offload_optimizer")
    if layout.offload.startswith("all-"):
        zero["offload_param"] = _offload(run, "offload_param")
    return zero


def _offload(run: Run, what: str) -> dict[str, Any]:
    """Where optimizer states or parameters go."""
    if run.layout.offload.endswith("-cpu"):
        return {"device": "cpu", "pin_memory": True}
    launch = run.machine.scheduler.launch
    folder = launch.local_disk if launch is not None else ""
    if not folder:
        raise EmitError(
            f"offload {run.layout.offload} needs the folder of the node's disk, which the profile "
            f"of {run.where} does not state; use offload to cpu, or add local_disk to its "
            "[scheduler.launch]"
        )
    place: dict[str, Any] = {
        "device": "nvme",
        "nvme_path": folder,
        "pin_memory": True,
        "buffer_count": _SWAP_BUFFERS[what],
    }
    if what == "offload_param":
        # a buffer must hold the largest parameter
        largest = _largest_parameter(run)
        place |= {"buffer_size": max(_SWAP_ELEMENTS, largest), "max_in_cpu": _IN_HOST_ELEMENTS}
    return place


def _largest_parameter(run: Run) -> int:
    """Elements of the model's largest matrix, in whole millions upwards."""
    model = run.model
    width = max(model.vocab_size, model.ffn_size)
    return -(-width * model.hidden_size // 1_000_000) * 1_000_000


def recipe(run: Run) -> Recipe:
    """`ds_config.json` for the user's own program, and how Accelerate would read it."""
    return Recipe(
        files={
            "ds_config.json": json_text(ds_config(run)),
            "accelerate.yaml": yaml_text(_accelerate(run)),
        },
        arguments=("--deepspeed", "--deepspeed_config", "ds_config.json"),
        notes=_notes(run),
    )


def _accelerate(run: Run) -> dict[str, Any]:
    return {
        "compute_environment": "LOCAL_MACHINE",
        "distributed_type": "DEEPSPEED",
        "num_machines": run.nodes,
        "num_processes": run.layout.world,
        "machine_rank": 0,
        "rdzv_backend": "c10d",
        "deepspeed_config": {
            "deepspeed_config_file": "ds_config.json",
            "deepspeed_multinode_launcher": "standard",
            "zero3_init_flag": run.layout.zero_stage == 3,
        },
    }


def _notes(run: Run) -> tuple[str, ...]:
    notes = [
        "`train.py` is your program: it calls `deepspeed.initialize` and takes `--deepspeed` and "
        "`--deepspeed_config`. The optimizer, its learning rate and gradient clipping are its "
        "own; add them to `ds_config.json` if you want them there.",
        "`accelerate.yaml` is for programs on Accelerate or the Hugging Face Trainer: start those "
        "with `accelerate launch --config_file accelerate.yaml`.",
    ]
    if run.layout.recompute == "full":
        notes.append("Recompute every layer: `model.gradient_checkpointing_enable()`.")
    if run.layout.offload.startswith(("optimizer-", "all-")):
        notes.append(
            "With the optimizer off the device, use `deepspeed.ops.adam.DeepSpeedCPUAdam`."
        )
    if run.layout.tiles > 1:
        notes.append(
            f"The largest matrix is split into {run.layout.tiles} tiles, which no JSON key says: "
            "replace its module by `deepspeed.zero.TiledLinear(inputs, outputs, in_splits=1, "
            f"out_splits={run.layout.tiles})`."
        )
    if run.layout.zero_stage == 3:
        notes.append("Build the model inside `deepspeed.zero.Init()` so that no host holds it all.")
    return tuple(notes)
