"""Documents: their lengths in a data set, from numbers or files."""

import csv
import itertools
import json
from collections import Counter
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

from planner.describe.files import read_text
from planner.errors import DescriptionError, shorten
from planner.units import parse_quantity

MAX_LENGTHS = 256
"""Most lengths of a distribution."""
MAX_DOCUMENT_TOKENS = 10**9
"""Most tokens of one document: fifty times the longest sequence."""
_MOST_BYTES = 20_000_000
"""Largest file of lengths [B]: a few million of them."""

_NAMES = ("length", "lengths", "tokens", "num_tokens", "input_length")
"""Columns and keys that hold the lengths in a table of documents."""


def split_documents(lengths: Sequence[int], longest: int) -> tuple[tuple[int, int], ...]:
    """Cut documents longer than a sequence; returns pairs of length [tokens] and count."""
    counts: Counter[int] = Counter()
    for length in lengths:
        full_sequences, rest = divmod(length, longest)
        counts[longest] += full_sequences
        counts[rest] += 1
    return tuple(sorted((length, times) for length, times in counts.items() if length and times))


def reduce_lengths(lengths: Sequence[int]) -> tuple[int, ...]:
    """Reduce lengths to at most `MAX_LENGTHS` quantile means [tokens]."""
    ordered = sorted(lengths)
    if len(ordered) <= MAX_LENGTHS:
        return tuple(ordered)
    edges = [number * len(ordered) // MAX_LENGTHS for number in range(MAX_LENGTHS + 1)]
    parts = (ordered[a:b] for a, b in itertools.pairwise(edges))
    return tuple(max(round(sum(part) / len(part)), 1) for part in parts)


def parse_documents(text: str) -> tuple[int, ...]:
    """Parse document lengths: a mean or several numbers. Raises DescriptionError."""
    return reduce_lengths([_parse_token_count(word) for word in text.split(",") if word.strip()])


def read_documents(text: str) -> tuple[int, ...]:
    """Parse lengths, or read a CSV, JSON or JSONL file of them (only for the command line)."""
    try:
        return parse_documents(text)
    except DescriptionError:
        path = Path(text.strip())
    if not _exists(path):
        raise DescriptionError(
            f"{shorten(text)!r} is neither a length up to {MAX_DOCUMENT_TOKENS:,} nor a file; "
            "write a mean length such as 600, or name a CSV, JSON or JSONL file of lengths"
        )
    lengths = list(_lengths(read_text(path, _MOST_BYTES, "give a part of the lengths"), path))
    if not lengths:
        raise DescriptionError(
            f"{path.name} has no lengths; give one per line, or a column {_NAMES[0]!r}"
        )
    return reduce_lengths(lengths)


def _exists(path: Path) -> bool:
    try:
        return path.exists()
    except (OSError, ValueError):  # a name that is too long, a null byte
        return False


def _lengths(content: str, path: Path) -> Iterator[int]:
    if path.suffix in (".json", ".jsonl"):
        yield from _of_json(content, path)
        return
    try:
        rows = [row for row in csv.reader(content.splitlines()) if row]
    except csv.Error as error:
        raise DescriptionError(
            f"{path.name} is not a CSV file: {error}; give one length a line"
        ) from None
    names = [cell.strip().lower() for cell in rows[0]] if rows else []
    column = next((names.index(name) for name in _NAMES if name in names), None)
    for row in rows[column is not None :]:
        yield _parse_token_count(row[column or 0], path.name)


def _of_json(content: str, path: Path) -> Iterator[int]:
    try:
        lines = [content] if path.suffix == ".json" else content.splitlines()
        items = [json.loads(line) for line in lines if line.strip()]
    except (ValueError, RecursionError):
        raise DescriptionError(
            f"{path.name} is not a {path.suffix[1:].upper()} file; give a list of lengths"
        ) from None
    for item in items:
        for entry in item if isinstance(item, list) else [item]:
            yield _entry(entry, path.name)


def _entry(entry: Any, where: str) -> int:
    if isinstance(entry, dict):
        entry = next((entry[name] for name in _NAMES if name in entry), None)
    if isinstance(entry, list):
        return len(entry)
    return _parse_token_count(str(entry), where)


def _parse_token_count(text: str, where: str = "") -> int:
    try:
        value = parse_quantity(text.strip())
    except DescriptionError:
        value = 0.0
    if not 1 <= value <= MAX_DOCUMENT_TOKENS:
        raise DescriptionError(
            f"{shorten(text)!r}{f' in {where}' if where else ''} is not a document length; give "
            f"whole numbers of tokens from 1 to {MAX_DOCUMENT_TOKENS:,}"
        )
    return round(value)
