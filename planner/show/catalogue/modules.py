"""Modules: a traced module as a table, and any model as the TOML that describes it."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from rich import box
from rich.console import Console
from rich.table import Table

from planner.describe.model.model import Model
from planner.describe.model.traced_module import Traced
from planner.units import format_bytes, format_count

__all__ = ["model_toml", "show_traced"]

_COLUMNS = (
    "block",
    "count",
    "parameters",
    "products",
    "kernels",
    "kept",
    "autocast",
    "16 bits",
    "working",
)


def show_traced(traced: Traced, out: Console) -> None:
    """Print the blocks of a traced module, every figure of one block and one sample."""
    table = Table(*_COLUMNS, box=box.SIMPLE)
    for column in table.columns[1:]:
        column.justify = "right"
    for block in traced.blocks:
        table.add_row(
            block.name,
            f"{block.count}",
            f"{block.num_params:,}",
            f"{format_count(sum(one.flop for one in block.operations) / 2)} MAC",
            format_bytes(block.forward.fp32 + block.backward.fp32),
            format_bytes(block.saved.fp32),
            format_bytes(block.saved.autocast),
            format_bytes(block.saved.cast),
            format_bytes(block.working.fp32),
        )
    out.print("blocks; figures of one of them and one sample, in fp32 where nothing else is said:")
    out.print(table)
    for line in (
        "products: multiply-adds of products, convolutions and attention in a forward pass",
        "kernels: bytes that memory-bound kernels move, forward and backward",
        "kept: from forward to backward, in fp32, under autocast, and with weights of 16 bits"
        + (" (half of fp32: it does not run with them)" if traced.cast_by_half else ""),
        "working: at most alive in its backward beyond what is kept",
    ):
        out.print(line, highlight=False, markup=False)
    print(f"forward: {traced.flop / 2:,.0f} multiply-adds a sample")
    print(f"buffers: {format_bytes(traced.buffer_bytes)}, not in the estimates")
    print(
        f"kept for a batch of any size: {format_bytes(traced.constant_bytes)}, not in them either"
    )


def model_toml(model: Model) -> str:
    """A model as the text of a TOML file that describes it; its name is the file's."""
    import tomlkit

    data = model.model_dump(mode="json", exclude_defaults=True, exclude_none=True)
    document = tomlkit.document()
    document.add(tomlkit.comment(f"{data.pop('name')}: {model.num_params:,} parameters."))
    document.add(tomlkit.nl())
    blocks = data.get("traced", {}).pop("blocks", [])
    for name, value in data.items():
        document.add(name, tomlkit.item(value))
    if blocks:
        tables = tomlkit.aot()
        for block in blocks:
            tables.append(_table(block))
        document["traced"].add("blocks", tables)
    return tomlkit.dumps(document)


def _table(block: Mapping[str, Any]) -> Any:
    """A block with what it lists on a line each."""
    import tomlkit

    table = tomlkit.table()
    for name, value in block.items():
        if isinstance(value, list):
            lines = tomlkit.array()
            for one in value:
                lines.append(_line(one))
            table.add(name, lines.multiline(True))
        else:
            table.add(name, _line(value) if isinstance(value, dict) else value)
    return table


def _line(fields: Mapping[str, Any]) -> Any:
    import tomlkit

    line = tomlkit.inline_table()
    line.update(fields)
    return line
