"""Bottlenecks: the gain of a step if one stage or one link of the machine were faster."""

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
"""Share by which a stage or link is made faster."""
_MAX_STAGES = 16
"""Stages to simulate: those with the most time on the critical path."""


@dataclass(frozen=True, slots=True)
class Bottleneck:
    """The gain of a step if one thing were faster."""

    name: str
    kind: Literal["stage", "machine"]
    gain_s: float


def find_bottlenecks(
    scenario: Scenario, estimate: Estimate, timeline: Timeline, path_s: Mapping[int, float]
) -> tuple[Bottleneck, ...]:
    """Simulate the step with every stage and link faster, and rank the gains."""
    layout, factor = estimate.layout, measured_factor(scenario, estimate)
    work = stage_work(scenario, layout, factor)
    bottlenecks = []
    if layout.pp > 1:
        for stage in sorted(path_s, key=lambda stage: (-path_s[stage], stage))[:_MAX_STAGES]:
            faster = (*work[:stage], work[stage].faster(SPEEDUP), *work[stage + 1 :])
            gain_s = timeline.makespan_s - _makespan_s(faster, layout)
            bottlenecks.append(Bottleneck(f"stage {stage}", "stage", gain_s))
    for name, speed_up in _LINKS.items():
        machine = speed_up(scenario.machine)
        if machine != scenario.machine:
            faster = stage_work(replace(scenario, machine=machine), layout, factor)
            gain_s = timeline.makespan_s - _makespan_s(faster, layout)
            bottlenecks.append(Bottleneck(name, "machine", gain_s))
    return tuple(sorted(bottlenecks, key=lambda bottleneck: -bottleneck.gain_s))


def _makespan_s(work: tuple[StageWork, ...], layout: Layout) -> float:
    return simulate(work, layout.grad_accumulation, layout.schedule, layout.vpp).makespan_s


# --- the machine with one thing faster ------------------------------------------------------------


def _faster(described: Description, *names: str) -> dict[str, Quantity]:
    """The rates that a description states, faster."""
    rates = {name: getattr(described, name) for name in names}
    return {
        name: rate.replaced(value=rate.value * (1 + SPEEDUP))
        for name, rate in rates.items()
        if rate is not None
    }


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
