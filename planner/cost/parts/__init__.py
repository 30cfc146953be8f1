"""Parts: every named part of memory and step time, one record each in `parts.toml`."""

import tomllib
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Literal

from planner.errors import UnknownNameError

Hue = Literal["blue", "orange", "green", "pink", "sky", "red", "grey"]
"""Colour names; `planner.show` defines the shades."""

Hatch = Literal["", "/", "x"]
"""Patterns that tell parts of one hue apart."""

MemoryKind = Literal["allocated", "reserved", "device"]
"""Ways of measuring memory: tensors, the caching allocator's reserve, the whole process."""

_ALL_KINDS: tuple[MemoryKind, ...] = ("allocated", "reserved", "device")

TimeCause = Literal["compute", "traffic", "host", "offload"]
"""Cause of a time part: computation, traffic between devices, the host's launches, or offload."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Part:
    """A summand of an estimate."""

    name: str
    """Key in the answers."""
    hue: Hue
    hatch: Hatch = ""
    meaning: str
    """Short description of its contents."""
    title: str = ""
    """Display name; empty: the key with spaces."""

    @property
    def label(self) -> str:
        """Display name."""
        return self.title or self.name.replace("_", " ")


@dataclass(frozen=True, slots=True, kw_only=True)
class MemoryPart(Part):
    """A part of a device's memory."""

    counted_by: tuple[MemoryKind, ...] = _ALL_KINDS
    """Memory measurements that include this part."""


@dataclass(frozen=True, slots=True, kw_only=True)
class TimePart(Part):
    """A part of the step time."""

    cause: TimeCause


with Path(__file__).with_name("parts.toml").open("rb") as _file:
    _RECORDS = tomllib.load(_file)
_DEVICE = tuple(
    MemoryPart(name=name, **{**fields, "counted_by": tuple(fields.get("counted_by", _ALL_KINDS))})
    for name, fields in _RECORDS["device"].items()
)
_HOST = tuple(Part(name=name, **fields) for name, fields in _RECORDS["host"].items())
_TIME = tuple(TimePart(name=name, **fields) for name, fields in _RECORDS["time"].items())


def _names(parts: Iterable[Part]) -> tuple[str, ...]:
    return tuple(part.name for part in parts)


DEVICE_PARTS = _names(_DEVICE)
"""Parts of a device's memory, in display order."""
HOST_PARTS = _names(_HOST)
"""Parts of a node's host memory."""
TIME_PARTS = _names(_TIME)
"""Parts of the step time."""
TIME_CAUSES = {part.name: part.cause for part in _TIME}
"""Cause of each part of the step time."""

_BY_NAME: dict[str, Part] = {part.name: part for part in (*_DEVICE, *_HOST, *_TIME)}


def order_parts(figures: Mapping[str, Any], names: tuple[str, ...]) -> dict[str, Any]:
    """Sort estimated parts in the order of `names`, which must name every part."""
    odd = ", ".join(sorted(set(figures) ^ set(names)))
    assert not odd, f"parts without a record, or records without a part: {odd}"
    return {name: figures[name] for name in names}


def part(name: str) -> Part:
    """Record of a part. Raises UnknownNameError if there is none with this name."""
    if name not in _BY_NAME:
        raise UnknownNameError("part", name, _BY_NAME, f"`{__name__}` lists all {len(_BY_NAME)}")
    return _BY_NAME[name]


def unseen_parts(kind: MemoryKind) -> tuple[str, ...]:
    """Parts of a device's memory that a kind of measurement does not include."""
    return tuple(part.name for part in _DEVICE if kind not in part.counted_by)
