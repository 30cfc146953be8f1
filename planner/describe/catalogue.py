"""Catalogues: models, machines and frameworks by name, each a TOML file.

A path to a user's own file works wherever a name does, and for a model its name on the Hugging Face
hub. The two folders at the top of the repository ship inside the wheel as `planner/_catalogue/`.
"""

from __future__ import annotations

import functools
import json
import os
import re
from collections.abc import Callable
from pathlib import Path
from typing import TYPE_CHECKING, Any, TypeVar

from planner.describe.base import Description, shown
from planner.describe.dataset import Dataset
from planner.describe.files import read_toml
from planner.describe.framework.switches import merged, split_name
from planner.describe.machine import Machine
from planner.describe.model.model import Model
from planner.describe.model.traced_file import spelled as is_module_file
from planner.describe.model.traced_file import traced_fields
from planner.errors import DescriptionError, UnknownNameError, shorten
from planner.units import format_bytes, parse_places, parse_quantity

if TYPE_CHECKING:
    from planner.describe.framework.framework import Framework

__all__ = [
    "MOST_FREE",
    "catalogue_name",
    "leaving_free",
    "load_dataset",
    "load_framework",
    "load_machine",
    "load_model",
    "names",
    "overridden",
    "part_of_node",
    "read_toml",
]

D = TypeVar("D", bound=Description)

MOST_FREE = 90
"""Percent of the devices' memory that may be left free."""

_OF_ITS_OWN = ("name", "like", "title", "labels", "source", "notes", "configuration", "searched")
"""What a framework that is like another states itself."""
_PACKAGE = Path(__file__).parents[1]
_FOLDERS = {
    "model": "models",
    "machine": "hardware_profiles",
    "framework": "frameworks",
    "dataset": "datasets",
}


def folder(kind: str) -> Path:
    """Folder of a catalogue: in the package, in an installed wheel, or beside the package."""
    name = _FOLDERS[kind]
    if kind in ("framework", "dataset"):
        return Path(__file__).parent / name
    checkout = _PACKAGE.parent / name
    return checkout if checkout.is_dir() else _PACKAGE / "_catalogue" / name


@functools.cache
def names(kind: str) -> tuple[str, ...]:
    """Sorted names of a catalogue.

    >>> "polaris" in names("machine"), "mistral-7b" in names("model")
    (True, True)
    """
    return tuple(sorted(path.stem for path in folder(kind).glob("*.toml")))


def catalogue_name(kind: str, description: Description) -> str:
    """The name under which a catalogue has exactly this description; empty where it has not.

    >>> catalogue_name("model", load_model("gpt2")), catalogue_name("machine",
    ...     load_machine("polaris", ("device.memory_bytes=80GB",)))
    ('gpt2', '')
    """
    loaders: dict[str, Callable[[str], Description]] = {
        "model": load_model,
        "machine": load_machine,
        "framework": load_framework,
    }
    name: str = getattr(description, "name", "")
    plain = name.partition("+")[0] if kind == "framework" else name
    if plain in names(kind) and loaders[kind](name) == description:
        return name
    return ""


def _is_path(kind: str, name: object) -> bool:
    """Whether a name is a path; DescriptionError where it is no text at all."""
    if not isinstance(name, str):
        raise DescriptionError(
            f"{kind} = {shown(name)} is no name; give the name or the path of a {kind}"
        )
    return name.endswith((".toml", ".json")) or "/" in name or "\\" in name


def load_model(name: str, *, run: bool = True) -> Model:
    """A model by catalogue name, path, or name on the Hugging Face hub (org/name[@revision]).

    `FILE.py:FUNCTION` is a torch module of your own: the file is run and its module traced, in a
    process of its own (extra `torch`); `run=False` refuses that, for names that others wrote.

    A path is that of a TOML file, of a Hugging Face config.json or its folder; one that exists wins
    over a name. Of the hub only config.json is read (extra `hub`).

    >>> load_model("llama-3-8b").num_params
    8030261248
    """
    is_path = _is_path("model", name)
    if is_module_file(name):
        return Model.described(traced_fields(name, run=run), where=shorten(name))
    path = Path(os.path.expanduser(name))
    is_folder = os.path.isdir(path) and name != ""
    if is_path or (is_folder and name not in names("model")):
        from planner.describe.model.huggingface import hub

        # asked this way a text that no path can be is no error
        if hub.spelled(name) and not os.path.exists(path):
            return hub.load_from_hub(name)
        if is_folder:
            path = path / "config.json"
        if path.suffix == ".json":
            from planner.describe.model.huggingface.config import read_config

            return read_config(path)
        return _load(Model, path)
    return _named(Model, "model", name)


