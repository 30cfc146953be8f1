"""Offloading: what a framework can keep on the host or the local disk, at which ZeRO stages."""

from __future__ import annotations

import numpy as np

from planner.choose.job_checks import listed
from planner.cost.arrays import Mask, among
from planner.cost.scenario import Scenario
from planner.cost.shards.layouts import Layouts
from planner.describe.layout import OFFLOAD, Layout
from planner.units import either

__all__ = ["offload_message", "offloads"]


def offloads(q: Scenario, x: Layouts) -> Mask:
    """Which layouts offload nothing, or what the framework can, to what the machine has."""
    fw, disk = q.framework, q.machine.node.local_disk is not None
    staged = among(x.zero_stage, fw.offload_stages)
    to_host = staged & ("cpu" in fw.offload_optimizer)
    to_disk = staged & x.shards_weights & ("nvme" in fw.offload_optimizer) & disk
    all_to_host = x.shards_weights & ("cpu" in fw.offload_parameters)
    all_to_disk = x.shards_weights & ("nvme" in fw.offload_parameters) & disk
    host = np.where(x.weights_on_host, all_to_host, to_host)
    off = np.where(x.weights_on_disk, all_to_disk, to_disk)
    return x.keeps_states | np.where(x.states_on_host, host, off)


def offload_message(q: Scenario, x: Layout) -> str:
    """How a layout asks for an offload that is not there, and which there are."""
    if "nvme" in x.offload and q.machine.node.local_disk is None:
        return (
            f"offload {x.offload!r}: {q.machine.name} has no node-local NVMe; use optimizer-cpu "
            "or all-cpu"
        )
    stages = _stages(q, x)
    if stages:
        return (
            f"offload {x.offload!r} of {q.framework.name} needs ZeRO stage "
            f"{listed(stages)}, not {x.zero_stage}; change one of them"
        )
    offered = [name for name in OFFLOAD if _stages(q, x.replaced(offload=name))]
    return f"offload {x.offload!r} is not offered by {q.framework.name}; use {either(offered)}"


def _stages(q: Scenario, x: Layout) -> list[int]:
    """ZeRO stages of the framework at which it offloads as the layout does."""
    stages = q.framework.stages(q.workload.precision)
    held = offloads(q, Layouts.stack([x.replaced(zero_stage=stage) for stage in stages]))
    return [stage for stage, holds in zip(stages, held, strict=True) if holds]
