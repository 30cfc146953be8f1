"""Links: fit a profile's links and network to measured collectives, by the planner's formulas."""

import datetime
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import numpy as np
import tomlkit

from planner.cost.network.collective_table import OPERATIONS
from planner.describe.files import write_atomically
from planner.describe.machine import Machine
from planner.errors import CatalogueError
from planner.evidence.calibration import bisected, inline_table, profile_to_change
from planner.evidence.nccl_tests import Measured, measured_group, read_measured
from planner.units import counted

_LARGE, _SMALL = 2**20, 2**14
"""Sizes from which on bandwidth is fitted, and up to which latency is fitted [B]."""
_ADDING = ("all_reduce", "reduce_scatter")
_RING = ("all_gather", *_ADDING)
"""Collectives that show link rates; all-to-alls and sends have parameters of their own."""
_LEAST, _MOST = 1e-4, 1.0


@dataclass(frozen=True, slots=True)
class Links:
    """A machine with fitted links and network, and the errors before and after."""

    machine: Machine
    nodes: tuple[int, ...]
    measured: tuple[Measured, ...]
    error_before: float
    """Mean |estimated / measured - 1| of sizes from 1 MiB on, with the original profile."""
    error_after: float
    """Mean |error| with the fitted profile, on the rows of the fit: not a validation."""
    messages: tuple[str, ...]


def fit_links(path: Path, machine: Machine, nodes: int | None = None) -> Links:
    """Fit links and network to measured collectives. Raises CatalogueError without any >= 1 MiB."""
    rows, refused = read_measured(path, machine, nodes)
    large = _ring_collectives(rows)
    counts = tuple(sorted({row.nodes for row in large}))
    if not counts:
        raise CatalogueError(
            f"{path.name} holds no all-reduce, all-gather or reduce-scatter of 1 MiB or more, and "
            "smaller ones do not determine bandwidth; measure up to 1 GiB"
        )
    source = f"{datetime.date.today().isoformat()}: own collectives of {path.name}"
    fitted, messages = machine, []
    for step in (_fit_fabric, _fit_domain, _fit_network, _fit_latency):
        fitted, sentence = step(fitted, rows, source)
        messages.append(sentence)
    if refused:
        messages.append(f"{counted(len(refused), 'row')} refused: {refused[0]}")
    after = tuple(replace(row, estimated_s=_estimated(fitted, row)) for row in rows)
    return Links(
        fitted.replaced(evidence=_evidence(machine, counts, path)),
        counts,
        after,
        _mean(rows),
        _mean(after),
        tuple(sentence for sentence in messages if sentence),
    )


def _evidence(machine: Machine, counts: Sequence[int], path: Path) -> str:
    node_counts = " and ".join(str(count) for count in counts)
    before = f" Before: {machine.evidence}" if machine.evidence else ""
    plural = "" if list(counts) == [1] else "s"
    collectives = f"own collectives on {node_counts} node{plural} ({path.name})"
    return f"{collectives}; no training run of them.{before}"


def _ring_collectives(rows: Sequence[Measured]) -> list[Measured]:
    return [row for row in rows if row.operation in _RING and row.size_bytes >= _LARGE]


def _mean(rows: Sequence[Measured]) -> float:
    return float(np.mean([abs(row.error) for row in _ring_collectives(rows)]))


def _estimated(machine: Machine, row: Measured) -> float:
    group = measured_group(machine, row.nodes, row.ranks)
    return float(np.asarray(OPERATIONS[row.operation](group, row.size_bytes)))


def _root(
    rows: Sequence[Measured], changed: Callable[[float], Machine], lower: float, upper: float
) -> float:
    """Find the value at which the median of estimated / measured is one, or the nearer bound."""

    def ratio(value: float) -> float:
        machine = changed(value)
        return float(np.median([_estimated(machine, r) / r.time_s for r in rows]))

    falls = ratio(lower) > ratio(upper)
    return bisected(lambda value: (ratio(value) > 1) == falls, lower, upper, rounds=40)


def _largest(rows: Sequence[Measured]) -> list[Measured]:
    """Select the largest sizes of every operation, within a factor of four of the largest."""
    most: dict[str, float] = {}
    for row in rows:
        most[row.operation] = max(row.size_bytes, most.get(row.operation, 0.0))
    return [row for row in rows if row.size_bytes >= most[row.operation] / 4]


def _fit_fabric(machine: Machine, rows: Sequence[Measured], source: str) -> tuple[Machine, str]:
    """Fit a node's links to runs on one node; in-switch all-reduces fit the switch's rate."""
    in_node = [row for row in _ring_collectives(rows) if row.nodes == 1]
    if not in_node or machine.node.num_devices == 1:
        return machine, ""
    switched = machine.node.fabric.switch_reduction is not None
    through_switch = [row for row in in_node if switched and row.operation == "all_reduce"]
    rings = [row for row in in_node if row not in through_switch]
    messages = []
    for name, group in (("efficiency", rings), ("switch_reduction", through_switch)):
        if group:
            machine, value = _fitted_fabric(machine, name, group, source)
            messages.append(f"node.fabric.{name} {value:.3g}")
    return machine, ", ".join(messages)


