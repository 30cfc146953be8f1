"""Machine: a hardware profile of device, node, network, storage and queues."""

from planner.describe.machine.hardware import Curve, Device, Domain, Fabric, Node, Runtime
from planner.describe.machine.machine import FileSystem, Launch, Machine, Queue, Requirements

__all__ = [
    "Curve", "Device", "Domain", "Fabric", "FileSystem", "Launch", "Machine", "Node", "Queue",
    "Requirements", "Runtime",
]  # fmt: skip
