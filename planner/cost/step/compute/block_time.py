"""Block time: forward, backward and recompute of one block, by operator."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from planner.cost.arrays import Arrays, Float
from planner.cost.scenario import Scenario
from planner.cost.shards.layouts import Layouts
from planner.cost.shards.tensor_split import expert_load, split_over
from planner.cost.step.compute.attention_core import attention_times
from planner.cost.step.compute.device_rates import DeviceRates
from planner.cost.step.compute.gemm import gemm_times
from planner.cost.step.time_constants import constants
from planner.describe.framework.framework import Framework
from planner.describe.model.block import Attention, Block, Gemm, Pointwise

__all__ = ["BlockTime", "block_time"]


@dataclass(frozen=True, slots=True)
class BlockTime(Arrays):
    """Seconds of one block for one micro-batch on one rank."""

    forward_s: Float
    backward_s: Float
    recompute_s: Float
    weight_gradient_s: Float
    """Part of backward that computes weight gradients (what zero-bubble schedules move)."""
    core_forward_s: Float
    """Part of forward that is the attention core."""
    core_backward_s: Float
    """Part of backward that is."""
    column_input_s: Float
    """Part of backward that gives the gradients of column-parallel products' inputs."""
    column_weight_s: Float
    """Part of backward that gives the gradients of their weights."""


def block_time(scenario: Scenario, block: Block, layouts: Layouts) -> BlockTime:
    """Forward, backward and recompute time of one block and one micro-batch [s].

    Counted: GEMMs, attention, memory-bound kernels. Left out: communication, waiting for the host.
    Recompute repeats the forward of layers (full), or of the attention core or the modules that are
    named (selective).
    method.md#computation.

    >>> _, layer, _ = blocks_of(scenario)
    >>> time = block_time(scenario, layer, Layouts.of(Layout()))
    >>> round(2 * 2048 * layer.num_params / 222e12, 4)      # its products alone, at 222 TFLOP/s
    0.004
    >>> round(float(time.forward_s), 4), round(float(time.backward_s), 4)
    (0.0049, 0.0098)
    """
    rates = DeviceRates.of(scenario)
    recomputed = _RecomputedModules(layouts)
    tokens = layouts.tokens(scenario.workload.sequence_length)
    forward, backward, weight_gradient, last = (np.zeros(tokens.shape) for _ in range(4))
    column_input, column_weight, core_forward, core_backward = (
        np.zeros(tokens.shape) for _ in range(4)
    )
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
        ahead, back = attention_times(scenario, attention, tokens, layouts, rates)
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
        selective = _selective_recompute_s(scenario.framework, forward, core_forward)
        selective = np.where(layouts.recompute_modules > 0, recomputed.seconds, selective)
        recompute = _recompute_s(scenario.framework, layouts, forward, last, selective)
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
        if self.named and operator.again_with:
            is_recomputed = self.layouts.recomputes_module(operator.again_with)
            self.seconds = self.seconds + np.where(is_recomputed, forward_s, 0.0)


def _recompute_s(
    framework: Framework, layouts: Layouts, forward: Float, last: Float, selective: Float
) -> Float:
    """Full recompute, without the last product where it stops early, or selective recompute [s]."""
    # of several layers repeated at once the last one stops
    last = last / layouts.recompute_span
    full = forward - last if framework.kernels.stops_early else forward
    recompute = np.where(layouts.recomputes_layers, full, np.zeros(forward.shape))
    return np.where(layouts.recomputes_selectively, selective, recompute)


def _selective_recompute_s(framework: Framework, forward: Float, core: Float) -> Float:
    if framework.selective_policy == "attention-core":
        return core
    # matrix products and attention are kept: what is repeated is the rest (and every second
    # product where only half are kept)
    repeated = constants().recompute
    if framework.selective_policy == "matmul-outputs":
        return repeated.matmul_outputs_fraction.value * forward
    return repeated.alternate_matmuls_fraction.value * forward


def _memory_bound_times(
    scenario: Scenario, operator: Pointwise, tokens: Float, layouts: Layouts, rates: DeviceRates
) -> tuple[Float, Float]:
    units = tokens * (scenario.workload.sequence_length if operator.scores else 1)
    moved = units / split_over(operator.split, layouts)
    if operator.split == "expert":
        moved = moved * expert_load(scenario.workload, layouts)
    return (
        moved * operator.forward_bytes / rates.memory,
        moved * operator.backward_bytes / rates.memory,
    )
