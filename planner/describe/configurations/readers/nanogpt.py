"""nanoGPT: its options, or the assignments of its configuration files."""

from __future__ import annotations

from planner.describe.configurations.configuration import Configuration
from planner.describe.configurations.document import Document
from planner.describe.configurations.stated_job import DTYPES, StatedJob
from planner.describe.configurations.table import Table

__all__ = ["KIND", "read", "read_gpt_flags", "recognises"]

KIND = "options of nanoGPT"
_MARKS = ("batch_size", "block_size")
_SHAPE = {"num_layers": "n_layer", "hidden_size": "n_embd", "num_heads": "n_head"}


def _flags(document: Document) -> Table:
    if all(mark in document.tables for mark in _MARKS):
        return document.table()
    options = {name.replace("-", "_"): value for name, value in document.options.items()}
    return Table(options, document.name)


def recognises(document: Document) -> bool:
    """Whether batch and block size stand there, in nanoGPT's words."""
    flags = _flags(document)
    # wordplay has the same words, in groups
    return all(mark in flags for mark in _MARKS) and not document.settings


def read(document: Document) -> Configuration:
    """What they say. The accumulation counts the passes of all ranks."""
    flags = _flags(document)
    stated_job = StatedJob(KIND, document.name, flags)
    stated_job.is_(framework="ddp")
    read_gpt_flags(stated_job, flags)
    micro = flags.number("batch_size")
    passes = flags.number("gradient_accumulation_steps") or 40  # train.py's own
    if micro is not None:
        stated_job.workload(global_batch=micro * passes)
    stated_job.workload(precision=stated_job.named(flags, "dtype", DTYPES, "bf16") or "bf16")
    # train.py compiles unless it is told not to
    if flags.flag("compile") is not False:
        stated_job.turned_on("compile")
    return stated_job.configuration(hides=lambda key: True)


def read_gpt_flags(stated_job: StatedJob, flags: Table) -> None:
    """State the batch of a rank, sequence, dropout and sizes of the model."""
    stated_job.layout(zero_stage=0, micro_batch=flags.number("batch_size"))
    stated_job.workload(sequence_length=flags.number("block_size"), dropout=flags.real("dropout"))
    stated_job.shape(**{field: flags.number(name) for field, name in _SHAPE.items()})
