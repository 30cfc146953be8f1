"""Fixes: the memory that a layout lacks; the change, nodes, batch or switches that help."""

from collections.abc import Collection, Iterable, Iterator, Mapping
from dataclasses import replace
from typing import Any, NamedTuple

import numpy as np

from planner.choose.legality import legal_layouts
from planner.choose.preferences import preferences
from planner.choose.search import Candidates, enumerate_layouts
from planner.choose.search.recommendation import setup_effort
from planner.cost.arrays import Float, Mask
from planner.cost.estimate import Estimate, Estimates, estimate_fitting
from planner.cost.memory.footprint import Footprints, footprints
from planner.cost.parts import part
from planner.cost.scenario import Scenario
from planner.cost.shards.layouts import Layouts
from planner.describe.framework.framework import Framework
from planner.describe.layout import RECOMPUTE, Layout
from planner.describe.machine import Machine
from planner.errors import PlannerError
from planner.units import format_bytes, format_seconds

Scenarios = dict[str, Scenario]
"""Scenarios of a job by framework."""


def closest_to_fitting(candidates: Iterable[Candidates]) -> tuple[Scenario, Footprints] | None:
    """Find the layout that exceeds its memory by the smallest share; None if no layout is legal."""
    parts = [part for part in candidates if len(part.footprints)]
    if not parts:
        return None
    closest = min(parts, key=lambda part: float(np.min(part.footprints.excess)))
    row = np.argmin(closest.footprints.excess)
    return closest.scenario, closest.footprints.take(np.array([row]))


def shortage_sentence(estimate: Estimate, footprint: Footprints) -> str:
    """Name the memory that a layout exceeds, by how much, and its largest part."""
    device, host = float(footprint.memory_bytes[0]), float(footprint.host_memory_bytes[0])
    if device > (limit := footprint.device_limit_bytes):
        return _shortage(device, limit, "per rank", "the device has", estimate.memory_bytes)
    if host > (limit := footprint.host_limit_bytes):
        where = "of host memory per node"
        return _shortage(host, limit, where, "it has", estimate.host_memory_bytes)
    disk, limit = float(footprint.disk_bytes[0]), footprint.disk_limit_bytes
    return _shortage(disk, limit, "on the node's disk", "it holds", {})


def _shortage(used: float, limit: float, where: str, owner: str, parts: dict[str, float]) -> str:
    text = f"needs {format_bytes(used)} {where}, {format_bytes(used - limit)} more than {owner}"
    sizes = {name: size for name, size in parts.items() if name != "total"}
    if not sizes:
        return text
    largest = max(sizes, key=sizes.__getitem__)
    return f"{text}; {part(largest).label}: {format_bytes(sizes[largest])}"


def shortage_summary(estimate: Estimate, machine: Machine) -> str:
    """Name briefly the memory that a layout exceeds and by how much."""
    over = estimate.memory_bytes["total"] - machine.device.memory_bytes.value
    if over > 0:
        return f"{format_bytes(over)} too much per device on stage {estimate.worst_stage}"
    over = estimate.host_memory_bytes["total"] - machine.node.host_memory_bytes.value
    if over > 0:
        return f"{format_bytes(over)} too much host memory per node"
    return "the node's disk is too small for the offloaded data"


def cheapest_change(estimate: Estimate, candidates: Mapping[str, Candidates]) -> Estimate | None:
    """Find the layout that takes the least effort to change to, and time; safe ones come first."""
    options: list[tuple[bool, float, float, Estimates, int]] = []
    for source in candidates.values():
        estimates = source.estimates
        if not len(estimates):
            continue
        times_s = estimates.step_time_s
        risky = estimates.out_of_memory_probability > preferences().risk
        cost = _change_effort(estimate, source) + np.log2(times_s)
        row = int(np.lexsort((times_s, cost, risky))[0])
        options.append((bool(risky[row]), float(cost[row]), float(times_s[row]), estimates, row))
    if not options:
        return None
    *_, estimates, row = min(options, key=lambda option: option[:3])
    return estimates[row]


def _change_effort(estimate: Estimate, candidates: Candidates) -> Float:
    """Effort of each layout that fits, plus the effort of changing to it [1]."""
    efforts = {name: effort.value for name, effort in preferences().change.items()}
    beyond_wires, other_framework = efforts.pop("tp_beyond_wires"), efforts.pop("framework")
    layouts, old = candidates.estimates.layouts, Layouts.of(estimate.layout)
    is_other = candidates.scenario.framework.name != estimate.framework
    total = setup_effort(layouts) + other_framework * is_other
    for column, effort in efforts.items():
        total = total + effort * (getattr(layouts, column) != getattr(old, column))
    return total + beyond_wires * (layouts.tp > candidates.scenario.machine.wired_devices)


_NAMED = (
    *("zero_stage", "dp_shard", "reshard", "tp", "sequence_parallel", "pp", "vpp", "cp", "ulysses"),
    *("ep", "etp", "recompute", "micro_batch", "offload", "offload_activations", "tiles"),
    *("embedding_slots", "head_slots"),
)
"""Fields named in a change, in this order; the others follow from them."""


