"""Links: those of a profile, and its network, from measured collectives of your own.

Fitted are what nodes reach of their interfaces, by number of nodes, what a doubling of the nodes
adds to a small all-reduce, and what devices reach of their links. Each is found through the
planner's own formulas, so that an estimate on the profile gives back what was measured.
"""

from __future__ import annotations

import datetime
import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import numpy as np
import tomlkit

from planner.cost.network.collective_table import OPERATIONS
from planner.describe.catalogue import folder
from planner.describe.files import write_atomically
from planner.describe.machine import Machine
from planner.errors import CatalogueError
from planner.evidence.nccl_tests import Measured, measured_group, read_measured

__all__ = ["Links", "fit_links", "write_links"]

_LARGE, _SMALL = 2**20, 2**14
"""From and up to which sizes [B] bandwidth and latency are seen."""
_ADDING = ("all_reduce", "reduce_scatter")
_RING = ("all_gather", *_ADDING)
"""What tells the rates of links; all-to-alls and sends have figures of their own."""
_LEAST, _MOST = 1e-4, 1.0


@dataclass(frozen=True, slots=True)
class Links:
    """A machine whose links and network are as measured, and how far estimates were from it."""

    machine: Machine
    nodes: tuple[int, ...]
    """Numbers of nodes that were measured."""
    measured: tuple[Measured, ...]
    """The measurements beside their estimates on `machine`."""
    error_before: float
    """Mean |estimated / measured - 1| of sizes from 1 MiB on, with the profile as it was."""
    error_after: float
    """The same with the fitted one: on the rows of the fit, so no proof."""
    said: tuple[str, ...]
    """What was fitted and what was left, in sentences."""


def fit_links(path: Path, machine: Machine, nodes: int | None = None) -> Links:
    """Fit links and network to the collectives of a file.

    CatalogueError where it holds none from 1 MiB on.
    """
    rows, _ = read_measured(path, machine, nodes)
    large = _telling(rows)
    counts = tuple(sorted({row.nodes for row in large}))
    if not counts:
        raise CatalogueError(
            f"{path.name} holds no all-reduce, all-gather or reduce-scatter of 1 MiB or more, and "
            "smaller ones tell no bandwidth; measure up to 1 GiB"
        )
    source = f"{datetime.date.today().isoformat()}: own collectives of {path.name}"
    fitted, said = machine, []
    for step in (_inside, _between, _latency):
        fitted, sentence = step(fitted, rows, source)
        said.append(sentence)
    after = tuple(replace(row, estimated_s=_estimated(fitted, row)) for row in rows)
    return Links(
        fitted.replaced(evidence=_evidence(machine, counts, path)),
        counts,
        after,
        _mean(rows),
        _mean(after),
        tuple(sentence for sentence in said if sentence),
    )


def _evidence(machine: Machine, counts: Sequence[int], path: Path) -> str:
    where = " and ".join(str(count) for count in counts)
    before = f" Before: {machine.evidence}" if machine.evidence else ""
    many = "" if list(counts) == [1] else "s"
    return f"own collectives on {where} node{many} ({path.name}); no training run of them.{before}"


def _telling(rows: Sequence[Measured]) -> list[Measured]:
    """Collectives that tell the rate of links."""
    return [row for row in rows if row.operation in _RING and row.size_bytes >= _LARGE]


def _mean(rows: Sequence[Measured]) -> float:
    return float(np.mean([abs(row.error) for row in _telling(rows)]))


def _estimated(machine: Machine, row: Measured) -> float:
    group = measured_group(machine, row.nodes, row.ranks)
    return float(np.asarray(OPERATIONS[row.operation](group, row.size_bytes)))


def _root(
    rows: Sequence[Measured], changed: Callable[[float], Machine], least: float, most: float
) -> float:
    """The value at which the median of estimated over measured is one, or the nearer end."""

    def ratio(value: float) -> float:
        machine = changed(value)
        return float(np.median([_estimated(machine, r) / r.time_s for r in rows]))

    low, high, falls = least, most, ratio(least) > ratio(most)
    for _ in range(40):
        middle = math.sqrt(low * high)
        if (ratio(middle) > 1) == falls:
            low = middle
        else:
            high = middle
    return math.sqrt(low * high)


def _biggest(rows: Sequence[Measured]) -> list[Measured]:
    """The largest sizes of every operation: within a factor of four of its largest."""
    most: dict[str, float] = {}
    for row in rows:
        most[row.operation] = max(row.size_bytes, most.get(row.operation, 0.0))
    return [row for row in rows if row.size_bytes >= most[row.operation] / 4]


