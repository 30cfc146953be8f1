"""Switch notes: framework switches that would make a job fit, or spare recompute or offload."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import replace
from typing import NamedTuple

import numpy as np

from planner.choose.legality import legal_layouts
from planner.choose.preferences import preferences
from planner.choose.search import Candidates
from planner.cost.arrays import Mask
from planner.cost.estimate import Estimate, estimate_fitting
from planner.cost.scenario import Scenario
from planner.cost.shards.layouts import Layouts
from planner.describe.framework.framework import Framework
from planner.errors import PlannerError
from planner.units import format_bytes, format_seconds

__all__ = ["switch_notes"]

_MAX_LAYOUTS = 200
"""Layouts of a framework to try with a switch: those that lack the least memory."""


class _Trial(NamedTuple):
    """The effect of more switches on a scenario."""

    switches: tuple[str, ...]
    framework: Framework
    """The framework with the switches."""
    fastest: Estimate
    """The fastest layout that fits with them."""
    scenario: Scenario
    """The scenario without them."""
    layouts: Layouts
    """The layouts tried."""


def switch_notes(candidates: Mapping[str, Candidates], best: Estimate | None) -> list[str]:
    """One sentence on switches that make a job fit, or that spare recompute and offload."""
    if best is not None and not _is_costly(Layouts.of(best.layout)):
        return list(_memory_order_notes(candidates, best))
    parts = [part for name, part in candidates.items() if best is None or name == best.framework]
    nearest = [(part.scenario, _nearest(part, sparing=best is not None)) for part in parts]
    # one alone; if nothing fits, then as many as go together, less those that prove unnecessary
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
    """Layouts that recompute whole layers or offload."""
    return layouts.recomputes_layers | ~layouts.keeps_states


def _is_risky(estimate: Estimate) -> bool:
    return estimate.out_of_memory_probability > preferences().risk


# --- which switches -------------------------------------------------------------------------------


def _switch_choices(scenario: Scenario, together: bool) -> list[tuple[str, ...]]:
    """Each switch that saves memory, with those that it needs; or as many as go together."""
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
    """Sets of switches that go together and to which no other can be added."""
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
    """The framework with more switches on; None if they do not go together."""
    try:
        return framework.with_switches(*switches)
    except PlannerError:
        return None


def _with_fewer_switches(trial: _Trial) -> _Trial:
    """The trial without switches that a layout as safe does not need to fit."""
    for word in trial.switches:
        fewer = tuple(switch for switch in trial.switches if switch != word)
        for smaller in _try(trial.scenario, trial.layouts, fewer):
            if _is_risky(smaller.fastest) <= _is_risky(trial.fastest):
                return _with_fewer_switches(smaller)
    return trial


# --- which layouts --------------------------------------------------------------------------------


def _try(scenario: Scenario, layouts: Layouts, switches: tuple[str, ...]) -> Iterator[_Trial]:
    """The trial of more switches; nothing if no layout fits with them."""
    if (framework := _switched(scenario.framework, switches)) is None:
        return
    for fastest in _fastest(replace(scenario, framework=framework), layouts):
        yield _Trial(switches, framework, fastest, scenario, layouts)


def _nearest(candidates: Candidates, sparing: bool) -> Layouts:
    """Layouts that do not fit, least memory missing first; only cheap ones if `sparing`."""
    footprints = candidates.footprints
    limit = max(footprints.device_limit_bytes, 1.0)
    over = np.maximum(footprints.memory_bytes / limit - 1, 0.0)
    shortage = preferences().offers.switch_shortage.value
    is_near = ~footprints.fits & footprints.fits_host & (over < shortage)
    if sparing:
        is_near = is_near & ~_is_costly(footprints.layouts)
    rows = np.flatnonzero(is_near)
    return footprints.layouts.take(rows[np.argsort(over[rows], kind="stable")][:_MAX_LAYOUTS])


def _fastest(scenario: Scenario, layouts: Layouts) -> Iterator[Estimate]:
    """The fastest legal layout that fits, safe ones first; nothing if none fits."""
    if len(layouts := legal_layouts(scenario, layouts)):
        _, estimates = estimate_fitting(scenario, layouts)
        risky = estimates.out_of_memory_probability > preferences().risk
        for first in np.lexsort((estimates.step_time_s, risky))[:1]:
            yield estimates[int(first)]


# --- sentences ------------------------------------------------------------------------------------


def _trial_notes(trial: _Trial, best: Estimate | None) -> Iterator[str]:
    """Say what the switches gain; nothing if that is too little or risky."""
    fastest, switches = trial.fastest, trial.framework.active_switches
    gain = preferences().offers.switch_gain.value
    effect = "; ".join(switches[word].does for word in trial.switches)
    result = (
        f"{fastest.layout} takes {format_seconds(fastest.step_time_s)} per step and "
        f"{format_bytes(fastest.memory_bytes['total'])} per device"
    )
    if best is None:
        yield f"It would fit with -f {fastest.framework} ({effect}): {result}."
    elif fastest.step_time_s * gain <= best.step_time_s and not _is_risky(fastest):
        spared = [best.layout.recomputed] if best.layout.recompute == "full" else []
        spared += ["offload"] if best.layout.offload != "none" else []
        yield f"Without {' and '.join(spared)}, -f {fastest.framework} ({effect}) fits: {result}."


def _memory_order_notes(candidates: Mapping[str, Candidates], best: Estimate) -> Iterator[str]:
    """Say what the recommended layout of a convolutional network gains by channels-last memory."""
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
                switched = f"With -f {trial.framework.name} ({switch.does}) {best.layout}"
                yield f"{switched} takes {format_seconds(time_s)} per step."
                return
