"""Constants: numbers of the cost model that do not depend on the machine, with kind and source."""

from __future__ import annotations

import functools
from dataclasses import dataclass
from pathlib import Path
from typing import TypeVar

from planner.describe.base import Description, Quantity
from planner.describe.files import read_toml

D = TypeVar("D", bound=Description)


def load(path: Path, cls: type[D]) -> D:
    """Read all constants of a TOML file; raises DescriptionError if one is missing or invalid."""
    return cls.described(read_toml(path), where=path.name)


class ProtocolConstants(Description):
    """Constants of one NCCL protocol, which trades latency against bandwidth."""

    ring_step_s: Quantity
    """Latency of one ring step inside a node whose fabric latency is `reference_step_s` [s]."""
    tree_step_s: Quantity
    """Latency of one tree step inside this node [s]."""
    rate_fraction: Quantity
    """Fraction of the bandwidth that the protocol reaches."""
    base_s: Quantity
    """Base latency of every operation [s]."""


class InterNode(Description):
    """Constants of inter-node latency in collectives."""

    large_message_bytes: Quantity
    """Size from which messages have full latency; it falls with the cube root below that [B]."""
    large_message_ratio: Quantity
    """Large-message latency over network latency, for profiles that do not state it."""
    tree_pieces: Quantity
    """Number of pieces in which a tree pipelines a buffer."""


class InSwitch(Description):
    """Constants of all-reduces in a node's switch (NVLS)."""

    step_s: Quantity
    """Latency of one all-reduce [s]."""
    ahead_bytes: Quantity
    """Bytes per device that fill the pipeline before the first sum leaves the switch [B]."""
    part_of_two: Quantity
    """Fraction of the switch's rate that is reached together with a tree of two nodes."""
    part_of_several: Quantity
    """Fraction of the switch's rate that is reached together with a tree of more nodes."""


class InNetwork(Description):
    """Constants of all-reduces in a network's switches (SHARP)."""

    switch_s: Quantity
    """Latency if the switch of each node reduces too [s]."""
    chain_s: Quantity
    """Latency if the devices of a node form a chain [s]."""
    chain_step_s: Quantity
    """Latency of one step of this chain if the fabric latency is `reference_step_s` [s]."""


class NetworkConstants(Description):
    """Contents of `collective_constants.toml`."""

    reference_step_s: Quantity
    """Latency of the step in a node that a profile's `fabric.latency_s` stands for [s]."""
    low_latency: ProtocolConstants
    simple: ProtocolConstants
    inter_node: InterNode
    in_switch: InSwitch
    in_network: InNetwork


@functools.cache
def network_constants() -> NetworkConstants:
    """Constants of collectives, with kind and source."""
    path = Path(__file__).parent / "network" / "collective_constants.toml"
    return load(path, NetworkConstants)


@dataclass(frozen=True, slots=True)
class Protocol:
    """NCCL protocol; ring and tree steps inside a node are multiples of the fabric's latency."""

    name: str
    ring_inside: float
    tree_inside: float
    rate: float
    """Fraction of the bandwidth that the protocol reaches."""
    base_s: float
    """Base latency of every operation [s]."""

    @classmethod
    def of(cls, name: str, values: ProtocolConstants) -> Protocol:
        """Create a protocol from its constants."""
        reference_s = network_constants().reference_step_s.value
        return cls(
            name,
            ring_inside=values.ring_step_s.value / reference_s,
            tree_inside=values.tree_step_s.value / reference_s,
            rate=values.rate_fraction.value,
            base_s=values.base_s.value,
        )

    @classmethod
    def single(cls, start_s: float) -> Protocol:
        """Create the protocol of a library that has one, such as gloo: steps after a start [s]."""
        return cls("one", ring_inside=1, tree_inside=1, rate=1, base_s=start_s)


LOW_LATENCY = Protocol.of("LL", network_constants().low_latency)
SIMPLE = Protocol.of("Simple", network_constants().simple)
PROTOCOLS = (LOW_LATENCY, SIMPLE)


class Tile(Description):
    """Tile of a matrix-product kernel."""

    rows: int
    columns: int
    reach: Quantity
    """Fraction of the best rate that this tile sustains."""


class GemmConstants(Description):
    """Constants of matrix products."""

    tile_overhead: Quantity
    """Cost of the start and the end of a tile, in elements of the inner dimension."""
    unpack_fraction: Quantity
    """Fraction of the memory bandwidth that unpacking of 4-bit or 8-bit weights reaches."""
    tiles: tuple[Tile, ...]


class AttentionConstants(Description):
    """Constants of attention kernels."""

    full_rate_head_dim: Quantity
    """Smallest head width at which fused attention reaches its full rate."""
    head_dim_power: Quantity
    """Exponent by which the rate falls below that width."""
    half_rate_tokens: Quantity
    """Length of a sequence piece at which attention reaches half of its rate [tokens]."""
    backward_flop_ratio: Quantity
    """Operations of the backward kernel over those of the forward kernel."""
    backward_efficiency: Quantity
    """Rate of the backward kernel over that of the forward kernel."""
    unaligned_fraction: Quantity
    """Relative rate of batched products if heads are not a multiple of `aligned_bytes`."""
    aligned_bytes: Quantity
    """Bytes that matrix units read at a time [B]."""


class ConvolutionConstants(Description):
    """Constants of convolutions."""

    winograd_ratio: Quantity
    """Multiplications of a direct 3 x 3 convolution over those of Winograd's algorithm."""


class RecomputeConstants(Description):
    """Fractions that selective recompute repeats, by policy."""

    matmul_outputs_fraction: Quantity
    """Fraction of the forward pass that is repeated if outputs of matrix products are kept."""
    alternate_matmuls_fraction: Quantity
    """Fraction of the forward pass that is repeated if every second product's output is kept."""
    gathers_repeated_fraction: Quantity
    """Fraction of forward tensor-parallel traffic that is repeated if gathered inputs are kept."""


class OptimizerConstants(Description):
    """Constants of the optimizer step."""

    unfused_passes: Quantity
    """Memory traffic of an unfused optimizer over that of a fused one."""
    host_fraction: Quantity
    """Fraction of the host's memory bandwidth that an optimizer update on the CPU reaches."""
    unbound_fraction: Quantity
    """Rate of this update if several ranks share the cores of a node, over that of bound ranks."""
    staging_bytes_per_s: Quantity
    """Rate at which the host copies pageable memory to the pinned buffer of a transfer [B/s]."""


class StepConstants(Description):
    """Contents of `time_constants.toml`."""

    gemm: GemmConstants
    attention: AttentionConstants
    convolution: ConvolutionConstants
    recompute: RecomputeConstants
    optimizer: OptimizerConstants


@functools.cache
def step_constants() -> StepConstants:
    """Constants of the step time, with kind and source."""
    return load(Path(__file__).parent / "step" / "time_constants.toml", StepConstants)
