"""Machine variants: overridden fields, memory left free, or a part of one node."""

import json
import re
from collections.abc import Iterable
from typing import Any

from planner.describe.base import assumed
from planner.describe.machine.machine import Machine
from planner.errors import DescriptionError, UnknownNameError, shorten
from planner.units import format_bytes, parse_places, parse_quantity

MAX_FREE_PERCENT = 90
"""Largest percentage of device memory that may be left free."""


def reserve_memory(machine: Machine, percent: float) -> Machine:
    """Reduce the device memory by a percentage that is left free for other uses."""
    if not percent:
        return machine
    if not 0 < percent <= MAX_FREE_PERCENT:
        raise DescriptionError(
            f"free_percent = {percent:g} must lie between 0 and {MAX_FREE_PERCENT}; give the "
            "percentage of every device's memory to leave free"
        )
    installed = machine.device.memory_bytes.value
    fields = machine.model_dump()
    source = f"the user leaves {percent:g} % of {format_bytes(installed)} free"
    fields["device"]["memory_bytes"] = assumed(installed * (1 - percent / 100), source)
    return Machine.described(fields, where="memory left free")


def vary(
    machine: Machine, overrides: str | tuple[str, ...], free_percent: float, devices: int | None
) -> Machine:
    """Apply overrides, memory left free, and a part of a node to a machine, in this order."""
    changed = override_fields(machine, overrides) if overrides else machine
    changed = reserve_memory(changed, free_percent)
    return changed if devices is None else take_devices(changed, devices)


_SHARED = ("num_cores", "host_memory_bytes", "host_memory_bytes_per_s", "power_watts")
_DEVICE_COUNT = re.compile(r"(--gres=gpu:(?:\w+:)?|--gpus-per-node=|--gpus=)(\d+)")


def take_devices(machine: Machine, devices: int) -> Machine:
    """Reduce a machine to the first `devices` of one node, with their share if jobs share nodes."""
    node_devices = machine.node.num_devices
    if not 1 <= devices <= node_devices:
        raise DescriptionError(
            f"a node of {machine.name} has {node_devices} devices, so {devices} cannot be used; "
            f"give 1 to {node_devices}, or nodes"
        )
    if devices == node_devices and machine.num_nodes.value == 1:
        return machine
    fields = machine.model_dump()
    node, part = fields["node"], f"{devices} of {node_devices} devices of a node of {machine.name}"
    fields["num_nodes"] = assumed(1, f"the job is on {part}")
    node["num_devices"] = devices
    node["devices_per_card"] = min(node["devices_per_card"], devices)
    nics = sorted(set(node["nic_of_device"][:devices]))
    node["nic_of_device"] = [nics.index(nic) for nic in node["nic_of_device"][:devices]]
    node["num_nics"] = len(nics) if node["nic_of_device"] else node["num_nics"]
    wires = node["fabric"]["wires"]
    node["fabric"]["wires"] = [wire for wire in wires if max(wire["devices"]) < devices]
    launch = fields["scheduler"]["launch"]
    directives = launch["directives"] if launch else []
    if launch:
        directives = [_DEVICE_COUNT.sub(rf"\g<1>{devices}", line) for line in directives]
        launch["directives"] = directives
    if machine.scheduler.kind in ("slurm", "kubernetes") and "--exclusive" not in directives:
        _share(fields, devices / node_devices, part)
    return Machine.described(fields, where="part of a node")


def _share(fields: dict[str, Any], share: float, part: str) -> None:
    """Scale the resources that the jobs of a node share, such as cores and host memory."""
    node = fields["node"]
    shared = [node[name] for name in _SHARED if node[name]]
    for quantity in [*shared, *(node["local_disk"] or {}).values()]:
        quantity["value"] *= share
        quantity |= {"kind": "assumed", "source": f"the part of {part}; {quantity['source']}"}
    launch = fields["scheduler"]["launch"]
    if launch and launch["cpus"]:
        launch["cpus"] = max(int(launch["cpus"] * share), 1)


def scale_fields(machine: Machine, paths: Iterable[str], factor: float) -> Machine:
    """Multiply the stated numbers at dotted paths by a factor; `*` means every entry."""
    fields = machine.model_dump()
    for path in paths:
        *sections, last = path.split(".")
        tables: list[Any] = [fields]
        for part in sections:
            if part == "*":
                lists = [t.values() if isinstance(t, dict) else t for t in tables]
                tables = [each for entries in lists for each in entries]
            else:
                tables = [each for table in tables if (each := table[part]) is not None]
        for table in tables:
            table[last] *= factor
    return Machine.described(fields, where="scaled")


def override_fields(machine: Machine, overrides: str | tuple[str, ...]) -> Machine:
    """Override fields of a machine: `section.field=value`, with units; list entries by index."""
    fields = machine.model_dump()
    for override in [overrides] if isinstance(overrides, str) else overrides:
        key, equals, text = override.partition("=")
        if not equals or not key.strip():
            raise DescriptionError(
                f"override {shorten(override)!r} is not of the form section.field=value; "
                "write for example device.memory_bytes=80GB"
            )
        if key.strip() == "network":
            chosen = Machine.described(fields, where="override").on_network(text.strip())
            fields = chosen.model_dump()
            continue
        _override(fields, key.strip(), text.strip())
    return Machine.described(fields, where="override")


def _override(fields: dict[str, Any], key: str, text: str) -> None:
    *path, last = key.split(".")
    tables: list[Any] = [fields]
    for part in path:
        tables = [inner for table in tables for inner in _inside(table, part, key)]
    for table in tables:
        _check_field(table, last, key)
        _replace(table, last, key, text)


def _inside(table: Any, part: str, key: str) -> list[Any]:
    if isinstance(table, (list, tuple)):
        return [table[place] for place in parse_places(part, len(table))]
    _check_field(table, part, key)
    return [table[part]]


def _check_field(table: Any, name: str, key: str) -> None:
    if not isinstance(table, dict) or name not in table:
        fields = table if isinstance(table, dict) else []
        raise UnknownNameError("field", key, fields, "`planner show` lists them")


def _replace(table: dict[str, Any], last: str, key: str, text: str) -> None:
    old, origin = table[last], {"kind": "assumed", "source": "set by the user"}
    if old is None or (isinstance(old, dict) and set(old) >= {"value", *origin}):
        table[last] = {"value": parse_quantity(text), **origin}
    elif isinstance(old, dict):
        raise DescriptionError(
            f"{key} is a section, not a value; name a field in it: {', '.join(sorted(old))}"
        )
    elif isinstance(old, str):
        table[last] = text
    else:
        try:
            table[last] = json.loads(text)
        except (ValueError, RecursionError):
            table[last] = parse_quantity(text)
        if set(origin) <= set(table):
            table |= origin
