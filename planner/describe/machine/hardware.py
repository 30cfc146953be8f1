"""Hardware: device, node, links inside the node, and the network between nodes."""

from __future__ import annotations

from typing import Annotated, Any, Literal

from pydantic import Field, model_validator

from planner.describe.base import (
    ByteCount,
    Count,
    Description,
    Duration,
    Factor,
    Fraction,
    Memory,
    Power,
    Rate,
    Share,
    Storage,
    Variable,
)

Precision = Literal["fp64", "fp32", "tf32", "fp16", "bf16", "fp8"]

Runtime = Literal["cuda", "rocm", "xpu", "cpu"]


class AttentionCurve(Description):
    """How the rate of fused attention falls from `attention_efficiency`, by measured kernels."""

    half_rate_tokens: Count
    """Length of a sequence piece at which attention reaches half of its rate [tokens]."""
    head_dim_power: Share
    """Exponent by which the rate falls with heads narrower than 128; 0: it does not."""
    backward_efficiency: Fraction
    """Rate of the backward kernel over that of the forward kernel."""


class Device(Description):
    """One accelerator as a framework sees it, or a whole CPU node."""

    name: str
    """Product name."""
    runtime: Runtime
    """Programming runtime."""
    memory_bytes: Memory
    """Usable memory before the runtime context is created [B]."""
    context_bytes: ByteCount
    """Memory of the runtime context, kernels and library workspaces [B]."""
    communicator_bytes: ByteCount
    """Buffers of one communicator (NCCL, RCCL, oneCCL) [B]."""
    is_apu: bool = False
    """Whether device and host share one memory (APU); a CPU always does."""
    memory_bytes_per_s: Rate
    """Peak memory bandwidth [B/s]."""
    peak_flop_per_s: dict[Precision, Rate]
    """Peak dense rate per precision; absent precisions are not supported [FLOP/s]."""
    num_units: Count
    """Streaming multiprocessors, compute units or Xe cores: GEMM tiles that run at once."""
    gemm_efficiency: Fraction
    """Fraction of the 16-bit peak that a large library GEMM reaches."""
    gemm_efficiencies: dict[Precision, Fraction] = Field(default_factory=dict)
    """`gemm_efficiency` at the peaks of other precisions; default: the 16-bit one."""
    sustained_fraction: Fraction
    """Fraction of `gemm_efficiency` that GEMMs of a step reach, due to power limits and shapes."""
    grouped_gemm_fraction: Fraction
    """Rate of the grouped GEMMs of experts / rate of one large GEMM."""
    convolution_fraction: Fraction = Fraction(
        value=0.65, kind="assumed", source="as calibrated on A100"
    )
    """Rate of convolutions on matrix units / rate of one large GEMM."""
    attention_efficiency: Fraction | None = None
    """Fraction of the 16-bit peak of fused attention on long sequences; None: the kernel's."""
    attention_curve: AttentionCurve | None = None
    """How the rate of fused attention falls; None: as the constants of steps say."""
    memory_efficiency: Fraction
    """Fraction of the memory bandwidth that streaming kernels reach."""
    launch_s: Duration
    """Host time to launch one kernel from an eager framework [s]."""
    power_watts: Power | None = None
    """Thermal design power [W]."""

    def best_product(self, precision: str) -> float:
        """Fraction of a precision's peak that a large library GEMM reaches [1]."""
        efficiencies = {str(name): best for name, best in self.gemm_efficiencies.items()}
        return efficiencies.get(precision, self.gemm_efficiency).value

    def is_of(self, names: tuple[str, ...]) -> bool:
        """True if its name contains one of `names`, or if `names` is empty."""
        return not names or any(name in self.name for name in names)

    @property
    def uses_host_memory(self) -> bool:
        """True if device and host share one memory, so that nothing can be offloaded."""
        return self.is_apu or self.runtime == "cpu"


DeviceIndex = Annotated[int, Field(ge=0, le=1023)]


class Wire(Description):
    """Direct links between two devices of a node."""

    devices: tuple[DeviceIndex, DeviceIndex]
    """Indices of the two devices in the node."""
    bytes_per_s: float = Field(ge=1e6, le=1e18)
    """Rate per direction [B/s]."""


