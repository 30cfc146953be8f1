"""Strategies: the field's classic ways to spread a job, judged one by one.

Each strategy is a condition on layouts and the frameworks that are known for it. For what runs out
of memory the verdict names the largest part, the excess and the cheapest change that makes it fit.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable
from dataclasses import dataclass, replace

import numpy as np

from planner.choose.enough import doublings, shared_batch
from planner.choose.search import Found, order, search
from planner.cost.arrays import Mask
from planner.cost.estimate import Estimate, timed
from planner.cost.memory.footprint import Footprints
from planner.cost.parts import part
from planner.cost.shards.layouts import Layouts
from planner.describe.question import Question
from planner.units import counted, format_bytes

__all__ = ["CLASSIC", "Strategy", "Verdict", "judge"]


def _plain(x: Layouts) -> Mask:
    return (x.tp == 1) & (x.pp == 1) & (x.cp == 1) & (x.ep == 1)


def _unsharded(x: Layouts) -> Mask:
    return (x.cp == 1) & ~x.shards_states & x.keeps_states


def _model_parallel(x: Layouts) -> Mask:
    return (x.tp > 1) & x.piped & (x.cp == 1) & x.keeps_states


@dataclass(frozen=True, slots=True)
class Strategy:
    """A classic strategy: its name, frameworks in order of preference, its layouts."""

    name: str
    frameworks: tuple[str, ...]
    holds: Callable[[Layouts], Mask]
    needs: str
    """What a job must have for the strategy to exist."""
    single: bool = False
    """Whether it uses one device only."""


CLASSIC: tuple[Strategy, ...] = (
    Strategy(
        "single device",
        ("ddp", "deepspeed"),
        lambda x: _plain(x) & x.keeps_states & ~x.shards_states,
        "one device",
        single=True,
    ),
    Strategy(
        "DDP",
        ("ddp",),
        lambda x: _plain(x) & ~x.shards_states & (x.dp > 1),
        "a global batch that is a multiple of the devices",
    ),
    *(
        Strategy(
            f"ZeRO-{stage}",
            ("deepspeed",),
            lambda x, stage=stage: _plain(x) & x.keeps_states & (x.zero_stage == stage),  # type: ignore[misc]
            "a global batch that is a multiple of the devices",
        )
        for stage in (1, 2)
    ),
    Strategy(
        "ZeRO-3 / FSDP",
        ("fsdp2", "deepspeed"),
        lambda x: _plain(x) & x.keeps_states & x.shards_weights & (x.dp_shard == x.dp),
        "a global batch that is a multiple of the devices",
    ),
    Strategy(
        "hybrid FSDP",
        ("fsdp2",),
        lambda x: _plain(x) & x.keeps_states & x.shards_weights & (x.dp_shard < x.dp),
        "several nodes with several devices each",
    ),
    Strategy(
        "ZeRO + CPU offload",
        ("deepspeed",),
        lambda x: _plain(x) & x.states_on_host,
        "a framework that offloads",
    ),
    Strategy(
        "ZeRO + NVMe offload",
        ("deepspeed",),
        lambda x: _plain(x) & x.states_on_disk,
        "node-local NVMe",
    ),
    Strategy(
        "TP",
        ("megatron-lm", "megatron-deepspeed", "fsdp2"),
        lambda x: _unsharded(x) & (x.tp > 1) & ~x.piped,
        "heads that a divisor of the devices divides",
    ),
    Strategy(
        "PP",
        ("megatron-lm", "megatron-deepspeed", "fsdp2"),
        lambda x: _unsharded(x) & (x.tp == 1) & x.piped,
        "layers that a divisor of the devices divides",
    ),
    Strategy(
        "TP + PP",
        ("megatron-lm", "megatron-deepspeed", "fsdp2"),
        lambda x: _model_parallel(x) & (x.dp == 1),
        "heads and layers that tp * pp = all devices divides",
    ),
    Strategy(
        "3D (TP + PP + DP)",
        ("megatron-lm", "megatron-deepspeed", "fsdp2"),
        lambda x: _model_parallel(x) & (x.dp > 1),
        "at least 8 devices that tp * pp * dp divides",
    ),
)


@dataclass(frozen=True, slots=True)
class Verdict:
    """A classic strategy's fate: the best layout that fits, or what is too much and what helps."""

    name: str
    fits: bool
    why: str
    fix: str
    estimate: Estimate | None
    """The best layout that fits, else the one closest to fitting; None where none is legal."""
    nodes: int | None = None
    """Where nothing fits: nodes on which it does, with this batch; None where none was found."""
    batch: int | None = None
    """Where it has no legal layout: the batch with which it has one that fits, on these nodes."""


