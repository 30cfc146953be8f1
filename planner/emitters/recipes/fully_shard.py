"""fully_shard: FSDP2 for the user's own model, as one short Python module."""

from planner.emitters.batch_job import BatchJob
from planner.emitters.limits import TORCH_DTYPES, ExpressibleLayouts, FrameworkNames
from planner.emitters.recipe import Page, Recipe

EXPRESSIBLE = ExpressibleLayouts(offload=("none", "all-cpu"), hybrid=True, reshard=True)

_PRECISIONS = FrameworkNames("precision", "FSDP2 alone", TORCH_DTYPES)


def recipe(job: BatchJob) -> Recipe:
    """Write `sharding.py` for the user's own program; data-parallel layouts only."""
    layout, runtime = job.layout, job.machine.device.runtime
    EXPRESSIBLE.check(layout, "FSDP2 alone")
    dtype, offloads = _PRECISIONS[job.workload.precision], layout.offload == "all-cpu"
    policies = {"MixedPrecisionPolicy": dtype != "float32", "CPUOffloadPolicy": offloads}
    # stage 0 is full replication: groups of one rank that shard nothing
    replicate, shard = job.sharding
    page = Page(
        "fully_shard",
        job,
        imports=sorted(["fully_shard", *(name for name, used in policies.items() if used)]),
        dtype=dtype,
        offloads=offloads,
        replicate=replicate,
        shard=shard,
        device="cuda" if runtime == "rocm" else runtime,
        reshard=layout.reshard or layout.shards_weights,
    )
    purpose = "FSDP2 with the planned mesh and precision, for your program to import"
    return Recipe(files=(page.file("sharding.py", purpose),), notes=page.notes())
