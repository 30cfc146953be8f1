"""Plan notes: the field's guide against the answer, what figures count, unused options."""

from collections.abc import Iterator, Sequence

import numpy as np

from planner.choose.legality.memory_rules import chunk_layers
from planner.choose.plan import Verdict
from planner.choose.preferences import preferences, user_changes, user_file
from planner.choose.verdicts.decision_guide import GuideCase, apply_guide
from planner.choose.verdicts.differences import largest_parts, time_changes
from planner.cost.estimate import Estimate
from planner.cost.operators.backward import FREES_NOTHING, selective_frees_nothing
from planner.cost.operators.blocks import blocks_of
from planner.cost.operators.operations import model_flop, sequence_flop
from planner.cost.scenario import Scenario
from planner.cost.shards.layouts import Layouts
from planner.cost.shards.optimizers import OPTIMIZERS
from planner.cost.shards.tensor_split import kept_share
from planner.describe.layout import Layout
from planner.describe.workload import Workload, parse_ramp
from planner.errors import shorten_path
from planner.units import either, format_count, format_rate, format_seconds


def plan_notes(
    scenarios: Sequence[Scenario], nodes: int, best: Estimate | None, verdicts: Sequence[Verdict]
) -> Iterator[str]:
    """State the guide's advice, the recommended layout, why they differ, and what MFU counts."""
    case, advice = apply_guide(scenarios, nodes)
    yield f"The field's guide: {advice}."
    if best is None:
        return
    shares = largest_parts(best, 4, least=0.005)
    yield f"The estimate: {_strategy(best.layout)} is recommended; its step is {shares}."
    if difference := _guide_difference(case, best, verdicts):
        yield f"They differ{difference}."
    scenario = next(each for each in scenarios if each.framework.name == best.framework)
    per_node, tp = scenario.machine.node.num_devices, best.layout.tp
    if tp > scenario.machine.wired_devices and per_node > 1:
        yield (
            f"tp = {tp} spans several nodes of {per_node} devices: tensor-parallel traffic "
            "between nodes is seldom hidden; check this with a run."
        )
    yield from utilisation_notes(scenario, best)
    yield from evidence_notes(scenario, nodes)


def preference_notes() -> Iterator[str]:
    """Name the preferences that the user's file changes."""
    changes = [f"{name} = {new:g} (not {old:g})" for name, (old, new) in user_changes().items()]
    path = user_file()
    if changes and path is not None:
        yield f"Preferences of {shorten_path(path)}: {', '.join(changes)}."


def evidence_notes(scenario: Scenario, nodes: int) -> Iterator[str]:
    """Name unknown blocks, one of several networks, and the machine's measured runs."""
    if not scenario.knows_blocks:
        yield (
            f"How {scenario.framework.family} computes the blocks of family "
            f"{scenario.model.family} is not known: memory intervals are wider."
        )
    yield from network_notes(scenario, nodes)
    if scenario.machine.evidence:
        runs = f"Measured runs behind estimates for {scenario.machine.name}"
        yield f"{runs}: {scenario.machine.evidence}"


def network_notes(scenario: Scenario, nodes: int) -> Iterator[str]:
    """Name the network of a job of several nodes, if the machine has several."""
    machine, network = scenario.machine, scenario.machine.network
    if machine.networks and network is not None and nodes > 1:
        alternatives = either(each.name for each in machine.networks)
        remark = f" ({network.note})" if network.note else ""
        yield (
            f"Between nodes {scenario.framework.name} is estimated on the network "
            f"{network.name!r}: {network.topology}{remark}. Its job script sets this up; the "
            f"machine also has {alternatives}."
        )


def _strategy(layout: Layout) -> str:
    axes = [name.upper() for name in ("tp", "pp", "cp", "ep") if getattr(layout, name) > 1]
    if layout.dp > 1:
        axes.append("DP" if not layout.shards_states else f"ZeRO-{layout.zero_stage}")
    text = " + ".join(axes) or "a single device"
    text += f" in {layout.tiles} tiles" if layout.tiles > 1 else ""
    return text + (f" with offload ({layout.offload})" if layout.offload != "none" else "")


