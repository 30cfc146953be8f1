"""Table: the values of a file by their keys, typed as they are taken.

Files write numbers as text, truth as words and leave values to the program (`auto`). What nobody
took is listed, so that nothing of a file is dropped in silence.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Any

from planner.errors import CatalogueError, shorten

__all__ = ["Table"]

_OPEN = ("auto", "none", "null", "")
_TRUE, _FALSE = ("true", "yes", "on", "1"), ("false", "no", "off", "0")
_MOST = 10**15


class Table:
    """Values by key. A value that is absent, null or `auto` is None.

    >>> table = Table({"stage": "3", "offload": {"device": "cpu"}, "lr": 0.1}, "ds.json")
    >>> table.number("stage"), table.table("offload").word("device"), list(table.unread())
    (3, 'cpu', ['lr'])
    """

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
        """Whether the file names the value but leaves it to the program."""
        return key in self._values and self.get(key) is None

    def number(self, *keys: str) -> int | None:
        """A whole number."""
        value = self.get(*keys)
        if value is None:
            return None
        number = _integer(value)
        if number is None:
            raise self.refused(keys[0], "is not a whole number; write one, such as 8")
        return number

    def real(self, *keys: str) -> float | None:
        """A number."""
        value = self.get(*keys)
        if value is None:
            return None
        try:
            if isinstance(value, bool):
                raise ValueError
            return float(value)
        except (TypeError, ValueError):
            raise self.refused(keys[0], "is not a number; write one, such as 0.1") from None

    def flag(self, *keys: str) -> bool | None:
        """Yes or no."""
        value = self.get(*keys)
        if value is None or isinstance(value, bool):
            return value
        word = str(value).lower()
        if word not in _TRUE + _FALSE:
            raise self.refused(keys[0], "is neither true nor false; write one of them")
        return word in _TRUE

    def word(self, *keys: str) -> str | None:
        """A word, in lower case."""
        value = self.get(*keys)
        if value is None:
            return None
        if isinstance(value, (Mapping, list)):
            raise self.refused(keys[0], "is not a word; write one")
        return str(value).lower()

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


def _integer(value: Any) -> int | None:
    """A whole number in its usual spellings, 5e8 and "5e8" too."""
    if isinstance(value, bool):
        return None
    try:
        number = int(value) if isinstance(value, (int, str)) else None
    except ValueError:
        number = None
    if number is None:
        try:
            real = float(value)
        except (TypeError, ValueError):
            return None
        number = int(real) if real.is_integer() and abs(real) <= _MOST else None
    return number if number is not None and abs(number) <= _MOST else None