def judge(found: dict[str, Found], questions: dict[str, Question], nodes: int) -> list[Verdict]:
    """The verdict on every classic strategy, from the candidates already evaluated.

    Where nothing at all fits, more nodes are searched; where only the batch is in the way, the
    next one that is not.
    """
    verdicts = [_judged(strategy, found, questions) for strategy in CLASSIC]
    if not any(len(source.estimates) for source in found.values()):
        verdicts = _on_more_nodes(verdicts, questions, nodes)
    return _with_a_batch(verdicts, questions, nodes)


def _judged(strategy: Strategy, found: dict[str, Found], questions: dict[str, Question]) -> Verdict:
    members = list(_members(strategy, found, questions))
    if not members:
        return Verdict(strategy.name, False, f"no legal layout: needs {strategy.needs}", "", None)
    fitting = []
    for kind in members:
        ranked = order(kind.estimates, 1)
        if len(ranked):
            fitting.append(kind.estimates[int(ranked[0])])
    if fitting:
        best = min(fitting, key=lambda e: e.step_time_s)
        return Verdict(strategy.name, True, _slack(best, members[0].footprints), "", best)
    _, estimate, taken = min((_nearest(kind) for kind in members), key=lambda pair: pair[0])
    why, fix = _excess(estimate, taken), _fix(estimate, found)
    return Verdict(strategy.name, False, why, fix, estimate)


def _on_more_nodes(
    verdicts: list[Verdict], questions: dict[str, Question], nodes: int
) -> list[Verdict]:
    """The verdicts with the first doubling of the nodes on which any of them fits."""
    for count, found in doublings(questions, nodes):
        able = [_fits_in(strategy, found) and not strategy.single for strategy in CLASSIC]
        if any(able):
            fix = counted(count, "node")
            return [
                replace(verdict, fix=fix, nodes=count) if fits else verdict
                for verdict, fits in zip(verdicts, able, strict=True)
            ]
    return verdicts


def _with_a_batch(
    verdicts: list[Verdict], questions: dict[str, Question], nodes: int
) -> list[Verdict]:
    """The verdicts without a legal layout with the batch that gives them one that fits."""
    lacking = [verdict.estimate is None and not verdict.nodes for verdict in verdicts]
    if not any(lacking):
        return verdicts
    batch, found = shared_batch(questions, nodes)
    return [
        replace(verdict, fix=f"batch {batch:,}", batch=batch)
        if lacks and found and _fits_in(strategy, found)
        else verdict
        for verdict, strategy, lacks in zip(verdicts, CLASSIC, lacking, strict=True)
    ]


def _fits_in(strategy: Strategy, found: dict[str, Footprints]) -> bool:
    """Whether any of the strategy's layouts fits."""
    sets = [found[name] for name in strategy.frameworks if name in found]
    return any(bool(np.any(some.fits & strategy.holds(some.layouts))) for some in sets if len(some))


def _members(
    strategy: Strategy, found: dict[str, Found], questions: dict[str, Question]
) -> Iterable[Found]:
    """What was found of the strategy's layouts, per framework that is at hand and has any."""
    for name in strategy.frameworks:
        if name not in questions:
            continue
        source = search(questions[name], 1) if strategy.single else found[name]
        kind = source.only(strategy.holds)
        if len(kind.footprints):
            yield kind


