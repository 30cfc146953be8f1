"""Readings: what was read of a row, with a note on everything that a default filled in.

Both are values: a function returns what it assumed beside what it read, and its caller puts the
notes of its parts together.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, Generic, TypeVar

__all__ = ["Note", "Reading", "as_stated", "assumed", "guessed", "together"]

T = TypeVar("T")


@dataclass(frozen=True, slots=True)
class Note:
    """A sentence on what was assumed of a run."""

    sentence: str
    guess: bool = False
    """Whether it makes the job another one: model shape, software, devices or layout."""


@dataclass(frozen=True, slots=True)
class Reading(Generic[T]):
    """A value read of a row, with what was assumed on the way."""

    value: T
    notes: tuple[Note, ...] = ()

    def after(self, *notes: Note) -> Reading[T]:
        """The same value, with notes on what was assumed before it."""
        return Reading(self.value, (*notes, *self.notes))


def as_stated(value: T) -> Reading[T]:
    """What the row says."""
    return Reading(value)


def assumed(value: T, sentence: str) -> Reading[T]:
    """What a default fills in.

    >>> assumed(1, "pp missing: 1").notes[0].sentence
    'pp missing: 1'
    """
    return Reading(value, (Note(sentence),))


def guessed(value: T, sentence: str) -> Reading[T]:
    """What a default fills in that makes the job another one."""
    return Reading(value, (Note(sentence, guess=True),))


def together(readings: Mapping[str, Reading[Any]]) -> Reading[dict[str, Any]]:
    """Named readings as one, with the notes of all in their order.

    >>> together({"tp": as_stated(2), "pp": assumed(1, "pp missing: 1")}).value
    {'tp': 2, 'pp': 1}
    """
    values = {name: reading.value for name, reading in readings.items()}
    return Reading(values, tuple(note for part in readings.values() for note in part.notes))
