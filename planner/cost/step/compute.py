"""Compute: roofline time of every operator class, for any number of layouts at once.

Three classes: matrix products (with tile and wave quantisation), attention, and memory-bound
kernels. Peaks and efficiencies come from the machine profile.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
from numpy.typing import ArrayLike

from planner.cost.arrays import Arrays, Float, distinct
from planner.cost.operators.operations import attention_flop
from planner.cost.scenario import Scenario
from planner.cost.shards.layouts import Layouts
from planner.cost.shards.tensor_split import expert_load, split_over
from planner.cost.step.time_constants import constants
from planner.describe.framework.framework import Framework
from planner.describe.model.block import Attention, Block, Gemm, Pointwise
from planner.describe.workload import Workload

__all__ = [
    "BlockTime",
    "block_time",
    "gemm_s",
]


_SPLITS = np.array([1.0, 2.0, 4.0, 8.0])
"""Into how many pieces libraries cut the inner dimension."""


def gemm_s(
    m: ArrayLike,
    n: ArrayLike,
    k: ArrayLike,
    *,
    flop_per_s: ArrayLike,
    bytes_per_s: float,
    num_units: float,
    element_bytes: float = 2,
    output_bytes: float = 2,
    batch: ArrayLike = 1,
    spared_bytes: ArrayLike = 0,
    overlapped: ArrayLike = False,
) -> Float:
    """Time of `batch` products (m, k) x (k, n) [s].

    `spared_bytes`: of operands and result, those that are moved once for several rows;
    `overlapped`: products of so many tiles that the start of one runs beside the end of another.

    Counted: roofline of the rate that the best library product sustains and the memory bandwidth;
    tiles that run in waves of `num_units`, of which the last may be part empty, unless the inner
    dimension is split as libraries do for few tiles. Left out: which kernel the library takes,
    clock changes, padding beyond tiles. Williams et al. 2009, doi:10.1145/1498765.1498785;
    method.md#matrix-products.

    >>> t = gemm_s(8192, 8192, 8192, flop_per_s=271e12, bytes_per_s=1.4e12, num_units=108)
    >>> 0.90 < 2 * 8192**3 / float(t) / 271e12 <= 1
    True
    """
    m, n, k, batch = (np.asarray(x, dtype=float) for x in np.broadcast_arrays(m, n, k, batch))
    unit_rate = np.asarray(flop_per_s, dtype=float) / num_units
    found = constants().gemm
    overhead = np.where(overlapped, 0.0, found.tile_overhead.value)
    # every way to split the inner dimension at once, on an axis of its own
    splits = _SPLITS.reshape(-1, *[1] * m.ndim)
    depth = k / splits + overhead + (splits > 1) * overhead
    every = np.full(depth.shape, np.inf)
    for tile in found.tiles:
        tiles = np.ceil(m / tile.rows) * np.ceil(n / tile.columns) * batch
        seconds = tiles * splits
        seconds /= num_units
        np.ceil(seconds, out=seconds)
        seconds *= 2 * tile.rows * tile.columns
        seconds *= depth
        seconds /= unit_rate * tile.reach.value
        np.minimum(every, seconds, out=every)
    best = np.min(every, axis=0)
    moved = batch * (element_bytes * (m * k + k * n) + output_bytes * m * n) - spared_bytes
    return np.maximum(best, moved / bytes_per_s)


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


@dataclass(frozen=True, slots=True)
class _Rates:
    """Rates of one device for one workload."""

    gemm: float
    grouped: float
    convolution: float
    winograd: float
    head: float
    attention: float
    uneven_context: bool
    memory: float
    units: float
    element: float

    @classmethod
    def of(cls, scenario: Scenario) -> _Rates:
        machine, workload, framework = scenario.machine, scenario.workload, scenario.framework
        device, precision = machine.device, workload.precision
        base = workload.base_precision
        best, best_base = (
            machine.peak(name) * device.best_product(name) * device.sustained_fraction.value
            for name in (precision, base)
        )
        uneven, vectors = framework.kernels.uneven_context, precision == "fp32"
        return cls(
            gemm=best,
            grouped=best * device.grouped_gemm_fraction.value,
            convolution=best * (1.0 if vectors else device.convolution_fraction.value),
            winograd=constants().convolution.winograd_ratio.value if vectors else 1.0,
            head=best_base,
            attention=machine.peak(base)
            * device.attention_efficiency.value
            * framework.kernels.attention_fraction.value,
            uneven_context=uneven is not None and uneven.value,
            memory=device.memory_bytes_per_s.value * device.memory_efficiency.value,
            units=device.num_units.value,
            element=1 if precision == "fp8" else workload.compute_bytes,
        )


def block_time(scenario: Scenario, block: Block, layouts: Layouts) -> BlockTime:
    """Forward, backward and recompute time of one block and one micro-batch [s].

    Counted: GEMMs, attention, memory-bound kernels. Left out: communication, waiting for the host.
    Recompute repeats the forward of layers (full), or of the attention core or the modules that are
    named (selective).
    method.md#computation.

    >>> from planner import Layout, load_framework, load_machine, load_model
    >>> from planner.cost.operators.blocks import blocks_of
    >>> model, machine = load_model("llama-3-8b"), load_machine("polaris")
    >>> job = Scenario(model, machine, Workload(), load_framework("megatron-lm"))
    >>> _, layer, _ = blocks_of(job)
    >>> time = block_time(job, layer, Layouts.of(Layout()))
    >>> round(2 * 2048 * layer.num_params / 222e12, 4)      # its products alone, at 222 TFLOP/s
    0.004
    >>> round(float(time.forward_s), 4), round(float(time.backward_s), 4)
    (0.0049, 0.0098)
    """
    framework, rates = scenario.framework, _Rates.of(scenario)
    again = _Repeated(layouts)
    tokens = layouts.tokens(scenario.workload.sequence_length)
    forward, backward, weight_gradient, last = (np.zeros(tokens.shape) for _ in range(4))
    column_input, column_weight, core_forward, core_backward = (
        np.zeros(tokens.shape) for _ in range(4)
    )
    products = _gemm_times(scenario, block.gemms, tokens, layouts, rates)
    for gemm, (out, dgrad, wgrad) in zip(block.gemms, products, strict=True):
        forward, last = forward + out, out
        again.add(gemm, out)
        backward += dgrad + wgrad
        weight_gradient += wgrad
        if gemm.split == "column" and not gemm.experts:
            column_input += dgrad
            column_weight += wgrad
    for attention in block.attentions:
        ahead, back = _attention_times(scenario, attention, tokens, layouts, rates)
        core_forward += ahead
        core_backward += back
        again.add(attention, ahead)
    for operator in block.pointwise:
        ahead, back = _pointwise_times(scenario, operator, tokens, layouts, rates)
        again.add(operator, ahead)
        if operator.scores:
            core_forward, core_backward = core_forward + ahead, core_backward + back
        else:
            forward, backward = forward + ahead, backward + back
    forward, backward = forward + core_forward, backward + core_backward
    recompute = np.zeros(tokens.shape)
    if block.kind == "layer":
        selective = _selective_s(framework, forward, core_forward)
        selective = np.where(layouts.recompute_modules > 0, again.seconds, selective)
        # of several layers repeated at once the last one stops
        last = last / layouts.recompute_span
        whole = forward - last if framework.kernels.stops_early else forward
        recompute = np.where(layouts.recomputes_layers, whole, recompute)
        recompute = np.where(layouts.recomputes_selectively, selective, recompute)
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


class _Repeated:
    """What the modules that layouts name repeat, added up operator by operator [s]."""

    def __init__(self, layouts: Layouts) -> None:
        self.layouts, self.named = layouts, bool(np.any(layouts.recompute_modules))
        self.seconds: Float = np.zeros(np.shape(layouts.tp))

    def add(self, operator: Gemm | Attention | Pointwise, forward_s: Float) -> None:
        """The forward time of an operator, where one of its modules is named."""
        if self.named and operator.again_with:
            here = self.layouts.recomputes_module(operator.again_with)
            self.seconds = self.seconds + np.where(here, forward_s, 0.0)


def _selective_s(framework: Framework, forward: Float, core: Float) -> Float:
    if framework.selective_policy == "attention-core":
        return core
    # matrix products and attention are kept: what is repeated is the rest (and every second
    # product where only half are kept)
    repeated = constants().recompute
    if framework.selective_policy == "matmul-outputs":
        return repeated.matmul_outputs_fraction.value * forward
    return repeated.alternate_matmuls_fraction.value * forward


@dataclass(frozen=True, slots=True)
class _Product:
    """A product (m, k) x (k, n) on one rank, `batch` of them, and the rate that they reach."""

    m: Float
    n: Float
    k: Float
    batch: Float
    rate: ArrayLike

    @classmethod
    def of(
        cls, scenario: Scenario, gemm: Gemm, tokens: Float, layouts: Layouts, rates: _Rates
    ) -> _Product:
        tp = np.minimum(layouts.tp, gemm.units) if gemm.units else layouts.tp
        tp = layouts.expert_tp if gemm.experts else tp
        n = gemm.n / tp if gemm.split == "column" else np.full(tokens.shape, float(gemm.n))
        k = gemm.k / tp if gemm.split == "row" else np.full(tokens.shape, float(gemm.k))
        batch: Float = np.ones_like(tokens)
        m = tokens * gemm.rows
        if gemm.copies:
            batch, m = tokens * gemm.copies, np.full(tokens.shape, float(gemm.rows))
        if gemm.experts:
            batch = np.maximum(gemm.experts / layouts.ep, 1.0)
            m = m * gemm.top_k / split_over("dispatched", layouts) / batch
            m = m * expert_load(scenario.workload, layouts)
        rate: ArrayLike = rates.gemm if gemm.quantizable else rates.head
        if gemm.convolution:
            rate = rates.convolution * (rates.winograd if gemm.small_kernel else 1.0)
        if gemm.experts:
            # one expert alone is an ordinary product
            rate = np.where(batch > 1, rates.grouped, rates.gemm)
        return cls(m / gemm.pieces, n, k, batch, rate)


def _gemm_times(
    scenario: Scenario, gemms: tuple[Gemm, ...], tokens: Float, layouts: Layouts, rates: _Rates
) -> list[tuple[Float, Float, Float]]:
    """Output, input-gradient and weight-gradient time of every product [s]."""
    if not gemms:
        return []
    framework, element = scenario.framework, float(scenario.workload.compute_bytes)
    # a fused kernel adds into the gradient; otherwise it is written and added separately
    # (nowhere wider than fp32: what is more are 16-bit ones beside it)
    added = 2 * min(float(framework.states(scenario.workload.precision).gradient_bytes), 4.0)
    fused = framework.kernels.fused_gradient_accumulation
    found = [_Product.of(scenario, gemm, tokens, layouts, rates) for gemm in gemms]
    sides = [
        side
        for p, whole in zip(found, (fused and not g.convolution for g in gemms), strict=True)
        for side in (
            (p.m, p.n, p.k, p.batch, p.rate, element),
            (p.m, p.k, p.n, p.batch, p.rate, element),
            (p.n, p.m, p.k, p.batch, p.rate, added if whole else element),
        )
    ]
    # recompute, and how norms are split, change no product
    first, which = distinct(layouts.micro_batch, layouts.cp, layouts.tp, layouts.ep, layouts.etp)
    table = _stacked(sides, tokens.shape)
    if len(first) < tokens.size:
        table = table.reshape(*table.shape[:2], -1)[..., first]
    m, n, k, batch, rate, output = table
    seconds = gemm_s(
        m,
        n,
        k,
        flop_per_s=rate,
        bytes_per_s=rates.memory,
        num_units=rates.units,
        element_bytes=rates.element,
        output_bytes=output,
        batch=batch,
        **_of_convolutions(gemms, m, k, rates.element),
    )
    if len(first) < tokens.size:
        seconds = seconds[:, which]
    return [
        _with_kernels(scenario, gemm, product, layouts, rates, seconds[3 * i : 3 * i + 3], added)
        for i, (gemm, product) in enumerate(zip(gemms, found, strict=True))
    ]


def _of_convolutions(
    gemms: tuple[Gemm, ...], m: Float, k: Float, element: float
) -> dict[str, ArrayLike]:
    """What convolutions among products spare: bytes of what rows share, starts of tiles."""
    if not any(gemm.convolution or gemm.inputs for gemm in gemms):
        return {}
    # the operand (m, k) of the forward product is in the two others too
    operand = np.repeat(m[::3] * k[::3], 3, axis=0)
    shared = [1 - min(g.inputs / (g.rows * g.k), 1.0) if g.inputs else 0.0 for g in gemms]
    whole = [gemm.convolution for gemm in gemms]
    shape = (-1, *[1] * (m.ndim - 1))
    return {
        "spared_bytes": element * operand * np.repeat(shared, 3).reshape(shape),
        "overlapped": np.repeat(whole, 3).reshape(shape),
    }


def _stacked(rows: Sequence[Sequence[ArrayLike]], shape: tuple[int, ...]) -> Float:
    """Rows of columns that broadcast to a shape, as one array (columns, rows, *shape)."""
    table = np.empty((len(rows[0]), len(rows), *shape))
    for number, row in enumerate(rows):
        for column, values in enumerate(row):
            table[column, number] = values
    return table


def _with_kernels(
    scenario: Scenario,
    gemm: Gemm,
    product: _Product,
    layouts: Layouts,
    rates: _Rates,
    seconds: Float,
    added: float,
) -> tuple[Float, Float, Float]:
    """The three times (3, ...) of a product with the kernels around it [s]."""
    framework, element = scenario.framework, float(scenario.workload.compute_bytes)
    m, n, k, batch = product.m, product.n, product.k, product.batch
    whole = batch * n * k / rates.memory
    eight_bit = rates.element == 1 and gemm.quantizable
    casts = _cast_times(framework, batch * m * n, batch * m * k, batch * n * k, rates, eight_bit)
    unpack = gemm.unpacked_bytes / constants().gemm.unpack_fraction.value * whole
    forward = seconds[0] + casts[0] + unpack + gemm.norm_bytes * whole
    dgrad = seconds[1] + casts[1] if gemm.input_gradient else np.zeros_like(forward)
    dgrad = dgrad + unpack * gemm.input_gradient
    forward, dgrad = gemm.pieces * forward, gemm.pieces * dgrad
    if not gemm.weight_gradient:
        return forward, dgrad, np.zeros_like(forward)
    wgrad = gemm.pieces * (seconds[2] + casts[2])
    if framework.kernels.fused_gradient_accumulation or gemm.copies:
        return forward, dgrad, wgrad
    accumulate = batch * n * k * (element + added) / rates.memory
    sums = gemm.pieces * (gemm.pieces > 1) + (layouts.num_microbatches > 1)
    return forward, dgrad, wgrad + sums * accumulate


def _cast_times(
    framework: Framework,
    output: Float,
    inputs: Float,
    weight: Float,
    rates: _Rates,
    eight_bit: bool,
) -> tuple[Float, Float, Float]:
    """What converts operands of the output's, the input gradient's and the weight gradient's
    8-bit product, and scales the results of both gradients', by their elements [s]."""
    if not eight_bit:
        return (np.zeros_like(output),) * 3
    kernels = framework.kernels
    along, across, scaled = (
        moved / rates.memory
        for moved in (kernels.fp8_cast_bytes, kernels.across_cast_bytes, kernels.fp8_rescale_bytes)
    )
    # weights are converted once a step where their 8-bit copies are kept
    made = weight * (kernels.fp8_weight_bytes == 0)
    return (
        along * (inputs + made),
        along * output + across * made + scaled * inputs,
        across * (inputs + output) + scaled * weight,
    )


