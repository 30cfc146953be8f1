"""Node: devices, host, local disk and the links between them. Link rates are per direction."""

from __future__ import annotations

from typing import Annotated, Literal

from pydantic import Field, model_validator

from planner.describe.base import (
    Count,
    Description,
    Duration,
    Fraction,
    Memory,
    Power,
    Rate,
    Storage,
)

__all__ = ["DeviceIndex", "Fabric", "LocalDisk", "Node", "Wire"]

DeviceIndex = Annotated[int, Field(ge=0, le=1023)]


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
    switch_reduction: Fraction | None = None
    """Fraction of the link rate at which all-reduces pass through a switch that adds up itself
    and hands out the sum (NVLink SHARP); absent where it does not."""

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
    """What the whole node draws at most, as it is rated [W]."""
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
