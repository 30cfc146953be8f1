"""Plan notes: the field's guide beside the answer, and what its figures count.

Every reason is read off the estimates and verdicts.
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
from planner.cost.shards.tensor_split import kept_share
from planner.describe.layout import Layout
from planner.errors import shorten_path
from planner.training.large_batch import LINEAR, SQUARE_ROOT, scaled_rate
from planner.units import either, format_rate, format_seconds

__all__ = ["learning_rate_note", "plan_notes", "preference_notes", "utilisation_notes"]


def plan_notes(
    scenarios: Sequence[Scenario], nodes: int, best: Estimate | None, verdicts: Sequence[Verdict]
) -> list[str]:
    """State the guide's advice, the recommended layout, why they differ, and what MFU counts."""
    case, advice = apply_guide(scenarios, nodes)
    notes = [f"The field's guide: {advice}."]
    if best is None:
        return notes
    parts = sorted(best.step_time_parts_s.items(), key=lambda item: -item[1])
    shares = ", ".join(
        f"{part(name).label} {100 * value / best.step_time_s:.0f} %"
        for name, value in parts[:4]
        if value > 0.005 * best.step_time_s
    )
    notes.append(f"The estimate: {_strategy(best.layout)} is recommended; its step is {shares}.")
    scenario = next(each for each in scenarios if each.framework.name == best.framework)
    return [
        *notes,
        *_guide_difference(case, best, verdicts),
        *_wire_notes(scenario, best.layout),
        *utilisation_notes(scenario, best),
        *evidence_notes(scenario, nodes),
    ]


def preference_notes() -> list[str]:
    """One sentence on the preferences that the user's file changes."""
    changes = [f"{name} = {new:g} (not {old:g})" for name, (old, new) in user_changes().items()]
    path = user_file()
    if not changes or path is None:
        return []
    return [f"Preferences of {shorten_path(path)}: {', '.join(changes)}."]


def evidence_notes(scenario: Scenario, nodes: int) -> list[str]:
    """Name the network that is estimated if there are several, and the machine's measured runs."""
    machine, notes = scenario.machine, []
    if machine.networks and machine.network is not None and nodes > 1:
        alternatives = " or ".join(f"--network {network.name}" for network in machine.networks)
        remark = f" ({machine.network.note})" if machine.network.note else ""
        notes.append(
            f"Between nodes {scenario.framework.name} is estimated on the network "
            f"{machine.network.name!r}: {machine.network.topology}{remark}. Its job script sets "
            f"that up; {alternatives} takes another."
        )
    if machine.evidence:
        notes.append(f"Measured runs behind estimates for {machine.name}: {machine.evidence}")
    return notes


# --- the guide and the answer ---------------------------------------------------------------------


def _strategy(layout: Layout) -> str:
    """The strategy of a layout in the guide's words."""
    axes = [name.upper() for name in ("tp", "pp", "cp", "ep") if getattr(layout, name) > 1]
    if layout.dp > 1:
        axes.append("DP" if not layout.shards_states else f"ZeRO-{layout.zero_stage}")
    text = " + ".join(axes) or "a single device"
    text += f" in {layout.tiles} tiles" if layout.tiles > 1 else ""
    return text + (f" with offload ({layout.offload})" if layout.offload != "none" else "")


def _guide_difference(case: GuideCase, best: Estimate, verdicts: Sequence[Verdict]) -> list[str]:
    """Compare the guide's own layout with the recommended one; nothing if they agree."""
    advice, layouts = case.value, Layouts.of(best.layout)
    fits = {v.name: v.estimate for v in verdicts if v.fits and v.estimate is not None}
    if np.all(advice.holds(layouts) & (layouts.piped | (advice.before not in fits))):
        return []
    named = [verdict for verdict in verdicts if verdict.name in advice.strategies]
    fitting = [fits[v.name] for v in named if v.name in fits]
    if not fitting:
        return [f"They differ: {_misfit(named)}."]
    guided = fits.get(advice.before) or min(fitting, key=lambda estimate: estimate.step_time_s)
    policy, risk = preferences(), guided.out_of_memory_probability
    slowdown, same = guided.step_time_s / best.step_time_s, 1 + policy.guide.same_time.value
    result = (
        f"the guide's {guided.layout} [{guided.framework}] takes "
        f"{format_seconds(guided.step_time_s)} per step"
    )
    if slowdown <= same and risk > max(policy.risk, best.out_of_memory_probability):
        return [
            f"They differ: {result} but runs out of memory with a probability of "
            f"{100 * risk:.0f} %."
        ]
    if slowdown < 1 / same:
        return [f"They differ: {result}."]
    if slowdown <= same:
        return [f"They differ in taste only: {result}."]
    return [
        f"They differ: {result}, {100 * (slowdown - 1):.0f} % more; {_largest_loss(guided, best)}."
    ]


