"""Advice: the field's guide beside the answer, where they differ and by what, and rules of thumb.

Every reason is read off the estimates and the verdicts; nothing is said that they do not show.
"""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from planner.choose.preferences import preferences, user_changes, user_file
from planner.choose.verdicts.decision_guide import GuideCase, apply_guide
from planner.choose.verdicts.strategy_verdicts import Verdict
from planner.choose.verdicts.unused_options import unused_option_notes
from planner.cost.estimate import Estimate
from planner.cost.operators.blocks import blocks_of
from planner.cost.operators.operations import model_flop, sequence_flop
from planner.cost.parts import part
from planner.cost.scenario import Scenario
from planner.cost.shards.layouts import Layouts
from planner.cost.shards.optimizers import OPTIMIZERS
from planner.cost.shards.split import kept_share
from planner.describe.layout import Layout
from planner.errors import shorten_path
from planner.training.large_batch import LINEAR, SQUARE_ROOT, scaled_rate
from planner.units import either, format_rate, format_seconds

__all__ = ["learning_rate_note", "plan_notes", "preference_notes", "utilisation_notes"]


def plan_notes(
    scenarios: Sequence[Scenario], nodes: int, answer: Estimate | None, verdicts: Sequence[Verdict]
) -> list[str]:
    """The guide, the answer beside it, where they differ and why, and what its MFU counts."""
    advice, said = apply_guide(scenarios, nodes)
    lines = [f"The field's guide: {said}."]
    if answer is None:
        return lines
    parts = sorted(answer.step_time_parts_s.items(), key=lambda item: -item[1])
    cost = ", ".join(
        f"{part(name).label} {100 * value / answer.step_time_s:.0f} %"
        for name, value in parts[:4]
        if value > 0.005 * answer.step_time_s
    )
    lines.append(f"The estimate: {_kind(answer.layout)} is recommended; its step is {cost}.")
    scenario = next(q for q in scenarios if q.framework.name == answer.framework)
    return [
        *lines,
        *_difference(advice, answer, verdicts),
        *_outside(scenario, answer.layout),
        *utilisation_notes(scenario, answer),
        *evidence_notes(scenario, nodes),
    ]


def preference_notes() -> list[str]:
    """One sentence on the preferences that the user's file changes."""
    changes = [f"{name} = {new:g} (not {old:g})" for name, (old, new) in user_changes().items()]
    path = user_file()
    if not changes or path is None:
        return []
    return [f"Preferences of {shorten_path(path)}: {', '.join(changes)}."]


def _kind(layout: Layout) -> str:
    """The strategy of a layout in the guide's words."""
    axes = [name.upper() for name in ("tp", "pp", "cp", "ep") if getattr(layout, name) > 1]
    if layout.dp > 1:
        axes.append("DP" if not layout.shards_states else f"ZeRO-{layout.zero_stage}")
    text = " + ".join(axes) or "a single device"
    text += f" in {layout.tiles} tiles" if layout.tiles > 1 else ""
    return text + (f" with offload ({layout.offload})" if layout.offload != "none" else "")


def _difference(advice: GuideCase, answer: Estimate, verdicts: Sequence[Verdict]) -> list[str]:
    """Where the answer is none that the guide names: what the guide's own would do."""
    case = advice.value
    fits = {v.name: v.estimate for v in verdicts if v.fits and v.estimate is not None}
    layouts = Layouts.of(answer.layout)
    if np.all(case.holds(layouts) & (layouts.piped | (case.before not in fits))):
        return []
    named = [verdict for verdict in verdicts if verdict.name in case.strategies]
    fitting = [fits[v.name] for v in named if v.name in fits]
    if not fitting:
        return [f"They differ: {_misfit(named)}."]
    theirs = fits.get(case.before) or min(fitting, key=lambda estimate: estimate.step_time_s)
    ratio = theirs.step_time_s / answer.step_time_s
    shape = f"{theirs.layout} [{theirs.framework}]"
    time = f"{format_seconds(theirs.step_time_s)} per step"
    same_time = preferences().guide.same_time.value
    risk = theirs.out_of_memory_probability
    if ratio <= 1 + same_time and risk > max(preferences().risk, answer.out_of_memory_probability):
        often = f"with a probability of {100 * risk:.0f} %"
        return [f"They differ: the guide's {shape} takes {time} but runs out of memory {often}."]
    if ratio < 1 / (1 + same_time):
        return [f"They differ: the guide's {shape} takes {time}."]
    if ratio <= 1 + same_time:
        return [f"They differ in taste only: the guide's {shape} takes {time}."]
    extra = {
        name: value - answer.step_time_parts_s[name]
        for name, value in theirs.step_time_parts_s.items()
    }
    most = max(extra, key=lambda name: extra[name])
    return [
        f"They differ: the guide's {shape} takes {time}, {100 * (ratio - 1):.0f} % more; most of "
        f"it is {part(most).label}, {format_seconds(theirs.step_time_parts_s[most])} and not "
        f"{format_seconds(answer.step_time_parts_s[most])}."
    ]


