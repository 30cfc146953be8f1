"""Modules that are traced in the tests' own process."""

from __future__ import annotations

import functools
import sys
from typing import Any

import pytest

from planner.describe.model import traced_file


@pytest.fixture
def traced_here(monkeypatch: pytest.MonkeyPatch) -> None:
    """Trace a user's file in this process: a worker takes seconds to start."""
    monkeypatch.setattr(sys, "path", [*sys.path])  # a file's folder is put on it
    monkeypatch.setattr(traced_file, "_traced", _traced)


@functools.cache
def _traced(resolved: str, path: str, function: str, *_: int) -> dict[str, Any]:
    from planner.validate.trace.module_trace import trace_file

    return trace_file(resolved, function, path)
