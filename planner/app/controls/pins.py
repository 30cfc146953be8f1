"""Pins: answers that the address keeps, to compare them on a page of their own."""

import functools
from collections.abc import Sequence
from typing import Any

import streamlit as st

from planner.app import address, link
from planner.app.address import Query, QueryReader
from planner.app.controls import page_job
from planner.app.controls.page_job import PINS
from planner.errors import PlannerError


def pinned() -> list[Query]:
    """Return the pinned answers. Raises CatalogueError if the address is damaged."""
    return link.unpack_pins(address.requested(PINS))


def job_query() -> Query:
    """Return the part of the page's query that states its job and layout."""
    query = address.stated_query()
    reader = QueryReader(dict(query))
    page_job.read(reader)
    return {key: query[key] for key in reader.keys if key in query and key != PINS}


def pins_button(place: Any, label: str, pins: Sequence[Query], key: str, icon: str = "") -> None:
    """Draw a button that pins these answers and no others; disabled where they are too many."""
    packed = link.pack_pins(pins)
    is_full = len(pins) > link.MOST_PINS or len(packed) > link.MAX_LINK
    place.button(
        label,
        icon=icon or None,
        key=key,
        disabled=is_full or packed == address.requested(PINS),
        help=f"At most {link.MOST_PINS} answers; remove one on the page Compare." * is_full or None,
        on_click=functools.partial(address.request, **{PINS: packed}),
    )


def pin_button() -> None:
    """Draw a button that pins the page's answer for the page *Compare*."""
    query = job_query()
    try:
        pins = pinned()
    except PlannerError:
        pins = []
    label = "Pinned" if query in pins else "Pin to compare"
    more = [] if query in pins else [query]
    label = f"{label} ({len(pins)} of {link.MOST_PINS})"
    pins_button(st, label, [*pins, *more], "pin", ":material/keep:")
