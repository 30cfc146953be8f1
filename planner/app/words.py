"""Words: the sentences that the pages say, and escaping of what others wrote."""

from __future__ import annotations

import re

from planner.choose.plan import Plan
from planner.cost.estimate import Estimate
from planner.describe.layout import Layout
from planner.units import format_bytes, format_count, format_seconds

__all__ = ["escape", "layout_words", "metrics", "queue_words", "verdict"]


def escape(text: str) -> str:
    r"""Text that Markdown shows as it is; no link, picture, formula or HTML comes to life.

    >>> escape("<b>[x](http://y)</b> $a$")
    '\\<b\\>\\[x\\]\\(http\\://y\\)\\</b\\> \\$a\\$'
    """
    return re.sub(r"([\\`*_{}\[\]()<>#|$~:])", r"\\\1", text)


_AXES = {"dp": "data", "tp": "tensor", "pp": "pipeline", "cp": "context", "ep": "expert"}


def layout_words(layout: Layout) -> str:
    """A layout for someone who has never seen one.

    >>> layout_words(Layout(dp=4, tp=4, zero_stage=1, grad_accumulation=8))
    '4 x data, 4 x tensor parallel, ZeRO-1, micro-batch 1 x 8'
    """
    degrees = [
        f"{getattr(layout, a)} x {word}" for a, word in _AXES.items() if getattr(layout, a) > 1
    ]
    words = [", ".join(degrees) + " parallel" if degrees else "one device"]
    if layout.zero_stage:
        words.append(f"ZeRO-{layout.zero_stage}")
    words.append(f"micro-batch {layout.micro_batch} x {layout.grad_accumulation}")
    if layout.recompute != "none":
        words.append(f"{layout.recompute} recompute")
    if layout.offload != "none":
        words.append(f"offload ({layout.offload})")
    return ", ".join(words)


def verdict(plan: Plan) -> str:
    """The answer in one sentence."""
    where = f"{_nodes(plan.nodes)} of {plan.machine} ({plan.num_devices:,} devices)"
    best = plan.best
    if best is None:
        closest = [v for v in plan.strategies if v.estimate is not None]
        if not closest:
            return (
                f"{plan.model} cannot be laid out on {where} at all: no strategy has a legal "
                "layout; try a global batch that is a multiple of the devices."
            )
        nearest = min(closest, key=lambda v: v.estimate.memory_bytes["total"] if v.estimate else 0)
        return (
            f"{plan.model} does not fit on {where}. Closest is {nearest.name}: it {nearest.why}."
            f"{' Cheapest fix: ' + nearest.fix + '.' if nearest.fix else ' Try more nodes.'}"
        )
    return (
        f"{plan.model} fits on {where}; fastest is {layout_words(best.layout)} with "
        f"{best.framework}: {format_seconds(best.step_time_s)} per step."
    )


def metrics(plan: Plan, estimate: Estimate, limit_bytes: float) -> list[tuple[str, str, str]]:
    """Label, value and small print of the numbers at the top."""
    per_device = estimate.tokens_per_s / plan.num_devices
    memory = estimate.memory_bytes["total"]
    low, high = (format_seconds(value) for value in estimate.interval_step_time_s)
    if plan.workload.tokens:
        cost = (
            "training",
            format_seconds(plan.duration_s(estimate)),
            f"{plan.node_hours(estimate):,.0f} node-hours for "
            f"{format_count(plan.workload.tokens)} tokens",
        )
    else:
        cost = (
            "1,000 steps",
            _hours(plan.node_hours(estimate)),
            format_seconds(1000 * estimate.step_time_s),
        )
    return [
        ("step time", format_seconds(estimate.step_time_s), f"90 %: {low} to {high}"),
        ("tokens per second", f"{estimate.tokens_per_s:,.0f}", f"{per_device:,.0f} per device"),
        ("model FLOPs utilisation", f"{100 * estimate.mfu:.1f} %", "of the dense peak"),
        ("memory per device", format_bytes(memory), f"{format_bytes(limit_bytes - memory)} free"),
        cost,
    ]


def _nodes(count: int) -> str:
    return f"{count:,} node" + ("s" if count != 1 else "")


def _hours(value: float) -> str:
    return f"{value:,.0f} node-hours" if value >= 100 else f"{value:.3g} node-hours"


def queue_words(plan: Plan, estimate: Estimate) -> str:
    """Which queues admit the job, and into how many runs its length must be cut."""
    if not plan.queues:
        return f"No queue of {plan.machine} is known to admit {_nodes(plan.nodes)}."
    named = ", ".join(f"{q.name} (up to {q.max_hours:g} h)" for q in plan.queues)
    text = f"Queues that admit {_nodes(plan.nodes)}: {named}."
    hours = plan.duration_s(estimate) / 3600
    longest = max(plan.queues, key=lambda queue: queue.max_hours)
    runs = -(-hours // longest.max_hours)
    if runs > 1:
        text += f" The training takes {runs:,.0f} runs in {longest.name}."
    return text
