"""Rows of two small sweeps, without the keys, which change with the code."""

from __future__ import annotations

from typing import Any

import planner

_JOB = {"sequence_length": 1024, "global_batch": 64}
SWEEPS: dict[str, dict[str, Any]] = {
    "plans": {
        "models": ["gpt2-xl"],
        "machines": ["polaris", "workstation-1x4090"],
        "frameworks": [["ddp", "fsdp2"]],
        "workload": [_JOB],
        "rows": [
            {"leave_free": [0, 30], "frameworks": "fsdp2"},
            {"nodes": 2, "exact": [False, True], "workload": {"tokens": 2e9, "optimizer": "sgd"}},
            {"models": "llama-3-8b", "devices": 1, "sets": [["device.memory_bytes=24GB"]]},
        ],
    },
    "estimates": {
        "kind": "estimate",
        "models": ["llama-3-8b"],
        "machines": ["polaris"],
        "nodes": [1, 2],
        "frameworks": [[], "megatron-lm"],
        "workload": {**_JOB, "precision": ["bf16", "fp16"]},
        "layout": [
            {"tp": [1, 2], "zero_stage": [1, 3]},
            {"tp": 2, "pp": 2, "schedule": "1f1b", "micro_batch": 1},
            {"dp": 3},
        ],
    },
}


def rows() -> dict[str, list[dict[str, Any]]]:
    """Return the filled cells of every row."""
    return {name: _rows(asked) for name, asked in SWEEPS.items()}


def _rows(asked: dict[str, Any]) -> list[dict[str, Any]]:
    found = planner.sweep(backend="sequential", **asked)
    return [
        {name: cell for name, cell in row.items() if cell is not None and name != "key"}
        for row in found.rows
    ]
