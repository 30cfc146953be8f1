"""Documents: the lengths of what a data set's sequences are made of, and how users say them."""

from __future__ import annotations

import csv
import itertools
import json
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

from planner.errors import DescriptionError, shorten
from planner.units import parse_quantity

__all__ = ["MOST_LENGTHS", "condensed", "parse_documents", "pieces", "read_documents"]

MOST_LENGTHS = 256
"""Lengths that stand for a distribution."""

_NAMES = ("length", "lengths", "tokens", "num_tokens", "input_length")
"""Columns and keys under which a table of documents has their lengths."""


def pieces(lengths: Sequence[int], longest: int) -> tuple[int, ...]:
    """Documents cut where they are longer than a sequence [elements].

    Counted: whole pieces and what is left over. Left out: documents that a sequence's end cuts,
    which depends on their order. Definition.

    >>> pieces((100, 2500), 1024)
    (100, 1024, 1024, 452)
    """
    found: list[int] = []
    for length in lengths:
        whole, rest = divmod(length, longest)
        found += [longest] * whole + [rest] * bool(rest)
    return tuple(found)


def condensed(lengths: Sequence[int]) -> tuple[int, ...]:
    """At most `MOST_LENGTHS` lengths that stand for any number of them [elements].

    Counted: the mean of each of as many equal parts of the sorted lengths. Left out: how lengths
    differ inside a part. Definition.

    >>> condensed([3, 1, 2]), len(condensed(range(1, 100_000)))
    ((1, 2, 3), 256)
    """
    ordered = sorted(lengths)
    if len(ordered) <= MOST_LENGTHS:
        return tuple(ordered)
    edges = [number * len(ordered) // MOST_LENGTHS for number in range(MOST_LENGTHS + 1)]
    parts = (ordered[a:b] for a, b in itertools.pairwise(edges))
    return tuple(max(round(sum(part) / len(part)), 1) for part in parts)


def parse_documents(text: str) -> tuple[int, ...]:
    """Lengths of documents: a mean, or several numbers. DescriptionError where it is none.

    >>> parse_documents("600"), parse_documents("100, 2k"), parse_documents("")
    ((600,), (100, 2000), ())
    """
    return condensed([_whole(word) for word in text.split(",") if word.strip()])


def read_documents(text: str) -> tuple[int, ...]:
    """The same, or what a CSV, JSON or JSONL file of that name holds.

    For a user's own machine: it reads whatever file is named.
    """
    try:
        return parse_documents(text)
    except DescriptionError:
        path = Path(text.strip())
    try:
        content = path.read_text(encoding="utf-8")
    except (OSError, ValueError):
        raise DescriptionError(
            f"{shorten(text)!r} is neither a length nor a file that can be read; write a mean "
            "length such as 600, or name a CSV, JSON or JSONL file of lengths"
        ) from None
    lengths = list(_lengths(content, path))
    if not lengths:
        raise DescriptionError(
            f"{path.name} has no lengths; give one a line, or a column {_NAMES[0]!r}"
        )
    return condensed(lengths)


def _lengths(content: str, path: Path) -> Iterator[int]:
    """Lengths in a file, one a row."""
    if path.suffix in (".json", ".jsonl"):
        yield from _of_json(content, path)
        return
    rows = [row for row in csv.reader(content.splitlines()) if row]
    names = [cell.strip().lower() for cell in rows[0]] if rows else []
    column = next((names.index(name) for name in _NAMES if name in names), None)
    for row in rows[column is not None :]:
        yield _whole(row[column or 0], path.name)


def _of_json(content: str, path: Path) -> Iterator[int]:
    try:
        lines = [content] if path.suffix == ".json" else content.splitlines()
        found = [json.loads(line) for line in lines if line.strip()]
    except ValueError:
        raise DescriptionError(
            f"{path.name} is no {path.suffix[1:].upper()}; give a list of lengths"
        ) from None
    for item in found:
        for entry in item if isinstance(item, list) else [item]:
            yield _entry(entry, path.name)


def _entry(entry: Any, where: str) -> int:
    if isinstance(entry, dict):
        entry = next((entry[name] for name in _NAMES if name in entry), None)
    if isinstance(entry, list):
        return len(entry)
    return _whole(str(entry), where)


def _whole(text: str, where: str = "") -> int:
    try:
        value = parse_quantity(text.strip())
    except DescriptionError:
        value = 0.0
    if value < 1:
        raise DescriptionError(
            f"{shorten(text)!r}{f' in {where}' if where else ''} is no length of a document; give "
            "whole numbers of tokens from 1 on"
        )
    return round(value)
