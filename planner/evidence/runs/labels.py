"""Mappings: which machine and precision the labels of published runs stand for.

Tables first, the functions that read them below. Labels are compared in lower case with every
run of other characters than letters, digits and dots turned into one blank.
"""

from __future__ import annotations

import functools
import math
import re

from planner.describe.catalogue import load_machine, names
from planner.describe.machine import Machine
from planner.errors import PlannerError, shorten

__all__ = [
    "machine_of",
    "normalised",
    "precision_of",
    "year_of",
]

GIB_NOMINAL = 0.99
"""Usable share of a device's nominal memory, where a row overrides the catalogue."""


SYSTEMS: tuple[tuple[str, tuple[str, ...]], ...] = (
    ("meta 24k", ("dgx-h100",)),
    ("selene", ("selene",)),
    ("eos", ("eos",)),
    ("polaris", ("polaris",)),
    ("aurora", ("aurora",)),
    ("sunspot", ("aurora",)),
    ("borealis", ("aurora",)),
    ("dawn", ("aurora",)),
    ("frontier", ("frontier",)),
    ("crusher", ("frontier",)),
    ("lumi", ("lumi-g",)),
    ("jean zay", ("jean-zay-a100", "jean-zay-v100")),
    ("perlmutter", ("perlmutter", "perlmutter-80gb")),
    ("leonardo", ("leonardo",)),
    ("juwels", ("juwels-booster",)),
    ("jupiter", ("jupiter",)),
    ("alps", ("alps",)),
    ("clariden", ("alps",)),
    ("isambard", ("isambard-ai",)),
    ("vista", ("vista",)),
    ("marenostrum", ("mn5-acc",)),
    ("mn5", ("mn5-acc",)),
    ("summit", ("summit",)),
    ("sophia", ("sophia",)),
    ("thetagpu", ("thetagpu",)),
    ("vsc 5", ("vsc-5", "vsc-5-a40")),
    ("p4de", ("aws-p4de",)),
    ("p4d", ("aws-p4d",)),
    ("p5", ("aws-p5",)),
    ("mosaicml", ("a100-40gb-roce", "a100-80gb-roce")),
    ("superpod", ("dgx-a100", "dgx-h100", "dgx-b200")),
    ("dgx 1", ("dgx-1v",)),
    ("dgx 2", ("dgx-2",)),
    ("grand teton", ("grand-teton", "dgx-h100")),
    ("a100 cluster 800 gb", ("a100-hdr4",)),
    ("h100 nodes fabric not stated", ("h100-cluster",)),
    ("hf cluster", ("h100-cluster",)),
    ("hugging face cluster", ("h100-cluster",)),
)
"""Systems by name; of several machines the one with the row's device and memory is taken."""

DEVICES: tuple[tuple[str, str], ...] = (
    ("gb300", "GB300"),
    ("gb200", "GB200"),
    ("gh200", "GH200"),
    ("b300", "B300"),
    ("b200", "B200"),
    ("h200", "H200"),
    ("h100", "H100"),
    ("h800", "H800"),
    ("a100", "A100"),
    ("a800", "A800"),
    ("v100", "V100"),
    ("a40", "A40"),
    ("a10g", "A10G"),
    ("4090", "4090"),
    ("3090", "3090"),
    ("mi355x", "MI355X"),
    ("mi350x", "MI350X"),
    ("mi325x", "MI325X"),
    ("mi300x", "MI300X"),
    ("mi300a", "MI300A"),
    ("mi250", "MI250X"),
    ("pvc", "Max 1550"),
    ("max 1550", "Max 1550"),
    ("ponte vecchio", "Max 1550"),
    ("l40s", "L40S"),
    ("t4", "T4"),
    ("p100", "P100"),
    ("ampere", "A100"),
    ("hopper", "H100"),
)
"""Words of a label and how product names in the catalogue spell the device."""

SLOWER_LINKS: dict[str, tuple[str, str]] = {"H800": ("H100", "200e9"), "A800": ("A100", "200e9")}
"""Devices that are another one with 8 NVLinks of 25 GB/s each way: DeepSeek-V3 reaches 160 GB/s of
them on H800 (arXiv:2412.19437, section 3.1)."""

GENERIC: tuple[str, ...] = (
    "dgx-a100",
    "dgx-h100",
    "dgx-h200",
    "dgx-b200",
    "polaris",
    "perlmutter",
    "jean-zay-v100",
    "lumi-g",
    "aurora",
    "alps",
)
"""Taken first where no system is named; then any machine with that device."""

PRECISIONS: tuple[tuple[str, str], ...] = (
    ("fp8", "fp8"),
    ("float8", "fp8"),
    ("bf16", "bf16"),
    ("bfloat16", "bf16"),
    ("fp16", "fp16"),
    ("float16", "fp16"),
    ("half", "fp16"),
    ("amp", "fp16"),
    ("mixed", "bf16"),
    ("tf32", "tf32"),
    ("fp32", "fp32"),
    ("float32", "fp32"),
)
"""Words of a precision label; first match wins."""


def normalised(label: str) -> str:
    """Lower case, everything but letters, digits and dots as single blanks.

    >>> normalised("Megatron-DeepSpeed (bigscience)")
    'megatron deepspeed bigscience'
    """
    return " ".join(re.findall(r"[a-z0-9.]+", label.lower()))


