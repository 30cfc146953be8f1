"""Machine: what a hardware profile describes, from the device to the queue.

A *device* is what has its own rank and its own memory: an A100, one tile of a PVC card, one
GCD of an MI250X module. All link rates are per direction. Peaks are dense (no sparsity).
"""

from __future__ import annotations

from typing import Annotated, Literal

from pydantic import Field, model_validator

from planner.describe.base import (
    ByteCount,
    Count,
    Description,
    Duration,
    Fraction,
    Memory,
    Rate,
    Storage,
)
from planner.describe.scheduler import Launch, Queue, Scheduler
from planner.errors import DescriptionError, UnknownNameError

__all__ = [
    "Curve",
    "Device",
    "Fabric",
    "FileSystem",
    "Launch",
    "LocalDisk",
    "Machine",
    "Network",
    "NetworkKind",
    "Node",
    "Precision",
    "Queue",
    "Requirements",
    "Runtime",
    "Scheduler",
    "Wire",
]

Precision = Literal["fp64", "fp32", "tf32", "fp16", "bf16", "fp8"]

Runtime = Literal["cuda", "rocm", "xpu", "cpu"]

NetworkKind = Literal["infiniband", "roce", "slingshot", "omni-path", "efa", "ethernet"]

Nodes = Annotated[int, Field(ge=1, le=1_000_000)]
DeviceIndex = Annotated[int, Field(ge=0, le=1023)]
OfInjection = Annotated[float, Field(ge=1e-6, le=2)]
"""Bus bandwidth over a node's injection rate: above 1 where the network itself reduces."""
Wait = Annotated[float, Field(ge=0, le=60)]
"""What one transfer waits on top of its own time [s]."""


class Device(Description):
    """One accelerator as the framework sees it (or a whole CPU node)."""

    name: str
    """Product name."""
    runtime: Runtime
    """Programming runtime; decides library names and the size of the context."""
    memory_bytes: Memory
    """Usable memory before the runtime context is created [B]."""
    context_bytes: ByteCount
    """Memory that runtime context, kernels and library workspaces take [B]."""
    communicator_bytes: ByteCount
    """Memory that one communicator (NCCL, RCCL, oneCCL) takes for its buffers [B]."""
    is_apu: bool = False
    """Whether its memory is the host's, as that of an APU; a CPU's always is."""
    memory_bytes_per_s: Rate
    """Peak memory bandwidth [B/s]."""
    peak_flop_per_s: dict[Precision, Rate]
    """Peak dense rate per precision; a precision that is absent is not supported [FLOP/s]."""
    num_units: Count
    """Streaming multiprocessors, compute units or Xe cores: the width of one GEMM wave."""
    gemm_efficiency: Fraction
    """Best fraction of the 16-bit peak that a large library GEMM sustains."""
    gemm_efficiencies: dict[Precision, Fraction] = Field(default_factory=dict)
    """The same of other precisions' peaks, whose units differ; `gemm_efficiency` where none is
    stated."""
    sustained_fraction: Fraction
    """What the GEMMs of a training step sustain of `gemm_efficiency`: power limits, shapes that
    suit the library less, other kernels between."""
    grouped_gemm_fraction: Fraction
    """Rate of grouped products of experts relative to one large product."""
    attention_efficiency: Fraction
    """Fraction of the 16-bit peak that fused attention forward sustains on long sequences."""
    memory_efficiency: Fraction
    """Fraction of the memory bandwidth that streaming kernels sustain."""
    launch_s: Duration
    """Host time to launch one kernel from an eager framework [s]."""

    def best_product(self, precision: str) -> float:
        """Best fraction of a precision's peak that a large library GEMM sustains [1]."""
        stated = {str(name): best for name, best in self.gemm_efficiencies.items()}
        return stated.get(precision, self.gemm_efficiency).value

    def is_of(self, names: tuple[str, ...]) -> bool:
        """Whether its name has one of some parts; without any, all devices are meant."""
        return not names or any(name in self.name for name in names)

    @property
    def uses_host_memory(self) -> bool:
        """Whether there is one memory and not two: nothing can be offloaded from it to the host."""
        return self.is_apu or self.runtime == "cpu"


