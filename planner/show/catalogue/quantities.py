"""Quantities: the numbers of a description with kind and source."""

from __future__ import annotations

from collections.abc import Iterable, Mapping

from planner.describe.base import Description, Quantity
from planner.tables import Block, Column, Line, Table
from planner.units import format_bytes, format_rate, format_seconds

__all__ = ["constants_page", "format_quantity", "quantities", "quantity_table"]

_KIND_STYLES = {"assumed": "yellow", "measured": "green", "calibrated": "cyan", "datasheet": ""}


def quantities(description: Description, prefix: str = "") -> Iterable[tuple[str, Quantity]]:
    """Yield every quantity of a description with its dotted name."""
    for name in type(description).model_fields:
        value = getattr(description, name)
        key = f"{prefix}{name}"
        if isinstance(value, Quantity):
            yield key, value
        elif isinstance(value, Description):
            yield from quantities(value, f"{key}.")
        elif isinstance(value, dict):
            for inner, item in value.items():
                if isinstance(item, Quantity):
                    yield f"{key}.{inner}", item
        elif isinstance(value, tuple):
            for index, item in enumerate(value):
                if isinstance(item, Description):
                    yield from quantities(item, f"{key}[{index}].")


def format_quantity(name: str, value: float) -> str:
    """Write a quantity in the unit that its name states.

    >>> format_quantity("device.memory_bytes", 2.0**30), format_quantity("network.latency_s", 3e-6)
    ('1.00 GiB', '3 us')
    >>> format_quantity("file_systems[0].opens_per_s", 62e3)
    '62,000/s'
    """
    last = name.rsplit(".", 1)[-1]
    if "flop_per_s" in name:
        return format_rate(value, "FLOP/s")
    if last.endswith("bytes_per_s"):
        return format_rate(value)
    if last.endswith("bytes"):
        return format_bytes(value)
    if last.endswith("_watts"):
        return f"{value:,.0f} W"
    if last.endswith("_per_s"):
        return f"{value:,.0f}/s" if value < 1e6 else format_rate(value, "/s")
    if last.endswith("_s"):
        return format_seconds(value)
    return f"{value:,.4g}" if value < 1e4 else f"{value:,.0f}"


def quantity_table(description: Description, title: str = "") -> Table:
    """Return every quantity of a description with its kind and source."""
    columns = (
        Column("quantity", "quantity", min_width=20),
        Column("value", "value", min_width=10),
        Column("kind", "kind", style=lambda kind: _KIND_STYLES[kind]),
        Column("source", "source", min_width=20),
    )
    records = (
        {
            "quantity": name,
            "value": format_quantity(name, quantity.value),
            "kind": quantity.kind,
            "source": quantity.source,
        }
        for name, quantity in quantities(description)
    )
    return Table(tuple(records), title, columns)


def constants_page(constants: Mapping[str, Description]) -> list[Block]:
    """Return the constants of the cost model, by the part of the model that reads them."""
    blocks: list[Block] = []
    for name, description in constants.items():
        blocks += [Line(f"{name}:", "bold"), quantity_table(description), Line("")]
    return blocks
