"""Config fields: checked access to a config.json, with types and plausible sizes."""

import json
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any, get_args

from planner.describe.files import read_toml
from planner.describe.model.shapes import WrittenActivation
from planner.errors import DescriptionError, shorten

KEYS = read_toml(Path(__file__).with_suffix(".toml"))
"""Keys of a config.json: required ones, aliases, plausible limits and families of text towers."""


def quote(value: object) -> str:
    """Format a value of a file for a message: scalars as JSON, containers by type."""
    if isinstance(value, dict):
        return "an object"
    if isinstance(value, int) and abs(value) > 10**18:
        return "a number of more than 18 digits"
    if value is None or isinstance(value, str | int | float):
        return shorten(json.dumps(value), 60)
    return f"a {type(value).__name__}"


def parse_activation(name: object) -> str:
    """Translate an activation's name into the planner's; empty if unknown."""
    if not isinstance(name, str):
        return ""
    activations = {"silu": "silu", "swish": "silu", "relu": "relu", "relu2": "squared-relu"}
    return activations.get(name, "gelu" if "gelu" in name else "")


@dataclass
class Fields:
    """Fields of a config.json with its family's defaults; a nested `text_config` may lack sizes."""

    values: Mapping[str, Any]
    defaults: Mapping[str, Any]
    where: str
    nested: bool = False

    def error(self, message: str) -> DescriptionError:
        """Create an error whose message begins with the file's name."""
        return DescriptionError(f"{self.where}: {message}")

    def reads(self, key: str) -> bool:
        """True if the family has this key."""
        return key in self.defaults

    def raw(self, key: str) -> Any:
        """Get a key's stated value, else its default; None if the family lacks the key."""
        if not self.reads(key):
            return None
        for name in (key, *KEYS["aliases"].get(key, ())):
            if name in self.values:
                return self.values[name]
        if key in KEYS["required"]["keys"] and not self.nested:
            raise self.error(f"the key {key!r} is missing; add it to the config.json")
        return self.defaults[key]

    def size(self, key: str, kind: str = "width", least: int = 1) -> int:
        """Read a whole number of at least `least` and of plausible magnitude."""
        value = self.raw(key)
        if isinstance(value, bool) or not isinstance(value, int):
            raise self.error(f"{key} = {quote(value)} is not a whole number; correct it")
        if value < least:
            raise self.error(f"{key} = {quote(value)} must be at least {least}; correct it")
        limit = KEYS["limits"][kind]
        if value > limit:
            raise self.error(
                f"{key} = {quote(value)} exceeds {limit}, which no model has; check your units"
            )
        return value

    def size_or(self, fallback: int, key: str, kind: str = "width", least: int = 1) -> int:
        """Read a size; `fallback` for null or for a missing key without default."""
        return fallback if self.raw(key) is None else self.size(key, kind, least)

    def flag(self, key: str) -> bool:
        """Read true or false; false for null or a key that the family lacks."""
        value = self.raw(key)
        if value is not None and not isinstance(value, bool):
            raise self.error(f"{key} = {quote(value)} is not true or false; correct it")
        return bool(value)

    def dropout(self, *keys: str) -> float:
        """Read the largest of several dropout probabilities."""
        largest = 0.0
        for key in keys:
            value = self.raw(key)
            if value is None:
                continue
            if isinstance(value, bool) or not isinstance(value, int | float):
                raise self.error(f"{key} = {quote(value)} is not a number; correct it")
            if not 0 <= value < 1:
                raise self.error(f"{key} = {quote(value)} must be in [0, 1); correct it")
            largest = max(largest, float(value))
        return largest

    def activation(self, key: str) -> str:
        """Read an activation as one of gelu, relu, silu and squared-relu, which differ in cost."""
        value = self.raw(key)
        if name := parse_activation(self.defaults.get(key) if value is None else value):
            return name
        raise self.error(f"{key} = {quote(value)} is not known; use gelu, relu, relu2 or silu")

    def written_activation(self) -> str:
        """Activation, if transformers computes it in elementary operations; else empty."""
        keys = ("activation_function", "hidden_activation", "hidden_act")
        names = [str(self.raw(key) or self.defaults[key]) for key in keys if self.reads(key)]
        return next((name for name in names if name in get_args(WrittenActivation)), "")

    def sequence(self, key: str, kind: type) -> list[Any]:
        """Read a list of `kind`; empty for null or a missing key."""
        value = self.raw(key)
        if value is None:
            return []
        if not isinstance(value, list) or not all(type(item) is kind for item in value):
            raise self.error(f"{key} = {quote(value)} is not a list of {kind.__name__}; correct it")
        return value
