"""Constants of the step: what holds for every machine, read from `time_constants.toml`."""

from __future__ import annotations

import functools
from pathlib import Path

from planner.cost.constants import load
from planner.describe.base import Description, Quantity

__all__ = [
    "AttentionConstants",
    "ConvolutionConstants",
    "GemmConstants",
    "OptimizerConstants",
    "RecomputeConstants",
    "StepConstants",
    "Tile",
    "constants",
]


class Tile(Description):
    """A tile into which libraries cut a matrix product."""

    rows: int
    columns: int
    reach: Quantity
    """Part of the best rate it sustains."""


class GemmConstants(Description):
    """Matrix products."""

    tile_overhead: Quantity
    """Elements of the inner dimension that the start and the end of a tile cost."""
    unpack_fraction: Quantity
    """Part of the memory bandwidth that unpacking weights of 4 or 8 bits reaches."""
    tiles: tuple[Tile, ...]


class AttentionConstants(Description):
    """Attention kernels."""

    full_rate_head_dim: Quantity
    """Head width from which on fused attention reaches its rate."""
    head_dim_power: Quantity
    """How the rate falls below that width."""
    half_rate_tokens: Quantity
    """Length of a piece of the sequence that reaches half of the rate [tokens]."""
    backward_flop_ratio: Quantity
    """Operations of the backward kernel over those of the forward one."""
    backward_efficiency: Quantity
    """Rate of the backward kernel over that of the forward one."""
    unaligned_fraction: Quantity
    """Rate of batched products with heads that are no multiple of `aligned_bytes`."""
    aligned_bytes: Quantity
    """What matrix units read at a time [B]."""


class ConvolutionConstants(Description):
    """Convolutions."""

    winograd_ratio: Quantity
    """Multiplications of a kernel of 3 x 3 that moves by one place, over those of Winograd's
    algorithm."""


class RecomputeConstants(Description):
    """What selective recompute repeats, by policy."""

    matmul_outputs_fraction: Quantity
    """Of the forward pass, where outputs of products are kept."""
    alternate_matmuls_fraction: Quantity
    """Of the forward pass, where every second product's output is kept."""
    gathers_repeated_fraction: Quantity
    """Of the forward pass's tensor-parallel traffic, where gathered inputs are kept."""


class OptimizerConstants(Description):
    """The optimizer step."""

    unfused_passes: Quantity
    """How often one kernel per operation moves what a fused one moves once."""
    host_fraction: Quantity
    """Part of the host's memory bandwidth that an update on the CPU reaches."""


class StepConstants(Description):
    """Everything that `time_constants.toml` states."""

    gemm: GemmConstants
    attention: AttentionConstants
    convolution: ConvolutionConstants
    recompute: RecomputeConstants
    optimizer: OptimizerConstants


@functools.cache
def constants() -> StepConstants:
    """The constants of the step, with kind and source."""
    return load(Path(__file__).with_name("time_constants.toml"), StepConstants)
