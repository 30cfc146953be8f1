"""Decision guide of HPC centres: the case of a job among its eight, and its recommendation."""

from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from enum import Enum

import numpy as np

from planner.choose.preferences import preferences
from planner.cost.arrays import Mask
from planner.cost.memory.activations import stage_activations
from planner.cost.memory.footprint import Footprints, footprints
from planner.cost.scenario import Scenario
from planner.cost.shards.layouts import Layouts
from planner.cost.shards.stages import Stages
from planner.describe.layout import Layout, Recompute
from planner.describe.machine import Machine
from planner.units import format_bytes, format_rate

_ZERO = ("ZeRO-1", "ZeRO-2", "ZeRO-3 / FSDP", "hybrid FSDP")
_THREE = ("TP", "PP", "TP + PP", "3D (TP + PP + DP)")


def _plain(x: Layouts) -> Mask:
    return (x.tp == 1) & ~x.piped & (x.cp == 1) & x.keeps_states & (x.tiles == 1)


def _on_device(x: Layouts) -> Mask:
    return (x.cp == 1) & x.keeps_states & (x.tiles == 1)


@dataclass(frozen=True, slots=True)
class GuideAdvice:
    """Recommendation of the guide: a text, classic strategies and a condition on layouts."""

    text: str
    strategies: tuple[str, ...]
    holds: Callable[[Layouts], Mask]
    before: str = ""
    """Strategy to prefer over the others if it fits."""


class GuideCase(Enum):
    """The eight cases of the decision guide; the one of a single node is split by its links."""

    SINGLE_DEVICE = GuideAdvice("one device, without parallelism", ("single device",), _plain)
    SINGLE_DEVICE_OFFLOAD = GuideAdvice(
        "ZeRO with offload to the CPU, or to NVMe",
        ("ZeRO + CPU offload", "ZeRO + NVMe offload"),
        lambda x: ~x.keeps_states & (x.tiles == 1),
    )
    SINGLE_DEVICE_TILED = GuideAdvice(
        "ZeRO-3 with memory-centric tiling, and offload",
        ("ZeRO-3 in tiles",),
        lambda x: x.tiles > 1,
    )
    DATA_PARALLEL = GuideAdvice("data parallelism (DDP, or ZeRO)", ("DDP", *_ZERO), _plain)
    NODE_FAST = GuideAdvice(
        "PP, ZeRO or TP, which are about as fast where devices are wired to each other",
        (*_ZERO, "PP", "TP", "TP + PP"),
        _on_device,
    )
    NODE_SLOW = GuideAdvice(
        "PP before ZeRO before TP, because the devices are not wired to each other",
        ("PP", *_ZERO),
        lambda x: _on_device(x) & (x.tp == 1),
        before="PP",
    )
    LAYER_TOO_LARGE = GuideAdvice(
        "TP, or ZeRO-3 with memory-centric tiling; a pipeline alone does not cut a layer",
        ("TP", "TP + PP", "3D (TP + PP + DP)", "ZeRO-3 in tiles"),
        lambda x: (x.tp > 1) | (x.tiles > 1),
    )
    NETWORK_FAST = GuideAdvice(
        "ZeRO, or TP within the node + PP + DP", (*_ZERO, *_THREE), _on_device
    )
    NETWORK_SLOW = GuideAdvice(
        "DP + PP + TP with ZeRO-1, TP within the node",
        (*_THREE, "ZeRO-1"),
        lambda x: _on_device(x) & ~x.shards_gradients,
    )


def apply_guide(scenarios: Sequence[Scenario], nodes: int) -> tuple[GuideCase, str]:
    """Find the guide's case of a job, and explain it for the framework that needs least memory."""
    pairs = [(scenario, _on_one_device(scenario)) for scenario in scenarios]
    scenario, footprint = min(pairs, key=lambda pair: float(pair[1].memory_bytes[0]))
    limit, parts_bytes = format_bytes(footprint.device_limit_bytes), footprint.memory_parts_bytes
    states = [parts_bytes[name][0] for name in ("weights", "gradients", "optimizer_states")]
    size = (
        f"{format_bytes(float(footprint.memory_bytes[0]))} with micro-batches of one "
        f"{_sample(scenario)}, {format_bytes(float(sum(states)))} of them weights, gradients and "
        "optimizer states"
    )
    is_single = nodes * scenario.machine.node.num_devices == 1
    if footprint.fits_device[0]:
        case = GuideCase.SINGLE_DEVICE if is_single else GuideCase.DATA_PARALLEL
        return case, f"the model fits one device of {limit} ({size}): {case.value.text}"
    layer_bytes, parts = _largest_layer(scenario)
    if layer_bytes > footprint.device_limit_bytes:
        case = GuideCase.SINGLE_DEVICE_TILED if is_single else GuideCase.LAYER_TOO_LARGE
        why = f"not even the largest layer fits one device of {limit} ({parts})"
    else:
        case, where = _case_by_machine(scenario.machine, nodes)
        why = f"the model does not fit one device of {limit} ({size}){where}"
    return case, f"{why}: {case.value.text}"


def _sample(scenario: Scenario) -> str:
    """Unit of a batch in the singular, such as sequence."""
    return scenario.workload.batch_unit.removesuffix("s")


def _case_by_machine(machine: Machine, nodes: int) -> tuple[GuideCase, str]:
    """Find the case of a model that does not fit one device, and the reason in words."""
    if nodes > 1:
        rate = machine.node_bytes_per_s / machine.node.num_devices
        is_fast = rate >= preferences().guide.fast_network_bytes_per_s.value
        case = GuideCase.NETWORK_FAST if is_fast else GuideCase.NETWORK_SLOW
        speed = "fast" if is_fast else "slow"
        return case, f", several nodes, {speed} network ({format_rate(rate)} per device)"
    if machine.node.num_devices == 1:
        return GuideCase.SINGLE_DEVICE_OFFLOAD, ""
    wired = machine.node.fabric.wired
    return (GuideCase.NODE_FAST if wired else GuideCase.NODE_SLOW), ", one node"


def _on_one_device(scenario: Scenario) -> Footprints:
    """Memory of the model on one device with micro-batch 1, and full recompute if offered."""
    workload = scenario.workload.replaced(global_batch=1)
    recompute: Recompute = "full" if "full" in scenario.framework.recompute else "none"
    stages = scenario.framework.zero_stages_for(scenario.workload.precision)
    layout = Layout(recompute=recompute, zero_stage=min(stages))
    return footprints(replace(scenario, workload=workload), Layouts.stack([layout]))


def _largest_layer(scenario: Scenario) -> tuple[float, str]:
    """Least memory to compute the largest layer, and its parts in words [B]."""
    stages = Stages.of_pipeline(scenario, Layout(recompute="full"))
    largest = max(stages.blocks, key=lambda b: b.num_params if b.kind == "layer" else 0)
    size = float(scenario.workload.compute_bytes)
    weights = largest.num_params * size
    matrices = (w.rows * w.columns * w.copies for w in largest.weights if w.trainable)
    gradient = max(matrices, default=0) * size
    layer = stage_activations(stages).layer
    activations = float(np.max(layer.saved + layer.working))
    parts = (
        f"{format_bytes(weights)} of weights, {format_bytes(gradient)} for the gradient of its "
        f"largest matrix, {format_bytes(activations)} of activations of one {_sample(scenario)}"
    )
    return weights + gradient + activations, parts