class Fabric(Description):
    """Links between the devices of one node."""

    kind: Literal["none", "mesh", "switch", "host", "wires"]
    """mesh: between every pair; switch; host: by PCIe; wires: as listed; none: one device."""
    pair_bytes_per_s: Rate | None = None
    """Rate between one pair of devices [B/s]."""
    device_bytes_per_s: Rate | None = None
    """Rate of one device into the fabric, over all links [B/s]."""
    wires: tuple[Wire, ...] = ()
    """Links of an irregular node (kind `wires`); the source is that of `device_bytes_per_s`."""
    card_bytes_per_s: Rate | None = None
    """Rate of one device to all of another card, if one link reaches them [B/s]."""
    socket_bytes_per_s: Rate | None = None
    """Rate between two sockets per direction, shared by all groups, through the host [B/s]."""
    efficiency: Fraction
    """Bus bandwidth of large collectives / link rate."""
    latency_s: Duration
    """Latency of one collective step between two devices of the node [s]."""
    switch_reduction: Fraction | None = None
    """Rate of all-reduces in the switch (NVLink SHARP) / link rate; None: not supported."""
    start_s: Duration | None = None
    """Latency before the first step in a one-protocol library such as gloo; None: NCCL [s]."""
    all_gather: Factor | None = None
    """Rate of all-gathers over that of all-reduces; None: alike, as NCCL's."""
    reduce_scatter: Factor | None = None
    """Rate of reduce-scatters over that of all-reduces; None: alike."""
    send_recv: Factor | None = None
    """Rate of messages to a neighbour over that of all-reduces; None: alike."""

    @property
    def wired(self) -> bool:
        """True if devices have direct links, such as NVLink, Xe Link or Infinity Fabric."""
        return self.kind in ("mesh", "switch", "wires")

    @model_validator(mode="after")
    def _check_rates(self) -> Fabric:
        if self.kind == "mesh" and self.pair_bytes_per_s is None:
            raise ValueError("a fabric of kind 'mesh' needs pair_bytes_per_s; add it")
        if self.kind == "switch" and not (self.pair_bytes_per_s or self.device_bytes_per_s):
            raise ValueError("a fabric of kind 'switch' needs device_bytes_per_s; add it")
        if self.switch_reduction and self.kind != "switch":
            raise ValueError(
                f"a fabric of kind {self.kind!r} has no switch; leave switch_reduction out"
            )
        return self


class LocalDisk(Description):
    """Node-local NVMe."""

    capacity_bytes: Storage
    """Capacity per node [B]."""
    read_bytes_per_s: Rate
    """Sequential read per node [B/s]."""
    write_bytes_per_s: Rate
    """Sequential write per node [B/s]."""


class Node(Description):
    """One node: devices, host, links."""

    num_devices: int = Field(ge=1, le=1024)
    """Devices (ranks) per node."""
    power_watts: Power | None = None
    """Rated power of the whole node [W]."""
    devices_per_card: int = Field(default=1, ge=1, le=8)
    """Devices on one physical card (2 for PVC and MI250X)."""
    num_sockets: int = Field(default=1, ge=1, le=8)
    """CPU sockets; devices are spread over them in order."""
    num_cores: Count
    """CPU cores of the node."""
    host_memory_bytes: Memory
    """RAM of the node [B]."""
    host_memory_bytes_per_s: Rate
    """Memory bandwidth of the host, all sockets [B/s]."""
    host_link_bytes_per_s: Rate
    """Host-to-device rate of one device, while all devices of the node copy [B/s]."""
    fabric: Fabric
    """Links between the devices."""
    num_nics: int = Field(ge=0, le=64)
    """Network interfaces of the node; 0: a single workstation."""
    nic_bytes_per_s: Rate | None = None
    """Rate of one interface [B/s]."""
    nic_of_device: tuple[DeviceIndex, ...] = Field(default=(), max_length=1024)
    """Network interface of each device, in device order; its devices share its rate."""
    local_disk: LocalDisk | None = None
    """Node-local NVMe; None: no local disk."""


