"""StatedJob: what one file says, gathered field by field while it is read."""

from __future__ import annotations

import tomllib
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from planner.describe.catalogue import load_framework, names
from planner.describe.configurations.configuration import Configuration
from planner.describe.configurations.document import Document, Table
from planner.describe.layout import format_split
from planner.errors import CatalogueError, shorten
from planner.units import parse_quantity

DTYPES = {"bfloat16": "bf16", "float16": "fp16", "float32": "fp32"}
"""Precisions by torch's names."""

_VALUE = "{value}"
_MOST_NAMED = 12
_OFF = ("none", "false", "no", "off", "0", "1", "{}", "[]", "")
"""Values that switch nothing on; 1 is a degree that splits nothing."""


class StatedJob:
    """Statements of one file so far. None is what it does not say."""

    def __init__(self, kind: str, document: Document, table: Table) -> None:
        self.kind, self.document, self.table = kind, document, table
        self.single: dict[str, Any] = {}
        self.fields: dict[str, dict[str, Any]] = {
            name: {} for name in ("layout", "workload", "usual", "shape", "changes", "left_to")
        }
        self.notes: list[str] = []
        self.on: list[str] = []
        self.off: list[str] = []

    def layout(self, **values: Any) -> None:
        """Fields of the layout."""
        self._state("layout", values)

    def workload(self, **values: Any) -> None:
        """Fields of the workload."""
        self._state("workload", values)

    def shape(self, **values: Any) -> None:
        """Sizes of the model."""
        self._state("shape", values)

    def changes(self, values: Mapping[str, Any]) -> None:
        """Fields of the framework's description."""
        self._state("changes", values)

    def left_to(self, owner: Any, *names: str) -> None:
        """Fields that another file states."""
        self._state("left_to", dict.fromkeys(names, str(owner)))

    def is_(self, **values: Any) -> None:
        """Further parts of the configuration: framework, world, replicas."""
        self.single.update({k: v for k, v in values.items() if v})

    def turned_on(self, *switches: str) -> None:
        """Switches of the framework, where the words of its description do not find them."""
        self.on += switches

    def turned_off(self, *switches: str) -> None:
        """Switches whose words stand there, but which other words take back."""
        self.off += switches

    def switches(self) -> tuple[str, ...]:
        """Switches that the file turns on."""
        framework = self.single.get("framework") or self.single.get("usual_framework")
        in_table = _switches_in(framework, self.table) if framework in names("framework") else ()
        distinct = dict.fromkeys((*in_table, *self.on))
        return tuple(word for word in distinct if word.partition("=")[0] not in self.off)

    def note(self, sentence: str) -> None:
        """A sentence for the user."""
        self.notes.append(f"{self.document.name}: {sentence}")

    def _state(self, name: str, values: Mapping[str, Any]) -> None:
        self.fields[name].update({k: v for k, v in values.items() if v is not None})

    def not_counted(self, table: Table, meanings: Mapping[str, str]) -> None:
        """Notes on keys that change memory or time and that the estimate does not count."""
        for key, meaning in meanings.items():
            value = table.get(key)
            if str(value).lower() in _OFF:
                continue
            plain = value is True or isinstance(value, (Mapping, list))
            shown = "" if plain else f" = {shorten(str(value), 40)}"
            self.note(f"{table.name(key)}{shown} is not counted: {meaning}")

    def by_default(self, **values: Any) -> None:
        """Fields of either that hold where no other file states them."""
        self._state("usual", values)

    def compared(self, table: Table, values: Mapping[str, float]) -> None:
        """Notes on numbers that differ from those that the estimate counts."""
        for key, counted in values.items():
            value = table.number(key)
            if value is not None and value != counted:
                self.note(f"{table.name(key)} = {value} is not counted: {counted:g} is")

    def named(self, table: Table, key: str, names: Mapping[str, Any], otherwise: Any) -> Any:
        """The meaning of a word; `otherwise`, with a note, where it has none of ours."""
        word = table.word(key)
        if word is None or word in names:
            return None if word is None else names[word]
        self.note(f"{table.name(key)} = {word} is not described: {otherwise} is counted")
        return otherwise

    def refused(self, message: str) -> CatalogueError:
        """A refusal that names the file."""
        return CatalogueError(f"{self.document.name}: {message}")

    def configuration(self, hides: Callable[[str], bool]) -> Configuration:
        """The gathered fields, with a note on what was not read."""
        on = self.switches()
        rest = [key for key in self.table.unread() if not hides(key)]
        if rest:
            shown = ", ".join(rest[:_MOST_NAMED])
            more = f" and {len(rest) - _MOST_NAMED} more" if len(rest) > _MOST_NAMED else ""
            self.note(f"not read: {shown}{more}")
        stated_fields: dict[str, Any] = {**self.fields, **self.single}
        return Configuration(
            (self.document.name,),
            (self.kind,),
            notes=tuple(self.notes),
            switches=on,
            **stated_fields,
        )


