"""wordplay: its settings `group.name=value`, in a file or in what starts it (ezpz)."""

from __future__ import annotations

from planner.describe.configurations.configuration import Configuration
from planner.describe.configurations.document import Document
from planner.describe.configurations.readers.nanogpt import said_of_gpt
from planner.describe.configurations.statement import DTYPES, Statement
from planner.describe.configurations.table import Table

__all__ = ["KIND", "read", "recognises"]

KIND = "settings of wordplay"
_MARKS = ("n_layer", "n_embd", "block_size", "batch_size")
_BACKENDS = {"ddp": "ddp"}


def recognises(document: Document) -> bool:
    """Whether sizes of its model are set, in the group that holds them."""
    model = document.settings.get("model")
    return isinstance(model, dict) and any(mark in model for mark in _MARKS)


def read(document: Document) -> Configuration:
    """What they say; what they do not set is wordplay's, which its own files may change."""
    given = Table(document.settings, document.name)
    model, optimizer, train = (given.table(name) for name in ("model", "optimizer", "train"))
    said = Statement(KIND, document.name, given)
    said.is_(framework="ezpz")
    said.named(train, "backend", _BACKENDS, "ddp")
    said_of_gpt(said, model)
    said.layout(grad_accumulation=optimizer.number("gas"))
    said.workload(precision=said.named(train, "dtype", DTYPES, "bf16"))
    said.by_default(precision="bf16", grad_accumulation=1)
    if train.flag("compile") is not False:
        said.turned_on("compile")
    return said.configuration(hides=lambda key: True)
