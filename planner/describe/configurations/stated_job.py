"""StatedJob: the fields of one configuration file, collected while it is read."""

import re
import tomllib
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from planner.describe.catalogue import load_framework, names
from planner.describe.configurations.configuration import Configuration
from planner.describe.configurations.document import Document, Table
from planner.describe.files import read_toml
from planner.describe.layout import format_split
from planner.errors import CatalogueError, shorten
from planner.units import parse_quantity

KEYS = read_toml(Path(__file__).with_name("readers") / "keys.toml")
"""Keys and words of the files that readers read, by reader."""
DTYPES = {"bfloat16": "bf16", "float16": "fp16", "float32": "fp32"}
"""Training precisions by torch dtype."""

_VALUE = "{value}"
_MOST_NAMED = 12
_FIELDS = ("layout", "workload", "usual", "shape", "changes", "left_to", "unclear")
_OFF = ("none", "false", "no", "off", "0", "1", "-1", "{}", "[]", "")
"""Values that leave a setting off; a degree of 1 splits nothing, -1 is a default."""
_NONE = re.compile("(?!)")
_DECISIVE = re.compile("|".join(KEYS["decisive"]))
"""Words in the names of keys that may decide layout, memory or time."""


def _is_on(value: Any) -> bool:
    return str(value).lower() not in _OFF


class StatedJob:
    """Fields collected from one file so far. None values are not stated and are ignored."""

    def __init__(self, kind: str, document: Document, table: Table) -> None:
        self.kind, self.document, self.table = kind, document, table
        self.single: dict[str, Any] = {}
        self.fields: dict[str, dict[str, Any]] = {name: {} for name in _FIELDS}
        self.notes: list[str] = []
        self.on: list[str] = []
        self.off: list[str] = []

    def layout(self, **values: Any) -> None:
        """Set layout fields."""
        self._state("layout", values)

    def workload(self, **values: Any) -> None:
        """Set workload fields."""
        self._state("workload", values)

    def shape(self, **values: Any) -> None:
        """Set model sizes."""
        self._state("shape", values)

    def changes(self, values: Mapping[str, Any]) -> None:
        """Override fields of the framework's description."""
        self._state("changes", values)

    def left_to(self, owner: Any, *names: str) -> None:
        """Leave fields to another file, `owner`."""
        self._state("left_to", dict.fromkeys(names, str(owner)))

    def unclear(self, words: str, *names: str) -> None:
        """Leave fields to the user, since the file states them in unknown words."""
        self._state("unclear", dict.fromkeys(names, words))

    def set_single(self, **values: Any) -> None:
        """Set single values of the configuration, such as framework, world or replicas."""
        self.single.update({k: v for k, v in values.items() if v})

    def turn_on(self, *switches: str) -> None:
        """Turn on framework switches that the lines in their descriptions do not detect."""
        self.on += switches

    def turn_off(self, *switches: str) -> None:
        """Turn off switches that the file has lines for but that other settings disable."""
        self.off += switches

    def switches(self) -> tuple[str, ...]:
        """List the framework switches that the file turns on."""
        framework = self.single.get("framework") or self.single.get("usual_framework")
        in_table = _switches_in(framework, self.table) if framework in names("framework") else ()
        distinct = dict.fromkeys((*in_table, *self.on))
        return tuple(word for word in distinct if word.partition("=")[0] not in self.off)

    def note(self, sentence: str) -> None:
        """Add a note for the user."""
        self.notes.append(f"{self.document.name}: {sentence}")

    def _state(self, name: str, values: Mapping[str, Any]) -> None:
        self.fields[name].update({k: v for k, v in values.items() if v is not None})

    def not_counted(self, table: Table, meanings: Mapping[str, str]) -> None:
        """Note keys that change memory or time but that the estimate does not count."""
        for key, meaning in meanings.items():
            value = table.get(key)
            if not _is_on(value):
                continue
            plain = value is True or isinstance(value, (Mapping, list))
            shown = "" if plain else f" = {shorten(str(value), 40)}"
            self.note(f"{table.name(key)}{shown} is ignored: {meaning}")

    def by_default(self, **values: Any) -> None:
        """Set layout or workload fields that hold unless some file states them."""
        self._state("usual", values)

    def compared(self, table: Table, values: Mapping[str, float]) -> None:
        """Note numbers that differ from those that the estimate counts."""
        for key, counted in values.items():
            value = table.number(key)
            if value is not None and value != counted:
                self.note(f"{table.name(key)} = {value} is ignored; the estimate uses {counted:g}")

    def refuse(self, table: Table, reasons: Mapping[str, str]) -> None:
        """Raise CatalogueError for a key that is on and that no estimate can follow."""
        for key, reason in reasons.items():
            if _is_on(value := table.get(key)):
                shown = shorten(str(value), 40)
                raise self.refused(f"{table.name(key)} = {shown} is not estimated: {reason}")

    def named(self, table: Table, key: str, names: Mapping[str, Any], field: str = "") -> Any:
        """Translate a word through `names`; an unknown one leaves the field to the user."""
        word = table.word(key)
        if word is None or word in names:
            return None if word is None else names[word]
        if not field:
            raise table.refused(key, f"is not estimated; write {' or '.join(map(str, names))}")
        self.unclear(f"{table.name(key)} = {shorten(word, 40)}", field)
        return None

    def _open(self, key: str, words: str) -> None:
        """Leave the field of a key to the user; raises CatalogueError if it has none."""
        plain = key.replace("-", "_")
        if plain in KEYS["fields"]:
            self.unclear(words, KEYS["fields"][plain])
        elif plain not in KEYS["launch"]:
            raise self.refused(f"{words} may change layout, memory or time; write its value")

    def refused(self, message: str) -> CatalogueError:
        """Make an error that names the file."""
        return CatalogueError(f"{self.document.name}: {message}")

    def check_unread(self, table: Table, harmless: re.Pattern[str] = _NONE) -> list[str]:
        """List unread keys that are on; raises CatalogueError for one that may be decisive."""
        unread = {k: v for k, v in table.unread() if not harmless.fullmatch(k) and _is_on(v)}
        for key, value in unread.items():
            if _DECISIVE.search(key.lower()):
                raise self.refused(
                    f"{shorten(key)} = {shorten(str(value), 40)} may change layout, memory or time "
                    "and is not known here; remove it, and give what it sets as an option"
                )
        return list(map(shorten, unread))

    def configuration(self, harmless: re.Pattern[str]) -> Configuration:
        """Build the configuration from the collected fields, with a note on unread keys."""
        on = self.switches()
        for key, variable in self.table.undecided():
            self._open(key, f"{key} = {variable}, which the file does not set,")
        unread = self.check_unread(self.table, harmless)
        for name in self.fields["unclear"]:
            for table in ("layout", "workload", "usual"):
                self.fields[table].pop(name, None)
        if rest := unread:
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
    """A reader of one kind of file."""

    kind: str
    recognises: Callable[[Document], bool]
    state: Callable[[StatedJob, Table], None]
    """Reads the table of a file into a StatedJob."""
    framework: str = ""
    """Framework that these files configure; empty if the file itself decides."""
    table: Callable[[Document], Table] = Document.table
    """Gets the table of a file: its assignments, options or settings."""
    harmless: Sequence[str] = ()
    """Patterns of keys that change neither layout nor memory nor time."""

    def read(self, document: Document) -> Configuration:
        """Read the configuration of a file."""
        job = StatedJob(self.kind, document, self.table(document))
        job.set_single(framework=self.framework)
        self.state(job, job.table)
        return job.configuration(re.compile("|".join(self.harmless)) if self.harmless else _NONE)


