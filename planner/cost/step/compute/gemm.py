"""Matrix products: roofline with tile and wave quantisation."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
from numpy.typing import ArrayLike

from planner.cost.arrays import Float, distinct
from planner.cost.constants import AttentionConstants, step_constants
from planner.cost.scenario import Scenario
from planner.cost.shards.layouts import Layouts
from planner.cost.shards.tensor_split import expert_load, split_over
from planner.describe.framework.framework import Framework
from planner.describe.framework.kernel_releases import attention_kernel, product_fraction
from planner.describe.machine import Device
from planner.describe.machine.hardware import AttentionCurve
from planner.describe.model.block import Gemm
from planner.errors import DescriptionError


@dataclass(frozen=True, slots=True)
class DeviceRates:
    """Rates of one device for one workload, and sizes that depend on its precision."""

    gemm: float
    grouped: float
    convolution: float
    winograd: float
    head: float
    attention: float
    attention_curve: AttentionConstants | AttentionCurve
    uneven_context: bool
    memory: float
    units: float
    element: float

    @classmethod
    def of(cls, scenario: Scenario) -> DeviceRates:
        """Rates of the scenario's device in its precision."""
        machine, workload, framework = scenario.machine, scenario.workload, scenario.framework
        device, precision = machine.device, workload.precision
        base = workload.base_precision
        product = device.sustained_fraction.value * product_fraction(
            device, framework.software_date
        )
        best, best_base = (
            machine.peak(name) * product * device.best_product(name) for name in (precision, base)
        )
        uneven, vectors = framework.kernels.uneven_context, precision == "fp32"
        return cls(
            gemm=best,
            grouped=best * device.grouped_gemm_fraction.value,
            convolution=best * (1.0 if vectors else device.convolution_fraction.value),
            winograd=step_constants().convolution.winograd_ratio.value if vectors else 1.0,
            head=best_base,
            attention=machine.peak(base) * attention_efficiency(framework, device),
            attention_curve=device.attention_curve or step_constants().attention,
            uneven_context=uneven is not None and uneven.value,
            memory=device.memory_bytes_per_s.value * device.memory_efficiency.value,
            units=device.num_units.value,
            element=1 if precision == "fp8" else workload.compute_bytes,
        )


def attention_efficiency(framework: Framework, device: Device) -> float:
    """Fraction of the 16-bit peak that fused attention reaches on long sequences [1].

    Counted: the profile's figure, else the framework's kernel of its month. Left out: head widths
    but 128. Raises DescriptionError where neither is known. compute.md#kernels-by-month.
    """
    if device.attention_efficiency is not None:
        return device.attention_efficiency.value
    kernel = attention_kernel(framework.kernels.attention, device, framework.software_date)
    if kernel is None:
        raise DescriptionError(
            f"no attention kernel was measured on {device.name}; state device.attention_efficiency "
            "in its profile"
        )
    return kernel.efficiency.value


