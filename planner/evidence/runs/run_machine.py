"""Machines of runs: the hardware profile for the cells of a row."""

import functools
import itertools
import math
import re
from dataclasses import dataclass

from planner.describe.catalogue import load_machine, names
from planner.describe.machine import Machine
from planner.errors import PlannerError, shorten
from planner.evidence.runs.labels import known_labels, normalised

_RATE = r"(?<![\w.-])(\d+(?:\.\d+)?) ([GT])b/s"
_EACH_OF = re.compile(rf"(?<![\w.-])(\d+) x (?:(?! x )[^;()])*?{_RATE}")
_TIMES = re.compile(rf"{_RATE}[^;()]*? x ?(\d+)\b")
_IN_ALL = re.compile(rf"{_RATE}[^;]*?\bper (gpu|node)")
_ONLY_RATE = re.compile(_RATE)
_BYTES_PER_S = {"G": 1e9 / 8, "T": 1e12 / 8}
_SAME_RATE = 0.05
"""Largest relative difference of a row's rate per node from the profile's that is ignored."""
_GIB_NOMINAL = 0.99
"""Usable share of a device's nominal memory, if a row overrides the catalogue."""


def device_of(gpu: str, system: str) -> str | None:
    """Return the catalogue's spelling of the device named in `gpu`, else in `system`; or None."""
    for label in (gpu, system):
        text = normalised(label)
        for row in known_labels().devices:
            for word, device in row.words.items():
                if re.search(rf"(?<![a-z0-9]){word}", text):
                    return device
    return None


@functools.cache
def _labels() -> tuple[tuple[str, tuple[str, ...]], ...]:
    """List labels with their machines, the least ambiguous and longest first."""
    machines: dict[str, list[str]] = {}
    for name in names("machine"):
        for label in load_machine(name).labels:
            machines.setdefault(label, []).append(name)
    ordered = sorted(machines, key=lambda label: (len(machines[label]), -len(label), label))
    return tuple(
        (label, tuple(sorted(machines[label], key=lambda n: (normalised(n) != label, n))))
        for label in ordered
    )


def _named_systems(system: str) -> tuple[str, ...]:
    text = normalised(system)
    for words, machines in _labels():
        if re.search(rf"(?<![a-z0-9]){re.escape(words)}", text):
            return machines
    called = (n for n in names("machine") if len(n) > 3 and n.replace("-", " ") in text)
    return tuple(itertools.islice(called, 1))


@dataclass(frozen=True, slots=True)
class Place:
    """Machine of a run."""

    machine: Machine
    label: str
    """Catalogue name with overrides."""
    notes: tuple[str, ...] = ()
    """Assumptions about it, as sentences."""


@functools.cache
def machine_of(
    system: str, gpu: str, memory_gb: float | None, per_node: int | None, interconnect: str = ""
) -> Place:
    """Find the machine for the hardware cells. Raises PlannerError if no profile has the device."""
    notes: list[str] = []
    candidates, links = _candidates(system, gpu, per_node, notes)
    machine = min(candidates, key=lambda m: _distance(m, memory_gb))
    if not notes and machine.name not in _named_systems(system):
        notes.append(f"system {shorten(system, 40) or 'not stated'!r} is taken as {machine.name}")
        if per_node not in (None, size := machine.node.num_devices):
            notes.append(f"gpus_per_node = {per_node} has no profile: {size} as on {machine.name}")
    memory = _memory_override(machine, memory_gb, notes)
    overrides = (*links, *memory, *_nics_override(machine, interconnect, notes))
    label = machine.name + "".join(f" ({override})" for override in overrides)
    return Place(load_machine(machine.name, overrides), label, tuple(notes))


def _candidates(
    system: str, gpu: str, per_node: int | None, notes: list[str]
) -> tuple[list[Machine], tuple[str, ...]]:
    device = device_of(gpu, system)
    wanted = [load_machine(name) for name in _named_systems(system)]
    if device is None and not gpu and wanted:
        notes.append(f"gpu missing: that of {wanted[0].name}")
        return wanted, ()
    if device is None:
        raise PlannerError(
            f"gpu = {shorten(gpu, 40)!r} is not a device of the catalogue; add a hardware profile"
        )
    slower = next((row for row in known_labels().slower_links if row.device == device), None)
    device, links = (slower.like, slower.overrides) if slower else (device, ())
    named = [machine for machine in wanted if device in machine.device.name]
    return named or _generic(device, per_node, "pcie" in gpu.lower()), links


