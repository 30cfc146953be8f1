"""Reading: a job's configuration files, each recognised by its content."""

import os
from pathlib import Path

from planner.describe.configurations.configuration import Configuration, joined
from planner.describe.configurations.document import MAX_BYTES, Document
from planner.describe.configurations.foreign import foreign_kind
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
from planner.describe.configurations.stated_job import Reader
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
    if kind := foreign_kind(document):
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
