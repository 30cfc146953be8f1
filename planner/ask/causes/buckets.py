"""Buckets: why a higher ZeRO stage may take more memory, and the bucket size that helps."""

from __future__ import annotations

from typing import Unpack

from planner.ask.answer import Answer, Row
from planner.ask.asked import Asked, JobFields, asked_of
from planner.ask.option import Nodes, checked
from planner.choose.job_checks import check_nodes
from planner.cost.estimate import Estimate, estimate_layouts
from planner.cost.parts import part
from planner.cost.scenario import Scenario
from planner.cost.shards.layouts import Layouts
from planner.describe.catalogue import load_framework
from planner.describe.framework.framework import Framework
from planner.describe.layout import Layout
from planner.describe.machine import Machine
from planner.describe.model.model import Model
from planner.errors import LayoutError
from planner.units import counted, format_bytes, format_count, joined

__all__ = ["buckets"]

_USUAL = "deepspeed"
# the framework whose buckets people ask about
_SIZES = (5e8, 2e8, 5e7, 2e7)
# DeepSpeed's own, its documents' (docs/_pages/config-json.md: 2e8 is the example), and smaller


@checked
def buckets(
    model: str | Model,
    machine: str | Machine,
    *,
    nodes: Nodes = 1,
    **job: Unpack[JobFields],
) -> Answer:
    """Memory of every ZeRO stage with buckets of several sizes, all devices data-parallel.

    Of the first framework named, else DeepSpeed; micro-batches of one sequence. A stage whose
    buckets take more than it saves is said, with the largest size that helps.

    >>> import planner
    >>> job = planner.Workload(sequence_length=1024, global_batch=64)
    >>> answer = planner.ask.buckets("llama-3.2-1b", "polaris", nodes=4, workload=job)
    >>> own = [r["memory_bytes"] for r in answer.rows if r["bucket_elements"] == 5e8]
    >>> own[3] > own[2]                         # what it gathers ahead, of 1.2 B parameters
    True
    """
    asked = asked_of(model, machine, job)
    check_nodes(asked.machine, nodes)
    first = asked.frameworks[0] if asked.frameworks else _USUAL
    framework = first if isinstance(first, Framework) else load_framework(first)
    own = framework.buffers.reduce_bucket_elements
    if not own:
        raise LayoutError(
            f"{framework.name} reduces gradients in place or without buckets of a fixed size; name "
            f"another framework, such as {_USUAL}"
        )
    world = nodes * asked.per_node
    found: dict[tuple[int, float], Estimate] = {}
    for size in sorted({own, *(size for size in _SIZES if size < own)}, reverse=True):
        for stage in framework.zero_stages_for(asked.workload.precision):
            found[stage, size] = _estimate(asked, _with(framework, size), world, stage)
    return asked.answer(
        "buckets",
        _verdict(asked, framework, found, own, world),
        [_row(framework, stage, size, one, found) for (stage, size), one in found.items()],
        notes=[
            f"Layouts: {world} data-parallel ranks, micro-batches of one sequence, nothing "
            "computed again, nothing offloaded.",
            f"Buckets are set by {_setting(framework)}.",
        ],
        nodes=nodes,
    )


def _setting(framework: Framework) -> str:
    if "bucket" in framework.switches:
        return f"-f {framework.name}+bucket=5e7 (reduce_bucket_size and allgather_bucket_size)"
    return "the framework's own configuration"


def _with(framework: Framework, size: float) -> Framework:
    """The framework with buckets of some elements."""
    fields = framework.buffers.model_dump()
    fields["reduce_bucket_elements"] = size
    fields["gather_bucket_elements"] = min(fields["gather_bucket_elements"], size)
    return framework.replaced(buffers=fields)


def _estimate(asked: Asked, framework: Framework, world: int, stage: int) -> Estimate:
    passes = max(round(asked.workload.global_batch / world), 1)
    layout = Layout(dp=world, zero_stage=stage, grad_accumulation=passes)
    workload = asked.workload.replaced(global_batch=layout.global_batch, ramp="")
    scenario = Scenario(asked.model, asked.machine, workload, framework, asked.experience)
    return estimate_layouts(scenario, Layouts.stack([layout]))[0]


