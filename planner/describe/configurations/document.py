"""Document: the text of a configuration file, parsed as JSON, TOML, Python or YAML."""

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
    """Values of a file by key, converted on access. Absent, null and `auto` read as None."""

    def __init__(self, values: Mapping[str, Any], file: str, where: str = "") -> None:
        self._values = values
        self._file = file
        self._where = where
        self._taken: set[str] = set()
        self._tables: dict[str, Table] = {}

    def __contains__(self, key: str) -> bool:
        return key in self._values

    def items(self) -> Iterator[tuple[str, Any]]:
        """Yield all keys with their raw values."""
        yield from self._values.items()

    def name(self, key: str) -> str:
        """The dotted path of a key, with the tables around it."""
        return f"{self._where}{key}"

    def get(self, *keys: str) -> Any:
        """Raw value of the first present key; None for `auto`, null or a shell variable."""
        self._taken.update(keys)
        value = next((self._values[key] for key in keys if key in self._values), None)
        left_open = isinstance(value, str) and (value.lower() in _OPEN or "$" in value)
        return None if left_open else value

    def undecided(self) -> Iterator[tuple[str, str]]:
        """Yield keys that were read but hold an unresolved shell variable, with their values."""
        for key, value in self._values.items():
            if key in self._taken and isinstance(value, str) and "$" in value:
                yield key, shorten(value, 40)

    def skip(self, *keys: str) -> None:
        """Mark keys as read that change neither memory nor time."""
        self._taken.update(keys)

    def is_open(self, key: str) -> bool:
        """True if the key is present but its value is left open (`auto`, null)."""
        return key in self._values and self.get(key) is None

    def number(self, *keys: str) -> int | None:
        """Value as an integer; raises CatalogueError if it is not one."""
        return self._converted(keys, _integer, "is not a whole number; write one, such as 8")

    def numbers(self, keys: Mapping[str, str]) -> dict[str, int | None]:
        """Integers by field, from a map of field to key."""
        return {field: self.number(key) for field, key in keys.items()}

    def real(self, *keys: str) -> float | None:
        """Value as a float; raises CatalogueError if it is not a number."""
        return self._converted(keys, _real, "is not a number; write one, such as 0.1")

    def flag(self, *keys: str) -> bool | None:
        """Value as a boolean; raises CatalogueError if it is not one."""
        return self._converted(keys, _truth, "is neither true nor false; write one of them")

    def word(self, *keys: str) -> str | None:
        """Value as lower-case text; raises CatalogueError for a table or a list."""
        return self._converted(keys, _word, "is a list or a section; write one word")

    def _converted(self, keys: tuple[str, ...], convert: Callable[[Any], T], rule: str) -> T | None:
        value = self.get(*keys)
        try:
            return None if value is None else convert(value)
        except (TypeError, ValueError):
            raise self.refused(keys[0], rule) from None

    def table(self, *keys: str) -> Table:
        """A nested table; empty if it is absent."""
        key = next((key for key in keys if key in self._values), keys[0])
        if key not in self._tables:
            value = self.get(key)
            if value is not None and not isinstance(value, Mapping):
                raise self.refused(key, "is not a section; write its keys below it")
            self._tables[key] = Table(value or {}, self._file, f"{self._where}{key}.")
        return self._tables[key]

    def refused(self, key: str, rule: str) -> CatalogueError:
        """Make the error for a value, with the rule it breaks and the remedy."""
        value = shorten(str(self._values.get(key)), 40)
        return CatalogueError(f"{self._file}: {self.name(key)} = {value} {rule}")

    def unread(self) -> Iterator[tuple[str, Any]]:
        """Yield the paths of keys that were never read, with their values."""
        for key, value in self._values.items():
            if key in self._tables:
                yield from self._tables[key].unread()
            elif key not in self._taken and value is not None and not str(key).startswith("__"):
                yield from _leaves(self.name(str(key)), value)


def _leaves(path: str, value: Any) -> Iterator[tuple[str, Any]]:
    if not isinstance(value, Mapping) or not value:
        yield path, value
        return
    for key, inner in value.items():
        yield from _leaves(f"{path}.{key}", inner)


def _integer(value: Any) -> int:
    """Convert a value to an integer; 5e8 and "5e8" count too."""
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
"""Largest configuration file that is read; PyYAML takes seconds for much larger ones."""
CALLED = "__called__"
"""Key under which a parsed Python call holds its function's name, next to the arguments."""
_MAX_DEPTH = 40
_PROBLEMS = (ValueError, TypeError, RecursionError, SyntaxError, yaml.YAMLError, MemoryError)


@dataclass(frozen=True)
class Document:
    """A configuration file: its name and text."""

    name: str
    """File name, for messages."""
    text: str

    @cached_property
    def tables(self) -> Mapping[str, Any]:
        """Content as JSON, TOML, Python or YAML; empty if none parses, an error for broken JSON."""
        if self.text.lstrip().startswith("{"):
            return self._json()
        parsed_texts = (_parsed(parse, self.text) for parse in (_toml, _python, _yaml))
        return next(filter(None, parsed_texts), {})

    @cached_property
    def options(self) -> Mapping[str, Any]:
        """Options of an argument file or a shell script, without leading dashes."""
        return options_of(self.text)

    @cached_property
    def settings(self) -> Mapping[str, Any]:
        """Hydra settings `group.name=value` of a file or a shell script, as nested tables."""
        return settings_of(self.text) if "." in self.text else {}

    def table(self) -> Table:
        """`tables`, converted on access."""
        return Table(self.tables, self.name)

    def arguments(self) -> Table:
        """`options`, converted on access."""
        return Table(self.options, self.name)

    def python_arguments(self) -> Table:
        """`options` with `_` for `-`, as Python programs name them, converted on access."""
        options = {name.replace("-", "_"): value for name, value in self.options.items()}
        return Table(options, self.name)

    def _json(self) -> Mapping[str, Any]:
        try:
            parsed = json.loads(self.text)
        except _PROBLEMS as error:
            # YAML takes comments and trailing commas, as DeepSpeed does
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
    """YAML loader without aliases, which let a few lines expand to any amount of data."""

    def compose_node(self, parent: Any, index: Any) -> Any:
        if self.check_event(yaml.AliasEvent):
            raise yaml.YAMLError("aliases are not read")
        return super().compose_node(parent, index)


def _yaml(text: str) -> Any:
    return yaml.load(text, Loader=_Loader)  # a SafeLoader


def _python(text: str) -> Any:
    """Read a module's assignments (attributes as tables) and the arguments of returned calls."""
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
    # drop the name of the configured object: `config.a.b = 1` sets a.b
    for name in path[1:]:
        inner = place.setdefault(name, {})
        if not isinstance(inner, dict):
            return
        place = inner
    place[last] = _value(value)


def _value(node: ast.expr) -> Any:
    """Evaluate literals and integer arithmetic; calls as their keyword arguments, else text."""
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