def load_machine(
    name: str,
    overrides: tuple[str, ...] = (),
    free_percent: float = 0.0,
    devices: int | None = None,
) -> Machine:
    """A machine by catalogue name, alias or TOML path, with `section.field=value` overrides.

    `free_percent` of the devices' memory are left free; with `devices` it is that part of one node.

    >>> load_machine("polaris", ("device.memory_bytes=80GB",)).device.memory_bytes.value
    80000000000.0
    """
    if _is_path("machine", name):
        machine = _load(Machine, Path(os.path.expanduser(name)))
    else:
        # other names stand inside the files, and reading them all takes time
        known = name in names("machine")
        machine = _named(Machine, "machine", name if known else aliases().get(name.lower(), name))
    machine = leaving_free(overridden(machine, overrides) if overrides else machine, free_percent)
    return machine if devices is None else part_of_node(machine, devices)


@functools.cache
def aliases() -> dict[str, str]:
    """Other names of machines, from the catalogue files."""
    return {
        alias.lower(): name
        for name in names("machine")
        for alias in read_toml(folder("machine") / f"{name}.toml").get("aliases", [])
    }


def load_framework(name: str) -> Framework:
    """A framework description by name or TOML path, with switches behind it.

    >>> load_framework("fsdp2").name, load_framework("fsdp2+compile").name
    ('fsdp2', 'fsdp2+compile')
    """
    from planner.describe.framework.framework import Framework

    is_path = _is_path("framework", name)
    plain, switches = split_name(name)
    if is_path or plain.endswith(".toml"):
        path = Path(os.path.expanduser(plain))
        found = _load(Framework, path).with_checked_switches()
    else:
        found = _named(Framework, "framework", plain)
    return found.with_switches(*switches) if switches else found


def load_dataset(name: str) -> Dataset:
    """A dataset by catalogue name or TOML path.

    >>> load_dataset("imagenet").num_samples.value
    1281167.0
    """
    if _is_path("dataset", name):
        return _load(Dataset, Path(os.path.expanduser(name)))
    return _named(Dataset, "dataset", name)


def _named(cls: type[D], kind: str, name: str) -> D:
    for candidate in (name, name.lower()):
        if candidate in names(kind):
            return _from_catalogue(cls, kind, candidate)
    raise UnknownNameError(kind, name, names(kind))


@functools.cache
def _from_catalogue(cls: type[D], kind: str, name: str) -> D:
    return _load(cls, folder(kind) / f"{name}.toml")


def _load(cls: type[D], path: Path) -> D:
    fields = read_toml(path)
    fields.setdefault("name", path.stem)
    if "like" in cls.model_fields:
        fields = _completed(fields)
    return cls.described(fields, where=shorten(path.name))


def _completed(fields: dict[str, Any]) -> dict[str, Any]:
    """The fields of a framework, with those of the one that it is like where it states none."""
    like = fields.get("like", "")
    if not isinstance(like, str) or not like:
        return fields
    if like not in names("framework"):
        raise UnknownNameError("framework", like, names("framework"))
    whole = _completed(read_toml(folder("framework") / f"{like}.toml") | {"name": like})
    return merged({k: v for k, v in whole.items() if k not in _OF_ITS_OWN}, fields)


def leaving_free(machine: Machine, percent: float) -> Machine:
    """A copy of `machine` without a part of its devices' memory, which nothing may then use.

    >>> leaving_free(load_machine("polaris"), 10).device.memory_bytes.source
    'the user leaves 10 % of 39.50 GiB free'
    """
    if not percent:
        return machine
    if not 0 < percent <= MOST_FREE:
        raise DescriptionError(
            f"free_percent = {percent:g} must lie between 0 and {MOST_FREE}; give the percent of "
            "every device's memory that is to be left free"
        )
    whole = machine.device.memory_bytes.value
    fields = machine.model_dump()
    fields["device"]["memory_bytes"] = {
        "value": whole * (1 - percent / 100),
        "kind": "assumed",
        "source": f"the user leaves {percent:g} % of {format_bytes(whole)} free",
    }
    return Machine.described(fields, where="memory left free")


