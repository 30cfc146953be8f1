"""Constants: numbers of the cost model that belong to no machine, with their kind and source."""

from __future__ import annotations

import functools
from dataclasses import dataclass
from pathlib import Path
from typing import TypeVar

from planner.describe.base import Description, Quantity
from planner.describe.files import read_toml

D = TypeVar("D", bound=Description)


def load(path: Path, cls: type[D]) -> D:
    """The constants in a TOML file, every one of them; raises DescriptionError where one is not."""
    return cls.described(read_toml(path), where=path.name)


class ProtocolConstants(Description):
    """Protocol that moves the pieces of a collective: latency against bandwidth."""

    ring_step_s: Quantity
    """One step of a ring inside a node, where `reference_step_s` is the fabric's latency [s]."""
    tree_step_s: Quantity
    """One step of a tree there [s]."""
    rate_fraction: Quantity
    """Part of the bandwidth it reaches."""
    base_s: Quantity
    """Base latency of every operation [s]."""


class InterNode(Description):
    """Latency of one message of a collective from node to node."""

    large_message_bytes: Quantity
    """Size from which messages take the latency of a large one; below it by the cube root [B]."""
    large_message_ratio: Quantity
    """Latency of a large message over the network's, where a profile does not state it."""
    tree_pieces: Quantity
    """Pieces in which a tree passes a buffer on."""


class InSwitch(Description):
    """All-reduces by the switch of a node."""

    step_s: Quantity
    """Latency of one [s]."""
    ahead_bytes: Quantity
    """Bytes that each device copies in and the switch adds before the first sum leaves it [B]."""
    part_of_two: Quantity
    """Part of the switch's rate that is reached beside a tree of two nodes."""
    part_of_several: Quantity
    """The same beside a tree of more."""


class InNetwork(Description):
    """All-reduces by the switches of a network."""

    switch_s: Quantity
    """Latency where the switch of each node adds up too [s]."""
    chain_s: Quantity
    """Latency where the devices of a node form a chain [s]."""
    chain_step_s: Quantity
    """One step of that chain, where `reference_step_s` is the fabric's latency [s]."""


class NetworkConstants(Description):
    """Everything that `collective_constants.toml` states."""

    reference_step_s: Quantity
    """The step inside a node that a profile's `fabric.latency_s` stands for [s]."""
    low_latency: ProtocolConstants
    simple: ProtocolConstants
    inter_node: InterNode
    in_switch: InSwitch
    in_network: InNetwork


@functools.cache
def network_constants() -> NetworkConstants:
    """The constants of collectives, with kind and source."""
    path = Path(__file__).parent / "network" / "collective_constants.toml"
    return load(path, NetworkConstants)


@dataclass(frozen=True, slots=True)
class Protocol:
    """Protocol that moves a collective's pieces; steps in a node are multiples of its latency."""

    name: str
    ring_inside: float
    tree_inside: float
    rate: float
    """Part of the bandwidth it reaches."""
    base_s: float
    """Base latency of every operation [s]."""

    @classmethod
    def of(cls, name: str, values: ProtocolConstants) -> Protocol:
        """A protocol from its constants."""
        reference_s = network_constants().reference_step_s.value
        return cls(
            name,
            ring_inside=values.ring_step_s.value / reference_s,
            tree_inside=values.tree_step_s.value / reference_s,
            rate=values.rate_fraction.value,
            base_s=values.base_s.value,
        )


LOW_LATENCY = Protocol.of("LL", network_constants().low_latency)
SIMPLE = Protocol.of("Simple", network_constants().simple)
PROTOCOLS = (LOW_LATENCY, SIMPLE)


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
    """Bytes that matrix units read at a time [B]."""


class ConvolutionConstants(Description):
    """Convolutions."""

    winograd_ratio: Quantity
    """Multiplications of a plain 3 x 3 kernel over those of Winograd's algorithm."""


class RecomputeConstants(Description):
    """Part of a pass that selective recompute repeats, by policy."""

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
def step_constants() -> StepConstants:
    """The constants of the step, with kind and source."""
    return load(Path(__file__).parent / "step" / "time_constants.toml", StepConstants)
