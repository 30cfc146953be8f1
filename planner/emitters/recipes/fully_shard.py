"""fully_shard: FSDP2 for the user's own model, as one short Python module."""

from __future__ import annotations

from planner.emitters.batch_job import BatchJob
from planner.emitters.limits import TORCH_DTYPES, ExpressibleLayouts, FrameworkNames
from planner.emitters.recipe import File, Recipe
from planner.emitters.scripts.script_templates import render

__all__ = ["EXPRESSIBLE", "recipe"]

EXPRESSIBLE = ExpressibleLayouts(offload=("none", "all-cpu"), hybrid=True, reshard=True)

_PRECISIONS = FrameworkNames("precision", "FSDP2 alone", TORCH_DTYPES)


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
    """`sharding.py`; stage 0 is full replication: groups of one rank that shard nothing."""
    layout, runtime = job.layout, job.machine.device.runtime
    replicate, shard = job.sharding
    dtype, offloads = _PRECISIONS[job.workload.precision], layout.offload == "all-cpu"
    policies = {"MixedPrecisionPolicy": dtype != "float32", "CPUOffloadPolicy": offloads}
    return render(
        "sharding.py",
        imports=sorted(["fully_shard", *(name for name, used in policies.items() if used)]),
        dtype=dtype,
        offloads=offloads,
        replicate=replicate,
        shard=shard,
        micro_batch=layout.micro_batch,
        grad_accumulation=layout.grad_accumulation,
        device="cuda" if runtime == "rocm" else runtime,
        reshard=layout.reshard or layout.shards_weights,
    )
