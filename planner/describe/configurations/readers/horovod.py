"""horovod: the module `horovod_plan.py` that `planner emit` writes for Horovod."""

from __future__ import annotations

from planner.describe.configurations.configuration import Configuration
from planner.describe.configurations.document import Document
from planner.describe.configurations.stated_job import DTYPES, StatedJob

__all__ = ["KIND", "read", "recognises"]

KIND = "Horovod module of planner emit"
_MARKS = ("COMPRESSION", "GRAD_ACCUMULATION")
_BYTES = {"hvd.compression.none": 4, "hvd.compression.fp16": 2}


def recognises(document: Document) -> bool:
    """Whether the compression of gradients is assigned beside the passes."""
    return all(mark in document.tables for mark in _MARKS)


def read(document: Document) -> Configuration:
    """What it says."""
    table = document.table()
    stated_job = StatedJob(KIND, document.name, table)
    stated_job.is_(framework="horovod")
    stated_job.layout(
        zero_stage=0,
        micro_batch=table.number("MICRO_BATCH"),
        grad_accumulation=table.number("GRAD_ACCUMULATION"),
    )
    dtype = (table.word("DTYPE") or "").removeprefix("torch.")
    stated_job.workload(precision=DTYPES.get(dtype))
    stated_job.changes({"states.reduce_bytes": stated_job.named(table, "COMPRESSION", _BYTES, 4)})
    return stated_job.configuration(hides=lambda key: True)
