"""Attention core: fused (FlashAttention) and eager."""

from __future__ import annotations

import numpy as np

from planner.cost.arrays import Float
from planner.cost.operators.operations import attention_flop
from planner.cost.scenario import Scenario
from planner.cost.shards.layouts import Layouts
from planner.cost.step.compute.device_rates import DeviceRates
from planner.cost.step.compute.gemm import gemm_s
from planner.cost.step.time_constants import constants
from planner.describe.model.block import Attention
from planner.describe.workload import Workload

__all__ = ["attention_times"]


def attention_times(
    scenario: Scenario, attention: Attention, tokens: Float, layouts: Layouts, rates: DeviceRates
) -> tuple[Float, Float]:
    """Forward and backward time of the attention core [s].

    Counted: fused attention, whose backward does 2.5 times the forward's operations (it computes
    the scores again; Dao 2023, arXiv:2307.08691, section 4); eager products of (s, d) x (d, s),
    masked half included. Left out: softmax and dropout of eager attention, memory-bound kernels.

    >>> layer, layouts = blocks_of(scenario)[1], Layouts.of(Layout())
    >>> rates, (attention,) = DeviceRates.of(scenario), layer.attentions
    >>> times = attention_times(scenario, attention, np.asarray(2048.0), layouts, rates)
    >>> [round(1e3 * float(time), 2) for time in times]
    [0.23, 0.65]
    """
    workload, heads = scenario.workload, np.minimum(layouts.tp, attention.num_heads)
    sequence, values = float(workload.sequence_length), constants().attention
    if workload.attention == "flash":
        # a ring cuts the sequence into two pieces per rank that keys and values pass
        piece = attention.keys * sequence / np.where(layouts.ring > 1, 2 * layouts.ring, 1)
        if workload.documents and workload.packing == "packed":
            forward = (
                _packed_documents_s(attention, tokens, workload, piece) / heads / rates.attention
            )
        else:
            flop = attention_flop(attention, tokens, sequence, skips_masked=True) / heads
            forward = flop / (rates.attention * _attention_efficiency(attention, piece))
        if attention.causal and rates.uneven_context:
            # the last rank sees all blocks but half of its own: (n - 1/2) of an even n / 2
            forward = forward * (2 - 1 / layouts.ring)
        ratio, efficiency = values.backward_flop_ratio.value, values.backward_efficiency.value
        return forward, ratio * forward / efficiency
    batch = layouts.micro_batch * attention.num_heads / heads / layouts.ulysses
    rows, sequence = attention.queries * sequence / layouts.ring, attention.keys * sequence
    # heads that are no multiple of what matrix units read at a time leave them idle
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


def _attention_efficiency(attention: Attention, piece: Float) -> Float:
    """Part of its rate that fused attention reaches: short pieces and narrow heads keep the tensor
    units less busy [1]."""
    values = constants().attention
    width = min(1.0, attention.qk_dim / values.full_rate_head_dim.value)
    return width**values.head_dim_power.value * piece / (piece + values.half_rate_tokens.value)


def _packed_documents_s(
    attention: Attention, tokens: Float, workload: Workload, piece: Float
) -> Float:
    """Fused attention of documents that attend to themselves alone, at a rate of one [s].

    Every document is a piece of its own, evenly shared by context ranks.
    """
    keys, times = np.asarray(workload.documents, dtype=float).T
    tokens_of = keys * times
    flop = attention_flop(attention, tokens_of / tokens_of.sum(), keys, skips_masked=True)
    reach = _attention_efficiency(attention, np.minimum(keys, np.asarray(piece)[..., None]))
    return tokens * (flop / reach).sum(axis=-1)
