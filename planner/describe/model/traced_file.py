"""Trace a function of a user's Python file as a model, in a process of its own.

The file is run there, with the user's own rights, so that whatever it does (to abort among it) ends
with that process, and torch is never loaded into this one.
"""

from __future__ import annotations

import functools
import json
import os
import re
import subprocess
import sys
from pathlib import Path
from typing import Any

from planner.errors import DescriptionError, shorten, shorten_path

__all__ = ["WORKER", "is_python_file", "traced_fields"]

WORKER = ("-m", "planner.validate.trace.tracer")
"""Arguments of the tracing process: it reads a request and writes an answer, one JSON line each."""
_SPELLED = re.compile(r"(?P<path>.+\.py)(?::(?P<function>[^:/\\]*))?", re.DOTALL)
_LIMIT_S = 900.0


def is_python_file(name: str) -> bool:
    """Whether a text names a Python file, with or without a function.

    >>> is_python_file("net.py:build"), is_python_file("./nets/net.py"), is_python_file("gpt2")
    (True, True, False)
    """
    return _SPELLED.fullmatch(name) is not None


def traced_fields(name: str, *, run: bool) -> dict[str, Any]:
    """Fields of the model that `FILE.py:FUNCTION` builds; this runs the file.

    Raises DescriptionError where it may not `run`, or cannot be traced, in one sentence that names
    the user's line.
    """
    if not run:
        raise DescriptionError(
            f"{shorten_path(name)} is a Python file, which is run only where you name it yourself; "
            f"write its numbers with `planner show {shorten_path(name)} --toml > net.toml`, and "
            "name that file"
        )
    match = _SPELLED.fullmatch(name)
    assert match is not None
    path, function = os.path.expanduser(match["path"]), match["function"]
    if not function:
        raise DescriptionError(
            f"{shorten_path(name)} names no function; write for example "
            f"{shorten_path(Path(path).name)}:build, whose build() returns (module, sample)"
        )
    try:
        status = os.stat(path)
    except (OSError, ValueError):
        raise DescriptionError(
            f"cannot read {shorten_path(path)}: there is no such file; check the path"
        ) from None
    traced = _traced(str(Path(path).resolve()), path, function, status.st_mtime_ns, status.st_size)
    layers = sum(block["count"] for block in traced["blocks"] if block["role"] == "repeated")
    return {
        "name": f"{Path(path).name}:{function}",
        "family": "traced",
        "kind": "traced",
        "source": f"traced from {Path(path).name}:{function} with torch {traced['torch']}",
        "num_layers": layers,
        "traced": traced,
    }


@functools.lru_cache(maxsize=64)
def _traced(resolved: str, path: str, function: str, *version: int) -> dict[str, Any]:
    """Answer of the worker, cached until the file changes."""
    del version
    request = json.dumps({"module": resolved, "said": path, "function": function})
    try:
        process = subprocess.run(
            [sys.executable, *WORKER],
            input=request + "\n",
            capture_output=True,
            text=True,
            timeout=_LIMIT_S,
            check=False,
        )
    except subprocess.TimeoutExpired:
        raise DescriptionError(
            f"{shorten_path(path)}:{shorten(function)} took longer than {_LIMIT_S:.0f} s to trace; "
            "build a smaller module"
        ) from None
    line = process.stdout.strip()
    if not line:
        messages = process.stderr.strip().splitlines()[-1:] or ["no message"]
        raise DescriptionError(
            f"{shorten_path(path)}:{shorten(function)} ended the process that traces it "
            f"({shorten(messages[0], 200)}); let the file only build its module"
        )
    answer: dict[str, Any] = json.loads(line)
    if "error" in answer:
        raise DescriptionError(answer["error"])
    return answer
