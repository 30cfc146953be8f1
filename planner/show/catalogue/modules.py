"""Modules: a traced module as a table, and any model as the TOML that describes it."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from planner.describe.model.model import Model
from planner.describe.model.traced_file import Traced, TracedBlock
from planner.tables import Block, Column, Line, Record, Table
from planner.units import format_bytes, format_count

__all__ = ["model_toml", "traced_page"]


def traced_page(traced: Traced) -> list[Block]:
    """Return the blocks of a traced module, every figure of one block and one sample."""
    columns = (
        Column("name", "block"),
        Column("count", "count"),
        Column("num_params", "parameters", "{:,}".format),
        Column("products", "products", lambda count: f"{format_count(count)} MAC"),
        Column("kernel_bytes", "kernels", format_bytes),
        Column("saved_bytes", "kept", format_bytes),
        Column("autocast_bytes", "autocast", format_bytes),
        Column("cast_bytes", "16 bits", format_bytes),
        Column("working_bytes", "working", format_bytes),
    )
    half = " (half of fp32: it does not run with them)" if traced.cast_by_half else ""
    constant = format_bytes(traced.constant_bytes)
    return [
        Line("blocks; figures of one of them and one sample, in fp32 where nothing else is said:"),
        Table(tuple(map(_block_record, traced.blocks)), columns=columns),
        Line("products: multiply-adds of products, convolutions and attention in a forward pass"),
        Line("kernels: bytes that memory-bound kernels move, forward and backward"),
        Line(
            "kept: from forward to backward, in fp32, under autocast, and with weights of 16 bits"
            + half
        ),
        Line("working: at most alive in its backward beyond what is kept"),
        Line(f"forward: {traced.flop / 2:,.0f} multiply-adds a sample"),
        Line(f"buffers: {format_bytes(traced.buffer_bytes)}, not in the estimates"),
        Line(f"kept for a batch of any size: {constant}, not in the estimates either"),
    ]


def _block_record(block: TracedBlock) -> Record:
    return {
        "name": block.name,
        "count": block.count,
        "num_params": block.num_params,
        "products": sum(operation.flop for operation in block.operations) / 2,
        "kernel_bytes": block.forward.fp32 + block.backward.fp32,
        "saved_bytes": block.saved.fp32,
        "autocast_bytes": block.saved.autocast,
        "cast_bytes": block.saved.cast,
        "working_bytes": block.working.fp32,
    }


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
            for item in value:
                lines.append(_line(item))
            table.add(name, lines.multiline(True))
        else:
            table.add(name, _line(value) if isinstance(value, dict) else value)
    return table


def _line(fields: Mapping[str, Any]) -> Any:
    import tomlkit

    line = tomlkit.inline_table()
    line.update(fields)
    return line