def year_of(label: str) -> int | None:
    """First year in a label; NVIDIA's container versions such as 25.09 count as years.

    >>> year_of("2022-02-28"), year_of("26.04.01"), year_of("")
    (2022, 2026, None)
    """
    found = re.search(r"(?:19|20)\d\d", label)
    if found:
        return int(found[0])
    release = re.match(r"(\d\d)\.\d\d\b", label.strip())
    return 2000 + int(release[1]) if release else None


def precision_of(label: str) -> str | None:
    """Training precision of a label; None where it names none.

    >>> precision_of("bf16 (fp32 grad accumulation)"), precision_of("mxfp8")
    ('bf16', 'fp8')
    """
    text = normalised(label)
    if "fp4" in text:
        raise PlannerError(f"precision = {shorten(label, 40)!r}: 4-bit training is not modelled")
    return next((name for word, name in PRECISIONS if word in text), None)


def device_of(gpu: str, system: str) -> str | None:
    """The catalogue's spelling of the device that a row names, in `gpu` or else in `system`."""
    for label in (gpu, system):
        text = normalised(label)
        for word, device in DEVICES:
            if re.search(rf"(?<![a-z0-9]){word}", text):
                return device
    return None


def _named_systems(system: str) -> tuple[str, ...]:
    text = normalised(system)
    for words, machines in SYSTEMS:
        if re.search(rf"(?<![a-z0-9]){re.escape(words)}", text):
            return machines
    for name in names("machine"):
        if len(name) > 3 and name.replace("-", " ") in text:
            return (name,)
    return ()


@functools.cache
def machine_of(
    system: str, gpu: str, memory_gb: float | None, per_node: int | None
) -> tuple[Machine, str, tuple[str, ...]]:
    """Machine, its label, and what was assumed, for the cells that name hardware.

    PlannerError where no profile has the device.
    """
    found, links, assumed = _candidates(system, gpu, per_node)
    machine = min(found, key=lambda m: _distance(m, memory_gb))
    overrides, changed = _memory_override(machine, memory_gb)
    overrides = (*links, *overrides)
    if not assumed and machine.name not in _named_systems(system):
        assumed += (f"system {shorten(system, 40) or 'not stated'!r} is taken as {machine.name}",)
        if per_node not in (None, machine.node.num_devices):
            size = machine.node.num_devices
            assumed += (f"gpus_per_node = {per_node} has no profile: {size} as on {machine.name}",)
    label = machine.name + "".join(f" ({override})" for override in overrides)
    return load_machine(machine.name, overrides), label, (*assumed, *changed)


def _candidates(
    system: str, gpu: str, per_node: int | None
) -> tuple[list[Machine], tuple[str, ...], tuple[str, ...]]:
    """Machines that the cells may mean, what differs from their profiles, what was assumed."""
    device = device_of(gpu, system)
    wanted = [load_machine(name) for name in _existing(_named_systems(system))]
    if device is None and not gpu and wanted:
        return wanted, (), (f"gpu missing: that of {wanted[0].name}",)
    if device is None:
        raise PlannerError(
            f"gpu = {shorten(gpu, 40)!r} is no device of the catalogue; add a hardware profile"
        )
    links: tuple[str, ...] = ()
    if device in SLOWER_LINKS:
        device, rate = SLOWER_LINKS[device]
        links = (f"node.fabric.pair_bytes_per_s={rate}", f"node.fabric.device_bytes_per_s={rate}")
    named = [machine for machine in wanted if device in machine.device.name]
    return named or _generic(device, per_node, "pcie" in gpu.lower()), links, ()


def _existing(wanted: tuple[str, ...]) -> tuple[str, ...]:
    return tuple(name for name in wanted if name in names("machine"))


def _generic(device: str, per_node: int | None, pcie: bool) -> list[Machine]:
    ordered = _existing(GENERIC) + tuple(n for n in names("machine") if n not in GENERIC)
    found = [
        machine
        for machine in map(load_machine, ordered)
        if re.search(rf"(?<![A-Za-z0-9]){device}", machine.device.name)
        and ("PCIE" in machine.device.name.upper()) == pcie
    ]
    if not found:
        raise PlannerError(f"no hardware profile has a {device}; add one to score such rows")
    sizes = {machine.node.num_devices for machine in found}
    nearest = min(sizes, key=lambda size: abs(math.log(size / (per_node or max(sizes)))))
    return [m for m in found if per_node is None or m.node.num_devices == nearest]


def _distance(machine: Machine, memory_gb: float | None) -> float:
    """How far the device's memory is from the row's, in steps of 15 %: ties keep the order."""
    if memory_gb is None:
        return 0.0
    ratio = machine.device.memory_bytes.value / (memory_gb * 2**30)
    return round(abs(ratio - 1) / 0.15)


def _memory_override(
    machine: Machine, memory_gb: float | None
) -> tuple[tuple[str, ...], tuple[str, ...]]:
    if memory_gb is None or _distance(machine, memory_gb) == 0:
        return (), ()
    return (
        (f"device.memory_bytes={memory_gb * GIB_NOMINAL:.2f}GiB",),
        (f"device memory is {memory_gb:g} GB as the row says, else as on {machine.name}",),
    )
