"""Kernel launch: host time to launch kernels and collectives, and its exposed part."""

import numpy as np

from planner.cost.arrays import Float
from planner.cost.network.groups import Groups
from planner.cost.scenario import Scenario
from planner.cost.shards.layouts import Layouts
from planner.describe.model.block import Attention, Block, Gemm, Pointwise

_BACKWARD_KERNELS = 2
"""Backward kernels per forward kernel: each product has two in backward."""


def num_kernels(block: Block, attention: str) -> int:
    """Number of kernels in one forward pass of a block [1].

    Counted: matrix products, attention (three kernels if it is not fused), memory-bound kernels.
    Left out: views, copies, kernels that a library splits or adds. host.md#host.
    """
    cores = len(block.attentions) * (1 if attention == "flash" else 3)
    return len(block.gemms) + cores + sum(operator.num_kernels for operator in block.pointwise)


def host_pass_s(scenario: Scenario, block: Block, layouts: Layouts, groups: Groups) -> Float:
    """Host time to launch a block's forward and backward pass, their lower bound [s].

    Counted: kernels of forward, backward and recompute outside CUDA graphs, each a bare launch
    times the framework's dispatch ratio; tensor-parallel collectives, and the slowest host of their
    group if they are awaited. Left out: collectives of other axes, a framework's own selective
    recompute. host.md#host.
    """
    host, device = scenario.framework.host, scenario.machine.device
    layer = block.kind == "layer"
    repeats = np.where(layouts.recomputes_layers & layer, 1, 0)
    attention = scenario.workload.attention
    # every tile of a layer's product is a product and a clone
    tiled = 2 * len(block.gemms) * layer * (layouts.tiles - 1)
    kernels = (num_kernels(block, attention) + tiled) * (1 + _BACKWARD_KERNELS + repeats)
    kernels = kernels + _repeated_kernels(block, attention, layouts)
    graphed = host.graphed.value if host.graphed is not None and layer else 0.0
    issued = kernels * (1 - graphed) * device.launch_s.value * host.dispatch_ratio.value
    if host.collective_s is None or not layer:
        return issued
    each: Float = np.asarray(host.collective_s.value)
    if host.piped_collective_s is not None:
        each = np.where(layouts.piped, host.piped_collective_s.value, each)
    sent = issued + each * _num_collectives(scenario, block, layouts)
    return np.where(layouts.tp > 1, sent * _slowest_host_factor(scenario, layouts, groups), issued)


def _repeated_kernels(block: Block, attention: str, layouts: Layouts) -> Float:
    """Number of kernels in the modules that selective recompute repeats."""
    total = np.zeros(np.shape(layouts.tp))
    if not np.any(layouts.recompute_modules):
        return total
    cores = 1 if attention == "flash" else 3
    counts: tuple[tuple[Gemm | Attention | Pointwise, int], ...] = (
        *((gemm, 1) for gemm in block.gemms),
        *((core, cores) for core in block.attentions),
        *((operator, operator.num_kernels) for operator in block.pointwise),
    )
    for operator, count in counts:
        is_recomputed = layouts.recomputes_module(operator.recomputed_with)
        total = total + np.where(is_recomputed, count, 0)
    return total


def _num_collectives(scenario: Scenario, block: Block, layouts: Layouts) -> Float:
    """Number of tensor-parallel collectives in a layer's forward, backward and recompute."""
    host, kernels = scenario.framework.host, scenario.framework.kernels
    sequence = layouts.splits_sequence
    forward = np.where(sequence, 2, 1)
    # the second gather overlaps a product: it is launched, not awaited
    second_gather = sequence & (not kernels.saves_gathered) & (not host.awaits_collectives)
    passes = 2 * forward + second_gather + np.where(layouts.recomputes_layers, forward, 0)
    return block.num_tp_collectives * np.asarray(passes, dtype=float)


def _slowest_host_factor(scenario: Scenario, layouts: Layouts, groups: Groups) -> Float:
    """Slowdown by the slowest host of a tensor-parallel group, relative to one host [1]."""
    host, nodes = scenario.framework.host, groups.tensor.nodes
    if not host.awaits_collectives:
        return np.ones(np.shape(layouts.tp))
    if host.piped_power is None:
        return np.asarray(nodes, dtype=float)
    spread = layouts.tp / 2 * nodes
    return np.where(layouts.piped, spread**host.piped_power.value, nodes)


def host_wait_s(
    scenario: Scenario, block: Block, layouts: Layouts, groups: Groups, busy_s: Float
) -> Float:
    """Time that devices with `busy_s` of work wait for the host in a block's pass [s].

    Counted: host time beyond `busy_s`; all host time if every launch waits for its kernel or the
    layer's routing drains the queue. Left out: other synchronisations. host.md#host.
    """
    least = host_pass_s(scenario, block, layouts, groups)
    host = scenario.framework.host
    if host.awaits_kernels or (host.awaits_routing and block.dispatch_top_k):
        return least
    return np.maximum(least - busy_s, 0.0)
