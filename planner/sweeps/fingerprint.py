"""Fingerprint: which code answers, so that answers of different code never stand in one table."""

from __future__ import annotations

import functools
import hashlib
import json
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from planner.choose.preferences import user_file

__all__ = ["canonical", "digest", "fingerprint"]

_PACKAGE = Path(__file__).parents[1]
_ANSWERING = (
    "errors.py",
    "units.py",
    "describe",
    "cost",
    "training",
    "choose",
    "validate",
    "sweeps/answering.py",
    "sweeps/columns.py",
)
"""What an answer depends on: the rooms below this one that answer, and how answers become cells."""
_KINDS = (".py", ".toml", ".csv")


def canonical(data: Mapping[str, Any]) -> str:
    """Plain data as one text, whatever the order of its keys.

    >>> canonical({"b": 1, "a": [0.1]})
    '{"a":[0.1],"b":1}'
    """
    return json.dumps(data, sort_keys=True, separators=(",", ":"), allow_nan=False)


def digest(text: str) -> str:
    """A short name of a text: 128 bits of its SHA-256.

    >>> digest("")
    'e3b0c44298fc1c149afbf4c8996fb924'
    """
    return hashlib.sha256(text.encode()).hexdigest()[:32]


@functools.cache
def fingerprint() -> str:
    """A name of the code and the constants that answer here."""
    found = hashlib.sha256()
    for path in sorted(_files(), key=lambda path: path.as_posix()):
        # line ends differ between checkouts
        content = path.read_bytes().replace(b"\r\n", b"\n")
        found.update(f"{path.relative_to(_PACKAGE).as_posix()} {len(content)}\n".encode())
        found.update(content)
    if (preferences_file := user_file()) is not None:
        found.update(preferences_file.read_bytes())
    return found.hexdigest()[:32]


def _files() -> list[Path]:
    found = []
    for name in _ANSWERING:
        place = _PACKAGE / name
        inside = place.rglob("*") if place.is_dir() else [place]
        found += [path for path in inside if path.suffix in _KINDS]
    return found
