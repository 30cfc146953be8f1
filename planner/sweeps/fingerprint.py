"""Fingerprint of the code that answers, so that no table mixes answers of different code."""

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
    "sweeps/answer_cells.py",
    "sweeps/columns.py",
)
"""Files and folders that answers depend on, down to how answers become cells."""
_KINDS = (".py", ".toml", ".csv")


def canonical(data: Mapping[str, Any]) -> str:
    """Write plain data as JSON with sorted keys.

    >>> canonical({"b": 1, "a": [0.1]})
    '{"a":[0.1],"b":1}'
    """
    return json.dumps(data, sort_keys=True, separators=(",", ":"), allow_nan=False)


def digest(text: str) -> str:
    """Shorten a text to 128 bits of its SHA-256.

    >>> digest("")
    'e3b0c44298fc1c149afbf4c8996fb924'
    """
    return hashlib.sha256(text.encode()).hexdigest()[:32]


@functools.cache
def fingerprint() -> str:
    """Digest of the code and the constants that answer here."""
    code = hashlib.sha256()
    for path in sorted(_files(), key=lambda path: path.as_posix()):
        # line ends differ between checkouts
        content = path.read_bytes().replace(b"\r\n", b"\n")
        code.update(f"{path.relative_to(_PACKAGE).as_posix()} {len(content)}\n".encode())
        code.update(content)
    if (preferences_file := user_file()) is not None:
        code.update(preferences_file.read_bytes())
    return code.hexdigest()[:32]


def _files() -> list[Path]:
    files: list[Path] = []
    for name in _ANSWERING:
        path_or_folder = _PACKAGE / name
        is_folder = path_or_folder.is_dir()
        members = path_or_folder.rglob("*") if is_folder else [path_or_folder]
        files += [path for path in members if path.suffix in _KINDS]
    return files
