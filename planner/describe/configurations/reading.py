"""Reading: a job's configuration files, each recognised by its content."""

import os
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from planner.describe.configurations.configuration import Configuration, joined
from planner.describe.configurations.document import MAX_BYTES, Document
from planner.describe.configurations.readers import (
    accelerate,
    axolotl,
    deepspeed,
    emitted,
    huggingface,
    megatron,
    nanogpt,
    nanotron,
    neox,
    torchtitan,
)
from planner.describe.configurations.stated_job import KEYS, Reader
from planner.describe.files import read_text
from planner.errors import CatalogueError, shorten

READERS = {
    "accelerate": accelerate.ACCELERATE,
    "axolotl": axolotl.AXOLOTL,
    "neox": neox.NEOX,
    "deepspeed": deepspeed.DEEPSPEED,
    "fully_shard": emitted.FULLY_SHARD,
    "horovod": emitted.HOROVOD,
    "huggingface": huggingface.TRAINER,
    "megatron": megatron.MEGATRON,
    "nanogpt": nanogpt.NANOGPT,
    "nanotron": nanotron.NANOTRON,
    "planned": emitted.PLANNED,
    "torchtitan": torchtitan.TORCHTITAN,
    "wordplay": nanogpt.WORDPLAY,
}
"""Every reader by name; the first that recognises a file reads it."""


def read_configuration(path: str | Path, *more: str | Path) -> Configuration:
    """Read layout, workload and framework from the files of one job; raises CatalogueError."""
    texts = {}
    for name in (path, *more):
        where = Path(os.path.expanduser(name))
        texts[str(name)] = read_text(where, MAX_BYTES)
    return joined([read_configuration_text(text, name) for name, text in texts.items()])


def read_configuration_text(text: str, name: str) -> Configuration:
    """Read layout, workload and framework from the text of one file; raises CatalogueError."""
    document = Document(shorten(name.rpartition("/")[2] or name), text)
    if len(text) > MAX_BYTES:
        raise CatalogueError(
            f"{document.name} has {len(text)} characters; configurations above {MAX_BYTES} are "
            "refused: give the configuration alone"
        )
    if kind := _foreign_kind(document):
        raise CatalogueError(
            f"{document.name} looks like {kind}, which is not read; give its layout and batch as "
            "options, such as --tp, --zero-stage and --micro-batch"
        )
    if reader := reader_of(document):
        return joined([reader.read(document)])
    kinds = ", ".join(sorted(reader.kind for reader in READERS.values()))
    raise CatalogueError(
        f"{document.name} is not a supported configuration file. Supported: {kinds}; give one of "
        "these, or set the options instead"
    )


def reader_of(document: Document) -> Reader | None:
    """Find the reader that recognises a file; None if it is no configuration."""
    return next((reader for reader in READERS.values() if reader.recognises(document)), None)


def _foreign_kind(document: Document) -> str:
    """Name the kind of a file whose program is not read; empty for any other file."""
    for program in KEYS["foreign"]:
        if any(all(_has(document.tables, key) for key in keys) for keys in program["marks"]):
            return str(program["title"])
    return ""


def _has(values: Any, path: str) -> bool:
    key, _, rest = path.partition(".")
    is_there = isinstance(values, Mapping) and key in values
    return is_there and (not rest or _has(values[key], rest))
