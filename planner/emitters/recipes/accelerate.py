"""Accelerate: `accelerate.yaml` with the FSDP2 plugin and a parallelism configuration."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from planner.emitters.batch_job import BatchJob
from planner.emitters.limits import Says, Words
from planner.emitters.recipe import File, Recipe
from planner.emitters.text import yaml_text

__all__ = ["SAYS", "launch_file", "recipe"]

SAYS = Says(axes=("tp", "cp"), offload=("none", "all-cpu"), hybrid=True)

_PRECISIONS = Words(
    "precision",
    "Accelerate",
    {"bf16": "bf16", "fp16": "fp16", "fp32": "no", "tf32": "no", "fp8": "fp8"},
)


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


def recipe(job: BatchJob) -> Recipe:
    """`accelerate.yaml` for the user's own program."""
    layout = job.layout
    precision = {"mixed_precision": _PRECISIONS[job.workload.precision]}
    if layout.world == 1:
        launched = launch_file(job, "NO", precision)
    else:
        launched = launch_file(job, "FSDP", {**precision, **_fsdp(job)})
    return Recipe(
        files=(launched,),
        launcher="accelerate",
        # `accelerate launch` has no key for it outside DeepSpeed; the library reads this
        environment={"ACCELERATE_GRADIENT_ACCUMULATION_STEPS": str(layout.grad_accumulation)},
        notes=(
            "`train.py` is your program on Accelerate. Its data loader gives batches of "
            f"{layout.micro_batch} sequences; {layout.grad_accumulation} of them make a step.",
            "Layers are wrapped by the classes that the model itself names (`_no_split_modules`).",
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