_SHARED = ("num_cores", "host_memory_bytes", "host_memory_bytes_per_s", "power_watts")
_DEVICES_ASKED = re.compile(r"(--gres=gpu:(?:\w+:)?|--gpus-per-node=|--gpus=)(\d+)")


def part_of_node(machine: Machine, devices: int) -> Machine:
    """A machine of one node with the first devices of one of `machine`, for jobs on fewer.

    Where the batch system gives parts of nodes (Slurm without --exclusive, Kubernetes) the job has
    that part of cores, memory and disk too, else the whole node.

    >>> half = part_of_node(load_machine("vsc-5"), 1)
    >>> half.num_devices, half.node.num_cores.value, half.scheduler.launch.directives
    (1, 64.0, ('--gres=gpu:1',))
    """
    whole = machine.node.num_devices
    if not 1 <= devices <= whole:
        raise DescriptionError(
            f"{devices} devices are no part of a node of {machine.name}, which has {whole}; "
            f"give 1 to {whole}, or nodes"
        )
    if devices == whole and machine.num_nodes.value == 1:
        return machine
    fields = machine.model_dump()
    node, said = fields["node"], f"{devices} of {whole} devices of a node of {machine.name}"
    fields["num_nodes"] = {"value": 1, "kind": "assumed", "source": f"the job is on {said}"}
    node["num_devices"] = devices
    node["devices_per_card"] = min(node["devices_per_card"], devices)
    nics = sorted(set(node["nic_of_device"][:devices]))
    node["nic_of_device"] = [nics.index(nic) for nic in node["nic_of_device"][:devices]]
    node["num_nics"] = len(nics) if node["nic_of_device"] else node["num_nics"]
    wires = node["fabric"]["wires"]
    node["fabric"]["wires"] = [wire for wire in wires if max(wire["devices"]) < devices]
    launch = fields["scheduler"]["launch"]
    if launch:
        launch["directives"] = [
            _DEVICES_ASKED.sub(rf"\g<1>{devices}", asked) for asked in launch["directives"]
        ]
    asked = launch["directives"] if launch else []
    if machine.scheduler.kind in ("slurm", "kubernetes") and "--exclusive" not in asked:
        _share(fields, devices / whole, said)
    return Machine.described(fields, where="part of a node")


def _share(fields: dict[str, Any], share: float, said: str) -> None:
    """Leave a part of what all jobs of a node share."""
    node = fields["node"]
    shared = [node[name] for name in _SHARED if node[name]]
    for quantity in [*shared, *(node["local_disk"] or {}).values()]:
        quantity["value"] *= share
        quantity |= {"kind": "assumed", "source": f"the part of {said}; {quantity['source']}"}
    launch = fields["scheduler"]["launch"]
    if launch and launch["cpus"]:
        launch["cpus"] = max(int(launch["cpus"] * share), 1)


def overridden(machine: Machine, overrides: tuple[str, ...]) -> Machine:
    """A copy of `machine` with `section.field=value` replaced; values take units.

    `network=NAME` is the network of that name, for every framework.
    An overridden quantity or curve becomes `assumed` with the source "set by the user". Entries of
    a list go by their places: `node.fabric.wires.0-3,6.bytes_per_s=60GB/s`.
    """
    fields = machine.model_dump()
    for override in overrides:
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
    """What an override's next word names: a section, or of a list one entry or several."""
    if isinstance(table, (list, tuple)):
        return [table[place] for place in parse_places(part, len(table))]
    _check_field(table, part, key)
    return [table[part]]


def _check_field(table: Any, name: str, key: str) -> None:
    if not isinstance(table, dict) or name not in table:
        known = table if isinstance(table, dict) else []
        raise UnknownNameError("field", key, known, "`planner show` lists them")


def _replace(table: dict[str, Any], last: str, key: str, text: str) -> None:
    """Write an override's value; what has a source gets that of the user."""
    old, stated = table[last], {"kind": "assumed", "source": "set by the user"}
    if old is None or (isinstance(old, dict) and set(old) == {"value", *stated}):
        table[last] = {"value": parse_quantity(text), **stated}
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
        if set(stated) <= set(table):
            table |= stated
