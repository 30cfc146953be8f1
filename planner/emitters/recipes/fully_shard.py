"""fully_shard: FSDP2 for the user's own model, as one short Python module."""

from dataclasses import replace
from pathlib import Path
from typing import Any

import planner.validate.sharding as sharding
from planner.cost.shards.layers_per_stage import layers_on_stage
from planner.describe.model.traced_file import split_name
from planner.emitters.batch_job import BatchJob
from planner.emitters.limits import TORCH_DTYPES, ExpressibleLayouts, FrameworkNames
from planner.emitters.recipe import File, Page, Recipe

EXPRESSIBLE = ExpressibleLayouts(offload=("none", "all-cpu"), hybrid=True, reshard=True)

OWN_MODULE = Path(sharding.__path__[0]) / "own_module.py"
"""Code that cuts and splits a user's module, copied into the folder."""
_PRECISIONS = FrameworkNames("precision", "FSDP2 alone", TORCH_DTYPES)


def _split_module(job: BatchJob) -> dict[str, Any]:
    """Values for a user's module over tensor and pipeline parallelism."""
    traced, pp = job.model.traced, job.layout.pp
    assert traced is not None
    starts, _ = layers_on_stage(job.model.depth, pp, range(pp))
    path, function = split_name(job.model.name)
    return {
        "starts": [traced.units[int(start)] for start in starts[1:]],
        "schedule": "ScheduleGPipe" if job.layout.schedule == "gpipe" else "Schedule1F1B",
        "file": Path(path).stem or "net",
        "function": function or "build",
    }


def recipe(job: BatchJob) -> Recipe:
    """Write `sharding.py` for the user's own program; data-parallel layouts only."""
    layout, runtime = job.layout, job.machine.device.runtime
    splits_module = job.model.traced is not None and layout.tp * layout.pp > 1
    axes = job.framework.code.own_module_axes if splits_module else ()
    replace(EXPRESSIBLE, axes=axes).check(layout, "FSDP2 alone")
    dtype, offloads = _PRECISIONS[job.workload.precision], layout.offload == "all-cpu"
    policies = {"MixedPrecisionPolicy": dtype != "float32", "CPUOffloadPolicy": offloads}
    # stage 0 is full replication: groups of one rank that shard nothing
    replicate, shard = job.sharding
    page = Page(
        "own_module" if splits_module else "fully_shard",
        job,
        imports=sorted(["fully_shard", *(name for name, used in policies.items() if used)]),
        dtype=dtype,
        offloads=offloads,
        replicate=replicate,
        shard=shard,
        device="cuda" if runtime == "rocm" else runtime,
        reshard=layout.reshard or layout.shards_weights,
        **(_split_module(job) if splits_module else {}),
    )
    if splits_module:
        return Recipe(
            files=(
                page.file("sharding.py", "the planned mesh, splits, stages and precision"),
                page.file("train.py", "an example program"),
                File("own_module.py", "cuts and splits a module", OWN_MODULE.read_text("utf-8")),
            ),
            notes=page.notes(),
        )
    purpose = "FSDP2 with the planned mesh and precision, for your program to import"
    return Recipe(files=(page.file("sharding.py", purpose),), notes=page.notes())