NetworkKind = Literal["infiniband", "roce", "slingshot", "omni-path", "efa", "ethernet"]

Nodes = Annotated[int, Field(ge=1, le=1_000_000)]
OfInjection = Annotated[float, Field(ge=1e-6, le=2)]
"""Bus bandwidth / injection rate of a node; above 1 for a tree of two nodes."""
Wait = Annotated[float, Field(ge=0, le=60)]
"""Extra delay of one transfer [s]."""


def _check_rising(nodes: tuple[int, ...], values: tuple[float, ...], field: str, noun: str) -> None:
    if len(nodes) != len(values):
        raise ValueError(f"num_nodes and {field} differ in length; give one {noun} per count")
    if list(nodes) != sorted(set(nodes)):
        raise ValueError(f"num_nodes {nodes} must rise; sort them")


class Curve(Description):
    """Bus bandwidth / injection rate, by number of nodes (interpolated in log nodes)."""

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
        _check_rising(self.num_nodes, self.fraction, "fraction", "fraction")
        return self


class Delays(Description):
    """Extra delay of a transfer by number of nodes (interpolated in log nodes)."""

    num_nodes: tuple[Nodes, ...] = Field(min_length=1, max_length=1000)
    """Node counts, rising."""
    seconds: tuple[Wait, ...] = Field(min_length=1)
    """Delay at each count [s]."""
    kind: Literal["datasheet", "measured", "calibrated", "assumed"]
    """Kind of evidence."""
    source: str
    """Where it was read."""

    @model_validator(mode="after")
    def _rising(self) -> Delays:
        _check_rising(self.num_nodes, self.seconds, "seconds", "wait")
        return self


class Network(Description):
    """The network between nodes, as one communication library uses it."""

    name: str = ""
    """Name for `--network NAME`, if the machine has several."""
    note: str = ""
    """Warning to users of this network or of its curve, in one sentence."""
    frameworks: tuple[str, ...] = ()
    """Frameworks that use it, although it is not the machine's default."""
    environment: dict[Variable, str] = Field(default_factory=dict)
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
    """Latency of a large message between nodes; None: NCCL's ratio to `latency_s` [s]."""
    in_phases: bool = False
    """Whether collectives run in nodes first, then between (oneCCL), not in one ring."""
    pairwise_fraction: Fraction | None = None
    """Rate of all-to-alls between nodes / rate of a ring; None: 1."""
    switch_reduction: Fraction | None = None
    """Rate of all-reduces in the network's switches (SHARP) / of a ring; None: no."""
    efficiency: Curve
    """Bus bandwidth of large collectives / injection rate of a node, by node count."""
    reducing: Curve | None = None
    """`efficiency` of collectives that reduce (all-reduce, reduce-scatter), if lower."""
    transfer_delays: Delays | None = None
    """Extra delay of each transfer between pipeline stages, by nodes, if measured runs show one."""

    @model_validator(mode="before")
    @classmethod
    def _without_domain(cls, fields: Any) -> Any:
        if isinstance(fields, dict) and fields.keys() & {"domain_nodes", "domain_exit_bytes_per_s"}:
            raise ValueError(
                f"domain_nodes = {fields.get('domain_nodes')}: a network describes its adapters "
                "alone; move the links of a rack to [domain] (num_nodes, device_bytes_per_s, "
                "efficiency, latency_s) and state the adapters in node.nic_bytes_per_s"
            )
        return fields


class Domain(Description):
    """Links between the devices of several nodes, such as a rack with NVLink switches (NVL72)."""

    num_nodes: int = Field(ge=2, le=1_000_000)
    """Nodes whose devices these links connect; beyond them the network does."""
    device_bytes_per_s: Rate
    """Rate of one device to devices of other nodes, per direction [B/s]."""
    efficiency: Fraction
    """Bus bandwidth of large collectives between the nodes / link rate."""
    latency_s: Duration
    """Time that each doubling of the nodes adds to a small all-reduce [s]."""
    switch_reduction: Fraction | None = None
    """Rate of all-reduces in the domain's switches (NVLink SHARP) / link rate; None: no."""