def _misfit(named: Sequence[Verdict]) -> str:
    """Why none of what the guide names is there."""
    names = either(verdict.name for verdict in named)
    judged = [(v.estimate.memory_bytes["total"], v) for v in named if v.estimate is not None]
    if not judged:
        return f"{names} is not to be had: {named[0].why.removeprefix('no legal layout: ')}"
    _, closest = min(judged, key=lambda pair: pair[0])
    return f"of {names} none fits; closest is {closest.name}, which {closest.why}"


def _outside(scenario: Scenario, layout: Layout) -> list[str]:
    """Tensor parallelism that leaves the node, which the guide never takes."""
    machine = scenario.machine
    per_node = machine.node.num_devices
    if layout.tp <= machine.wired_devices or per_node == 1:
        return []
    return [
        f"tp = {layout.tp} leaves the node of {per_node}: check this against a run, "
        "tensor-parallel traffic between nodes is seldom hidden."
    ]


def evidence_notes(scenario: Scenario, nodes: int) -> list[str]:
    """Which network the estimate is for, where there are several, and what was ever measured."""
    machine, lines = scenario.machine, []
    if machine.networks and machine.network is not None and nodes > 1:
        others = " or ".join(f"--network {network.name}" for network in machine.networks)
        said = f" ({machine.network.note})" if machine.network.note else ""
        lines.append(
            f"Between nodes {scenario.framework.name} is estimated on the network "
            f"{machine.network.name!r}: {machine.network.topology}{said}. Its job script sets that "
            f"up; {others} takes another."
        )
    if machine.evidence:
        lines.append(f"Measured runs behind estimates for {machine.name}: {machine.evidence}")
    return lines


def utilisation_notes(scenario: Scenario, answer: Estimate) -> list[str]:
    """What a utilisation counts, where that makes it look too good, and what the step's time leaves
    out; what is asked for and does nothing."""
    workload, machine = scenario.workload, scenario.machine
    kept = float(kept_share(workload, Layouts.of(answer.layout))) if scenario.model.experts else 1.0
    lines = unused_option_notes(scenario, answer.layout)
    if kept < 1:
        lines.append(
            f"With expert_capacity = {workload.expert_capacity:g} at least "
            f"{100 * (1 - kept):.3g} % of the tokens routed to experts are dropped: MFU does not "
            "count them, and what is trained changes."
        )
    if OPTIMIZERS[workload.optimizer].paged:
        lines.append(
            f"The moments of {workload.optimizer} count in host memory; what their pages take to "
            "move, where the device has no room for them, is left out of the step's time."
        )
    base = machine.peak(workload.base_precision)
    if workload.precision != workload.base_precision:
        peak = machine.peak(workload.precision)
        lines.append(
            f"MFU {100 * answer.mfu:.1f} % is of the {workload.base_precision} peak "
            f"({format_rate(base, 'FLOP/s')}); of the {workload.precision} peak "
            f"({format_rate(peak, 'FLOP/s')}) it is {100 * answer.mfu * base / peak:.1f} %."
        )
    blocks, tokens = blocks_of(scenario), workload.tokens_per_step
    computed = workload.sequence_length * workload.global_batch
    if tokens < computed:
        lines.append(
            f"Tokens/s and MFU count the tokens of documents, {100 * tokens / computed:.0f} % of "
            "those that are computed: the others are padding."
        )
    counted, seen = (
        sum(
            3.0 * block.count * float(sequence_flop(one, tokens, workload, skips_masked=masked))
            for block in blocks
            for one in block.attentions
        )
        for masked in (False, True)
    )
    total = float(model_flop(blocks, workload, kept))
    squares = "every document" if workload.documents else "the sequence"
    much = preferences().guide.attention_share.value
    if counted > much * total and seen < counted:
        fewer = answer.mfu * (1 - (counted - seen) / total)
        lines.append(
            f"MFU counts attention over the whole square of {squares}, "
            f"{100 * counted / total:.0f} % of the operations; without what the causal mask leaves "
            f"out it is {100 * fewer:.1f} %."
        )
    return lines


def learning_rate_note(
    global_batch: int, reference_batch: int = 256, unit: str = "sequences"
) -> str:
    """How the learning rate is usually scaled from a reference batch, with warm-up.

    Linear: Goyal et al. 2017, arXiv:1706.02677 (SGD). Square root: Krizhevsky 2014,
    arXiv:1404.5997; the usual choice for Adam (You et al. 2019, arXiv:1904.00962).

    >>> learning_rate_note(1024)[:58]
    'Learning rate for a global batch of 1024 sequences, from o'
    """
    linear, root = (scaled_rate(1, reference_batch, global_batch, p) for p in (LINEAR, SQUARE_ROOT))
    return (
        f"Learning rate for a global batch of {global_batch} {unit}, from one tuned at "
        f"{reference_batch}: linear rule x{linear:.3g} (SGD), square-root rule "
        f"x{root:.3g} (Adam); warm up over the first steps, longer the larger the "
        "factor."
    )