class Wire(Description):
    """Direct links between two devices of a node."""

    devices: tuple[DeviceIndex, DeviceIndex]
    """Indices of the two devices in the node."""
    bytes_per_s: float = Field(ge=1e6, le=1e18)
    """Rate per direction [B/s]."""


class Fabric(Description):
    """How the devices of one node are wired to each other."""

    kind: Literal["none", "mesh", "switch", "host", "wires"]
    """mesh: a link between every pair; switch: any pair through a switch; host: through PCIe
    and the host; wires: the links listed in `wires`; none: one device per node."""
    pair_bytes_per_s: Rate | None = None
    """What one pair of devices can use [B/s]."""
    device_bytes_per_s: Rate | None = None
    """What one device can send into the fabric in all [B/s]."""
    wires: tuple[Wire, ...] = ()
    """Links of an irregular node (kind `wires`); the source stands in `device_bytes_per_s`."""
    card_bytes_per_s: Rate | None = None
    """What one device sends to all devices of one other card (`devices_per_card`), where they are
    reached over one link; a group of several cards is then held to such links [B/s]."""
    socket_bytes_per_s: Rate | None = None
    """What crosses between two sockets of the node per direction, for all groups together, where
    devices reach each other through the host [B/s]."""
    efficiency: Fraction
    """Fraction of the link rate that large collectives reach (bus bandwidth / link rate)."""
    latency_s: Duration
    """Latency of one collective step between two devices of the node [s]."""

    @property
    def wired(self) -> bool:
        """Whether devices have links to each other, as NVLink, Xe Link or Infinity Fabric."""
        return self.kind in ("mesh", "switch", "wires")

    @model_validator(mode="after")
    def _links_have_a_rate(self) -> Fabric:
        if self.kind == "mesh" and self.pair_bytes_per_s is None:
            raise ValueError("a fabric of kind 'mesh' needs pair_bytes_per_s; add it")
        if self.kind == "switch" and not (self.pair_bytes_per_s or self.device_bytes_per_s):
            raise ValueError("a fabric of kind 'switch' needs device_bytes_per_s; add it")
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
    devices_per_card: int = Field(default=1, ge=1, le=8)
    """Devices that sit on one physical card (2 for PVC and MI250X)."""
    num_sockets: int = Field(default=1, ge=1, le=8)
    """CPU sockets that the devices are spread over, in order."""
    num_cores: Count
    """CPU cores of the node."""
    host_memory_bytes: Memory
    """RAM of the node [B]."""
    host_memory_bytes_per_s: Rate
    """Memory bandwidth of the host, all sockets [B/s]."""
    host_link_bytes_per_s: Rate
    """Host to device, per device, with all devices of the node copying [B/s]."""
    fabric: Fabric
    """Links between the devices."""
    num_nics: int = Field(ge=0, le=64)
    """Network interfaces of the node; 0 for a single workstation."""
    nic_bytes_per_s: Rate | None = None
    """Rate of one interface [B/s]."""
    nic_of_device: tuple[DeviceIndex, ...] = Field(default=(), max_length=1024)
    """Which interface each device uses, in device order; ranks that share one share its rate."""
    local_disk: LocalDisk | None = None
    """Node-local NVMe; absent where the node has none."""


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


class FileSystem(Description):
    """A shared file system."""

    name: str
    """Name as used in job scripts."""
    kind: str
    """Lustre, GPFS, DAOS, ..."""
    capacity_bytes: Storage | None = None
    """Capacity [B]."""
    bytes_per_s: Rate | None = None
    """Aggregate bandwidth [B/s]."""


