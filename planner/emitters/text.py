"""Text: plain data as YAML, TOML, JSON and argument files, with a line end."""

from __future__ import annotations

import json
from collections.abc import Iterable, Mapping
from typing import Any

import tomlkit
import yaml
from tomlkit.items import Array

__all__ = ["arguments_text", "json_text", "python_call", "toml_text", "yaml_text"]


def yaml_text(data: Mapping[str, Any]) -> str:
    """A mapping as block YAML, its keys in their own order.

    >>> print(yaml_text({"b": {"a": "no"}, "a": [{"x": 1e-8, "y": None}]}), end="")
    b:
      a: 'no'
    a:
    - x: 1.0e-08
      y: null
    """
    return yaml.safe_dump(dict(data), sort_keys=False)


def toml_text(tables: Mapping[str, Mapping[str, Any]], comment: str) -> str:
    """Tables of plain values, or of lists of them, as TOML under a comment.

    >>> print(toml_text({"training": {"steps": 10, "parts": [["a"], ["b"]]}}, "ours"), end="")
    # ours
    <BLANKLINE>
    [training]
    steps = 10
    parts = [
        ["a"],
        ["b"],
    ]
    """
    document = tomlkit.document()
    document.add(tomlkit.comment(comment))
    document.add(tomlkit.nl())
    for name, table in tables.items():
        section = tomlkit.table()
        for key, value in table.items():
            item = tomlkit.item(value)
            section.add(key, item.multiline(True) if isinstance(item, Array) else item)
        document.add(name, section)
    return tomlkit.dumps(document)


def python_call(name: str, arguments: Mapping[str, Any]) -> str:
    """A call with plain values, or lists of lists of words, one a line as formatters break it.

    >>> print(python_call("C", {"a": 1, "b": "x", "c": [["y"]]}))
    C(
        a=1,
        b="x",
        c=[
            ["y"],
        ],
    )
    """
    lines = [f"{name}("]
    for key, value in arguments.items():
        if isinstance(value, list):
            rows = [f"        {json.dumps(row)}," for row in value]
            lines += [f"    {key}=[", *rows, "    ],"]
        else:
            lines.append(f"    {key}={json.dumps(value) if isinstance(value, str) else value},")
    return "\n".join([*lines, ")"])


def json_text(data: Mapping[str, Any]) -> str:
    """A mapping as JSON.

    >>> print(json_text({"a": 1}), end="")
    {
      "a": 1
    }
    """
    return json.dumps(data, indent=2, allow_nan=False) + "\n"


def arguments_text(options: Iterable[str]) -> str:
    """Options as a file of one a line, values after an equals sign.

    >>> arguments_text(["--bf16", "--num-layers 32"])
    '--bf16\\n--num-layers=32\\n'
    """
    return "".join(option.replace(" ", "=", 1) + "\n" for option in options)
