"""horovod: the module `horovod_plan.py` that `planner emit` writes for Horovod."""

from __future__ import annotations

from planner.describe.configurations.configuration import Configuration
from planner.describe.configurations.document import Document
from planner.describe.configurations.statement import DTYPES, Statement

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
    said = Statement(KIND, document.name, table)
    said.is_(framework="horovod")
    said.layout(
        zero_stage=0,
        micro_batch=table.number("MICRO_BATCH"),
        grad_accumulation=table.number("GRAD_ACCUMULATION"),
    )
    dtype = (table.word("DTYPE") or "").removeprefix("torch.")
    said.workload(precision=DTYPES.get(dtype))
    said.changes({"states.reduce_bytes": said.named(table, "COMPRESSION", _BYTES, 4)})
    return said.configuration(hides=lambda key: True)
