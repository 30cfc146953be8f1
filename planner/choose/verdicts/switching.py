"""Switching: what a framework's users could turn on to make a job fit, or to spare recompute.

It is said and never chosen: what a switch does to training is for people to judge.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import replace

import numpy as np

from planner.choose.legality import legal
from planner.choose.recommending import RISK
from planner.choose.search import Found
from planner.cost.arrays import Mask
from planner.cost.estimate import Estimate, timed
from planner.cost.memory.footprint import Footprints, footprints
from planner.cost.question import Question
from planner.cost.shards.layouts import Layouts
from planner.describe.layout import Layout
from planner.errors import PlannerError
from planner.units import format_bytes, format_seconds

__all__ = ["switch_notes"]

_NEAREST = 200
"""Layouts of a framework that are tried with a switch: those that lack the least memory."""
_LACK = 0.6
"""Part of the memory that they may lack: hardly a switch saves more."""
_WORTH = 1.05
"""How much faster a step must be for what spares recompute or offload to be said."""


def switch_notes(found: Mapping[str, Found], answer: Estimate | None) -> list[str]:
    """A sentence on the switch that makes a job fit, or that spares recompute and offload.

    Counted: every switch that saves memory, alone, then all of a framework together; the fastest
    of what fits with it. Tried where nothing fits; with the recommended framework where it
    recomputes all layers or offloads.
    """
    if answer is not None and not _costly(Layouts.of(answer.layout)):
        return []
    nearest = {name: _nearest(part, answer is not None) for name, part in found.items()}
    parts = [part for name, part in found.items() if answer is None or name == answer.framework]
    for together in (False, True) if answer is None else (False,):
        tried = [
            (estimate, words, question)
            for part in parts
            if len(nearest[part.question.framework.name])
            for words, question in _variants(part.question, together)
            for estimate in _fastest(question, nearest[part.question.framework.name])
        ]
        if tried:
            best = min(tried, key=lambda one: (_risky(one[0]), one[0].step_time_s, one[1]))
            return _said(*best, answer)
    return []


def _costly(layouts: Layouts) -> Mask:
    return layouts.recomputes_layers | ~layouts.keeps_states


def _variants(question: Question, together: bool) -> Iterator[tuple[tuple[str, ...], Question]]:
    """A question with one switch more that saves memory, or with all of them that go together."""
    framework, device = question.framework, question.machine.device
    words = []
    for name, switch in framework.switches.items():
        fits = not switch.refuses(device) and not switch.unfit(question.workload)
        usable = switch.saves_memory and fits and not switch.needs
        if usable and bool(switch.takes) == bool(switch.usual) and name not in framework.switched:
            words.append(f"{name}={switch.usual}" if switch.takes else name)
    for chosen in [tuple(words)] if together else [(word,) for word in words]:
        try:
            yield chosen, replace(question, framework=framework.with_switches(*chosen))
        except PlannerError:  # they do not go together, or one is on
            continue


def _nearest(part: Found, spares: bool) -> Layouts:
    """Layouts that do not fit, least memory missing first; without recompute and offload where
    these are to be spared."""
    taken = part.footprints
    over = np.maximum(taken.memory_bytes / max(taken.device_limit_bytes, 1.0) - 1, 0.0)
    tried = ~taken.fits & taken.fits_host & (over < _LACK)
    if spares:
        tried = tried & ~_costly(taken.layouts)
    places = np.flatnonzero(tried)
    nearest = places[np.argsort(over[places], kind="stable")][:_NEAREST]
    return taken.layouts.take(nearest)


def _fastest(question: Question, layouts: Layouts) -> Iterator[Estimate]:
    """The fastest of some layouts that are legal and fit, safe ones before others; none where none
    fits."""
    layouts = layouts.take(np.flatnonzero(legal(question, layouts, set(Layout.model_fields))[0]))
    if not len(layouts):
        return
    taken: Footprints = footprints(question, layouts)
    if not taken.fits.any():
        return
    estimates = timed(question, taken.take(np.flatnonzero(taken.fits)))
    risky = estimates.out_of_memory_probability > RISK
    yield estimates[int(np.lexsort((estimates.step_time_s, risky))[0])]


def _risky(one: Estimate) -> bool:
    return one.out_of_memory_probability > RISK


def _said(
    best: Estimate, words: tuple[str, ...], question: Question, answer: Estimate | None
) -> list[str]:
    """What is gained, by which switch, in one sentence."""
    on = question.framework.on_by_name
    does = "; ".join(on[word].does for word in words)
    what = (
        f"{best.layout} takes {format_seconds(best.step_time_s)} per step and "
        f"{format_bytes(best.memory_bytes['total'])} per device"
    )
    if answer is None:
        return [f"It would fit with -f {best.framework} ({does}): {what}."]
    if best.step_time_s * _WORTH > answer.step_time_s or _risky(best):
        return []
    return [f"Without {_spared(answer.layout)}, -f {best.framework} ({does}) fits: {what}."]


def _spared(layout: Layout) -> str:
    spared = [layout.recomputed] if layout.recompute == "full" else []
    return " and ".join([*spared, *(["offload"] if layout.offload != "none" else [])])