def _fitted_fabric(
    machine: Machine, name: str, rows: Sequence[Measured], source: str
) -> tuple[Machine, float]:

    def changed(value: float) -> Machine:
        fields = machine.node.model_dump()
        fields["fabric"][name] = _quantity(value, source)
        return machine.replaced(node=fields)

    value = _root(_largest(rows), changed, _LEAST, _MOST)
    return changed(value), value


def _over_network(machine: Machine, row: Measured) -> bool:
    return row.nodes > (machine.domain.num_nodes if machine.domain else 1)


def _fit_domain(machine: Machine, rows: Sequence[Measured], source: str) -> tuple[Machine, str]:
    inside = [r for r in _ring_collectives(rows) if r.nodes > 1 and not _over_network(machine, r)]
    rings = [row for row in inside if row.operation not in _ADDING] or inside
    if machine.domain is None or not rings:
        return machine, ""
    domain = machine.domain.model_dump()

    def changed(value: float) -> Machine:
        return machine.replaced(domain={**domain, "efficiency": _quantity(value, source)})

    value = _root(_largest(rings), changed, _LEAST, _MOST)
    return changed(value), f"domain.efficiency {value:.3g}"


def _fit_network(machine: Machine, rows: Sequence[Measured], source: str) -> tuple[Machine, str]:
    across_nodes = [row for row in _ring_collectives(rows) if _over_network(machine, row)]
    network = machine.network
    if not across_nodes or network is None:
        return machine, ""
    gathers = [row for row in across_nodes if row.operation not in _ADDING]
    reductions = [row for row in across_nodes if row.operation in _ADDING]
    curves: dict[str, dict[str, Any] | None] = {
        "efficiency": _curve(machine, gathers or reductions, source),
        "reducing": _curve(machine, reductions, source) if gathers and reductions else None,
    }
    fitted = machine.replaced(network={**network.model_dump(), **curves})
    message = ", ".join(
        f"network.{name} {fraction:.3g} on {count} nodes"
        for name, curve in curves.items()
        if curve
        for count, fraction in zip(curve["num_nodes"], curve["fraction"], strict=True)
    )
    return fitted, message


def _curve(machine: Machine, rows: Sequence[Measured], source: str) -> dict[str, Any]:
    counts = sorted({row.nodes for row in rows})
    assert machine.network is not None
    network = machine.network.model_dump()

    def fraction(count: int) -> float:
        def changed(value: float) -> Machine:
            flat = {"num_nodes": [count], "fraction": [value], "kind": "measured", "source": source}
            return machine.replaced(network={**network, "efficiency": flat, "reducing": None})

        return _root(_largest([row for row in rows if row.nodes == count]), changed, _LEAST, _MOST)

    return {
        "num_nodes": counts,
        "fraction": [round(fraction(count), 4) for count in counts],
        "kind": "measured",
        "source": source,
    }


def _fit_latency(machine: Machine, rows: Sequence[Measured], source: str) -> tuple[Machine, str]:
    """Fit the network latency, which each doubling of the nodes adds to a small all-reduce."""
    across = [row for row in rows if _over_network(machine, row)]
    small = [r for r in across if r.size_bytes <= _SMALL and r.operation == "all_reduce"]
    if not small or machine.network is None:
        return machine, "network.latency_s unchanged: no small all-reduce" if across else ""
    network = machine.network.model_dump()

    def changed(value: float) -> Machine:
        return machine.replaced(network={**network, "latency_s": _quantity(value, source)})

    value = _root(small, changed, 1e-7, 1e-2)
    return changed(value), f"network.latency_s {1e6 * value:.3g} us"


def _quantity(value: float, source: str) -> dict[str, Any]:
    return {"value": float(f"{value:.4g}"), "kind": "measured", "source": source}


def write_links(result: Links, machine: str, output: Path) -> None:
    """Write the profile with the fit. Raises CatalogueError if `output` is the profile itself."""
    fitted = result.machine
    document = profile_to_change(machine, fitted.name, output)
    document["evidence"] = fitted.evidence
    node: Any = document["node"]
    if 1 in result.nodes:
        node["fabric"]["efficiency"] = inline_table(fitted.node.fabric.efficiency.model_dump())
        if (switch := fitted.node.fabric.switch_reduction) is not None:
            node["fabric"]["switch_reduction"] = inline_table(switch.model_dump())
    if fitted.domain is not None:
        document["domain"]["efficiency"] = inline_table(fitted.domain.efficiency.model_dump())
    if (network := fitted.network) is not None:
        tables: list[Any] = [document["network"], *document.get("networks", [])]
        [table] = [candidate for candidate in tables if candidate.get("name", "") == network.name]
        table["latency_s"] = inline_table(network.latency_s.model_dump())
        for name, curve in (("efficiency", network.efficiency), ("reducing", network.reducing)):
            table.pop(name, None)
            if curve is not None:
                table[name] = inline_table(curve.model_dump())
    write_atomically(output, tomlkit.dumps(document))
