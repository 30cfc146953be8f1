"""fully_shard: FSDP2 for the user's own model, as one short Python module."""

from __future__ import annotations

from planner.emitters.batch_job import BatchJob
from planner.emitters.limits import TORCH_DTYPES, ExpressibleLayouts, FrameworkNames
from planner.emitters.recipe import File, Recipe

__all__ = ["EXPRESSIBLE", "recipe"]

EXPRESSIBLE = ExpressibleLayouts(offload=("none", "all-cpu"), hybrid=True, reshard=True)

_PRECISIONS = FrameworkNames("precision", "FSDP2 alone", TORCH_DTYPES)

_MODULE = '''\
"""FSDP2 as planned: call `shard(model, layers)` before the optimizer is built."""

import torch
from torch import nn
from torch.distributed.device_mesh import init_device_mesh
from torch.distributed.fsdp import {imports}

REPLICATE, SHARD = {replicate}, {shard}
MICRO_BATCH, GRAD_ACCUMULATION = {micro_batch}, {grad_accumulation}


def shard(model: nn.Module, layers: nn.ModuleList, device: str = "{device}") -> nn.Module:
    """Shard every layer on its own, then what is left of the model."""
    mesh = init_device_mesh(
        device, (REPLICATE, SHARD), mesh_dim_names=("dp_replicate", "dp_shard")
    )
    options = {{
        "mesh": mesh if REPLICATE > 1 else mesh["dp_shard"],
        "reshard_after_forward": {reshard},
{policies}    }}
    for layer in layers:
        fully_shard(layer, **options)
    return fully_shard(model, **options)
'''


def recipe(job: BatchJob) -> Recipe:
    """`sharding.py` for the user's own program; data-parallel layouts only."""
    layout = job.layout
    EXPRESSIBLE.check(layout, "FSDP2 alone")
    notes = [
        "`train.py` is your program. It calls `sharding.shard(model, layers)` before it builds the "
        f"optimizer, takes {job.batches}.",
        "Every micro-batch reduces its gradients, as the estimate counts.",
    ]
    if layout.recompute == "full":
        notes.append(
            "Recompute every layer before sharding, such as "
            "`model.gradient_checkpointing_enable()` of a Hugging Face model."
        )
    purpose = "FSDP2 with the planned mesh and precision, for your program to import"
    return Recipe(files=(File("sharding.py", purpose, _module(job)),), notes=tuple(notes))


def _module(job: BatchJob) -> str:
    layout = job.layout
    policies, imports = "", ["fully_shard"]
    dtype = _PRECISIONS[job.workload.precision]
    if dtype != "float32":
        imports.append("MixedPrecisionPolicy")
        policies += (
            f'        "mp_policy": MixedPrecisionPolicy(\n            param_dtype=torch.{dtype}, '
            "reduce_dtype=torch.float32\n        ),\n"
        )
    if layout.offload == "all-cpu":
        imports.append("CPUOffloadPolicy")
        policies += '        "offload_policy": CPUOffloadPolicy(),\n'
    # stage 0 is full replication: groups of one rank that shard nothing
    replicate, shard = job.sharding
    runtime = job.machine.device.runtime
    return _MODULE.format(
        imports=", ".join(sorted(imports)),
        replicate=replicate,
        shard=shard,
        micro_batch=layout.micro_batch,
        grad_accumulation=layout.grad_accumulation,
        device="cuda" if runtime == "rocm" else runtime,
        reshard=layout.reshard or layout.shards_weights,
        policies=policies,
    )