def has_any(*marks: str) -> Callable[[Document], bool]:
    """Make a test for any of these keys at the top level of a file."""
    return lambda document: any(mark in document.tables for mark in marks)


def has_all(*marks: str) -> Callable[[Document], bool]:
    """Make a test for all of these keys at the top level of a file."""
    return lambda document: all(mark in document.tables for mark in marks)


def split_fields(counts: Sequence[int], usual: tuple[int, int] = (0, 0)) -> dict[str, int | str]:
    """Layout fields that give these layers per chunk; none if `usual` slots already do."""
    for first, last in (usual, (0, 0), (1, 1), (1, 0), (0, 1)):
        if _even_split(sum(counts), len(counts), first, last) == list(counts):
            return {} if (first, last) == usual else {"embedding_slots": first, "head_slots": last}
    return {"split": format_split(counts)}


def _even_split(layers: int, chunks: int, first: int, last: int) -> list[int]:
    base, extra = divmod(layers + first + last, chunks)
    counts = [base + (chunk < extra) for chunk in range(chunks)]
    counts[0] -= first
    counts[-1] -= last
    return counts


def _switches_in(name: str, settings: Table) -> Iterator[str]:
    """Yield the framework's switches whose lines are all in a file, with their values."""
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
    """Value in place of a line's `{value}`, "" if it has none; None if the file lacks the line."""
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
    value = " ".join(map(str, value)) if isinstance(value, (list, tuple)) else value
    if wanted == _VALUE:
        return _number(value)
    return "" if str(value).lower() == str(wanted).lower() else None


def _parsed(line: str) -> tuple[list[str], Any]:
    """Split a line of a switch into its path in the file and its value."""
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
    """Write a quantity as digits, as in the name of a switch; None if it is not a number."""
    try:
        return f"{parse_quantity(str(value)):.0f}"
    except ValueError:
        return None