def _guide_difference(case: GuideCase, best: Estimate, verdicts: Sequence[Verdict]) -> str:
    """Compare the guide's own layout with the recommended one; empty if they agree."""
    advice, layouts = case.value, Layouts.of(best.layout)
    fits = {v.name: v.estimate for v in verdicts if v.fits and v.estimate is not None}
    if np.all(advice.holds(layouts) & (layouts.piped | (advice.before not in fits))):
        return ""
    guide_verdicts = [verdict for verdict in verdicts if verdict.name in advice.strategies]
    fitting = [fits[v.name] for v in guide_verdicts if v.name in fits]
    if not fitting:
        return f": {_misfit(guide_verdicts)}"
    guided = fits.get(advice.before) or min(fitting, key=lambda estimate: estimate.step_time_s)
    policy, risk = preferences(), guided.out_of_memory_probability
    slowdown, same = guided.step_time_s / best.step_time_s, 1 + policy.guide.same_time.value
    result = (
        f": the guide's {guided.layout} [{guided.framework}] takes "
        f"{format_seconds(guided.step_time_s)} per step"
    )
    if slowdown <= same and risk > max(policy.risk, best.out_of_memory_probability):
        return f"{result} but runs out of memory with a probability of {100 * risk:.0f} %"
    if slowdown <= same:
        return result if slowdown < 1 / same else f", at about equal speed{result}"
    loss = max(time_changes(best, guided), key=lambda each: each.change)
    return (
        f"{result}, {100 * (slowdown - 1):.0f} % more; mostly {loss.label}: "
        f"{format_seconds(loss.after)} instead of {format_seconds(loss.before)}"
    )


def _misfit(guide_verdicts: Sequence[Verdict]) -> str:
    """Explain why none of the guide's strategies fits."""
    names = either(verdict.name for verdict in guide_verdicts)
    legal = [
        (v.estimate.memory_bytes["total"], v) for v in guide_verdicts if v.estimate is not None
    ]
    if not legal:
        return f"{names} is impossible: {guide_verdicts[0].why.removeprefix('no legal layout: ')}"
    _, closest = min(legal, key=lambda pair: pair[0])
    misfits = f"none of {names} fits" if len(guide_verdicts) > 1 else f"{names} does not fit"
    return f"{misfits}; closest is {closest.name}, which {closest.why}"


def utilisation_notes(scenario: Scenario, estimate: Estimate) -> Iterator[str]:
    """State what MFU and step time leave out, and which options have no effect."""
    workload, share = scenario.workload, 1.0
    yield from unused_option_notes(scenario, estimate.layout)
    if scenario.model.experts:
        share = float(kept_share(workload, Layouts.of(estimate.layout)))
    if share < 1:
        yield (
            f"With expert_capacity = {workload.expert_capacity:g} at least "
            f"{100 * (1 - share):.3g} % of the tokens routed to experts are dropped: MFU does not "
            "count them, and the training changes."
        )
    if OPTIMIZERS[workload.optimizer].paged:
        yield (
            f"The moments of {workload.optimizer} count in host memory; moving their pages, if "
            "the device has no room for them, is not in the step time."
        )
    if (precision := workload.precision) != (usual := workload.base_precision):
        base, peak = (scenario.machine.peak(each) for each in (usual, precision))
        yield (
            f"MFU {100 * estimate.mfu:.1f} % is of the {usual} peak "
            f"({format_rate(base, 'FLOP/s')}); of the {precision} peak "
            f"({format_rate(peak, 'FLOP/s')}) it is {100 * estimate.mfu * base / peak:.1f} %."
        )
    tokens, computed = workload.tokens_per_step, workload.sequence_length * workload.global_batch
    if tokens < computed:
        yield (
            f"Tokens/s and MFU count the tokens of documents, {100 * tokens / computed:.0f} % of "
            "the computed tokens; the rest is padding."
        )
    yield from _attention_notes(scenario, estimate, share)


def _attention_notes(scenario: Scenario, estimate: Estimate, share: float) -> Iterator[str]:
    """State MFU without masked attention if that is much; `share`: kept part of expert tokens."""
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
    if counted > preferences().guide.attention_share.value * total and unmasked < counted:
        mfu = estimate.mfu * (1 - (counted - unmasked) / total)
        yield (
            "MFU counts attention over the whole square of "
            f"{'every document' if workload.documents else 'the sequence'}, "
            f"{100 * counted / total:.0f} % of the operations; without the masked part it is "
            f"{100 * mfu:.1f} %."
        )


