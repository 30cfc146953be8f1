"""Sweeps that several tests ask, and the command line that asks them in a process of its own."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path
from typing import Any

__all__ = ["FEW", "MANY", "command", "done", "written"]

FEW: dict[str, Any] = {
    "kind": "estimate",
    "models": ["llama-3-8b"],
    "machines": ["polaris"],
    "nodes": [1, 4],
    "workload": {"global_batch": 64},
    "layout": {"tp": [1, 4], "zero_stage": [1, 3], "micro_batch": 1},
}
"""Eight layouts."""

MANY: dict[str, Any] = {
    **FEW,
    "machines": ["polaris", "vsc-5"],
    "sets": [[], ["device.memory_bytes=80GB"]],
    "layout": {"tp": [1, 2, 4], "zero_stage": [0, 1, 3], "micro_batch": [1, 2, 4]},
}
"""216 layouts, of which some have more tensor ranks than the job has devices."""


def written(folder: Path, asked: dict[str, Any]) -> Path:
    """A sweep as a file."""
    path = folder / "sweep.json"
    path.write_text(json.dumps(asked), encoding="utf-8")
    return path


def command(*arguments: str | Path) -> list[str]:
    """`planner sweep` in a process of its own."""
    return [sys.executable, "-m", "planner", "sweep", *map(str, arguments)]


def done(*arguments: str | Path, limit_s: float = 120) -> subprocess.CompletedProcess[str]:
    """The same, ended."""
    return subprocess.run(
        command(*arguments), capture_output=True, text=True, timeout=limit_s, check=False
    )
