"""Readings of a row: values with a note on every default.

A function returns its value with its notes; the caller joins the notes of the parts.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, Generic, TypeVar

__all__ = ["Note", "Reading", "as_stated", "assumed", "guessed", "together"]

T = TypeVar("T")


@dataclass(frozen=True, slots=True)
class Note:
    """An assumption about a run, as a sentence."""

    sentence: str
    guess: bool = False
    """Whether it makes the job another one: model shape, software, devices or layout."""


@dataclass(frozen=True, slots=True)
class Reading(Generic[T]):
    """A value of a row, with the assumptions behind it."""

    value: T
    notes: tuple[Note, ...] = ()

    def after(self, *notes: Note) -> Reading[T]:
        """Put further notes before the reading's own."""
        return Reading(self.value, (*notes, *self.notes))


def as_stated(value: T) -> Reading[T]:
    """Return a value that the row states."""
    return Reading(value)


def assumed(value: T, sentence: str) -> Reading[T]:
    """Return a default, with a note.

    >>> assumed(1, "pp missing: 1").notes[0].sentence
    'pp missing: 1'
    """
    return Reading(value, (Note(sentence),))


def guessed(value: T, sentence: str) -> Reading[T]:
    """Return a default that may make the job another one."""
    return Reading(value, (Note(sentence, guess=True),))


def together(readings: Mapping[str, Reading[Any]]) -> Reading[dict[str, Any]]:
    """Join named readings, with the notes of all in order.

    >>> together({"tp": as_stated(2), "pp": assumed(1, "pp missing: 1")}).value
    {'tp': 2, 'pp': 1}
    """
    values = {name: reading.value for name, reading in readings.items()}
    return Reading(values, tuple(note for part in readings.values() for note in part.notes))