def layout_changes(
    old: Layout, framework: str, new: Estimate, names: Collection[str] = _NAMED
) -> str:
    """Describe the named fields that change from a layout with its framework to an estimate's."""
    changes = []
    for name in names:
        before, after = _setting(old, name), _setting(new.layout, name)
        # sharding over all replicas follows dp; without stages none counts the embedding
        follows = (name == "dp_shard" and not (old.dp_shard or new.layout.dp_shard)) or (
            name.endswith("_slots") and new.layout.pp == 1
        )
        if before != after and not follows:
            label = name.replace("_", " ").replace("zero stage", "ZeRO stage")
            changes.append(f"{label} {before} -> {after}")
    return ", ".join(changes + [f"with {new.framework}"] * (framework != new.framework))


def _setting(layout: Layout, name: str) -> Any:
    """Value of a field as a change names it."""
    if name == "dp_shard":
        return layout.dp_shard or layout.dp
    if name == "recompute":
        return layout.recomputed.replace(" recompute", "") or "none"
    value = getattr(layout, name)
    words = ("off", "on") if isinstance(value, bool) else ("none",) if value == -1 else ()
    return words[value] if words else value


def double_nodes(scenarios: Scenarios, nodes: int) -> Iterator[tuple[int, dict[str, Footprints]]]:
    """Yield footprints on two, four, ... 64 times the nodes, up to the size of the machine."""
    # the strongest recompute mode of each framework needs the least memory
    leanest = {}
    for name, each in scenarios.items():
        mode = max(each.framework.recompute, key=RECOMPUTE.index)
        leanest[name] = replace(each, framework=each.framework.replaced(recompute=[mode]))
    most = next(iter(scenarios.values())).machine.num_nodes.value
    doublings = int(preferences().offers.node_doublings.value)
    for count in (nodes * 2**power for power in range(1, doublings + 1)):
        if count <= most:
            yield count, _footprints(leanest, count)


