"""nanoGPT: its options, or the assignments of its configuration files."""

from __future__ import annotations

from planner.describe.configurations.configuration import Configuration
from planner.describe.configurations.document import Document
from planner.describe.configurations.statement import DTYPES, Statement
from planner.describe.configurations.table import Table

__all__ = ["KIND", "read", "recognises", "said_of_gpt"]

KIND = "options of nanoGPT"
_MARKS = ("batch_size", "block_size")
_SHAPE = {"num_layers": "n_layer", "hidden_size": "n_embd", "num_heads": "n_head"}


def _given(document: Document) -> Table:
    if all(mark in document.tables for mark in _MARKS):
        return document.table()
    options = {name.replace("-", "_"): value for name, value in document.options.items()}
    return Table(options, document.name)


def recognises(document: Document) -> bool:
    """Whether batch and block size stand there, in nanoGPT's words."""
    given = _given(document)
    # wordplay has the same words, in groups
    return all(mark in given for mark in _MARKS) and not document.settings


def read(document: Document) -> Configuration:
    """What they say. The accumulation counts the passes of all ranks."""
    given = _given(document)
    said = Statement(KIND, document.name, given)
    said.is_(framework="ddp")
    said_of_gpt(said, given)
    micro = given.number("batch_size")
    passes = given.number("gradient_accumulation_steps") or 40  # train.py's own
    if micro is not None:
        said.workload(global_batch=micro * passes)
    said.workload(precision=said.named(given, "dtype", DTYPES, "bf16") or "bf16")
    # train.py compiles unless it is told not to
    if given.flag("compile") is not False:
        said.turned_on("compile")
    return said.configuration(hides=lambda key: True)


def said_of_gpt(said: Statement, given: Table) -> None:
    """State the batch of a rank, sequence, dropout and sizes of the model."""
    said.layout(zero_stage=0, micro_batch=given.number("batch_size"))
    said.workload(sequence_length=given.number("block_size"), dropout=given.real("dropout"))
    said.shape(**{field: given.number(name) for field, name in _SHAPE.items()})
