"""Document: the text of a file as plain data: whichever of JSON, YAML, TOML, Python parses."""

from __future__ import annotations

import ast
import json
import tomllib
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from functools import cached_property
from typing import Any, TypeVar

import yaml

from planner.describe.configurations.shell import evaluate_integer, options_of, parsed, settings_of
from planner.describe.files import has_endless_keys
from planner.errors import CatalogueError, shorten

T = TypeVar("T")

_OPEN = ("auto", "none", "null", "")
_TRUE, _FALSE = ("true", "yes", "on", "1"), ("false", "no", "off", "0")
_MOST = 10**15


class Table:
    """Values by key. A value that is absent, null or `auto` is None."""

    def __init__(self, values: Mapping[str, Any], file: str, where: str = "") -> None:
        self._values = values
        self._file = file
        self._where = where
        self._taken: set[str] = set()
        self._tables: dict[str, Table] = {}

    def __contains__(self, key: str) -> bool:
        return key in self._values

    def name(self, key: str) -> str:
        """The key with the tables that it stands in."""
        return f"{self._where}{key}"

    def get(self, *keys: str) -> Any:
        """The first of these keys that is there, as it stands; None where it is left open."""
        self._taken.update(keys)
        value = next((self._values[key] for key in keys if key in self._values), None)
        left_open = isinstance(value, str) and (value.lower() in _OPEN or "$" in value)
        return None if left_open else value

    def undecided(self) -> Iterator[tuple[str, str]]:
        """Keys that were asked for and whose value is a variable of the shell, with it."""
        for key, value in self._values.items():
            if key in self._taken and isinstance(value, str) and "$" in value:
                yield key, shorten(value, 40)

    def skip(self, *keys: str) -> None:
        """Take keys that change neither memory nor time."""
        self._taken.update(keys)

    def is_open(self, key: str) -> bool:
        """True where the file names the value but leaves it to the program."""
        return key in self._values and self.get(key) is None

    def number(self, *keys: str) -> int | None:
        """A whole number."""
        return self._converted(keys, _integer, "is not a whole number; write one, such as 8")

    def numbers(self, keys: Mapping[str, str]) -> dict[str, int | None]:
        """Whole numbers by field, from the key of every field."""
        return {field: self.number(key) for field, key in keys.items()}

    def real(self, *keys: str) -> float | None:
        """A number."""
        return self._converted(keys, _real, "is not a number; write one, such as 0.1")

    def flag(self, *keys: str) -> bool | None:
        """Yes or no."""
        return self._converted(keys, _truth, "is neither true nor false; write one of them")

    def word(self, *keys: str) -> str | None:
        """A word, in lower case."""
        return self._converted(keys, _word, "is not a word; write one")

    def _converted(self, keys: tuple[str, ...], convert: Callable[[Any], T], rule: str) -> T | None:
        """A value as `convert` makes it; None where it is left open."""
        value = self.get(*keys)
        try:
            return None if value is None else convert(value)
        except (TypeError, ValueError):
            raise self.refused(keys[0], rule) from None

    def table(self, *keys: str) -> Table:
        """A table inside this one; empty where it is absent."""
        key = next((key for key in keys if key in self._values), keys[0])
        if key not in self._tables:
            value = self.get(key)
            if value is not None and not isinstance(value, Mapping):
                raise self.refused(key, "is not a section; write its keys below it")
            self._tables[key] = Table(value or {}, self._file, f"{self._where}{key}.")
        return self._tables[key]

    def refused(self, key: str, rule: str) -> CatalogueError:
        """The refusal of a value, with its rule and remedy."""
        value = shorten(str(self._values.get(key)), 40)
        return CatalogueError(f"{self._file}: {self.name(key)} = {value} {rule}")

    def unread(self) -> Iterator[str]:
        """Keys that were never taken."""
        for key, value in self._values.items():
            if key in self._tables:
                yield from self._tables[key].unread()
            elif key not in self._taken and value is not None and not str(key).startswith("__"):
                yield self.name(str(key))


def _integer(value: Any) -> int:
    """A whole number in its usual spellings, 5e8 and "5e8" too."""
    if isinstance(value, bool):
        raise ValueError
    try:
        number: float = int(value) if isinstance(value, int | str) else float(value)
    except ValueError:
        number = float(value)
    if abs(number) > _MOST or number != int(number):
        raise ValueError
    return int(number)


def _real(value: Any) -> float:
    if isinstance(value, bool):
        raise ValueError
    return float(value)


def _truth(value: Any) -> bool:
    word = str(value).lower()
    if word not in _TRUE + _FALSE:
        raise ValueError
    return word in _TRUE


def _word(value: Any) -> str:
    if isinstance(value, (Mapping, list)):
        raise ValueError
    return str(value).lower()


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
        """Assignments of JSON, TOML, YAML or Python; empty where the text is none of them."""
        if self.text.lstrip().startswith("{"):
            return self._json()
        parsed_texts = (_parsed(parse, self.text) for parse in (_toml, _python, _yaml))
        return next(filter(None, parsed_texts), {})

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

    def python_arguments(self) -> Table:
        """`options` by the names that a Python program gives them, typed as they are taken."""
        options = {name.replace("-", "_"): value for name, value in self.options.items()}
        return Table(options, self.name)

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
    if depth > _MAX_DEPTH or not isinstance(value, (dict, list)):
        return depth <= _MAX_DEPTH
    inner = value.values() if isinstance(value, dict) else value
    return all(_is_shallow(item, depth + 1) for item in inner)


def _toml(text: str) -> Any:
    return {} if has_endless_keys(text) else tomllib.loads(text)


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
    """Assignments of a module, attributes as tables, and arguments of calls that it returns."""
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
