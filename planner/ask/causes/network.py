"""Network: why several nodes are slower than one, axis by axis."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Unpack

import numpy as np

from planner.ask.answer import Answer, Row
from planner.ask.asked import Asked, JobFields, asked_of
from planner.ask.option import Nodes, checked
from planner.ask.point import largest_parts, on_nodes
from planner.choose.plots.anatomy import parallel_axes
from planner.choose.recommendation import recommend
from planner.choose.search import Candidates
from planner.cost.estimate import Estimate
from planner.cost.shards.layouts import Layouts
from planner.describe.machine import Machine
from planner.describe.model.model import Model
from planner.describe.workload import Workload
from planner.errors import LayoutError
from planner.units import counted, format_bytes, format_rate, format_seconds

__all__ = ["network"]

_KINDS = {
    "recommended": lambda x: np.ones(np.shape(x.dp), dtype=bool),
    "sharded over all (ZeRO-3, FSDP)": lambda x: _plain(x) & x.shards_weights & ~_hybrid(x),
    "sharded inside groups (HSDP)": lambda x: _plain(x) & x.shards_weights & _hybrid(x),
    "replicated or ZeRO-1": lambda x: _plain(x) & (x.zero_stage <= 1),
}
"""Kinds of layouts that are set beside each other."""


def _plain(x: Layouts) -> np.ndarray:
    return np.asarray(x.tp * x.pp * x.cp * x.ep == 1)


def _hybrid(x: Layouts) -> np.ndarray:
    return np.asarray((x.dp_shard < x.dp) | (x.reshard > 0))


@checked
def network(
    model: str | Model,
    machine: str | Machine,
    *,
    nodes: Nodes = 2,
    **job: Unpack[JobFields],
) -> Answer:
    """Tokens per second and device on some nodes and on one, and what crosses between nodes.

    On one node the batch is the same per node. A row is a parallel axis of a layout: what leaves a
    node for it in a step, the least time that takes over all interfaces at their stated rate, and
    what stays exposed of it in the step.

    >>> import planner
    >>> job = planner.Workload(sequence_length=1024, global_batch=64)
    >>> answer = planner.ask.network("gpt2-xl", "polaris", nodes=2, workload=job)
    >>> {row["nodes"] for row in answer.rows}
    {1, 2}
    """
    asked = asked_of(model, machine, job)
    if nodes < 2:
        raise LayoutError(f"nodes = {nodes}: nothing leaves one node; give 2 or more")
    done = asked.searched(nodes, whole=True)
    whole = asked.point(nodes, done)
    rows = []
    for name, found in _kinds(list(done.by_framework.values()), asked):
        rows += list(_rows(name, found, asked, done.workload, nodes))
    share = max(round(asked.workload.global_batch / nodes), 1)
    alone = asked.at(workload=asked.workload.replaced(global_batch=share, ramp="")).on(1)
    if alone.best is not None:
        rows += list(_rows("one node", alone.best, asked, alone.workload, 1))
    if whole.best is None:
        verdict = f"Nothing fits on {on_nodes(whole)}: {whole.reason}."
        return asked.answer("network", verdict, rows, found=False, nodes=nodes)
    return asked.answer(
        "network",
        _verdict(asked, whole.best, alone.best, rows, nodes),
        rows,
        notes=[
            f"One node has a batch of {share:,}, as many sequences as each of "
            f"{counted(nodes, 'node')} has.",
            f"A node sends at most {format_rate(asked.machine.node_bytes_per_s)} over its "
            f"{counted(asked.machine.node.num_nics, 'interface')}; collectives reach a part of it.",
        ],
        nodes=nodes,
    )


def _kinds(found: list[Candidates], asked: Asked) -> Iterator[tuple[str, Estimate]]:
    """The layout that one would run of each kind that fits."""
    for name, holds in _KINDS.items():
        best = recommend([part.only(holds) for part in found], asked.tolerance)
        if best is not None:
            yield name, best


def _rows(name: str, one: Estimate, asked: Asked, workload: Workload, nodes: int) -> Iterator[Row]:
    machine = asked.machine.network_of(one.framework)
    base = {
        "what": name,
        "nodes": nodes,
        "framework": one.framework,
        "layout": str(one.layout),
        "step_time_s": one.step_time_s,
        "step_time_low_s": one.interval_step_time_s[0],
        "step_time_high_s": one.interval_step_time_s[1],
        "tokens_per_s_per_device": one.tokens_per_s / (nodes * asked.per_node),
    }
    found = parallel_axes(asked.model, machine, workload, one)
    rate = machine.node_bytes_per_s
    for axis in found:
        sent = axis.traffic.node_bytes if axis.nodes > 1 else 0.0
        yield {
            **base,
            "axis": axis.name,
            "ranks": axis.size,
            "group_nodes": axis.nodes,
            "leaves_node_bytes": sent,
            "least_time_s": sent / rate if rate else 0.0,
            "exposed_s": axis.time_s,
            "reason": axis.carries,
        }
    if not found:
        yield {**base, "axis": "", "reason": largest_parts(one)}


def _verdict(
    asked: Asked, best: Estimate, alone: Estimate | None, rows: list[Row], nodes: int
) -> str:
    rate = best.tokens_per_s / (nodes * asked.per_node)
    said = f"On {counted(nodes, 'node')} {asked.model.name} has {rate:,.0f} tokens/s per device"
    if alone is not None:
        single = alone.tokens_per_s / asked.per_node
        word = "less" if rate < single else "more"
        said += f", {100 * abs(rate / single - 1):.1f} % {word} than the {single:,.0f} of one node"
    mine = [row for row in rows if row["what"] == "recommended" and row.get("leaves_node_bytes")]
    if not mine:
        return f"{said}; nothing of it leaves a node."
    sent = sum(float(row["leaves_node_bytes"]) for row in mine)
    least = sum(float(row["least_time_s"]) for row in mine)
    exposed = sum(float(row["exposed_s"]) for row in mine)
    said += (
        f": {format_bytes(sent)} leave each node in a step of {format_seconds(best.step_time_s)}, "
        f"{format_seconds(least)} of its interfaces at least; {format_seconds(exposed)} are exposed"
    )
    hybrid = next((row for row in rows if row["what"].endswith("(HSDP)")), None)
    if hybrid is None or hybrid["layout"] == str(best.layout):
        return f"{said}."
    other = hybrid["tokens_per_s_per_device"]
    return f"{said}. Sharding inside groups ({hybrid['layout']}) has {other:,.0f}."