class Machine(Description):
    """A machine of identical nodes.

    Heterogeneous systems are described as one machine per partition.
    """

    name: str
    """Name on the command line."""
    title: str
    """Full name and site."""
    aliases: tuple[str, ...] = ()
    """Other names that mean this machine."""
    labels: tuple[str, ...] = ()
    """Words by which tables of runs call it, in lower case with single blanks; machines may share
    one, and the device and its memory then tell which."""
    num_nodes: Count
    """Nodes in all."""
    device: Device
    """The accelerator."""
    node: Node
    """The node."""
    network: Network | None = None
    """The network; absent on a single workstation."""
    networks: tuple[Network, ...] = ()
    """The same wires as other software drives them, each with its own curve and variables."""
    file_systems: tuple[FileSystem, ...] = ()
    """Shared file systems."""
    scheduler: Scheduler = Scheduler(kind="none")
    """The batch system."""
    sources: dict[str, str] = Field(default_factory=dict)
    """Source ids used in the quantities, spelled out."""
    notes: tuple[str, ...] = ()
    """Doubts and disagreements between sources."""
    evidence: str = ""
    """Which measured runs stand behind estimates for it, in one line."""

    @model_validator(mode="after")
    def _networks_have_names(self) -> Machine:
        every = [network.name for network in self.all_networks]
        if self.networks and (len(set(every)) < len(every) or "" in every):
            raise ValueError(f"networks are called {every}; give each a name of its own")
        return self

    @model_validator(mode="after")
    def _consistent(self) -> Machine:
        node = self.node
        if self.num_nodes.value > 1 and self.network is None:
            raise ValueError(f"{self.num_nodes.value:.0f} nodes need a [network]; describe it")
        if node.num_nics and len(node.nic_of_device) != node.num_devices:
            raise ValueError(
                f"nic_of_device names {len(node.nic_of_device)} of {node.num_devices} devices; "
                "give one interface index per device"
            )
        if any(nic >= node.num_nics for nic in node.nic_of_device):
            raise ValueError(f"nic_of_device must stay below num_nics = {node.num_nics}")
        if node.num_nics and node.nic_bytes_per_s is None:
            raise ValueError("num_nics > 0 needs nic_bytes_per_s; add it")
        ends = [end for wire in node.fabric.wires for end in wire.devices]
        if any(end >= node.num_devices for end in ends):
            raise ValueError(f"a wire names a device beyond num_devices = {node.num_devices}")
        return self

    @property
    def num_devices(self) -> int:
        """Devices of the whole machine."""
        return int(self.num_nodes.value) * self.node.num_devices

    @property
    def all_networks(self) -> tuple[Network, ...]:
        """The network of this description, then the others."""
        return (*((self.network,) if self.network else ()), *self.networks)

    def on_network(self, name: str) -> Machine:
        """The machine on one of its networks, whatever the framework."""
        networks = {network.name: network for network in self.all_networks if network.name}
        if not networks:
            raise DescriptionError(
                f"network {name!r}: {self.name} has one network, whatever the software; "
                "leave the name out"
            )
        if name not in networks:
            raise UnknownNameError("network", name, networks, f"those of {self.name}")
        others = [n.replaced(frameworks=()).model_dump() for k, n in networks.items() if k != name]
        chosen = networks[name].replaced(frameworks=()).model_dump()
        return self.replaced(network=chosen, networks=others)

    def network_of(self, framework: str) -> Machine:
        """The machine on the network that jobs of a framework run on, unless one was chosen."""
        for network in self.networks:
            if framework in network.frameworks:
                return self.on_network(network.name)
        return self

    @property
    def wired_devices(self) -> int:
        """Devices that are wired to each other: of a node, or of a domain of nodes (NVL72)."""
        return self.node.num_devices * (self.network.domain_nodes if self.network else 1)

    @property
    def node_bytes_per_s(self) -> float:
        """What one node can inject into the network, all interfaces [B/s]."""
        rate = self.node.nic_bytes_per_s
        return self.node.num_nics * rate.value if rate else 0.0

    def peak(self, precision: str) -> float:
        """Dense peak of a precision [FLOP/s]; DescriptionError where the device has none."""
        peaks = self.device.peak_flop_per_s
        if precision not in peaks:
            raise DescriptionError(
                f"precision {precision!r} is not supported by {self.device.name}; "
                f"use one of {', '.join(sorted(peaks))}"
            )
        return peaks[precision].value


class Requirements(Description):
    """What a machine must have for a piece of software, besides devices that run it."""

    networks: tuple[NetworkKind, ...] = ()
    """Kinds of network between the nodes; empty: any, or none."""
    wired: bool = False
    """Whether the devices of a node have links of their own, such as NVLink."""
    units: Precision | None = None
    """A precision for which the devices have units: fp8 tells Hopper from Ampere."""

    def met_by(self, machine: Machine) -> bool:
        """Whether a machine has all of it."""
        kind = machine.network.kind if machine.network else None
        return (
            (not self.networks or kind in self.networks)
            and (not self.wired or machine.node.fabric.wired)
            and (self.units is None or self.units in machine.device.peak_flop_per_s)
        )
