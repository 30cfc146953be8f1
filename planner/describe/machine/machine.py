"""Machine: a hardware profile, from the device (one rank, one memory) to the queue."""

from __future__ import annotations

from typing import Literal

from pydantic import Field, model_validator

from planner.describe.base import Count, Description, Quantity, Rate, ScriptText, Storage, Variable
from planner.describe.machine.hardware import Device, Domain, Network, NetworkKind, Node, Precision
from planner.errors import DescriptionError, UnknownNameError


class Queue(Description):
    """A queue or partition with its limits."""

    name: ScriptText
    """Name in the scheduler."""
    min_nodes: int = Field(default=1, ge=1, le=1_000_000)
    """Fewest nodes of a job."""
    max_nodes: int = Field(ge=1, le=1_000_000)
    """Most nodes of a job."""
    max_hours: float = Field(gt=0, le=100_000)
    """Longest wall time [h]."""
    max_jobs: int | None = Field(default=None, ge=1, le=1_000_000)
    """Most jobs of one user in the queue, waiting or running; None: no stated limit."""
    note: str = ""
    """Other rules of the site."""
    directives: tuple[ScriptText, ...] = ()
    """Directives that select the queue; empty: `-q NAME` (PBS, LSF), `--partition=NAME` (Slurm),
    `--queue=NAME` (Flux)."""
    on_request: bool = False
    """Whether it is used only if the user names it: restricted, interactive, preemptible queues."""
    debug: bool = False
    """Whether it is for trials: a training that takes several jobs does not run in it."""


class Launch(Description):
    """Job script and launcher, as the site documents them."""

    directives: tuple[ScriptText, ...] = ()
    """Directives of every job script, without the prefix."""
    account: bool = False
    """Whether a job needs an account or project."""
    tasks: Literal["device", "node"] = "node"
    """Processes of the launcher: one per device, or one `torchrun` per node."""
    cpus: int | None = Field(default=None, ge=1, le=1_000_000)
    """CPUs of a node as the scheduler counts them (cores or threads); None: the cores."""
    mpi: Literal["pals", "openmpi"] = "pals"
    """MPI launcher, if the scheduler has none of its own (PBS)."""
    options: tuple[str, ...] = ()
    """Launcher options with one process per device, such as binding."""
    node_options: tuple[str, ...] = ()
    """Launcher options with one process per node."""
    rank_variables: tuple[Variable, Variable] | None = None
    """Variables with the rank and the rank on the node; None: unknown."""
    one_device_each: bool = False
    """Whether a process sees only its own device, as number 0."""
    setup: tuple[str, ...] = ()
    """Shell lines before the launch, such as modules."""
    environment: dict[Variable, str] = Field(default_factory=dict)
    """Variables to export."""
    device_environment: dict[Variable, str] = Field(default_factory=dict)
    """Further variables with one process per device; unset with one process per node."""
    node_environment: dict[Variable, str] = Field(default_factory=dict)
    """Further variables with one process per node."""
    local_disk: ScriptText = ""
    """Folder of the node-local disk."""
    notes: tuple[str, ...] = ()
    """Warnings of the site."""
    script_words: tuple[str, ...] = ()
    """Words that only job scripts of this machine have: hosts, file systems, modules, accounts."""
    warns: dict[str, str] = Field(default_factory=dict)
    """Words of a job script that the site warns of, with the reason and the remedy."""
    source: str = Field(min_length=2)
    """Where the launch was read."""


class Scheduler(Description):
    """The batch system."""

    kind: Literal["pbs", "slurm", "lsf", "flux", "kubernetes", "cobalt", "none"]
    """Batch system; LSF with `jsrun`, Kubernetes with Kubeflow's PyTorchJob."""
    queues: tuple[Queue, ...] = ()
    """Queues with their limits."""
    kind_of_limits: Literal["datasheet", "measured", "assumed"] = "datasheet"
    """Kind of evidence of the limits."""
    source: str = ""
    """Where the limits were read."""
    launch: Launch | None = None
    """Job script and launcher; None: unknown."""


class OperationRate(Quantity, ge=1, le=1e12):
    """File operations per second [1/s]."""


class FileSystem(Description):
    """A shared file system."""

    name: str
    """Name in job scripts."""
    kind: str
    """Lustre, GPFS, DAOS, ..."""
    capacity_bytes: Storage | None = None
    """Capacity [B]."""
    bytes_per_s: Rate | None = None
    """Aggregate bandwidth, the slower of reading and writing [B/s]."""
    read_bytes_per_s: Rate | None = None
    """Aggregate read bandwidth, if known separately [B/s]."""
    client_bytes_per_s: Rate | None = None
    """Read bandwidth of one node; None: the rate of its interfaces [B/s]."""
    num_targets: Count | None = None
    """Storage targets (OSTs of Lustre) over which files are striped."""
    opens_per_s: OperationRate | None = None
    """Files of one directory that all nodes together open per second, from one server [1/s]."""

    @property
    def reading(self) -> Rate | None:
        """Aggregate read bandwidth; None: unknown [B/s]."""
        return self.read_bytes_per_s or self.bytes_per_s


