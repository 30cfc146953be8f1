"""Foreign: files of programs that are not read, refused by the program's name."""

from collections.abc import Mapping
from typing import Any

from planner.describe.configurations.document import Document
from planner.describe.configurations.stated_job import KEYS


def foreign_kind(document: Document) -> str:
    """Name the kind of a file whose program is not read; empty for any other file."""
    tables = document.tables
    for program in KEYS["foreign"]:
        if any(all(_has(tables, key) for key in keys) for keys in program["marks"]):
            return str(program["title"])
    return ""


def _has(values: Any, path: str) -> bool:
    key, _, rest = path.partition(".")
    if not isinstance(values, Mapping) or key not in values:
        return False
    return not rest or _has(values[key], rest)
