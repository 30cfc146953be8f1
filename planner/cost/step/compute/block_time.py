"""Block time: forward, backward and recompute of one block, by operator."""

from dataclasses import dataclass

import numpy as np

from planner.cost.arrays import Arrays, Float
from planner.cost.constants import step_constants
from planner.cost.operators.operations import attention_flop
from planner.cost.scenario import Scenario
from planner.cost.shards.layouts import Layouts
from planner.cost.shards.tensor_split import expert_load, split_over
from planner.cost.step.compute.gemm import DeviceRates, gemm_s, gemm_times
from planner.describe.framework.framework import Framework
from planner.describe.model.block import Attention, Block, Gemm, Pointwise
from planner.describe.workload import Workload


@dataclass(frozen=True, slots=True)
class BlockTime(Arrays):
    """Compute time of one block for one micro-batch on one rank [s]."""

    forward_s: Float
    backward_s: Float
    recompute_s: Float
    weight_gradient_s: Float
    """Part of backward that computes weight gradients (zero-bubble schedules defer it)."""
    core_forward_s: Float
    """Part of forward that is the attention core."""
    core_backward_s: Float
    """Part of backward that is the attention core."""
    column_input_s: Float
    """Part of backward that computes input gradients of column-parallel products."""
    column_weight_s: Float
    """Part of backward that computes weight gradients of column-parallel products."""


def block_time(scenario: Scenario, block: Block, layouts: Layouts) -> BlockTime:
    """Forward, backward and recompute time of one block and one micro-batch [s].

    Counted: GEMMs, attention, memory-bound kernels; recompute repeats the forward pass of layers
    (full), or of the attention core or the named modules (selective). Left out: communication,
    waiting for the host. compute.md#computation.
    """
    rates, recomputed = DeviceRates.of(scenario), _RecomputedModules(layouts)
    tokens = layouts.tokens(scenario.workload.sequence_length)
    forward, backward, weight_gradient, last = (np.zeros(tokens.shape) for _ in range(4))
    column_input, column_weight = np.zeros(tokens.shape), np.zeros(tokens.shape)
    core_forward, core_backward = np.zeros(tokens.shape), np.zeros(tokens.shape)
    products = gemm_times(scenario, block.gemms, tokens, layouts, rates)
    for gemm, (out, dgrad, wgrad) in zip(block.gemms, products, strict=True):
        forward, last = forward + out, out
        recomputed.add(gemm, out)
        backward += dgrad + wgrad
        weight_gradient += wgrad
        if gemm.split == "column" and not gemm.experts:
            column_input += dgrad
            column_weight += wgrad
    for attention in block.attentions:
        ahead, back = _attention_times(scenario, attention, tokens, layouts, rates)
        core_forward += ahead
        core_backward += back
        recomputed.add(attention, ahead)
    for operator in block.pointwise:
        ahead, back = _memory_bound_times(scenario, operator, tokens, layouts, rates)
        recomputed.add(operator, ahead)
        if operator.scores:
            core_forward, core_backward = core_forward + ahead, core_backward + back
        else:
            forward, backward = forward + ahead, backward + back
    forward, backward = forward + core_forward, backward + core_backward
    recompute = np.zeros(tokens.shape)
    if block.kind == "layer":
        recompute = recomputed.total_s(scenario.framework, forward, last, core_forward)
    return BlockTime(
        forward,
        backward,
        recompute,
        weight_gradient,
        core_forward,
        core_backward,
        column_input,
        column_weight,
    )


class _RecomputedModules:
    """Forward time of the modules that selective recompute repeats [s]."""

    def __init__(self, layouts: Layouts) -> None:
        self.layouts, self.named = layouts, bool(np.any(layouts.recompute_modules))
        self.seconds: Float = np.zeros(np.shape(layouts.tp))

    def add(self, operator: Gemm | Attention | Pointwise, forward_s: Float) -> None:
        """Add an operator's forward time where one of its modules is recomputed."""
        if self.named and operator.recomputed_with:
            is_recomputed = self.layouts.recomputes_module(operator.recomputed_with)
            self.seconds = self.seconds + np.where(is_recomputed, forward_s, 0.0)

    def total_s(self, framework: Framework, forward: Float, last: Float, core: Float) -> Float:
        """Recompute time: full (without the last product if it stops early), or selective [s]."""
        layouts, repeated, policy = self.layouts, step_constants().recompute, core
        # the other policies keep matrix products (or every second one) and attention, and repeat
        # the rest
        if framework.selective_policy == "matmul-outputs":
            policy = repeated.matmul_outputs_fraction.value * forward
        elif framework.selective_policy != "attention-core":
            policy = repeated.alternate_matmuls_fraction.value * forward
        selective = np.where(layouts.recompute_modules > 0, self.seconds, policy)
        # of several layers that are recomputed together, only the last stops early
        last = last / layouts.recompute_span
        full = forward - last if framework.kernels.stops_early else forward
        recompute = np.where(layouts.recomputes_layers, full, np.zeros(forward.shape))
        return np.where(layouts.recomputes_selectively, selective, recompute)