@dataclass(frozen=True)
class Reader:
    """How files of one kind are recognised and read."""

    kind: str
    """Files of this kind, in words."""
    recognises: Callable[[Document], bool]
    """Whether a file is of its kind."""
    state: Callable[[StatedJob, Table], None]
    """States what a file's table says."""
    framework: str = ""
    """The framework that such files configure; empty where they say it themselves."""
    table: Callable[[Document], Table] = Document.table
    """The table of a file: its assignments, options or settings."""
    hides: Callable[[str], bool] = lambda key: True
    """Whether nobody need be told that a key was not read."""

    def read(self, document: Document) -> Configuration:
        """The configuration of the file."""
        job = StatedJob(self.kind, document, self.table(document))
        job.is_(framework=self.framework)
        self.state(job, job.table)
        return job.configuration(self.hides)


def has_any(*marks: str) -> Callable[[Document], bool]:
    """Test for one of these keys at the top of a file."""
    return lambda document: any(mark in document.tables for mark in marks)


def has_all(*marks: str) -> Callable[[Document], bool]:
    """Test for all of these keys at the top of a file."""
    return lambda document: all(mark in document.tables for mark in marks)


def dealing(counts: Sequence[int], usual: tuple[int, int] = (0, 0)) -> dict[str, int | str]:
    """Fields of a layout for layers of every chunk; none if dealt so with the `usual` ends."""
    for first, last in (usual, (0, 0), (1, 1), (1, 0), (0, 1)):
        if _dealt(sum(counts), len(counts), first, last) == list(counts):
            return {} if (first, last) == usual else {"embedding_slots": first, "head_slots": last}
    return {"split": format_split(counts)}


def _dealt(layers: int, chunks: int, first: int, last: int) -> list[int]:
    """As even as possible, ends counted as layers."""
    base, extra = divmod(layers + first + last, chunks)
    counts = [base + (chunk < extra) for chunk in range(chunks)]
    counts[0] -= first
    counts[-1] -= last
    return counts


# --- switches ---------------------------------------------------------------------------------


def _switches_in(name: str, settings: Table) -> Iterator[str]:
    """Switches of a framework whose words all stand in a file, with their values."""
    for switch_name, switch in load_framework(name).switches.items():
        if not switch.arguments and not switch.read_as:
            continue
        for words in (switch.arguments or (), *((line,) for line in switch.read_as)):
            values = [_value(line, settings) for line in words]
            if values and None not in values:
                first_value = next(filter(None, values), "") if switch.takes else ""
                yield f"{switch_name}={first_value}" if first_value else switch_name
                break


def _value(line: str, settings: Table) -> str | None:
    """The value of `{value}` in a file that says a line; None where it does not say it."""
    place, colon, rest = line.partition(": ")
    path, wanted = _parsed(rest if colon and "." in place else line)
    table = settings
    for part in path[:-1]:
        inner = table.get(part) if part in table else None
        if not isinstance(inner, Mapping):
            return None
        table = table.table(part)
    if path[-1] not in table:
        return None
    value = table.get(path[-1])
    if wanted == _VALUE:
        return _number(value)
    return "" if str(value).lower() == str(wanted).lower() else None


def _parsed(line: str) -> tuple[list[str], Any]:
    """Where a line stands in a file, and what it says there."""
    if line.startswith("--"):
        option, _, value = line.removeprefix("--").replace("=", " ", 1).partition(" ")
        return [option], value or True
    table: Any = tomllib.loads(line.replace(_VALUE, f'"{_VALUE}"'))
    path = []
    while isinstance(table, dict):
        key, table = next(iter(table.items()))
        path.append(key)
    return path, table


def _number(value: Any) -> str | None:
    """A number as a switch names it."""
    try:
        return f"{parse_quantity(str(value)):.0f}"
    except ValueError:
        return None