def _attention_times(
    scenario: Scenario, attention: Attention, tokens: Float, layouts: Layouts, rates: _Rates
) -> tuple[Float, Float]:
    """Forward and backward time of the attention products [s].

    Fused: backward does 2.5 times the forward's operations (it repeats the scores; Dao 2023,
    arXiv:2307.08691, section 4). Eager: products of (s, d) x (d, s), masked half included.
    """
    workload, heads = scenario.workload, np.minimum(layouts.tp, attention.num_heads)
    sequence, found = float(workload.sequence_length), constants().attention
    if workload.attention == "flash":
        # a ring cuts the sequence into two pieces per rank that keys and values pass
        piece = attention.keys * sequence / np.where(layouts.ring > 1, 2 * layouts.ring, 1)
        if workload.documents and workload.packing == "packed":
            forward = _documents_s(attention, tokens, workload, piece) / heads / rates.attention
        else:
            flop = attention_flop(attention, tokens, sequence, skips_masked=True) / heads
            forward = flop / (rates.attention * _reach(attention, piece))
        if attention.causal and rates.uneven_context:
            # the last rank sees all blocks but half of its own: (n - 1/2) of an even n / 2
            forward = forward * (2 - 1 / layouts.ring)
        ratio, efficiency = found.backward_flop_ratio.value, found.backward_efficiency.value
        return forward, ratio * forward / efficiency
    batch = layouts.micro_batch * attention.num_heads / heads / layouts.ulysses
    rows, sequence = attention.queries * sequence / layouts.ring, attention.keys * sequence
    # heads that are no multiple of what matrix units read at a time leave them idle
    vectors = workload.precision == "fp32"
    head_bytes = attention.qk_dim * workload.compute_bytes
    aligned = vectors or head_bytes % found.aligned_bytes.value == 0
    common = {
        "flop_per_s": rates.head * (1.0 if aligned else found.unaligned_fraction.value),
        "bytes_per_s": rates.memory,
        "num_units": rates.units,
        "element_bytes": rates.element,
        "output_bytes": rates.element,
        "batch": batch,
    }
    scores = gemm_s(rows, sequence, attention.qk_dim, **common)  # type: ignore[arg-type]
    context = gemm_s(rows, attention.v_dim, sequence, **common)  # type: ignore[arg-type]
    return scores + context, 2 * (scores + context)


