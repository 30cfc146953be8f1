"""Text: plain data as YAML, TOML, JSON and argument files, with a line end."""

from __future__ import annotations

import json
import tomllib
from collections.abc import Callable, Iterable, Mapping
from typing import Any

import tomlkit
import yaml
from tomlkit.items import Array

from planner.describe.framework.switches import merge_tables

__all__ = ["arguments_text", "assigned", "json_text", "toml_text", "with_lines", "yaml_text"]


def assigned(tables: Mapping[str, Any], lines: Iterable[str]) -> dict[str, Any]:
    """Tables after assignments to dotted keys, in TOML's notation.

    >>> assigned({"compile": {"enable": False}}, ["compile.enable = true", "a = 5"])
    {'compile': {'enable': True}, 'a': 5}
    """
    assigned_tables = dict(tables)
    for line in lines:
        assigned_tables = merge_tables(assigned_tables, tomllib.loads(line))
    return assigned_tables


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


def json_text(data: Mapping[str, Any]) -> str:
    """A mapping as JSON.

    >>> print(json_text({"a": 1}), end="")
    {
      "a": 1
    }
    """
    return json.dumps(data, indent=2, allow_nan=False) + "\n"


def arguments_text(options: Iterable[str]) -> str:
    """Options as a file of one a line: one value after an equals sign, several a line each.

    >>> arguments_text(["--bf16", "--num-layers 32", "--sizes 4 2"])
    '--bf16\\n--num-layers=32\\n--sizes\\n4\\n2\\n'
    """
    return "".join(f"{line}\n" for option in options for line in _lines(option))


def _lines(option: str) -> list[str]:
    """The words that a program gets of an option; argparse takes one value after `=`, not more."""
    name, *values = option.split(" ")
    return [f"{name}={values[0]}"] if len(values) == 1 else [name, *values]


def _arguments_with(text: str, lines: Iterable[str]) -> str:
    """An argument file with further options, each in the place of the same one or at the end."""
    plain = arguments_text(line.replace(" = ", "=") for line in lines)
    return "".join((_by_name(text) | _by_name(plain)).values())


def _by_name(text: str) -> dict[str, str]:
    """Options of an argument file by their names, values in lines of their own with them."""
    line_by_name: dict[str, str] = {}
    name = ""
    for line in text.splitlines():
        if line.startswith("--") or "=" in line:
            name = line.partition("=")[0]
            line_by_name[name] = ""
        line_by_name[name] = f"{line_by_name.get(name, '')}{line}\n"
    return line_by_name


_FORMS: dict[str, Callable[[str, Iterable[str]], str]] = {
    ".args": _arguments_with,
    ".json": lambda text, lines: json_text(assigned(json.loads(text), lines)),
    ".yaml": lambda text, lines: yaml_text(assigned(yaml.safe_load(text), lines)),
}
"""How lines are added to a file, by how its name ends."""


def with_lines(name: str, text: str, lines: Iterable[str]) -> str | None:
    """A file's text with further options or assignments; None where its form takes none.

    >>> with_lines("a.args", "--x=1", ["--x 2", "--y"])
    '--x=2\\n--y\\n'
    >>> with_lines("a.py", "", ["x = 1"])
    """
    form = _FORMS.get(name[name.rfind(".") :])
    return None if form is None else form(text, lines)
