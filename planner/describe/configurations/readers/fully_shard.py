"""fully_shard: the module `sharding.py` that `planner emit` writes for FSDP2 alone."""

from __future__ import annotations

from planner.describe.configurations.configuration import Configuration
from planner.describe.configurations.document import Document
from planner.describe.configurations.readers.torchtitan import fsdp2_stage
from planner.describe.configurations.stated_job import DTYPES, StatedJob

__all__ = ["KIND", "read", "recognises"]

KIND = "FSDP2 module of planner emit"
_MARKS = ("REPLICATE", "SHARD")


def recognises(document: Document) -> bool:
    """Whether both sizes of the mesh are assigned."""
    return all(mark in document.tables for mark in _MARKS)


def read(document: Document) -> Configuration:
    """What it says."""
    table = document.table()
    stated_job = StatedJob(KIND, document.name, table)
    stated_job.is_(framework="fsdp2")
    replicate, shard = table.number("REPLICATE") or 1, table.number("SHARD") or 1
    options = table.table("options")
    gathers_again = options.flag("reshard_after_forward")
    stated_job.layout(
        dp=replicate * shard,
        zero_stage=fsdp2_stage(shard, replicate, gathers_again=bool(gathers_again)),
        micro_batch=table.number("MICRO_BATCH"),
        grad_accumulation=table.number("GRAD_ACCUMULATION"),
        offload="all-cpu" if "offload_policy" in options else "none",
    )
    stated_job.is_(replicas=replicate if shard > 1 else 0)
    dtype = options.table("mp_policy").word("param_dtype") or ""
    dtype_name = DTYPES.get(dtype.removeprefix("torch."), "fp32")
    stated_job.workload(precision=dtype_name)
    return stated_job.configuration(hides=lambda key: True)