class Machine(Description):
    """A machine of identical nodes; a heterogeneous system is one machine per partition."""

    name: str
    """Name on the command line."""
    title: str
    """Full name and site."""
    aliases: tuple[str, ...] = ()
    """Other names of this machine."""
    labels: tuple[str, ...] = ()
    """Names in measured runs, in lower case; the device tells machines of one name apart."""
    num_nodes: Count
    """Number of nodes."""
    device: Device
    """The accelerator."""
    node: Node
    """The node."""
    domain: Domain | None = None
    """Links between nodes besides the network, such as NVLink of a rack; None: none."""
    network: Network | None = None
    """The network; absent on a single workstation."""
    networks: tuple[Network, ...] = ()
    """The same links used by other libraries, with their own curves and variables."""
    file_systems: tuple[FileSystem, ...] = ()
    """Shared file systems."""
    scheduler: Scheduler = Scheduler(kind="none")
    """The batch system."""
    sources: dict[str, str] = Field(default_factory=dict)
    """Full references of the source ids used in the quantities."""
    notes: tuple[str, ...] = ()
    """Doubts and disagreements between sources."""
    evidence: str = ""
    """Measured runs behind its estimates, in one line."""

    @model_validator(mode="after")
    def _check_parts(self) -> Machine:
        network_names = [network.name for network in self.all_networks]
        if self.networks and (len(set(network_names)) < len(network_names) or "" in network_names):
            raise ValueError(f"networks are named {network_names}; give each a unique name")
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
        """Number of devices of the machine."""
        return int(self.num_nodes.value) * self.node.num_devices

    @property
    def all_networks(self) -> tuple[Network, ...]:
        """All networks, the default one first."""
        return (*((self.network,) if self.network else ()), *self.networks)

    def on_network(self, name: str) -> Machine:
        """Copy that uses one of the machine's networks for every framework."""
        networks = {network.name: network for network in self.all_networks if network.name}
        if not networks:
            raise DescriptionError(
                f"network {name!r}: {self.name} has only one network; leave the name out"
            )
        if name not in networks:
            raise UnknownNameError("network", name, networks, f"those of {self.name}")
        fields = {key: n.replaced(frameworks=()).model_dump() for key, n in networks.items()}
        return self.replaced(network=fields.pop(name), networks=[*fields.values()])

    def network_of(self, framework: str) -> Machine:
        """Copy that uses the network of a framework's jobs, unless the user chose one."""
        for network in self.networks:
            if framework in network.frameworks:
                return self.on_network(network.name)
        return self

    def file_system(self, name: str = "") -> FileSystem | None:
        """Get a shared file system by name, by default the first with a known rate, if any."""
        systems = {system.name: system for system in self.file_systems}
        if name and name not in systems:
            listing = f"`planner show {self.name}` lists them"
            raise UnknownNameError("file system", name, systems, listing)
        if name:
            return systems[name]
        rated = [system for system in self.file_systems if system.reading]
        return next(iter([*rated, *self.file_systems]), None)

    @property
    def wired_devices(self) -> int:
        """Devices with direct links: those of a node, or of a domain of nodes (NVL72)."""
        return self.node.num_devices * (self.domain.num_nodes if self.domain else 1)

    def bytes_per_s_between(self, nodes: int) -> float:
        """Rate of one node towards the others of `nodes`, over a domain or interfaces [B/s]."""
        if self.domain and nodes <= self.domain.num_nodes:
            return self.node.num_devices * self.domain.device_bytes_per_s.value
        return self.node_bytes_per_s

    @property
    def node_bytes_per_s(self) -> float:
        """Injection rate of one node, over all interfaces [B/s]."""
        rate = self.node.nic_bytes_per_s
        return self.node.num_nics * rate.value if rate else 0.0

    def peak(self, precision: str) -> float:
        """Dense peak of a precision [FLOP/s]. Raises DescriptionError if it is not supported."""
        peaks = self.device.peak_flop_per_s
        if precision not in peaks:
            raise DescriptionError(
                f"precision {precision!r} is not supported by {self.device.name}; "
                f"use one of {', '.join(sorted(peaks))}"
            )
        return peaks[precision].value


class Requirements(Description):
    """Requirements of software on a machine, besides its device runtime."""

    networks: tuple[NetworkKind, ...] = ()
    """Allowed kinds of network between the nodes; empty: any, or none."""
    wired: bool = False
    """Whether the devices of a node need direct links, such as NVLink."""
    units: Precision | None = None
    """Precision that the matrix units must support: fp8 means Hopper or later."""

    def met_by(self, machine: Machine) -> bool:
        """True if a machine meets all requirements."""
        kind = machine.network.kind if machine.network else None
        return (
            (not self.networks or kind in self.networks)
            and (not self.wired or machine.node.fabric.wired)
            and (self.units is None or self.units in machine.device.peak_flop_per_s)
        )
