"""Network: what is between the nodes, as one library drives it."""

from __future__ import annotations

from typing import Annotated, Literal

from pydantic import Field, model_validator

from planner.describe.base import Description, Duration, Fraction, Rate

__all__ = ["Curve", "Delays", "Network", "NetworkKind"]

NetworkKind = Literal["infiniband", "roce", "slingshot", "omni-path", "efa", "ethernet"]

Nodes = Annotated[int, Field(ge=1, le=1_000_000)]
OfInjection = Annotated[float, Field(ge=1e-6, le=2)]
"""Bus bandwidth over a node's injection rate: above 1 where a tree of two nodes was measured."""
Wait = Annotated[float, Field(ge=0, le=60)]
"""What one transfer waits on top of its own time [s]."""


class Curve(Description):
    """A measured fraction that falls with the number of nodes (interpolated in log nodes)."""

    num_nodes: tuple[Nodes, ...] = Field(min_length=1, max_length=1000)
    """Node counts, rising."""
    fraction: tuple[OfInjection, ...] = Field(min_length=1)
    """Bus bandwidth over the node's injection rate at each count."""
    kind: Literal["datasheet", "measured", "calibrated", "assumed"]
    """How the curve came to be known."""
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
    """A measured wait that depends on the number of nodes (interpolated in log nodes)."""

    num_nodes: tuple[Nodes, ...] = Field(min_length=1, max_length=1000)
    """Node counts, rising."""
    seconds: tuple[Wait, ...] = Field(min_length=1)
    """Wait at each count [s]."""
    kind: Literal["datasheet", "measured", "calibrated", "assumed"]
    """How it came to be known."""
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
    """What `--network NAME` calls it, where the machine has others."""
    note: str = ""
    """What to know before one runs on it or trusts its curve, in one sentence."""
    frameworks: tuple[str, ...] = ()
    """Frameworks whose jobs run on it though it is not the machine's first."""
    environment: dict[str, str] = Field(default_factory=dict)
    """Variables that a job exports to run on it."""
    setup: tuple[str, ...] = ()
    """Shell lines of a job that runs on it, before the launch."""
    topology: str
    """Name and shape, such as "Slingshot-11 dragonfly"."""
    kind: NetworkKind | None = None
    """What it speaks; none where that is not known."""
    latency_s: Duration
    """What each doubling of the nodes adds to a small all-reduce [s]."""
    large_message_latency_s: Duration | None = None
    """Latency of one large message of a collective from node to node, however fast the link;
    where it is not known, NCCL's ratio to `latency_s` is taken [s]."""
    in_phases: bool = False
    """Whether collectives finish inside the nodes before they go on between them, as oneCCL's
    do; a ring of NCCL or RCCL does both at once."""
    pairwise_fraction: Fraction | None = None
    """Part of a ring's rate between nodes that all-to-alls reach; all of it where nothing is
    known."""
    switch_reduction: Fraction | None = None
    """Part of a ring's rate between nodes at which the network's switches add up all-reduces
    themselves (SHARP), so that a node sends its buffer once; absent where they do not."""
    efficiency: Curve
    """Fraction of the node's injection rate that large collectives reach, by node count."""
    reducing: Curve | None = None
    """The same of collectives that add up what they bring (all-reduce, reduce-scatter), where they
    reach less than those that only bring it."""
    transfer_delays: Delays | None = None
    """What each transfer between pipeline stages waits on top of its own time, by nodes of the
    job; only on machines where measured runs show such a wait."""
    domain_nodes: Nodes = 1
    """Nodes whose interfaces reach each other at their full rate, such as a rack of NVLink
    switches; 1 where they reach every node so."""
    domain_exit_bytes_per_s: Rate | None = None
    """What one device has towards other domains, per direction [B/s]."""

    @model_validator(mode="after")
    def _domain_has_an_exit(self) -> Network:
        if (self.domain_nodes > 1) != (self.domain_exit_bytes_per_s is not None):
            raise ValueError("domain_nodes above 1 and domain_exit_bytes_per_s go together")
        return self
