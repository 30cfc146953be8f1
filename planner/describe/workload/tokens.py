"""Tokens: how many a training takes, and of which batches, as users write it."""

from __future__ import annotations

import re

from planner.errors import DescriptionError, shorten
from planner.units import parse_quantity

__all__ = ["parse_ramp", "parse_tokens"]


def parse_tokens(text: str) -> float:
    """A number of tokens; `B` is billions here, not bytes. DescriptionError where it is none.

    >>> parse_tokens("300B"), parse_tokens("2e12"), parse_tokens("0.3 T")
    (300000000000.0, 2000000000000.0, 300000000000.0)
    """
    plain = re.sub(r"(?<=\d)\s*[bB]$", "G", text.strip())
    try:
        return parse_quantity(plain)
    except DescriptionError:
        raise DescriptionError(
            f"{shorten(text)!r} is no number of tokens; write for example 300B, 2T or 2e12"
        ) from None


def parse_ramp(text: str) -> tuple[tuple[float, int], ...]:
    """Bounds in tokens, and the sequences of a step up to each, both rising. ValueError where it is
    no ramp.

    >>> parse_ramp("250B:768, 500B:1536")
    ((250000000000.0, 768), (500000000000.0, 1536))
    """
    found: list[tuple[float, int]] = []
    for part in text.split(",") if text.strip() else ():
        bound, colon, batch = part.partition(":")
        try:
            until = parse_tokens(bound)
        except DescriptionError:
            until = 0.0
        size = batch.strip()
        further = until > (found[-1][0] if found else 0.0)
        if not (colon and further and size.isascii() and size.isdigit() and len(size) < 8):
            raise ValueError(
                f"ramp = {shorten(text)!r} is none; write rising tokens, each with the sequences "
                "of a step until then, such as 250B:768,500B:1536"
            )
        if not int(size):
            raise ValueError(f"ramp = {shorten(text)!r} has steps of no sequence; use 1 or more")
        if found and int(size) <= found[-1][1]:
            raise ValueError(
                f"ramp = {shorten(text)!r} has {size} sequences a step after {found[-1][1]}; write "
                "batches that rise"
            )
        found.append((until, int(size)))
    return tuple(found)
