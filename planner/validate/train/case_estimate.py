"""Planned: the planner's own estimate of a small GPT case: peak memory, and time on a profile.

Nothing is fitted to the case: the peak follows from the description of the software, and the time
from a profile of rates of matrix products, copies, attention, launches and collectives. It is the
estimate that `planner estimate` prints.
"""

from __future__ import annotations

from typing import Any

from planner.cost.estimate import estimate_layouts
from planner.cost.scenario import Scenario
from planner.cost.shards.layouts import Layouts
from planner.describe.catalogue import load_framework, load_machine
from planner.describe.framework.framework import Framework
from planner.describe.layout import Layout
from planner.describe.machine import Machine
from planner.describe.workload import Workload

__all__ = ["PEAK_TOLERANCE", "estimate_peak", "estimate_time"]

PEAK_TOLERANCE = 0.1
"""Relative; in shards this small single temporaries decide the peak."""
_SCHEDULES = {"": "none", "gpipe": "gpipe", "1f1b": "1f1b", "interleaved": "interleaved-1f1b"}
_LEFT_OUT = ("runtime_context", "allocator_reserve")


def estimate_peak(case: dict[str, Any]) -> dict[str, Any]:
    """Estimate the peak of the fullest rank, and its error; or the reason for none.

    Left out: the device's context and the allocator's reserve, as in what the ranks count.
    """
    if case["task"] == "mlp":
        return {"planned_peak_bytes": None, "peak_why_not": f"{case['task']} is no transformer"}
    estimate = _estimate(case, load_machine("laptop"))  # the peak depends on no rate
    memory = estimate.memory_bytes
    peak = memory["total"] - sum(memory.get(part, 0.0) for part in _LEFT_OUT)
    error = peak / max(case["peak_bytes_per_rank"]) - 1
    return {
        "planned_peak_bytes": round(peak),
        "peak_error": error,
        "peak_within": abs(error) <= PEAK_TOLERANCE,
        "peak_why_not": "",
    }


def estimate_time(case: dict[str, Any], machine: Machine) -> dict[str, Any]:
    """Estimate the step time of a finished case; empty for the perceptron."""
    if case["task"] == "mlp":
        return {}
    estimate = _estimate(case, machine)
    fields: dict[str, Any] = {
        "planned_step_time_s": estimate.step_time_s,
        "planned_parts_s": estimate.step_time_parts_s,
    }
    if case["step_time_s"]:
        fields["planned_error"] = estimate.step_time_s / case["step_time_s"] - 1
    return fields


def _estimate(case: dict[str, Any], machine: Machine) -> Any:
    from planner.validate.train.tasks import MlpTask, make_task

    task, spread = make_task(case["task"], case["sizes"]), case["spread"]
    assert not isinstance(task, MlpTask)
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
    scenario = Scenario(task.model, machine, workload, _framework(case))
    return estimate_layouts(scenario, Layouts.stack([layout]))[0]


def _framework(case: dict[str, Any]) -> Framework:
    """Framework of a strategy, as `planner.validate.train.trainer` builds it."""
    plain = case["strategy"] in ("single", "ddp", "zero1")
    framework = load_framework("ddp" if plain else "fsdp2")
    # a gate is a product of its own; on a CPU RMS norm is several kernels, layer norm one
    model = case["sizes"].get("model", {})
    apart = case["device"] == "cpu" and model.get("norm") == "rmsnorm"
    kernels = framework.kernels.replaced(
        fused_norm=not apart,
        # its loss is that of one process, on whole logits
        gathers_logits=True,
        fused_activation=framework.kernels.fused_activation and not model.get("gated_mlp"),
    )
    framework = framework.replaced(kernels=kernels.model_dump())
    if plain:
        return framework
    # AdamW runs over all tensors at once, with a temporary as large as the weights it updates
    states = framework.full.replaced(optimizer_temporary_bytes=4.0)
    if case["spread"]["zero_stage"] < 2:
        # plain modules: the parameter is what computes
        states = states.replaced(sharded_weight_bytes=4.0, master_bytes=0.0)
    # every stage gets as many layers, where torchtitan gives its ends fewer
    return framework.replaced(full=states, balance="layers")
