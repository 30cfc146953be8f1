"""StatedJob: what one file says, gathered field by field while it is read."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any

from planner.describe.catalogue import names
from planner.describe.configurations.configuration import Configuration
from planner.describe.configurations.switched import switches_in
from planner.describe.configurations.table import Table
from planner.errors import CatalogueError, shorten

__all__ = ["DTYPES", "StatedJob"]

DTYPES = {"bfloat16": "bf16", "float16": "fp16", "float32": "fp32"}
"""Precisions by torch's names."""

_MOST_NAMED = 12
_OFF = ("none", "false", "no", "off", "0", "1", "{}", "[]", "")
"""Values that switch nothing on; 1 is a degree that splits nothing."""


class StatedJob:
    """What one file says so far. None is what it does not say."""

    def __init__(self, kind: str, file: str, table: Table) -> None:
        self.kind = kind
        self.file = file
        self.table = table
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
        in_table = switches_in(framework, self.table) if framework in names("framework") else ()
        distinct = dict.fromkeys((*in_table, *self.on))
        return tuple(word for word in distinct if word.partition("=")[0] not in self.off)

    def note(self, sentence: str) -> None:
        """A sentence for the user."""
        self.notes.append(f"{self.file}: {sentence}")

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
        """What a word stands for; `otherwise`, with a note, where nothing of ours does."""
        word = table.word(key)
        if word is None or word in names:
            return None if word is None else names[word]
        self.note(f"{table.name(key)} = {word} is not described: {otherwise} is counted")
        return otherwise

    def refused(self, message: str) -> CatalogueError:
        """A refusal that names the file."""
        return CatalogueError(f"{self.file}: {message}")

    def configuration(self, *, hides: Callable[[str], bool] | None = None) -> Configuration:
        """What was gathered, with a note on what was not read."""
        on = self.switches()
        rest = [key for key in self.table.unread() if hides is None or not hides(key)]
        if rest:
            shown = ", ".join(rest[:_MOST_NAMED])
            more = f" and {len(rest) - _MOST_NAMED} more" if len(rest) > _MOST_NAMED else ""
            self.note(f"not read: {shown}{more}")
        stated_fields: dict[str, Any] = {**self.fields, **self.single}
        return Configuration(
            (self.file,), (self.kind,), notes=tuple(self.notes), switches=on, **stated_fields
        )
