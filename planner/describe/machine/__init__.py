"""What a hardware profile describes: device, node, network, storage, the queue."""

from planner.describe.machine.device import Device, Precision, Runtime
from planner.describe.machine.machine import FileSystem, Machine, OperationRate, Requirements
from planner.describe.machine.network import Curve, Delays, Network, NetworkKind
from planner.describe.machine.node import Fabric, LocalDisk, Node, Wire
from planner.describe.machine.scheduler import Launch, Queue, Scheduler

__all__ = [
    "Curve",
    "Delays",
    "Device",
    "Fabric",
    "FileSystem",
    "Launch",
    "LocalDisk",
    "Machine",
    "Network",
    "NetworkKind",
    "Node",
    "OperationRate",
    "Precision",
    "Queue",
    "Requirements",
    "Runtime",
    "Scheduler",
    "Wire",
]
