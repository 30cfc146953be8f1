"""Switching: what a framework's users could turn on to make a job fit, or to spare recompute.

It is said and never chosen: what a switch does to training is for people to judge.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import replace
from typing import NamedTuple

import numpy as np

from planner.choose.legality import legal
from planner.choose.preferences import preferences
from planner.choose.search import Candidates
from planner.cost.arrays import Mask
from planner.cost.estimate import Estimate, fitting
from planner.cost.scenario import Scenario
from planner.cost.shards.layouts import Layouts
from planner.describe.framework.framework import Framework
from planner.describe.layout import Layout
from planner.errors import PlannerError
from planner.units import format_bytes, format_seconds

__all__ = ["switch_notes"]

_NEAREST = 200
"""Layouts of a framework that are tried with a switch: those that lack the least memory."""


def switch_notes(found: Mapping[str, Candidates], answer: Estimate | None) -> list[str]:
    """A sentence on the switch that makes a job fit, or that spares recompute and offload, or the
    turning of a convolutional network's memory order.

    Counted: every switch that saves memory, alone; then as many of a framework as go together,
    without those that prove not to be needed; the fastest of what fits with it. Tried where nothing
    fits; with the recommended framework where it recomputes all layers or offloads.
    """
    if answer is not None and not _costly(Layouts.of(answer.layout)):
        return _turned(found, answer)
    parts = [part for name, part in found.items() if answer is None or name == answer.framework]
    nearest = [(part.scenario, _nearest(part, answer is not None)) for part in parts]
    for together in (False, True) if answer is None else (False,):
        tried = [
            one
            for scenario, layouts in nearest
            if len(layouts)
            for words in _choices(scenario, together)
            for one in _tried(scenario, layouts, words)
        ]
        if tried:
            best = min(tried, key=lambda one: (_risky(one.fastest), one.fastest.step_time_s))
            return _said(_with_fewer(best) if together else best, answer)
    return []


class _Tried(NamedTuple):
    """What comes of some switches more."""

    words: tuple[str, ...]
    framework: Framework
    """It with them."""
    fastest: Estimate
    """The fastest of what fits with them."""
    scenario: Scenario
    """The scenario without them."""
    layouts: Layouts
    """What was tried."""


def _costly(layouts: Layouts) -> Mask:
    return layouts.recomputes_layers | ~layouts.keeps_states


def _choices(scenario: Scenario, together: bool) -> list[tuple[str, ...]]:
    """Each switch that saves memory, behind those that it needs; or as many as go together."""
    framework, device = scenario.framework, scenario.machine.device
    on = {word.partition("=")[0] for word in framework.switched}
    alone = []
    for name, switch in framework.switches.items():
        fits = not switch.refuses(device) and not switch.unfit(scenario.workload, scenario.model)
        named = switch.saves_memory and bool(switch.takes) == bool(switch.usual)
        if fits and named and name not in on:
            needed = [need for need in switch.needs if need not in on]
            alone.append((*needed, f"{name}={switch.usual}" if switch.takes else name))
    return _together(framework, alone) if together else alone


def _together(framework: Framework, alone: list[tuple[str, ...]]) -> list[tuple[str, ...]]:
    """Sets of switches that go together and to which none of the others can be added."""
    order = dict.fromkeys(word for words in alone for word in words)
    sets = []
    for first in alone:
        chosen = first
        for words in alone:
            more = tuple(dict.fromkeys((*chosen, *words)))
            chosen = chosen if _with(framework, more) is None else more
        sets.append(tuple(word for word in order if word in chosen))
    return list(dict.fromkeys(sets))


def _with(framework: Framework, words: tuple[str, ...]) -> Framework | None:
    """A framework with some of its switches more; None where they do not go together."""
    try:
        return framework.with_switches(*words)
    except PlannerError:
        return None


def _tried(scenario: Scenario, layouts: Layouts, words: tuple[str, ...]) -> Iterator[_Tried]:
    """What comes of some switches more; nothing where nothing fits with them."""
    if (framework := _with(scenario.framework, words)) is None:
        return
    for fastest in _fastest(replace(scenario, framework=framework), layouts):
        yield _Tried(words, framework, fastest, scenario, layouts)


def _with_fewer(best: _Tried) -> _Tried:
    """It without the switches that are not needed for anything to fit as safely."""
    for word in best.words:
        fewer = tuple(other for other in best.words if other != word)
        for one in _tried(best.scenario, best.layouts, fewer):
            if _risky(one.fastest) <= _risky(best.fastest):
                return _with_fewer(one)
    return best


def _nearest(part: Candidates, spares: bool) -> Layouts:
    """Layouts that do not fit, least memory missing first; without recompute and offload where
    these are to be spared."""
    taken = part.footprints
    over = np.maximum(taken.memory_bytes / max(taken.device_limit_bytes, 1.0) - 1, 0.0)
    shortage = preferences().offers.switch_shortage.value
    tried = ~taken.fits & taken.fits_host & (over < shortage)
    if spares:
        tried = tried & ~_costly(taken.layouts)
    places = np.flatnonzero(tried)
    nearest = places[np.argsort(over[places], kind="stable")][:_NEAREST]
    return taken.layouts.take(nearest)


def _fastest(scenario: Scenario, layouts: Layouts) -> Iterator[Estimate]:
    """The fastest of some layouts that are legal and fit, safe ones before others; none where none
    fits."""
    layouts = layouts.take(np.flatnonzero(legal(scenario, layouts, set(Layout.model_fields))[0]))
    if not len(layouts):
        return
    _, estimates = fitting(scenario, layouts)
    if not len(estimates):
        return
    risky = estimates.out_of_memory_probability > preferences().risk
    yield estimates[int(np.lexsort((estimates.step_time_s, risky))[0])]


def _risky(one: Estimate) -> bool:
    return one.out_of_memory_probability > preferences().risk


def _said(best: _Tried, answer: Estimate | None) -> list[str]:
    """What is gained, by which switch, in one sentence."""
    one, on = best.fastest, best.framework.on_by_name
    does = "; ".join(on[word].does for word in best.words)
    what = (
        f"{one.layout} takes {format_seconds(one.step_time_s)} per step and "
        f"{format_bytes(one.memory_bytes['total'])} per device"
    )
    if answer is None:
        return [f"It would fit with -f {one.framework} ({does}): {what}."]
    if one.step_time_s * preferences().offers.switch_gain.value > answer.step_time_s or _risky(one):
        return []
    return [f"Without {_spared(answer.layout)}, -f {one.framework} ({does}) fits: {what}."]


def _turned(found: Mapping[str, Candidates], answer: Estimate) -> list[str]:
    """How long the answer's own layout takes of a convolutional network where no memory order is
    turned around its products."""
    part = found.get(answer.framework)
    if part is None or part.scenario.model.convolutional is None:
        return []
    scenario, layouts = part.scenario, Layouts.stack([answer.layout])
    for name, switch in scenario.framework.switches.items():
        fits = not switch.refuses(scenario.machine.device) and not switch.unfit(scenario.workload)
        if not (fits and "kernels.channels_last" in switch.dotted):
            continue
        for one in _tried(scenario, layouts, (name,)):
            took = one.fastest.step_time_s
            if took * preferences().offers.switch_gain.value < answer.step_time_s:
                said = f"With -f {one.framework.name} ({switch.does}) {answer.layout} takes"
                return [f"{said} {format_seconds(took)} per step."]
    return []


def _spared(layout: Layout) -> str:
    spared = [layout.recomputed] if layout.recompute == "full" else []
    return " and ".join([*spared, *(["offload"] if layout.offload != "none" else [])])
