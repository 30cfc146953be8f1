"""Document: the text of a file as plain data, whatever its syntax.

JSON, YAML, TOML, the assignments of a Python module, and the options of a command line are told
apart by what parses, not by the name of the file.
"""

from __future__ import annotations

import ast
import json
import tomllib
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from functools import cached_property
from typing import Any

import yaml

from planner.describe.configurations.arithmetic import evaluate_integer, parsed
from planner.describe.configurations.shell import options_of, settings_of
from planner.describe.configurations.table import Table
from planner.describe.files import has_endless_keys
from planner.errors import CatalogueError, shorten

__all__ = ["CALLED", "MAX_BYTES", "Document"]

MAX_BYTES = 64_000
"""Larger than any configuration of a job: PyYAML takes seconds for much more."""
CALLED = "__called__"
"""The key of what was called, beside its arguments."""
_MAX_DEPTH = 40
_PROBLEMS = (ValueError, RecursionError, SyntaxError, yaml.YAMLError, MemoryError)


@dataclass(frozen=True)
class Document:
    """A file with its text."""

    name: str
    """Its name, for messages."""
    text: str

    @cached_property
    def tables(self) -> Mapping[str, Any]:
        """What JSON, TOML, YAML or Python assign; empty where the text is none of them."""
        if self.text.lstrip().startswith("{"):
            return self._json()
        for parse in (_toml, _python, _yaml):
            parsed = _parsed(parse, self.text)
            if parsed:
                return parsed
        return {}

    @cached_property
    def options(self) -> Mapping[str, Any]:
        """Options of a file of arguments or of a shell script, without dashes in front."""
        return options_of(self.text)

    @cached_property
    def settings(self) -> Mapping[str, Any]:
        """Settings `group.name=value` of a file of them or of a shell script, as tables."""
        return settings_of(self.text) if "." in self.text else {}

    def table(self) -> Table:
        """`tables`, typed as they are taken."""
        return Table(self.tables, self.name)

    def arguments(self) -> Table:
        """`options`, typed as they are taken."""
        return Table(self.options, self.name)

    def _json(self) -> Mapping[str, Any]:
        try:
            parsed = json.loads(self.text)
        except _PROBLEMS as error:
            # comments and trailing commas, as DeepSpeed reads them
            parsed = _parsed(_yaml, self.text)
            if not parsed:
                raise CatalogueError(
                    f"{self.name} is not valid JSON: {shorten(str(error))}; correct that line"
                ) from None
        return parsed if _is_shallow(parsed) else {}


def _parsed(parse: Callable[[str], Any], text: str) -> Mapping[str, Any]:
    try:
        parsed = parse(text)
    except _PROBLEMS:
        return {}
    named = isinstance(parsed, dict) and all(isinstance(key, str) for key in parsed)
    return parsed if named and _is_shallow(parsed) else {}


def _is_shallow(value: Any, depth: int = 0) -> bool:
    if depth > _MAX_DEPTH:
        return False
    inner = value.values() if isinstance(value, dict) else value
    if not isinstance(value, (dict, list)):
        return True
    return all(_is_shallow(item, depth + 1) for item in inner)


def _toml(text: str) -> Any:
    if has_endless_keys(text):
        return {}
    return tomllib.loads(text)


class _Loader(yaml.SafeLoader):
    """YAML without aliases, which let a few lines stand for any amount of data."""

    def compose_node(self, parent: Any, index: Any) -> Any:
        if self.check_event(yaml.AliasEvent):
            raise yaml.YAMLError("aliases are not read")
        return super().compose_node(parent, index)


def _yaml(text: str) -> Any:
    return yaml.load(text, Loader=_Loader)  # a SafeLoader


# --- Python -----------------------------------------------------------------------------------


def _python(text: str) -> Any:
    """Assignments anywhere in a module: names, and attributes as tables; and the arguments of a
    configuration that a function returns. Nothing is run."""
    assignments: dict[str, Any] = {}
    tree = parsed(text)
    for node in ast.walk(tree):
        if isinstance(node, ast.Assign) and len(node.targets) == 1:
            _assign(assignments, node.targets[0], node.value)
        elif isinstance(node, ast.Return) and isinstance(node.value, ast.Call):
            returned = _value(node.value)
            assignments |= returned if isinstance(returned, dict) else {}
    return assignments


def _assign(assignments: dict[str, Any], target: ast.expr, value: ast.expr) -> None:
    if isinstance(target, ast.Tuple) and isinstance(value, ast.Tuple):
        for part, its_value in zip(target.elts, value.elts, strict=False):
            _assign(assignments, part, its_value)
        return
    *path, last = ast.unparse(target).split(".")
    place = assignments
    # the object that is configured needs no name
    for name in path[1:]:
        inner = place.setdefault(name, {})
        if not isinstance(inner, dict):
            return
        place = inner
    place[last] = _value(value)


def _value(node: ast.expr) -> Any:
    """A literal or a sum; a call by its named arguments; whatever else stands there as its text."""
    if isinstance(node, ast.Dict):
        pairs = zip(node.keys, node.values, strict=True)
        return {ast.literal_eval(key): _value(v) for key, v in pairs if key is not None}
    if isinstance(node, ast.Call) and node.keywords:
        named = {word.arg: _value(word.value) for word in node.keywords if word.arg}
        return {CALLED: ast.unparse(node.func), **named}
    if isinstance(node, ast.BinOp):
        number = evaluate_integer(node)
        return ast.unparse(node) if number is None else number
    try:
        return ast.literal_eval(node)
    except ValueError:
        return ast.unparse(node)