def _row(
    framework: Framework,
    stage: int,
    size: float,
    one: Estimate,
    found: dict[tuple[int, float], Estimate],
) -> Row:
    parts = one.memory_bytes
    before = found.get((stage - 1, size))
    reason = "the first stage"
    if before is not None:
        more = parts["total"] - before.memory_bytes["total"]
        word = "more" if more > 0 else "less"
        reason = f"{format_bytes(abs(more))} {word} than ZeRO-{stage - 1}"
    return {
        "framework": framework.name,
        "zero_stage": stage,
        "bucket_elements": size,
        "memory_bytes": parts["total"],
        "memory_low_bytes": one.interval_memory_bytes[0],
        "memory_high_bytes": one.interval_memory_bytes[1],
        "weights_bytes": parts["weights"],
        "gradients_bytes": parts["gradients"],
        "optimizer_states_bytes": parts["optimizer_states"],
        "communication_buffers_bytes": parts["communication_buffers"],
        "peak": one.peak_moment,
        "reason": reason,
    }


def _verdict(
    asked: Asked,
    framework: Framework,
    found: dict[tuple[int, float], Estimate],
    own: float,
    world: int,
) -> str:
    said = []
    stages = sorted({stage for stage, _ in found})
    sizes = sorted({size for _, size in found}, reverse=True)
    where = f"{asked.model.name} with {framework.name} on {counted(world, 'device')}"
    if len(stages) == 1:
        return f"{where}: {_one_stage(found, stages[0], sizes)}."
    for stage in stages[1:]:
        over = _over(found, stage, own)
        if over <= 0:
            continue
        helping = next((size for size in sizes if _over(found, stage, size) <= 0), None)
        more = f"ZeRO-{stage} takes {format_bytes(over)} more than ZeRO-{stage - 1}"
        said.append(
            f"{more} for its buckets of {format_count(own)} elements; buckets of "
            f"{format_count(helping)} elements or less undo that"
            if helping
            else f"{more} with buckets of every size looked at ({_range(sizes)}): "
            f"{_grown(found[stage, own], found[stage - 1, own])}"
        )
    if not said:
        less = (
            f"with buckets of {format_count(own)} elements every ZeRO stage takes less than the one"
        )
        return f"{where}: {less} below it{_others(found, own)}."
    return f"{where}: {'. '.join(said)}."


def _one_stage(found: dict[tuple[int, float], Estimate], stage: int, sizes: list[float]) -> str:
    """What sizes of buckets do where there are no stages to compare."""
    taken = joined(
        f"{format_bytes(found[stage, size].memory_bytes['total'])} with buckets of "
        f"{format_count(size)} elements"
        for size in sizes
    )
    return f"ZeRO-{stage} is all that it has; a device holds {taken}"


def _range(sizes: list[float]) -> str:
    least, most = format_count(min(sizes)), format_count(max(sizes))
    return f"{least} to {most} elements" if least != most else f"{most} elements"


def _grown(one: Estimate, below: Estimate) -> str:
    """The part that grows most from a stage to the next."""
    grown = {
        name: value - below.memory_bytes.get(name, 0.0)
        for name, value in one.memory_bytes.items()
        if name != "total"
    }
    most = max(grown, key=lambda name: grown[name])
    return f"{part(most).label} {format_bytes(grown[most])} more"


def _others(found: dict[tuple[int, float], Estimate], own: float) -> str:
    """Where a stage takes more than the one below it with buckets of another size."""
    more = {(stage, size): _over(found, stage, size) for stage, size in found if size != own}
    said = [
        f"with {format_count(size)} ZeRO-{stage} takes {format_bytes(over)} more than "
        f"ZeRO-{stage - 1}"
        for (stage, size), over in more.items()
        if over > 0
    ]
    return "".join(f"; {each}" for each in said)


def _over(found: dict[tuple[int, float], Estimate], stage: int, size: float) -> float:
    """What a stage takes beyond the one below it [B]."""
    mine, below = found[stage, size], found.get((stage - 1, size))
    if below is None:
        return 0.0
    return mine.memory_bytes["total"] - below.memory_bytes["total"]
