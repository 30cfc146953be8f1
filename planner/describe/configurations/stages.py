"""Stages: how layers that a file deals to chunks of a pipeline are said in a layout."""

from __future__ import annotations

from collections.abc import Sequence

from planner.describe.layout import format_split

__all__ = ["dealing"]

_ENDS = ((0, 0), (1, 1), (1, 0), (0, 1))


def dealing(counts: Sequence[int], usual: tuple[int, int] = (0, 0)) -> dict[str, int | str]:
    """Fields of a layout for layers of every chunk; none where the framework deals them so itself.

    `usual` are the layers that it counts embedding and head for.

    >>> dealing([8, 8, 8, 8]), dealing([7, 8, 8, 7]), dealing([8, 9, 8, 7], usual=(1, 1))
    ({}, {'embedding_slots': 1, 'head_slots': 1}, {})
    >>> dealing([5, 9, 9, 9])
    {'split': '5,9*3'}
    """
    for first, last in (usual, *_ENDS):
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