def learning_rate_note(workload: Workload) -> str:
    """State how the learning rate is usually scaled from a batch of 256, with warm-up."""
    batch, unit = workload.global_batch, workload.batch_unit
    # linear: Goyal et al. 2017, arXiv:1706.02677; square root: Krizhevsky 2014, arXiv:1404.5997
    ratio = batch / 256
    return (
        f"Learning rate for a global batch of {batch} {unit}, from one tuned at 256: "
        f"linear rule x{ratio:.3g} (SGD), square-root rule x{ratio**0.5:.3g} (Adam); warm up over "
        "the first steps, longer the larger the factor."
    )


def unused_option_notes(scenario: Scenario, layout: Layout) -> list[str]:
    """Name the options of recompute, experts and ramp that have no effect."""
    return [
        *_unused_recompute(scenario, layout),
        *_unused_layer_counts(scenario, layout),
        *_unused_expert_options(scenario, layout),
        *_unused_ramp(scenario.workload),
    ]


def _unused_recompute(scenario: Scenario, layout: Layout) -> Iterator[str]:
    if layout.recompute_modules:
        saved = [item for block in blocks_of(scenario) for item in block.saved]
        freed = {name for item in saved for name in item.recomputed_with}
        if unused := [name for name in layout.recompute_modules if name not in freed]:
            layers = f"the layers of {scenario.model.name}"
            yield f"Recompute of {either(unused)} frees nothing in {layers}."
    elif layout.recompute == "selective" and selective_frees_nothing(scenario):
        names_modules = bool(scenario.framework.recompute_modules)
        yield (
            f"Selective recompute saves no memory: {FREES_NOTHING}. It only takes time: leave it "
            f"out{', or name modules' if names_modules else ''}."
        )


def _unused_layer_counts(scenario: Scenario, layout: Layout) -> Iterator[str]:
    layers, step = layout.recompute_layers, layout.recompute_every
    most = int(np.max(chunk_layers(scenario, layout))) if max(layers, step) > 1 else 1
    if layers > most:
        yield (
            f"recompute_layers = {layers} is full recompute: no chunk has more than {most} layers."
        )
    elif step > most:
        yield (
            f"recompute_every = {step} recomputes no layer: no chunk has more than {most}; use "
            f"{most} or less, or recompute none."
        )


def _unused_expert_options(scenario: Scenario, layout: Layout) -> Iterator[str]:
    """Report expert options without effect, because no exchange happens or none overlaps."""
    framework, imbalance = scenario.framework, scenario.workload.expert_imbalance
    switches = {word: each for word, each in framework.active_switches.items() if each.of_experts}
    if layout.ep == 1:
        unused = [f"switch {word}" for word in switches]
        unused += [f"expert_imbalance = {imbalance:g}"] if imbalance > 1 else []
        for name in unused:
            yield f"With ep = 1 no token leaves its rank: {name} does nothing."
    elif not np.all(Layouts.of(layout).merges_passes(framework)):
        for word, switch in switches.items():
            if switch.dotted.get("communication.overlap_experts"):
                yield (
                    f"Switch {word} does nothing in this layout: passes are merged only with "
                    "several micro-batches, without a pipeline or with an interleaved one, and "
                    "without recompute of whole layers or of moe."
                )


def _unused_ramp(workload: Workload) -> Iterator[str]:
    """Report a batch-size ramp that outlasts the training, or has no training length."""
    end = parse_ramp(workload.ramp)[-1][0] if workload.ramp else 0.0
    if workload.ramp and not workload.all_tokens:
        yield (
            "The ramp changes only the length of a whole training, and no tokens are stated: all "
            "figures are for a step with the full global batch."
        )
    elif workload.ramp and end >= workload.all_tokens:
        yield (
            f"The ramp ends at {format_count(end)} tokens, the training at "
            f"{format_count(workload.all_tokens)}: no step has the global batch of "
            f"{workload.global_batch}."
        )
