"""Network: what is between the nodes, as one library drives it."""

from __future__ import annotations

from typing import Annotated, Literal

from pydantic import Field, model_validator

from planner.describe.base import Description, Duration, Fraction, Rate

__all__ = ["Curve", "Delays", "Network", "NetworkKind"]

NetworkKind = Literal["infiniband", "roce", "slingshot", "omni-path", "efa", "ethernet"]

Nodes = Annotated[int, Field(ge=1, le=1_000_000)]
OfInjection = Annotated[float, Field(ge=1e-6, le=2)]
"""Bus bandwidth / injection rate of a node; above 1 for a tree of two nodes."""
Wait = Annotated[float, Field(ge=0, le=60)]
"""Extra wait of one transfer [s]."""


class Curve(Description):
    """A fraction by number of nodes (interpolated in log nodes)."""

    num_nodes: tuple[Nodes, ...] = Field(min_length=1, max_length=1000)
    """Node counts, rising."""
    fraction: tuple[OfInjection, ...] = Field(min_length=1)
    """Bus bandwidth / injection rate of a node, at each count."""
    kind: Literal["datasheet", "measured", "calibrated", "assumed"]
    """Kind of evidence."""
    source: str
    """Where it was read."""

    @model_validator(mode="after")
    def _rising(self) -> Curve:
        if len(self.num_nodes) != len(self.fraction):
            raise ValueError("num_nodes and fraction differ in length; give one fraction a count")
        if list(self.num_nodes) != sorted(set(self.num_nodes)):
            raise ValueError(f"num_nodes {self.num_nodes} must rise; sort them")
        return self


class Delays(Description):
    """A wait by number of nodes (interpolated in log nodes)."""

    num_nodes: tuple[Nodes, ...] = Field(min_length=1, max_length=1000)
    """Node counts, rising."""
    seconds: tuple[Wait, ...] = Field(min_length=1)
    """Wait at each count [s]."""
    kind: Literal["datasheet", "measured", "calibrated", "assumed"]
    """Kind of evidence."""
    source: str
    """Where it was read."""

    @model_validator(mode="after")
    def _rising(self) -> Delays:
        if len(self.num_nodes) != len(self.seconds):
            raise ValueError("num_nodes and seconds differ in length; give one wait a count")
        if list(self.num_nodes) != sorted(set(self.num_nodes)):
            raise ValueError(f"num_nodes {self.num_nodes} must rise; sort them")
        return self


class Network(Description):
    """The network between nodes, as one library drives it."""

    name: str = ""
    """Name for `--network NAME`, if the machine has several."""
    note: str = ""
    """Warning before one uses it or trusts its curve, in one sentence."""
    frameworks: tuple[str, ...] = ()
    """Frameworks that use it though it is not the machine's default."""
    environment: dict[str, str] = Field(default_factory=dict)
    """Environment variables that a job exports to use it."""
    setup: tuple[str, ...] = ()
    """Shell lines of a job before the launch."""
    topology: str
    """Name and shape, such as "Slingshot-11 dragonfly"."""
    kind: NetworkKind | None = None
    """Protocol; None: unknown."""
    latency_s: Duration
    """Time that each doubling of the nodes adds to a small all-reduce [s]."""
    large_message_latency_s: Duration | None = None
    """Latency of one large message of a collective between nodes; None: NCCL's ratio to
    `latency_s` [s]."""
    in_phases: bool = False
    """Whether collectives run inside the nodes first and then between them (oneCCL); a ring of NCCL
    or RCCL does both at once."""
    pairwise_fraction: Fraction | None = None
    """Rate of all-to-alls between nodes / rate of a ring; None: 1."""
    switch_reduction: Fraction | None = None
    """Rate of all-reduces in the network's switches (SHARP), where a node sends its buffer once /
    rate of a ring; None: no such switches."""
    efficiency: Curve
    """Bus bandwidth of large collectives / injection rate of a node, by node count."""
    reducing: Curve | None = None
    """The same for collectives that reduce (all-reduce, reduce-scatter), if they reach less."""
    transfer_delays: Delays | None = None
    """Extra wait of each transfer between pipeline stages, by nodes of the job, if measured runs
    show one."""
    domain_nodes: Nodes = 1
    """Nodes with full bandwidth to each other, such as a rack with NVLink switches; 1: all nodes
    have it."""
    domain_exit_bytes_per_s: Rate | None = None
    """Rate of one device towards other domains, per direction [B/s]."""

    @model_validator(mode="after")
    def _check_domain(self) -> Network:
        if (self.domain_nodes > 1) != (self.domain_exit_bytes_per_s is not None):
            raise ValueError("domain_nodes above 1 and domain_exit_bytes_per_s go together")
        return self
