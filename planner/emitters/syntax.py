"""Syntax: values as text that YAML, TOML and a shell read back unchanged.

JSON strings are valid in YAML and in TOML, so every string is quoted by `json`. Floats are written
so that YAML 1.1 reads numbers: it takes `1e-08` for a string.
"""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from typing import Any, TypeAlias

__all__ = ["Value", "json_text", "scalar", "toml_text", "yaml_text"]

Value: TypeAlias = "str | int | float | bool | Sequence[Value] | Mapping[str, Value] | None"


def scalar(value: str | int | float | bool | None) -> str:
    """One value, the same in YAML and TOML (null only in YAML).

    >>> scalar('a "b" $(c)'), scalar(1e-8), scalar(True), scalar(5e8)
    ('"a \\\\"b\\\\" $(c)"', '1.0e-08', 'true', '500000000.0')
    """
    if isinstance(value, float):
        text = repr(value)
        return text if "." in text or "e" not in text else text.replace("e", ".0e")
    return json.dumps(value)


def yaml_text(data: Mapping[str, Value], indent: int = 0) -> str:
    """A mapping as block YAML; keys are plain words of ours.

    >>> print(yaml_text({"a": {"b": 1}, "c": [{"d": "x", "e": None}]}), end="")
    a:
      b: 1
    c:
      - d: "x"
        e: null
    """
    lines = []
    pad = " " * indent
    for key, value in data.items():
        if isinstance(value, Mapping):
            lines.append(f"{pad}{key}:\n{yaml_text(value, indent + 2)}")
        elif isinstance(value, (str, int, float)) or value is None:
            lines.append(f"{pad}{key}: {scalar(value)}\n")
        else:
            lines.append(f"{pad}{key}:\n")
            for item in value:
                assert isinstance(item, Mapping), "our lists hold mappings"
                block = yaml_text(item, indent + 4)
                lines.append(f"{pad}  - {block[indent + 4 :]}")
    return "".join(lines)


def toml_text(tables: Mapping[str, Mapping[str, Any]]) -> str:
    """Tables of plain values, or of lists of them, as TOML.

    >>> print(toml_text({"training": {"steps": 10}}), end="")
    [training]
    steps = 10
    """
    return "\n".join(
        f"[{name}]\n"
        + "".join(
            f"{key} = {json.dumps(value) if isinstance(value, list) else scalar(value)}\n"
            for key, value in table.items()
        )
        for name, table in tables.items()
    )


def json_text(data: Mapping[str, Value]) -> str:
    """A mapping as JSON with a line end."""
    return json.dumps(data, indent=2, allow_nan=False) + "\n"
