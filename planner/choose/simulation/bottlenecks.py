"""Widening: what a step gains where one stage or one link of the machine were faster.

Every figure is that of the step played once more, with the faster stage or link; links are widened
in the machine's description, so that the cost model says what of their traffic is then hidden.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, replace
from typing import Literal

from planner.choose.simulation.tasks import measured_factor, stage_work
from planner.cost.estimate import Estimate
from planner.cost.scenario import Scenario
from planner.cost.schedules.simulate import StageWork, simulate
from planner.cost.schedules.timeline import Timeline
from planner.describe.base import Description, Quantity
from planner.describe.layout import Layout
from planner.describe.machine import Machine

__all__ = ["SPEEDUP", "Bottleneck", "find_bottlenecks"]

SPEEDUP = 0.1
"""By how much a stage or a link is taken to be faster."""
_MOST_STAGES = 16


@dataclass(frozen=True, slots=True)
class Bottleneck:
    """What the step gains where one thing were faster."""

    name: str
    kind: Literal["stage", "machine"]
    gain_s: float


def find_bottlenecks(
    scenario: Scenario, estimate: Estimate, timeline: Timeline, path_s: Mapping[int, float]
) -> tuple[Bottleneck, ...]:
    """The gains of all stages and links that have any, the most first.

    `path_s` are the seconds of the critical path by stage. A stage gains at most its share of
    these, so the stages with the longest are played, and those with none gain nothing.
    """
    layout, factor = estimate.layout, measured_factor(scenario, estimate)
    works = stage_work(scenario, layout, factor)
    found = []
    if layout.pp > 1:
        for stage in sorted(path_s, key=lambda s: (-path_s[s], s))[:_MOST_STAGES]:
            faster = (*works[:stage], works[stage].faster(SPEEDUP), *works[stage + 1 :])
            gain = timeline.makespan_s - _length(faster, layout)
            found.append(Bottleneck(f"stage {stage}", "stage", gain))
    for name, widen in _LINKS.items():
        machine = widen(scenario.machine)
        if machine == scenario.machine:
            continue
        asked = replace(scenario, machine=machine)
        gain = timeline.makespan_s - _length(stage_work(asked, layout, factor), layout)
        found.append(Bottleneck(name, "machine", gain))
    return tuple(sorted(found, key=lambda one: -one.gain_s))


def _length(works: tuple[StageWork, ...], layout: Layout) -> float:
    played = simulate(works, layout.grad_accumulation, layout.schedule, layout.vpp)
    return played.makespan_s


# --- the machine with one thing faster ------------------------------------------------------------


def _faster(described: Description, *names: str) -> dict[str, Quantity]:
    """The rates of a description that it states, faster."""
    found = {}
    for name in names:
        rate = getattr(described, name)
        if rate is not None:
            found[name] = rate.replaced(value=rate.value * (1 + SPEEDUP))
    return found


def _compute(machine: Machine) -> Machine:
    peaks = machine.device.peak_flop_per_s
    rates = {name: r.replaced(value=r.value * (1 + SPEEDUP)) for name, r in peaks.items()}
    return machine.replaced(device=machine.device.replaced(peak_flop_per_s=rates))


def _memory(machine: Machine) -> Machine:
    device = machine.device
    return machine.replaced(device=device.replaced(**_faster(device, "memory_bytes_per_s")))


def _inside(machine: Machine) -> Machine:
    fabric = machine.node.fabric
    rates = ("pair_bytes_per_s", "device_bytes_per_s", "card_bytes_per_s", "socket_bytes_per_s")
    wires = tuple(
        wire.replaced(bytes_per_s=wire.bytes_per_s * (1 + SPEEDUP)) for wire in fabric.wires
    )
    wider = fabric.replaced(**_faster(fabric, *rates), wires=wires)
    if fabric.kind == "host":
        # devices reach each other through the host
        link = _faster(machine.node, "host_link_bytes_per_s")
        return machine.replaced(node=machine.node.replaced(fabric=wider, **link))
    return machine.replaced(node=machine.node.replaced(fabric=wider))


def _between(machine: Machine) -> Machine:
    node = machine.node
    wider = machine.replaced(node=node.replaced(**_faster(node, "nic_bytes_per_s")))
    if wider.network is None:
        return wider
    exits = _faster(wider.network, "domain_exit_bytes_per_s")
    return wider.replaced(network=wider.network.replaced(**exits)) if exits else wider


def _host(machine: Machine) -> Machine:
    node = machine.node
    rates = _faster(node, "host_link_bytes_per_s", "host_memory_bytes_per_s")
    return machine.replaced(node=node.replaced(**rates))


_LINKS: dict[str, Callable[[Machine], Machine]] = {
    "peak FLOP/s of the device": _compute,
    "memory bandwidth of the device": _memory,
    "links inside the node": _inside,
    "network interfaces": _between,
    "link to the host and its memory": _host,
}
