"""Planned: the planner's own estimate of a small GPT case on a measured profile.

Nothing is fitted to the case: the profile holds rates of matrix products, copies, attention,
launches and collectives, and the estimate is the one that `planner estimate` prints.
"""

from __future__ import annotations

from typing import Any

from planner.catalogue import load_framework
from planner.estimation import Question, estimate_layouts
from planner.layout import Layout, Layouts
from planner.machine import Machine
from planner.workload import Workload

__all__ = ["planned"]

_SCHEDULES = {"": "none", "gpipe": "gpipe", "1f1b": "1f1b", "interleaved": "interleaved-1f1b"}
_LEFT_OUT = ("runtime_context", "allocator_reserve")


def planned(case: dict[str, Any], machine: Machine) -> dict[str, Any]:
    """Estimated step time and peak memory of a finished case; empty where none is described."""
    if case["task"] != "gpt" or case["strategy"] == "zero1":
        return {}  # ZeroRedundancyOptimizer has no framework description
    from planner.validate.tasks import GptTask

    task, spread = GptTask(**case["sizes"]), case["spread"]
    layout = Layout.described(
        {
            "dp": spread["dp"],
            "tp": spread["tp"],
            "pp": spread["pp"],
            "vpp": spread["chunks"],
            "sequence_parallel": spread["sequence_parallel"],
            "zero_stage": spread["zero_stage"],
            "micro_batch": task.batch // spread["dp"] // spread["micro_batches"],
            "grad_accumulation": spread["micro_batches"],
            "schedule": _SCHEDULES[spread["schedule"]],
        }
    )
    workload = Workload(
        sequence_length=task.sequence, global_batch=task.batch, precision="fp32", dropout=0.0
    )
    framework = load_framework("ddp" if case["strategy"] in ("single", "ddp") else "fsdp2")
    question = Question(task.model, machine, workload, framework)
    estimate = estimate_layouts(question, Layouts.stack([layout]))[0]
    memory = estimate.memory_bytes
    found: dict[str, Any] = {
        "planned_step_time_s": estimate.step_time_s,
        "planned_parts_s": estimate.step_time_parts_s,
        "planned_peak_bytes": memory["total"] - sum(memory.get(part, 0.0) for part in _LEFT_OUT),
    }
    if case["step_time_s"]:
        found["planned_error"] = estimate.step_time_s / case["step_time_s"] - 1
    return found