def even_batch(scenarios: Scenarios, nodes: int) -> tuple[int, dict[str, Footprints]]:
    """Next batch that divides evenly over all devices, and its footprints with dp only."""
    first = next(iter(scenarios.values()))
    world, batch = nodes * first.machine.node.num_devices, first.workload.global_batch
    even = -(-batch // world) * world
    if even == batch:
        return even, {}
    workload = first.workload.replaced(global_batch=even)
    changed = {
        name: replace(each, workload=workload, framework=each.framework.replaced(axes=[]))
        for name, each in scenarios.items()
    }
    return even, _footprints(changed, nodes)


def _footprints(scenarios: Scenarios, nodes: int) -> dict[str, Footprints]:
    return {
        name: footprints(each, enumerate_layouts(each, nodes * each.machine.node.num_devices)[0])
        for name, each in scenarios.items()
    }


_MAX_LAYOUTS = 200
"""Most layouts per framework to try with a switch: those that lack the least memory."""


class _Trial(NamedTuple):
    """Effect of additional switches on a scenario."""

    switches: tuple[str, ...]
    framework: Framework
    """The framework with the switches."""
    fastest: Estimate
    """The fastest layout that fits with them."""
    scenario: Scenario
    """The scenario without them."""
    layouts: Layouts
    """Layouts that were tried."""


def switch_notes(candidates: Mapping[str, Candidates], best: Estimate | None) -> list[str]:
    """Suggest switches that make a job fit, avoid recompute or offload, or suit convolutions."""
    if best is not None and not _is_costly(Layouts.of(best.layout)):
        return list(_memory_order_notes(candidates, best))
    parts = [part for name, part in candidates.items() if best is None or name == best.framework]
    nearest = [(part.scenario, _nearest(part, sparing=best is not None)) for part in parts]
    # single switches first; if nothing fits, maximal sets, then without unnecessary switches
    for together in (False, True) if best is None else (False,):
        trials = [
            trial
            for scenario, layouts in nearest
            if len(layouts)
            for switches in _switch_choices(scenario, together)
            for trial in _try(scenario, layouts, switches)
        ]
        if trials:
            trial = min(trials, key=lambda t: (_is_risky(t.fastest), t.fastest.step_time_s))
            return list(_trial_notes(_with_fewer_switches(trial) if together else trial, best))
    return []


def _is_costly(layouts: Layouts) -> Mask:
    """True for layouts that recompute whole layers or offload."""
    return layouts.recomputes_layers | ~layouts.keeps_states


def _is_risky(estimate: Estimate) -> bool:
    return estimate.out_of_memory_probability > preferences().risk


def _switch_choices(scenario: Scenario, together: bool) -> list[tuple[str, ...]]:
    """List each memory-saving switch with those it needs, or maximal sets if `together`."""
    framework, device = scenario.framework, scenario.machine.device
    on = {word.partition("=")[0] for word in framework.switched}
    single = []
    for name, switch in framework.switches.items():
        job = scenario.workload, scenario.model
        suits = not switch.refuses(device) and not switch.refuses_workload(*job)
        has_value = bool(switch.takes) == bool(switch.usual)
        if suits and switch.saves_memory and has_value and name not in on:
            needed = [need for need in switch.needs if need not in on]
            single.append((*needed, f"{name}={switch.usual}" if switch.takes else name))
    return _compatible_sets(framework, single) if together else single


def _compatible_sets(framework: Framework, single: list[tuple[str, ...]]) -> list[tuple[str, ...]]:
    """Sets of compatible switches to which no other can be added."""
    order = dict.fromkeys(word for switches in single for word in switches)
    sets = []
    for first in single:
        chosen = first
        for switches in single:
            extended = tuple(dict.fromkeys((*chosen, *switches)))
            chosen = chosen if _switched(framework, extended) is None else extended
        sets.append(tuple(word for word in order if word in chosen))
    return list(dict.fromkeys(sets))


def _switched(framework: Framework, switches: tuple[str, ...]) -> Framework | None:
    """Turn on more switches of a framework; None if they are incompatible."""
    try:
        return framework.with_switches(*switches)
    except PlannerError:
        return None


def _with_fewer_switches(trial: _Trial) -> _Trial:
    """Remove switches from a trial while a layout still fits as safely."""
    for word in trial.switches:
        fewer = tuple(switch for switch in trial.switches if switch != word)
        for smaller in _try(trial.scenario, trial.layouts, fewer):
            if _is_risky(smaller.fastest) <= _is_risky(trial.fastest):
                return _with_fewer_switches(smaller)
    return trial


def _try(scenario: Scenario, layouts: Layouts, switches: tuple[str, ...]) -> Iterator[_Trial]:
    """Yield the fastest layout that fits with the switches, safe ones first; nothing if none."""
    if (framework := _switched(scenario.framework, switches)) is None:
        return
    switched = replace(scenario, framework=framework)
    if len(legal := legal_layouts(switched, layouts)):
        _, estimates = estimate_fitting(switched, legal)
        risky = estimates.out_of_memory_probability > preferences().risk
        for first in np.lexsort((estimates.step_time_s, risky))[:1]:
            yield _Trial(switches, framework, estimates[int(first)], scenario, layouts)


def _nearest(candidates: Candidates, sparing: bool) -> Layouts:
    """Layouts that nearly fit, closest first; without full recompute and offload if `sparing`."""
    footprints = candidates.footprints
    limit = max(footprints.device_limit_bytes, 1.0)
    over = np.maximum(footprints.memory_bytes / limit - 1, 0.0)
    shortage = preferences().offers.switch_shortage.value
    is_near = ~footprints.fits & footprints.fits_host & (over < shortage)
    if sparing:
        is_near = is_near & ~_is_costly(footprints.layouts)
    rows = np.flatnonzero(is_near)
    return footprints.layouts.take(rows[np.argsort(over[rows], kind="stable")][:_MAX_LAYOUTS])


def _trial_notes(trial: _Trial, best: Estimate | None) -> Iterator[str]:
    """Describe the gain of the switches; nothing if it is too small or risky."""
    fastest, switches = trial.fastest, trial.framework.active_switches
    gain = preferences().offers.switch_gain.value
    effect = "; ".join(switches[word].does for word in trial.switches)
    result = (
        f"{fastest.layout} takes {format_seconds(fastest.step_time_s)} per step and "
        f"{format_bytes(fastest.memory_bytes['total'])} per device"
    )
    if best is None:
        yield f"It would fit with {fastest.framework} ({effect}): {result}."
    elif fastest.step_time_s * gain <= best.step_time_s and not _is_risky(fastest):
        avoided = [best.layout.recomputed] if best.layout.recompute == "full" else []
        avoided += ["offload"] if best.layout.offload != "none" else []
        yield f"Without {' and '.join(avoided)}, {fastest.framework} ({effect}) fits: {result}."


def _memory_order_notes(candidates: Mapping[str, Candidates], best: Estimate) -> Iterator[str]:
    """Describe the gain of channels-last memory for a convolutional network, if large enough."""
    part, gain = candidates.get(best.framework), preferences().offers.switch_gain.value
    if part is None or part.scenario.model.convolutional is None:
        return
    scenario, layouts = part.scenario, Layouts.stack([best.layout])
    for name, switch in scenario.framework.switches.items():
        refusal = switch.refuses(scenario.machine.device) or switch.refuses_workload(
            scenario.workload
        )
        if refusal or "kernels.channels_last" not in switch.dotted:
            continue
        for trial in _try(scenario, layouts, (name,)):
            time_s = trial.fastest.step_time_s
            if time_s * gain < best.step_time_s:
                switched = f"With {trial.framework.name} ({switch.does}) {best.layout}"
                yield f"{switched} takes {format_seconds(time_s)} per step."
                return
