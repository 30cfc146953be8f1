"""wordplay: its settings `group.name=value`, in a file or in what starts it (ezpz)."""

from __future__ import annotations

from planner.describe.configurations.configuration import Configuration
from planner.describe.configurations.document import Document
from planner.describe.configurations.readers.nanogpt import read_gpt_flags
from planner.describe.configurations.stated_job import DTYPES, StatedJob
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
    own_settings = Table(document.settings, document.name)
    model, optimizer, train = (own_settings.table(name) for name in ("model", "optimizer", "train"))
    stated_job = StatedJob(KIND, document.name, own_settings)
    stated_job.is_(framework="ezpz")
    stated_job.named(train, "backend", _BACKENDS, "ddp")
    read_gpt_flags(stated_job, model)
    stated_job.layout(grad_accumulation=optimizer.number("gas"))
    stated_job.workload(precision=stated_job.named(train, "dtype", DTYPES, "bf16"))
    stated_job.by_default(precision="bf16", grad_accumulation=1)
    if train.flag("compile") is not False:
        stated_job.turned_on("compile")
    return stated_job.configuration(hides=lambda key: True)