def _nearest(found: Found) -> tuple[float, Estimate, Footprints]:
    """The layout that exceeds its limits least."""
    taken = found.footprints
    over = np.maximum(taken.memory_bytes - taken.device_limit_bytes, 0.0)
    over_host = np.maximum(taken.host_memory_bytes - taken.host_limit_bytes, 0.0)
    index = int(np.argmin(over + over_host))
    estimate = timed(found.question, taken.take(np.array([index])))[0]
    return float((over + over_host)[index]), estimate, taken


def _slack(estimate: Estimate, taken: Footprints) -> str:
    free = taken.device_limit_bytes - estimate.memory_bytes["total"]
    return f"{format_bytes(estimate.memory_bytes['total'])} per rank, {format_bytes(free)} free"


def _excess(estimate: Estimate, taken: Footprints) -> str:
    total, limit = estimate.memory_bytes["total"], taken.device_limit_bytes
    if total > limit:
        parts = {k: v for k, v in estimate.memory_bytes.items() if k != "total"}
        largest = max(parts, key=lambda name: parts[name])
        return (
            f"needs {format_bytes(total)} per rank, {format_bytes(total - limit)} more than the "
            f"device has; {part(largest).label}: {format_bytes(parts[largest])}"
        )
    host, room = estimate.host_memory_bytes["total"], taken.host_limit_bytes
    parts = {k: v for k, v in estimate.host_memory_bytes.items() if k != "total"}
    largest = max(parts, key=lambda name: parts[name])
    return (
        f"needs {format_bytes(host)} of host memory per node, {format_bytes(host - room)} more "
        f"than it has; {part(largest).label}: {format_bytes(parts[largest])}"
    )


_CHANGES = (
    ("recompute", 1),
    ("micro_batch", 1),
    ("sequence_parallel", 1),
    ("zero_stage", 2),
    ("dp_shard", 1),
    ("offload", 3),
    ("tp", 4),
    ("pp", 4),
    ("cp", 5),
    ("ep", 3),
    ("vpp", 1),
)
# what a change costs the user: a flag first, then sharding, offload, and parallel code last


def _fix(estimate: Estimate, found: dict[str, Found]) -> str:
    """The fitting layout that differs least from the one that runs out of memory."""
    wanted = Layouts.of(estimate.layout)
    best: tuple[float, float, str] | None = None
    for name, source in found.items():
        fitting = source.estimates
        if not len(fitting):
            continue
        cost = np.full(len(fitting), 0.0 if name == estimate.framework else 2.0)
        for column, weight in _CHANGES:
            cost += weight * (getattr(fitting.layouts, column) != getattr(wanted, column))
        # a change that makes the step twice as long costs as much as a flag
        time = fitting.step_time_s
        cost += np.log2(time / min(time.min(), estimate.step_time_s))
        pick = int(np.lexsort((time, cost))[0])
        text = _difference(estimate, fitting[pick])
        candidate = (float(cost[pick]), float(time[pick]), text)
        best = candidate if best is None or candidate < best else best
    return best[2] if best else ""


def _difference(old: Estimate, new: Estimate) -> str:
    """What changes from one estimate's layout to the other's, in words."""
    changes = []
    names = (
        "zero_stage",
        "dp_shard",
        "tp",
        "pp",
        "cp",
        "ep",
        "recompute",
        "micro_batch",
        "offload",
    )
    for name in names:
        before, after = getattr(old.layout, name), getattr(new.layout, name)
        if name == "dp_shard":
            # unstated means all replicas; that it follows dp is no change of its own
            if bool(before) == bool(after):
                continue
            before, after = before or old.layout.dp, after or new.layout.dp
        if before != after:
            label = name.replace("_", " ").replace("zero stage", "ZeRO stage")
            changes.append(f"{label} {before} -> {after}")
    if old.layout.world != new.layout.world:
        changes.append(f"devices {old.layout.world} -> {new.layout.world}")
    if old.framework != new.framework:
        changes.append(f"with {new.framework}")
    return ", ".join(changes) + f" ({format_bytes(new.memory_bytes['total'])})"
