"""Unused options: one sentence for everything in a job or layout that has no effect there."""

from __future__ import annotations

import numpy as np

from planner.choose.legality.memory_rules import chunk_layers
from planner.cost.operators.backward import FREES_NOTHING, selective_frees_nothing
from planner.cost.operators.blocks import blocks_of
from planner.cost.scenario import Scenario
from planner.cost.shards.layouts import Layouts
from planner.describe.layout import Layout
from planner.describe.workload import Workload, parse_ramp
from planner.units import either, format_count

__all__ = ["unused_option_notes", "unused_ramp", "unused_recompute"]

_OVERLAP = "communication.overlap_experts"


def unused_option_notes(scenario: Scenario, layout: Layout) -> list[str]:
    """Name the options of recompute, experts and ramp that have no effect."""
    return [
        *unused_recompute(scenario, layout),
        *_unused_layer_counts(scenario, layout),
        *_unused_expert_options(scenario, layout),
        *unused_ramp(scenario.workload),
    ]


def unused_recompute(scenario: Scenario, layout: Layout) -> list[str]:
    """Selective recompute that repeats attention and frees nothing.

    >>> unused_recompute(scenario, Layout(recompute="selective"))[0][:37]
    'Selective recompute saves no memory: '
    """
    if layout.recompute_modules:
        saved = [item for block in blocks_of(scenario) for item in block.saved]
        freed = {name for item in saved for name in item.again_with}
        unused = [name for name in layout.recompute_modules if name not in freed]
        if not unused:
            return []
        return [
            f"Recompute of {either(unused)} frees nothing in the layers of {scenario.model.name}."
        ]
    if layout.recompute != "selective" or not selective_frees_nothing(scenario):
        return []
    modules = ", or name modules (--recompute-modules)"
    return [
        f"Selective recompute saves no memory: {FREES_NOTHING}. It only takes time: leave it out"
        f"{modules if scenario.framework.recompute_modules else ''}."
    ]


def _unused_layer_counts(scenario: Scenario, layout: Layout) -> list[str]:
    """Recompute of more layers than a chunk has."""
    if max(layout.recompute_layers, layout.recompute_every) <= 1:
        return []
    most = int(np.max(chunk_layers(scenario, layout)))
    if layout.recompute_layers > most:
        return [
            f"recompute_layers = {layout.recompute_layers} is full recompute: no chunk has more "
            f"than {most} layers."
        ]
    if layout.recompute_every > most:
        return [
            f"recompute_every = {layout.recompute_every} repeats no layer: no chunk has more than "
            f"{most}; use {most} or less, or recompute none."
        ]
    return []


def _unused_expert_options(scenario: Scenario, layout: Layout) -> list[str]:
    """Switches and imbalance of an expert exchange that does not happen or overlap."""
    framework, imbalance = scenario.framework, scenario.workload.expert_imbalance
    switches = {word: each for word, each in framework.active_switches.items() if each.of_experts}
    if layout.ep == 1:
        unused = [f"switch {word}" for word in switches]
        unused += [f"expert_imbalance = {imbalance:g}"] if imbalance > 1 else []
        return [f"With ep = 1 no token leaves its rank: {name} does nothing." for name in unused]
    if np.all(Layouts.of(layout).merges_passes(framework)):
        return []
    return [
        f"Switch {word} does nothing in this layout: passes are merged only with several "
        "micro-batches, without a pipeline or with an interleaved one, and without recompute of "
        "whole layers or of moe."
        for word, switch in switches.items()
        if switch.dotted.get(_OVERLAP)
    ]


def unused_ramp(workload: Workload) -> list[str]:
    """A batch-size ramp that ends after the training, or changes no figure of a step.

    >>> job = Workload(global_batch=64, ramp="10B:16", tokens=2e9)
    >>> unused_ramp(job)[0]
    'The ramp ends at 10 B tokens, the training at 2 B: no step has the global batch of 64.'
    """
    if not workload.ramp:
        return []
    end, tokens = parse_ramp(workload.ramp)[-1][0], workload.all_tokens
    if not tokens:
        return [
            "The ramp changes how long a whole training takes, and no tokens are given: all "
            "figures are of a step with the full global batch."
        ]
    if end < tokens:
        return []
    return [
        f"The ramp ends at {format_count(end)} tokens, the training at {format_count(tokens)}: no "
        f"step has the global batch of {workload.global_batch}."
    ]