def _inside(machine: Machine, rows: Sequence[Measured], source: str) -> tuple[Machine, str]:
    """What devices of a node reach of their links, from runs on one node; and what its switch
    reaches that adds up itself, from all-reduces, which then say nothing of rings."""
    mine = [row for row in _telling(rows) if row.nodes == 1]
    if not mine or machine.node.num_devices == 1:
        return machine, ""
    switched = machine.node.fabric.switch_reduction is not None
    through = [row for row in mine if switched and row.operation == "all_reduce"]
    rings = [row for row in mine if row not in through]
    said = []
    for name, some in (("efficiency", rings), ("switch_reduction", through)):
        if some:
            machine, value = _fitted_fabric(machine, name, some, source)
            said.append(f"node.fabric.{name} {value:.3g}")
    return machine, ", ".join(said)


def _fitted_fabric(
    machine: Machine, name: str, rows: Sequence[Measured], source: str
) -> tuple[Machine, float]:
    """A machine with one fraction of its fabric as measured, and the fraction."""

    def changed(value: float) -> Machine:
        fields = machine.node.model_dump()
        fields["fabric"][name] = _quantity(value, source)
        return machine.replaced(node=fields)

    value = _root(_biggest(rows), changed, _LEAST, _MOST)
    return changed(value), value


def _between(machine: Machine, rows: Sequence[Measured], source: str) -> tuple[Machine, str]:
    """What nodes reach of their interfaces, by number of nodes."""
    mine = [row for row in _telling(rows) if row.nodes > 1]
    network = machine.network
    if not mine or network is None:
        return machine, ""
    gathers = [row for row in mine if row.operation not in _ADDING]
    adding = [row for row in mine if row.operation in _ADDING]
    curves: dict[str, dict[str, Any] | None] = {
        "efficiency": _curve(machine, gathers or adding, source),
        "reducing": _curve(machine, adding, source) if gathers and adding else None,
    }
    found = machine.replaced(network={**network.model_dump(), **curves})
    said = ", ".join(
        f"network.{name} {fraction:.3g} on {count} nodes"
        for name, curve in curves.items()
        if curve
        for count, fraction in zip(curve["num_nodes"], curve["fraction"], strict=True)
    )
    return found, said


def _curve(machine: Machine, rows: Sequence[Measured], source: str) -> dict[str, Any]:
    counts = sorted({row.nodes for row in rows})
    assert machine.network is not None
    network = machine.network.model_dump()

    def fraction(count: int) -> float:
        def changed(value: float) -> Machine:
            flat = {"num_nodes": [count], "fraction": [value], "kind": "measured", "source": source}
            return machine.replaced(network={**network, "efficiency": flat, "reducing": None})

        return _root(_biggest([row for row in rows if row.nodes == count]), changed, _LEAST, _MOST)

    return {
        "num_nodes": counts,
        "fraction": [round(fraction(count), 4) for count in counts],
        "kind": "measured",
        "source": source,
    }


def _latency(machine: Machine, rows: Sequence[Measured], source: str) -> tuple[Machine, str]:
    """What a doubling of the nodes adds to a small all-reduce."""
    mine = [
        row
        for row in rows
        if row.nodes > 1 and row.size_bytes <= _SMALL and row.operation == "all_reduce"
    ]
    if not mine or machine.network is None:
        across = any(row.nodes > 1 for row in rows)
        return machine, "network.latency_s as it was: no small all-reduce" if across else ""
    network = machine.network.model_dump()

    def changed(value: float) -> Machine:
        return machine.replaced(network={**network, "latency_s": _quantity(value, source)})

    value = _root(mine, changed, 1e-7, 1e-2)
    return changed(value), f"network.latency_s {1e6 * value:.3g} us"


def _quantity(value: float, source: str) -> dict[str, Any]:
    return {"value": float(f"{value:.4g}"), "kind": "measured", "source": source}


def write_links(result: Links, machine: str, output: Path) -> None:
    """Write the profile with the fitted figures; CatalogueError where it would replace itself."""
    fitted = result.machine
    own = machine.endswith(".toml")
    original = Path(machine) if own else folder("machine") / f"{fitted.name}.toml"
    if output.resolve() == original.resolve():
        raise CatalogueError(f"{output} is the profile itself; choose another file")
    document = tomlkit.parse(original.read_text("utf-8"))
    document["evidence"] = fitted.evidence
    node: Any = document["node"]
    if 1 in result.nodes:
        node["fabric"]["efficiency"] = _inline(fitted.node.fabric.efficiency.model_dump())
        if (switch := fitted.node.fabric.switch_reduction) is not None:
            node["fabric"]["switch_reduction"] = _inline(switch.model_dump())
    if (network := fitted.network) is not None:
        every: list[Any] = [document["network"], *document.get("networks", [])]
        [table] = [one for one in every if one.get("name", "") == network.name]
        table["latency_s"] = _inline(network.latency_s.model_dump())
        for name, curve in (("efficiency", network.efficiency), ("reducing", network.reducing)):
            table.pop(name, None)
            if curve is not None:
                table[name] = _inline(curve.model_dump())
    write_atomically(output, tomlkit.dumps(document))


def _inline(fields: dict[str, Any]) -> Any:
    table = tomlkit.inline_table()
    table.update({name: list(v) if isinstance(v, tuple) else v for name, v in fields.items()})
    return table
