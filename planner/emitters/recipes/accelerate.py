"""Accelerate: `accelerate.yaml` with the FSDP2 plugin and a parallelism configuration."""

from __future__ import annotations

from typing import Any

from planner.emitters.job import Recipe, Run
from planner.emitters.syntax import yaml_text
from planner.errors import EmitError

__all__ = ["recipe"]

_PRECISION = {"bf16": "bf16", "fp16": "fp16", "fp32": "no", "tf32": "no", "fp8": "fp8"}


def recipe(run: Run) -> Recipe:
    """`accelerate.yaml` for the user's own program."""
    layout = run.layout
    return Recipe(
        files={"accelerate.yaml": yaml_text(_config(run))},
        launcher="accelerate",
        # `accelerate launch` has no key for it outside DeepSpeed; the library reads this
        environment={"ACCELERATE_GRADIENT_ACCUMULATION_STEPS": str(layout.grad_accumulation)},
        notes=(
            "`train.py` is your program on Accelerate. Its data loader gives batches of "
            f"{layout.micro_batch} sequences; {layout.grad_accumulation} of them make a step.",
            "Layers are wrapped by the classes that the model itself names (`_no_split_modules`).",
        ),
    )


def _config(run: Run) -> dict[str, Any]:
    layout = run.layout
    config: dict[str, Any] = {
        "compute_environment": "LOCAL_MACHINE",
        "distributed_type": "FSDP",
        "mixed_precision": _PRECISION[run.workload.precision],
        "num_machines": run.nodes,
        "num_processes": layout.world,
        "machine_rank": 0,
        "rdzv_backend": "c10d",
    }
    if layout.world == 1:
        return config | {"distributed_type": "NO"}
    if layout.zero_stage == 0:
        raise EmitError(
            "ZeRO stage 0 has no setting in Accelerate's FSDP2 plugin; use a layout with stage 2 "
            "or 3, or framework ddp"
        )
    shard = layout.dp_shard or layout.dp
    if shard == 1 and layout.cp == 1:
        raise EmitError(
            f"{layout} shards over one rank, which Accelerate's FSDP2 plugin refuses; use a layout "
            "with dp or cp above 1"
        )
    config["fsdp_config"] = {
        "fsdp_version": 2,
        "fsdp_reshard_after_forward": layout.zero_stage == 3,
        "fsdp_auto_wrap_policy": "TRANSFORMER_BASED_WRAP",
        "fsdp_offload_params": layout.offload == "all-cpu",
        "fsdp_cpu_ram_efficient_loading": True,
        "fsdp_activation_checkpointing": layout.recompute == "full",
        "fsdp_state_dict_type": "SHARDED_STATE_DICT",
    }
    config["parallelism_config"] = {
        "parallelism_config_dp_replicate_size": layout.dp // shard,
        "parallelism_config_dp_shard_size": shard,
        "parallelism_config_tp_size": layout.tp,
        "parallelism_config_cp_size": layout.cp,
    }
    return config
