"""Catalogues: models, machines, frameworks and datasets by name or path, each one TOML file."""

from __future__ import annotations

import functools
import os
from collections.abc import Callable
from pathlib import Path
from typing import TYPE_CHECKING, Any, TypeVar

from planner.describe.base import Description, quote
from planner.describe.files import read_toml
from planner.describe.framework.switches import merge_tables, split_name
from planner.describe.machine import Machine
from planner.describe.machine.variants import vary
from planner.describe.model.model import Model
from planner.describe.model.traced_file import is_python_file, traced_fields
from planner.describe.training.training_run import Dataset
from planner.errors import DescriptionError, UnknownNameError, shorten

if TYPE_CHECKING:
    from planner.describe.framework.framework import Framework

D = TypeVar("D", bound=Description)


_NOT_INHERITED = ("name", "like", "title", "source", "notes", "configuration", "searched")
"""Fields that a framework does not inherit through `like`."""
_PACKAGE = Path(__file__).parents[1]


def folder(kind: str) -> Path:
    """Folder of a catalogue: in the package; in a checkout, models and machines are next to it."""
    if kind in ("framework", "bundle", "dataset"):
        return Path(__file__).parent / "catalogues" / f"{kind}s"
    name = {"model": "models", "machine": "hardware_profiles"}[kind]
    checkout = _PACKAGE.parent / name
    return checkout if checkout.is_dir() else _PACKAGE / "_catalogue" / name


@functools.cache
def names(kind: str) -> tuple[str, ...]:
    """Sorted names of a catalogue."""
    return tuple(sorted(path.stem for path in folder(kind).glob("*.toml")))


def catalogue_name(kind: str, description: Description) -> str:
    """Name of the catalogue entry that equals this description; empty if there is none."""
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
    """True if a name is a path; raises DescriptionError if it is not text."""
    if not isinstance(name, str):
        raise DescriptionError(
            f"{kind} = {quote(name)} is not a name; give the name or the path of a {kind}"
        )
    return name.endswith((".toml", ".json")) or "/" in name or "\\" in name


def load_model(name: str, *, run: bool = True) -> Model:
    """Load a model by name, path, hub name (org/name[@revision]) or FILE.py:FUNCTION (if `run`)."""
    is_path = _is_path("model", name)
    if is_python_file(name):
        return Model.described(traced_fields(name, run=run), where=shorten(name))
    path = Path(os.path.expanduser(name))
    is_folder = os.path.isdir(path) and name != ""
    if is_path or (is_folder and name not in names("model")):
        from planner.describe.model.huggingface import hub

        # os.path.exists returns False, without an error, for text that cannot be a path
        if hub.parse_hub_name(name) and not os.path.exists(path):
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
    overrides: str | tuple[str, ...] = (),
    free_percent: float = 0.0,
    devices: int | None = None,
) -> Machine:
    """Load a machine by name, alias or path: with overrides, memory left free, part of a node."""
    if _is_path("machine", name):
        machine = _load(Machine, Path(os.path.expanduser(name)))
    else:
        # aliases are inside the files, and reading all files takes time
        is_name = name in names("machine")
        machine = _named(Machine, "machine", name if is_name else aliases().get(name.lower(), name))
    return vary(machine, overrides, free_percent, devices)


@functools.cache
def aliases() -> dict[str, str]:
    """Aliases of machines, from the catalogue files."""
    return {
        alias.lower(): name
        for name in names("machine")
        for alias in read_toml(folder("machine") / f"{name}.toml").get("aliases", [])
    }


_OTHER_NAMES = read_toml(Path(__file__).parent / "catalogues" / "other_names.toml")
"""Names by which people call entries of the catalogues, and why some have none."""


def load_framework(name: str) -> Framework:
    """Load a framework by name or TOML path, with switches."""
    from planner.describe.framework.framework import Framework

    is_path = _is_path("framework", name)
    plain, switches = split_name(name)
    if is_path or plain.endswith(".toml"):
        path = Path(os.path.expanduser(plain))
        framework = _load(Framework, path).with_checked_switches()
    else:
        framework = _named(
            Framework, "framework", _OTHER_NAMES["frameworks"].get(plain.lower(), plain)
        )
    return framework.with_switches(*switches) if switches else framework


def load_dataset(name: str) -> Dataset:
    """Load a dataset by catalogue name or TOML path."""
    if _is_path("dataset", name):
        return _load(Dataset, Path(os.path.expanduser(name)))
    return _named(Dataset, "dataset", name)


def _named(cls: type[D], kind: str, name: str) -> D:
    for candidate in (name, name.lower()):
        if candidate in names(kind):
            return _from_catalogue(cls, kind, candidate)
    for start, reason in _OTHER_NAMES["missing"].get(kind, {}).items():
        if name.lower().startswith(start):
            raise DescriptionError(f"{kind} {shorten(name)!r}: {reason}")
    listing = f"`planner {kind}s` lists all {len(names(kind))}"
    if not name:
        raise DescriptionError(f"no {kind} is named; name one, {listing}")
    if kind == "model":
        listing += "; your own: a config.json, a TOML file, or org/name of the hub"
    raise UnknownNameError(kind, name, names(kind), listing)


@functools.cache
def _from_catalogue(cls: type[D], kind: str, name: str) -> D:
    return _load(cls, folder(kind) / f"{name}.toml")


def _load(cls: type[D], path: Path) -> D:
    fields = read_toml(path)
    fields.setdefault("name", path.stem)
    if "like" in cls.model_fields:
        fields = _complete(fields)
    return cls.described(fields, where=shorten(path.name))


def _complete(fields: dict[str, Any]) -> dict[str, Any]:
    """Merge traits of the `like` framework, of the bundles and of the framework; later ones win."""
    base: dict[str, Any] = {}
    if (like := fields.get("like", "")) and isinstance(like, str):
        if like not in names("framework"):
            raise UnknownNameError("framework", like, names("framework"))
        base = _complete(read_toml(folder("framework") / f"{like}.toml") | {"name": like})
    traits = {key: value for key, value in base.items() if key not in _NOT_INHERITED}
    bundles = fields.get("bundles", [])
    if not isinstance(bundles, list):
        raise DescriptionError(f"bundles = {quote(bundles)} is not a list; write names in brackets")
    for bundle in bundles:
        if bundle not in names("bundle"):
            raise UnknownNameError("bundle", str(bundle), names("bundle"))
        table = read_toml(folder("bundle") / f"{bundle}.toml")
        traits = merge_tables(traits, {key: table[key] for key in table if key != "title"})
    traits = merge_tables(traits, {key: value for key, value in fields.items() if key != "bundles"})
    blocks = traits.get("code", {}).get("other_blocks")
    if isinstance(blocks, str):
        wrapped = _complete(read_toml(folder("framework") / f"{blocks}.toml"))
        traits["code"]["other_blocks"] = wrapped["kernels"]
    return traits
