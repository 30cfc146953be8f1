"""Host: what a node's memory holds at load, at a step, and at a save."""

from __future__ import annotations

from typing import Unpack

from planner.ask.answer import Answer, Row
from planner.ask.asked import JobFields, asked_of
from planner.ask.option import Nodes, checked
from planner.ask.point import on_nodes
from planner.cost.estimate import Estimate
from planner.cost.memory.host import host_moments
from planner.cost.parts import part
from planner.cost.scenario import Scenario
from planner.cost.shards.layouts import Layouts
from planner.cost.shards.stages import Stages
from planner.describe.layout import Layout
from planner.describe.machine import Machine
from planner.describe.model.model import Model
from planner.units import format_bytes

__all__ = ["host"]


@checked
def host(
    model: str | Model,
    machine: str | Machine,
    *,
    nodes: Nodes = 1,
    **job: Unpack[JobFields],
) -> Answer:
    """Memory of a node while a checkpoint is loaded, at a step, and while weights are saved whole.

    Of the recommended layout. Save: the 16-bit (or fp32) weights gathered by one rank of the node,
    as `stage3_gather_16bit_weights_on_model_save` and FSDP's full state dict do, on top of a step;
    sharded checkpoints take less. The page cache is not counted.

    >>> import planner
    >>> job = planner.Workload(sequence_length=1024, global_batch=64)
    >>> answer = planner.ask.host("gpt2", "polaris", workload=job)
    >>> [row["moment"] for row in answer.rows]
    ['load', 'step', 'save']
    """
    asked = asked_of(model, machine, job)
    point = asked.on(nodes)
    if point.best is None or point.scenario is None:
        verdict = f"Nothing fits on {on_nodes(point)}: {point.reason}."
        return asked.answer("host", verdict, [point.row()], found=False, nodes=nodes)
    rows = _rows(point.scenario, point.best)
    room = asked.machine.node.host_memory_bytes.value
    most = max(rows, key=lambda row: float(row["host_memory_bytes"]))
    enough = "is enough" if most["host_memory_bytes"] <= room else "is too little"
    said = ", ".join(f"{format_bytes(row['host_memory_bytes'])} at {row['moment']}" for row in rows)
    return asked.answer(
        "host",
        f"{asked.model.name} takes {said} of a node's memory with {point.best.layout} "
        f"[{point.best.framework}]: {format_bytes(room)} of {asked.machine.name} {enough}, "
        f"most is at {most['moment']} ({most['reason']}).",
        rows,
        notes=[
            f"{asked.per_node} ranks a node; "
            + (
                "every rank reads the whole checkpoint where the node can hold that."
                if point.scenario.framework.loads_full_checkpoint
                else "a rank reads what it holds."
            ),
            "Save is of weights gathered whole by one rank; sharded checkpoints take less.",
            "Not counted: page cache, data loaders' own data. How far runs are from it is not "
            "known well enough for an interval.",
        ],
        nodes=nodes,
    )


def _rows(scenario: Scenario, best: Estimate) -> list[Row]:
    """A record for each moment."""
    machine = scenario.machine
    shared = best.memory_bytes["total"] if machine.device.uses_host_memory else 0.0
    first = Stages.of(scenario, Layouts.stack([best.layout]), 0)
    load, step = host_moments(first, shared)
    element = scenario.workload.compute_bytes
    save = {**step, "checkpoint_load": 0.0 * step["processes"]}
    gathered = float(scenario.model.num_params * element)
    return [
        _row("load", {name: float(value.item()) for name, value in load.items()}),
        _row("step", {name: float(value.item()) for name, value in step.items()}),
        _row(
            "save",
            {name: float(value.item()) for name, value in save.items()},
            saved=gathered if _saves_whole(best.layout) else 0.0,
        ),
    ]


def _saves_whole(layout: Layout) -> bool:
    """Whether one rank gathers weights that are spread."""
    return bool(layout.shards_weights or layout.tp * layout.pp * layout.ep > 1)


def _row(moment: str, parts: dict[str, float], saved: float = 0.0) -> Row:
    named = {part(name).label: value for name, value in parts.items()}
    named["gathered weights"] = saved
    largest = max(named, key=lambda name: named[name])
    columns = {f"{name}_bytes": value for name, value in parts.items()}
    return {
        "moment": moment,
        "host_memory_bytes": sum(named.values()),
        **columns,
        "gathered_weights_bytes": saved,
        "reason": f"{largest} {format_bytes(named[largest])}",
    }