def _memory_bound_times(
    scenario: Scenario, operator: Pointwise, tokens: Float, layouts: Layouts, rates: DeviceRates
) -> tuple[Float, Float]:
    units = tokens * (scenario.workload.sequence_length if operator.scores else 1)
    moved = units / split_over(operator.split, layouts)
    if operator.split == "expert":
        moved = moved * expert_load(scenario.workload, layouts)
    if operator.except_spread:
        moved = np.where(layouts.ep > 1, 0.0, moved)
    return (
        moved * operator.forward_bytes / rates.memory,
        moved * operator.backward_bytes / rates.memory,
    )


def _attention_times(
    scenario: Scenario, attention: Attention, tokens: Float, layouts: Layouts, rates: DeviceRates
) -> tuple[Float, Float]:
    """Forward and backward time of the attention core, fused or eager [s]."""
    workload, heads = scenario.workload, np.minimum(layouts.tp, attention.num_heads)
    sequence, values = float(workload.sequence_length), step_constants().attention
    if workload.attention == "flash":
        # ring attention cuts the sequence into two pieces per rank
        piece = attention.keys * sequence / np.where(layouts.ring > 1, 2 * layouts.ring, 1)
        if workload.documents and workload.packing == "packed":
            packed_s = _packed_documents_s(attention, tokens, workload, piece, rates)
            forward = packed_s / heads / rates.attention
        else:
            flop = attention_flop(attention, tokens, sequence, skips_masked=True) / heads
            forward = flop / (rates.attention * _attention_efficiency(attention, piece, rates))
        if attention.causal and rates.uneven_context:
            # the last rank attends to all blocks but half its own: n - 1/2; an even split is n / 2
            forward = forward * (2 - 1 / layouts.ring)
        efficiency = rates.attention_curve.backward_efficiency.value
        return forward, values.backward_flop_ratio.value * forward / efficiency
    batch = layouts.micro_batch * attention.num_heads / heads / layouts.ulysses
    rows, sequence = attention.queries * sequence / layouts.ring, attention.keys * sequence
    # heads that are not a multiple of what matrix units read at a time leave them idle
    vectors = workload.precision == "fp32"
    head_bytes = attention.qk_dim * workload.compute_bytes
    aligned = vectors or head_bytes % values.aligned_bytes.value == 0
    common = {
        "flop_per_s": rates.head * (1.0 if aligned else values.unaligned_fraction.value),
        "bytes_per_s": rates.memory,
        "num_units": rates.units,
        "element_bytes": rates.element,
        "output_bytes": rates.element,
        "batch": batch,
    }
    scores = gemm_s(rows, sequence, attention.qk_dim, **common)  # type: ignore[arg-type]
    context = gemm_s(rows, attention.v_dim, sequence, **common)  # type: ignore[arg-type]
    return scores + context, 2 * (scores + context)


def _attention_efficiency(attention: Attention, piece: Float, rates: DeviceRates) -> Float:
    """Fraction of the rate that fused attention reaches with short pieces and narrow heads [1]."""
    curve = rates.attention_curve
    width = min(1.0, attention.qk_dim / step_constants().attention.full_rate_head_dim.value)
    return width**curve.head_dim_power.value * piece / (piece + curve.half_rate_tokens.value)


def _packed_documents_s(
    attention: Attention, tokens: Float, workload: Workload, piece: Float, rates: DeviceRates
) -> Float:
    """Fused attention of packed documents, which attend only to themselves, at 1 FLOP/s [s]."""
    keys, times = np.asarray(workload.documents, dtype=float).T
    tokens_of = keys * times
    flop = attention_flop(attention, tokens_of / tokens_of.sum(), keys, skips_masked=True)
    reach = _attention_efficiency(attention, np.minimum(keys, np.asarray(piece)[..., None]), rates)
    return tokens * (flop / reach).sum(axis=-1)
