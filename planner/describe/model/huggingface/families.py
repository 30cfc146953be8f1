"""Families: readers of Hugging Face families with transformers' defaults, from families.toml."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from planner.describe.files import read_toml
from planner.describe.model.huggingface import family_shapes
from planner.describe.model.huggingface.config_fields import Fields


@dataclass(frozen=True, slots=True)
class Family:
    """Reader, defaults and fixed fields of one family."""

    read: Callable[[Fields], dict[str, Any]]
    defaults: Mapping[str, Any]
    """Keys of the family's config.json, with their defaults."""
    fixed: Mapping[str, Any]
    """Fields of Model that are the same for the whole family."""
    refused: tuple[str, ...]
    """Keys that add what is not described if set."""
    switched: Mapping[str, Mapping[str, Any]]
    """Fields of Model that a key sets if it is true."""
    note: str
    """Weights that are not counted."""
    written: Mapping[str, Any]
    """Fields of `Written` that config.json does not state."""


def _load_families() -> dict[str, Family]:
    """Load every family by name; a family follows the one that it is `like` in the file."""
    families: dict[str, Family] = {}
    for name, row in read_toml(Path(__file__).with_suffix(".toml")).items():
        inherited = families[row["like"]].defaults if "like" in row else {}
        absent = dict.fromkeys(row.get("absent", ()))
        families[name] = Family(
            read=getattr(family_shapes, row["read"]),
            defaults={**inherited, **absent, **row.get("defaults", {})},
            fixed=row.get("fixed", {}),
            refused=tuple(row.get("refused", ())),
            switched=row.get("switched", {}),
            note=row.get("note", ""),
            written=row.get("written", {}),
        )
    return families


_UNDESCRIBED = read_toml(Path(__file__).with_name("undescribed_families.toml"))

FAMILIES = _load_families()
UNDESCRIBED = {name: group for group in _UNDESCRIBED.values() for name in group["families"]}
"""What the cost model lacks for a family, by the family's name."""