def _reach(attention: Attention, piece: Float) -> Float:
    """Part of its rate that fused attention reaches: short pieces and narrow heads keep the tensor
    units less busy [1]."""
    found = constants().attention
    width = min(1.0, attention.qk_dim / found.full_rate_head_dim.value)
    return width**found.head_dim_power.value * piece / (piece + found.half_rate_tokens.value)


def _documents_s(attention: Attention, tokens: Float, workload: Workload, piece: Float) -> Float:
    """Fused attention of documents that attend to themselves alone, at a rate of one [s].

    Every document is a piece of its own, evenly shared by context ranks.
    """
    keys, times = np.asarray(workload.documents, dtype=float).T
    tokens_of = keys * times
    flop = attention_flop(attention, tokens_of / tokens_of.sum(), keys, skips_masked=True)
    reach = _reach(attention, np.minimum(keys, np.asarray(piece)[..., None]))
    return tokens * (flop / reach).sum(axis=-1)


def _pointwise_times(
    scenario: Scenario, operator: Pointwise, tokens: Float, layouts: Layouts, rates: _Rates
) -> tuple[Float, Float]:
    units = tokens * (scenario.workload.sequence_length if operator.scores else 1)
    moved = units / split_over(operator.split, layouts)
    if operator.split == "expert":
        moved = moved * expert_load(scenario.workload, layouts)
    return (
        moved * operator.forward_bytes / rates.memory,
        moved * operator.backward_bytes / rates.memory,
    )
