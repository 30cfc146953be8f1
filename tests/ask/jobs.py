"""Jobs that are asked about, small enough to be worked out again in other ways."""

from __future__ import annotations

from typing import Any

from planner.describe.catalogue import load_machine
from planner.describe.machine import Machine
from planner.describe.workload import Workload

__all__ = ["OWN", "SHORT", "small_machine"]

SHORT = Workload(sequence_length=1024, global_batch=64, tokens=1e9)
"""A workload of which every search is quick."""

OWN: dict[str, dict[str, Any]] = {
    "nodes": {"most_nodes": 2},
    "deadline": {"days": 2.0, "most_nodes": 2},
    "cheapest": {"most_nodes": 2, "node_power": "2kW", "price_per_node_hour": 3.0, "days": 5.0},
    "scaling": {"most_nodes": 2, "kind": "weak"},
    "machine": {"against": ("vsc-5", "vsc-4")},
    "startup": {"most_nodes": 2, "environment": "nfs", "loading": "sharded"},
    "checkpoints": {"most_nodes": 2, "interval_minutes": 30.0},
    "model": {"days": 3.0},
    "sequence": {},
    "batch": {"nodes": 3},
    "largest-batch": {},
    "change": {"also": ("device.launch_s=1us",)},
    "zero": {"alone": True},
    "offload": {},
    "host": {},
    "memory": {},
    "data": {"dataset": "unet3d", "step_seconds": 0.3, "most_nodes": 4},
    "network": {"nodes": 2},
    "why": {"layout": "dp4 zero3 mb1x16 [fsdp2]"},
}
"""What each question is asked besides, of gpt2 on Polaris."""


def small_machine(nodes: int = 10) -> Machine:
    """A machine of few nodes of two A100 of 40 GB, with queues."""
    return load_machine("vsc-5", (f"num_nodes={nodes}",))
