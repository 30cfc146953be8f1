"""Machine: a hardware profile of device, node, network, storage and queues."""

from planner.describe.machine.hardware import (
    Curve,
    Delays,
    Device,
    Domain,
    Fabric,
    LocalDisk,
    Network,
    NetworkKind,
    Node,
    Precision,
    Runtime,
    Wire,
)
from planner.describe.machine.machine import (
    FileSystem,
    Launch,
    Machine,
    OperationRate,
    Queue,
    Requirements,
    Scheduler,
)

__all__ = [
    "Curve", "Delays", "Device", "Domain", "Fabric", "FileSystem", "Launch", "LocalDisk",
    "Machine", "Network", "NetworkKind", "Node", "OperationRate", "Precision", "Queue",
    "Requirements", "Runtime", "Scheduler", "Wire",
]  # fmt: skip
