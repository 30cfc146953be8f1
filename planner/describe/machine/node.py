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
    """Links between the devices of one node."""

    kind: Literal["none", "mesh", "switch", "host", "wires"]
    """mesh: a link between every pair; switch: any pair through a switch; host: through PCIe
    and the host; wires: the links listed in `wires`; none: one device per node."""
    pair_bytes_per_s: Rate | None = None
    """Rate between one pair of devices [B/s]."""
    device_bytes_per_s: Rate | None = None
    """Rate of one device into the fabric, over all links [B/s]."""
    wires: tuple[Wire, ...] = ()
    """Links of an irregular node (kind `wires`), with the source of `device_bytes_per_s`."""
    card_bytes_per_s: Rate | None = None
    """Rate of one device to all devices of another card (`devices_per_card`), if one link reaches
    them; it limits groups of several cards [B/s]."""
    socket_bytes_per_s: Rate | None = None
    """Rate between two sockets per direction, shared by all groups, if devices reach each other
    through the host [B/s]."""
    efficiency: Fraction
    """Bus bandwidth of large collectives / link rate."""
    latency_s: Duration
    """Latency of one collective step between two devices of the node [s]."""
    switch_reduction: Fraction | None = None
    """Rate of all-reduces in the switch (NVLink SHARP) / link rate; None: no such switch."""

    @property
    def wired(self) -> bool:
        """Whether devices have direct links, such as NVLink, Xe Link or Infinity Fabric."""
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
    """Host to device per device, while all devices of the node copy [B/s]."""
    fabric: Fabric
    """Links between the devices."""
    num_nics: int = Field(ge=0, le=64)
    """Network interfaces of the node; 0: a single workstation."""
    nic_bytes_per_s: Rate | None = None
    """Rate of one interface [B/s]."""
    nic_of_device: tuple[DeviceIndex, ...] = Field(default=(), max_length=1024)
    """Network interface of each device, in device order; devices of one share its rate."""
    local_disk: LocalDisk | None = None
    """Node-local NVMe; None: no local disk."""