def _generic(device: str, per_node: int | None, pcie: bool) -> list[Machine]:
    usual = known_labels().usual_machines
    ordered = (*usual, *(name for name in names("machine") if name not in usual))
    candidates = [
        machine
        for machine in map(load_machine, ordered)
        if re.search(rf"(?<![A-Za-z0-9]){device}", machine.device.name)
        and ("PCIE" in machine.device.name.upper()) == pcie
    ]
    if not candidates:
        raise PlannerError(f"no hardware profile has a {device}; add one to score such rows")
    sizes = {machine.node.num_devices for machine in candidates}
    nearest = min(sizes, key=lambda size: abs(math.log(size / (per_node or max(sizes)))))
    return [m for m in candidates if per_node is None or m.node.num_devices == nearest]


def _distance(machine: Machine, memory_gb: float | None) -> float:
    """Return the difference of device memory from the row's, in steps of 15 %."""
    if memory_gb is None:
        return 0.0
    ratio = machine.device.memory_bytes.value / (memory_gb * 2**30)
    return round(abs(ratio - 1) / 0.15)


def _memory_override(
    machine: Machine, memory_gb: float | None, notes: list[str]
) -> tuple[str, ...]:
    if memory_gb is None or _distance(machine, memory_gb) == 0:
        return ()
    notes.append(f"device memory is {memory_gb:g} GB as the row states, else as on {machine.name}")
    return (f"device.memory_bytes={memory_gb * _GIB_NOMINAL:.2f}GiB",)


def interfaces(interconnect: str, machine: Machine) -> tuple[int, float] | None:
    """Return a node's network interfaces and the rate of each in a cell [B/s]; None without."""
    text = _plain(interconnect)
    if match := _EACH_OF.search(text):
        return int(match[1]), float(match[2]) * _BYTES_PER_S[match[3]]
    if match := _TIMES.search(text):
        return int(match[3]), float(match[1]) * _BYTES_PER_S[match[2]]
    if (match := _IN_ALL.search(text)) is None:
        return None
    rate = float(match[1]) * _BYTES_PER_S[match[2]]
    if match[3] == "gpu":
        return machine.node.num_devices, rate
    count = machine.node.num_nics
    return (count, rate / count) if count else None


def _plain(interconnect: str) -> str:
    """Return the cell with counts and rates in one spelling."""
    labels = known_labels()
    for pattern, plain in labels.rates.items():
        interconnect = re.sub(pattern, plain, interconnect)
    if not _ONLY_RATE.search(interconnect):
        for pattern, rate in labels.infiniband.items():
            interconnect = re.sub(pattern, f"{rate} Gb/s", interconnect)
    return interconnect


def _nics_override(machine: Machine, interconnect: str, notes: list[str]) -> tuple[str, ...]:
    """Return overrides for the row's interfaces, if their rate differs from the profile's."""
    if machine.network is None:
        return ()
    count, rate = interfaces(interconnect, machine) or (0, 0.0)
    if not (1 <= count <= 64 and 1e6 <= rate <= 1e15):
        if _ONLY_RATE.search(_plain(interconnect)):
            cell = f"interconnect = {shorten(interconnect, 40)!r}"
            notes.append(f"{cell} states no count and rate of interfaces: as on {machine.name}")
        return ()
    if abs(count * rate / machine.node_bytes_per_s - 1) <= _SAME_RATE:
        return ()
    notes.append(
        f"interfaces are {count} of {rate / 1e9:g} GB/s as the row states, else as on "
        f"{machine.name}"
    )
    devices = machine.node.num_devices
    spread = [device * count // devices for device in range(devices)]
    return (
        f"node.num_nics={count}",
        f"node.nic_bytes_per_s={rate:g}",
        f"node.nic_of_device={spread}",
    )