def _largest_loss(slower: Estimate, best: Estimate) -> str:
    """Name the part of the step in which a slower layout loses most."""
    parts = slower.step_time_parts_s
    name = max(parts, key=lambda name: parts[name] - best.step_time_parts_s[name])
    return (
        f"most of it is {part(name).label}, {format_seconds(parts[name])} and not "
        f"{format_seconds(best.step_time_parts_s[name])}"
    )


def _misfit(named: Sequence[Verdict]) -> str:
    """Say why none of the guide's strategies is possible."""
    names = either(verdict.name for verdict in named)
    legal = [(v.estimate.memory_bytes["total"], v) for v in named if v.estimate is not None]
    if not legal:
        return f"{names} is impossible: {named[0].why.removeprefix('no legal layout: ')}"
    _, closest = min(legal, key=lambda pair: pair[0])
    return f"of {names} none fits; closest is {closest.name}, which {closest.why}"


def _wire_notes(scenario: Scenario, layout: Layout) -> list[str]:
    """A warning about tensor parallelism beyond wired devices, which the guide never takes."""
    per_node = scenario.machine.node.num_devices
    if layout.tp <= scenario.machine.wired_devices or per_node == 1:
        return []
    return [
        f"tp = {layout.tp} leaves the node of {per_node}: check this against a run, "
        "tensor-parallel traffic between nodes is seldom hidden."
    ]


# --- what figures count ---------------------------------------------------------------------------


def utilisation_notes(scenario: Scenario, estimate: Estimate) -> list[str]:
    """State what MFU and step time leave out, and which options have no effect."""
    workload, notes = scenario.workload, unused_option_notes(scenario, estimate.layout)
    share = 1.0
    if scenario.model.experts:
        share = float(kept_share(workload, Layouts.of(estimate.layout)))
    if share < 1:
        notes.append(
            f"With expert_capacity = {workload.expert_capacity:g} at least "
            f"{100 * (1 - share):.3g} % of the tokens routed to experts are dropped: MFU does not "
            "count them, and what is trained changes."
        )
    if OPTIMIZERS[workload.optimizer].paged:
        notes.append(
            f"The moments of {workload.optimizer} count in host memory; moving their pages, where "
            "the device has no room for them, is left out of the step's time."
        )
    if workload.precision != workload.base_precision:
        base, peak = (
            scenario.machine.peak(each) for each in (workload.base_precision, workload.precision)
        )
        notes.append(
            f"MFU {100 * estimate.mfu:.1f} % is of the {workload.base_precision} peak "
            f"({format_rate(base, 'FLOP/s')}); of the {workload.precision} peak "
            f"({format_rate(peak, 'FLOP/s')}) it is {100 * estimate.mfu * base / peak:.1f} %."
        )
    tokens = workload.tokens_per_step
    computed = workload.sequence_length * workload.global_batch
    if tokens < computed:
        notes.append(
            f"Tokens/s and MFU count the tokens of documents, {100 * tokens / computed:.0f} % of "
            "those that are computed: the others are padding."
        )
    return notes + _attention_notes(scenario, estimate, share)


def _attention_notes(scenario: Scenario, estimate: Estimate, share: float) -> list[str]:
    """The utilisation without masked attention, if attention is much of the operations.

    `share` of the tokens routed to experts are computed.
    """
    workload, blocks = scenario.workload, blocks_of(scenario)
    counted, unmasked = (
        sum(
            3.0
            * block.count
            * float(sequence_flop(each, workload.tokens_per_step, workload, skips_masked=masked))
            for block in blocks
            for each in block.attentions
        )
        for masked in (False, True)
    )
    total = float(model_flop(blocks, workload, share))
    much = preferences().guide.attention_share.value * total
    if counted <= much or unmasked >= counted:
        return []
    mfu = estimate.mfu * (1 - (counted - unmasked) / total)
    squares = "every document" if workload.documents else "the sequence"
    return [
        f"MFU counts attention over the whole square of {squares}, "
        f"{100 * counted / total:.0f} % of the operations; without what the causal mask leaves "
        f"out it is {100 * mfu:.1f} %."
    ]


def learning_rate_note(
    global_batch: int, reference_batch: int = 256, unit: str = "sequences"
) -> str:
    """State how the learning rate is usually scaled from a reference batch, with warm-up.

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