_SPLITS = np.array([1.0, 2.0, 4.0, 8.0])
"""Numbers of pieces into which libraries split the inner dimension (split-K)."""


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

    `spared_bytes`: bytes of operands that several rows share and that move only once; `overlapped`:
    the start of a tile overlaps the end of another. Counted: roofline of the rate that the best
    library product sustains and the memory bandwidth; tiles in waves of `num_units`, the last of
    which may be partly empty, unless the inner dimension is split as libraries do for few tiles.
    Left out: the library's choice of kernel, clock changes, padding beyond tiles. Williams et al.
    2009, doi:10.1145/1498765.1498785; compute.md#matrix-products.
    """
    m, n, k, batch = (np.asarray(x, dtype=float) for x in np.broadcast_arrays(m, n, k, batch))
    unit_rate = np.asarray(flop_per_s, dtype=float) / num_units
    values = step_constants().gemm
    overhead = np.where(overlapped, 0.0, values.tile_overhead.value)
    # evaluate all splits of the inner dimension at once, on a separate axis
    splits = _SPLITS.reshape(-1, *[1] * m.ndim)
    depth = k / splits + overhead + (splits > 1) * overhead
    best_by_split = np.full(depth.shape, np.inf)
    for tile in values.tiles:
        tiles = np.ceil(m / tile.rows) * np.ceil(n / tile.columns) * batch
        seconds = tiles * splits
        seconds /= num_units
        np.ceil(seconds, out=seconds)
        seconds *= 2 * tile.rows * tile.columns
        seconds *= depth
        seconds /= unit_rate * tile.reach.value
        np.minimum(best_by_split, seconds, out=best_by_split)
    fastest = np.min(best_by_split, axis=0)
    moved = batch * (element_bytes * (m * k + k * n) + output_bytes * m * n) - spared_bytes
    return np.maximum(fastest, moved / bytes_per_s)


@dataclass(frozen=True, slots=True)
class _LocalGemm:
    """`batch` products (m, k) x (k, n) on one rank, and the rate that they reach."""

    m: Float
    n: Float
    k: Float
    batch: Float
    rate: ArrayLike
    tiles: Float
    """Products one after another, each with n columns (memory-centric tiles of the weights)."""

    @classmethod
    def of(
        cls, scenario: Scenario, gemm: Gemm, tokens: Float, layouts: Layouts, rates: DeviceRates
    ) -> _LocalGemm:
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
            # a single expert is an ordinary product
            rate = np.where(batch > 1, rates.grouped, rates.gemm)
        is_tiled = gemm.quantizable and not (gemm.experts or gemm.copies or gemm.convolution)
        tiles = np.where(is_tiled, np.maximum(np.minimum(layouts.tiles, n), 1.0), 1.0)
        n = np.where(tiles > 1, np.ceil(n / tiles), n)
        return cls(m / gemm.pieces, n, k, batch, rate, tiles)

    def operands(self, element: float, weight_gradient: float) -> list[tuple[ArrayLike, ...]]:
        """Return arguments of the output, input-gradient and weight-gradient products."""
        m, n, k, batch, rate = self.m, self.n, self.k, self.batch, self.rate
        return [
            (m, n, k, batch, rate, element),
            (m, k, n, batch, rate, element),
            (n, m, k, batch, rate, weight_gradient),
        ]


def gemm_times(
    scenario: Scenario, gemms: tuple[Gemm, ...], tokens: Float, layouts: Layouts, rates: DeviceRates
) -> list[tuple[Float, Float, Float]]:
    """Forward, input-gradient and weight-gradient time of every product of a block [s].

    Counted: the three products of each, with casts, dequantisation and gradient accumulation
    around them. Left out: attention. compute.md#matrix-products.
    """
    if not gemms:
        return []
    framework, element = scenario.framework, float(scenario.workload.compute_bytes)
    # a fused kernel adds into the gradient; otherwise it is written and added separately
    # (at most in fp32: further bytes are 16-bit gradients kept in addition)
    added = 2 * min(float(framework.states(scenario.workload.precision).gradient_bytes), 4.0)
    fused = framework.kernels.fused_gradient_accumulation
    products = [_LocalGemm.of(scenario, gemm, tokens, layouts, rates) for gemm in gemms]
    operands: list[tuple[ArrayLike, ...]] = []
    for gemm, product in zip(gemms, products, strict=True):
        gradient = added if fused and not gemm.convolution else element
        operands += product.operands(element, gradient)
    seconds = _distinct_gemms_s(gemms, operands, layouts, rates, tokens)
    return [
        _with_surrounding_kernels(
            scenario, gemm, product, layouts, rates, seconds[3 * i : 3 * i + 3], added
        )
        for i, (gemm, product) in enumerate(zip(gemms, products, strict=True))
    ]


def _distinct_gemms_s(
    gemms: tuple[Gemm, ...],
    operands: Sequence[Sequence[ArrayLike]],
    layouts: Layouts,
    rates: DeviceRates,
    tokens: Float,
) -> Float:
    """Times (products, ...) of all `operands`, computed once per distinct layout [s]."""
    # recompute and the split of norms do not affect products
    names = ("micro_batch", "cp", "tp", "ep", "etp", "tiles")
    first, index = distinct(*(getattr(layouts, name) for name in names))
    table = _stack_operands(operands, tokens.shape)
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
        **_convolution_savings(gemms, m, k, rates.element),
    )
    return seconds[:, index] if len(first) < tokens.size else seconds


def _convolution_savings(
    gemms: tuple[Gemm, ...], m: Float, k: Float, element: float
) -> dict[str, ArrayLike]:
    """Return savings of convolutions for `gemm_s`: bytes that rows share, overlapped tiles."""
    if not any(gemm.convolution or gemm.inputs for gemm in gemms):
        return {}
    # the operand (m, k) of the forward product is also part of the two others
    operand = np.repeat(m[::3] * k[::3], 3, axis=0)
    shared = [1 - min(g.inputs / (g.rows * g.k), 1.0) if g.inputs else 0.0 for g in gemms]
    convolutions = [gemm.convolution for gemm in gemms]
    shape = (-1, *[1] * (m.ndim - 1))
    return {
        "spared_bytes": element * operand * np.repeat(shared, 3).reshape(shape),
        "overlapped": np.repeat(convolutions, 3).reshape(shape),
    }


def _stack_operands(rows: Sequence[Sequence[ArrayLike]], shape: tuple[int, ...]) -> Float:
    """Stack rows of columns, broadcast to a shape, into one array (columns, rows, *shape)."""
    table = np.empty((len(rows[0]), len(rows), *shape))
    for number, row in enumerate(rows):
        for column, values in enumerate(row):
            table[column, number] = values
    return table


def _with_surrounding_kernels(
    scenario: Scenario,
    gemm: Gemm,
    product: _LocalGemm,
    layouts: Layouts,
    rates: DeviceRates,
    seconds: Float,
    added: float,
) -> tuple[Float, Float, Float]:
    """Add casts, unpacking and accumulation to the three times (3, ...) of a product [s]."""
    framework, element = scenario.framework, float(scenario.workload.compute_bytes)
    m, n, k, batch = product.m, product.n, product.k, product.batch
    weight_pass = batch * n * k / rates.memory
    casts = (np.zeros_like(m),) * 3
    if rates.element == 1 and gemm.quantizable:
        casts = _fp8_cast_times(framework, batch * m * n, batch * m * k, batch * n * k, rates)
    unpack = gemm.unpacked_bytes / step_constants().gemm.unpack_fraction.value * weight_pass
    forward = seconds[0] + casts[0] + unpack + gemm.norm_bytes * weight_pass
    dgrad = seconds[1] + casts[1] if gemm.input_gradient else np.zeros_like(forward)
    dgrad = dgrad + unpack * gemm.input_gradient
    # tiles are computed one after another; DeepSpeed clones and joins their outputs (tiling.py)
    tiles, pieces, moved_s = product.tiles, gemm.pieces, gemm.pieces * m * element / rates.memory
    joined = np.where(tiles > 1, 4 * moved_s * n * tiles, 0.0)
    summed = 3 * moved_s * k * (tiles - 1) * gemm.input_gradient
    forward, dgrad = pieces * tiles * forward + joined, pieces * tiles * dgrad + summed
    if not gemm.weight_gradient:
        return forward, dgrad, np.zeros_like(forward)
    wgrad = pieces * tiles * (seconds[2] + casts[2])
    if framework.kernels.fused_gradient_accumulation or gemm.copies:
        return forward, dgrad, wgrad
    accumulate = batch * n * tiles * k * (element + added) / rates.memory
    sums = gemm.pieces * (gemm.pieces > 1) + (layouts.num_microbatches > 1)
    return forward, dgrad, wgrad + sums * accumulate


def _fp8_cast_times(
    framework: Framework, output: Float, inputs: Float, weight: Float, rates: DeviceRates
) -> tuple[Float, Float, Float]:
    """Casts of 8-bit operands and scaling of gradients, for each of the three products [s]."""
    kernels = framework.kernels
    along, across, scaled = (
        moved / rates.memory
        for moved in (kernels.fp8_cast_bytes, kernels.across_cast_bytes, kernels.fp8_rescale_bytes)
    )
    # kept 8-bit copies of weights are converted once a step, which is not counted here
    converted_weight = weight * (kernels.fp8_weight_bytes == 0)
    return (
        along * (inputs + converted_weight),
        along * output + across * converted_weight + scaled * inputs,
        across * (inputs + output) + scaled * weight,
    )
