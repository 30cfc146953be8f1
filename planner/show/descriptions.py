"""Descriptions: display of machines, frameworks, models, layouts and configuration files."""

import functools
from collections import Counter
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import replace
from typing import Any

from planner.choose.verdicts.layout_words import layout_words
from planner.describe.base import Description, Quantity, quote
from planner.describe.configurations.configuration import Configuration
from planner.describe.framework.framework import Framework
from planner.describe.framework.switches import Switch
from planner.describe.layout import Layout
from planner.describe.machine import Machine
from planner.describe.model.model import Model
from planner.describe.model.traced_file import Traced, TracedBlock
from planner.errors import shorten
from planner.tables import Block, Column, Line, Notes, Record, Table, page
from planner.units import counted, format_bytes, format_count, format_rate, format_seconds

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
    """Format a quantity in the unit of its name."""
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


def quantity_table(description: Description) -> Table:
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
    return Table(tuple(records), columns=columns)


def constants_page(constants: Mapping[str, Description]) -> list[Block]:
    """Return the constants of the cost model, by the part that uses them."""
    blocks: list[Block] = []
    for name, description in constants.items():
        blocks += [Line(f"{name}:", "bold"), quantity_table(description), Line("")]
    return blocks


_MAX_LENGTH = 160


@page.register
def description_page(description: Description) -> list[Block]:
    """Return the fields of a description that differ from their defaults."""
    name = str(getattr(description, "name", ""))
    title = f"{type(description).__name__} {name}".rstrip()
    return [Line(title, "bold"), _field_table(description)]


@page.register
def layout_page(layout: Layout) -> list[Block]:
    """Return the code of a layout, its meaning, and its fields."""
    meaning = (
        f"{layout}: {layout_words(layout)}; {counted(layout.world, 'rank')}, "
        f"{layout.global_batch:,} sequences a step"
    )
    fields = replace(_field_table(layout), title="Fields without their defaults", folded=True)
    return [Line(meaning, "bold"), fields]


@page.register
def model_page(model: Model) -> list[Block]:
    """Return the number of parameters and the shapes of a model."""
    head = f"{model.name}: {format_count(model.num_params)} parameters"
    return [Line(head, "bold"), _field_table(model)]


@page.register
def configuration_page(configuration: Configuration) -> list[Block]:
    """Return the contents of configuration files, and how they were read."""
    head = f"{configuration.name} ({', '.join(configuration.kinds)}): {configuration.framework}"
    layout, workload, shape = configuration.layout, configuration.workload, configuration.shape
    records = (
        {"kind": kind, "field": name, "value": quote(value)}
        for kind, values in (("layout", layout), ("workload", workload), ("model", shape))
        for name, value in values.items()
    )
    columns = (Column("kind", ""), Column("field", "field"), Column("value", "value"))
    notes = Notes(tuple(configuration.notes), "How they were read")
    return [Line(head, "bold"), Table(tuple(records), columns=columns), notes]


def spelled(name: str, switch: Switch) -> str:
    """Format a switch as it is appended to a framework's name."""
    return f"+{name}=VALUE" if switch.takes else f"+{name}"


def written(switch: Switch) -> str:
    """Format the arguments and variables that a switch writes into files."""
    if switch.arguments is None:
        return "estimate only, not written to files"
    variables = [f"{key}={value}" for key, value in switch.environment.items()]
    return ", ".join([*switch.arguments, *variables]) or "the settings that it changes"


@page.register
def framework_page(framework: Framework) -> list[Block]:
    """Return the switches of a framework, and its traits that differ from their defaults."""
    blocks: list[Block] = [Line(f"{framework.name}: {framework.title}", "bold")]
    if framework.switches:
        example = spelled(*next(iter(framework.switches.items())))
        blocks += [
            Line(f"switches, as -f {framework.family}{example}; several can be combined:"),
            _switch_table(framework),
        ]
    traits = (record for record in _fields(framework) if not record["field"].startswith("switch"))
    columns = (Column("field", "field"), Column("value", "value", min_width=30))
    return [*blocks, Table(tuple(traits), "Traits", columns, folded=True)]


def _switch_table(framework: Framework) -> Table:
    active = {word.partition("=")[0]: word for word in framework.switched}
    records = []
    for name, switch in framework.switches.items():
        effect = switch.does
        effect += f"; goes with {', '.join(switch.needs)}" if switch.needs else ""
        effect += "; saves memory" if switch.saves_memory else ""
        word = f"+{active[name]} (on)" if name in active else spelled(name, switch)
        records.append({"switch": word, "effect": effect, "files": written(switch)})
    columns = (
        Column("switch", "switch"),
        Column("effect", "effect", min_width=24),
        Column("files", "written to files", min_width=20),
    )
    return Table(tuple(records), "Switches", columns, folded=True)


@page.register
def machine_page(machine: Machine) -> list[Block]:
    """Return every number of a machine with kind and source, its networks, queues and notes."""
    numbers = quantity_table(machine)
    assumed = sum(quantity.kind == "assumed" for _, quantity in quantities(machine))
    size = (
        f"{counted(machine.num_nodes.value, 'node')} x "
        f"{counted(machine.node.num_devices, 'device')} ({machine.device.name}) = "
        f"{counted(machine.num_devices, 'device')} with "
        f"{format_bytes(machine.device.memory_bytes.value)} each"
    )
    return [
        Line(f"{machine.name}: {machine.title}", "bold"),
        Line(size),
        *([Line(f"measured runs: {machine.evidence}")] if machine.evidence else []),
        replace(
            numbers,
            records=(*numbers.records, *efficiency_records(machine)),
            title=f"{len(numbers.records)} numbers, of which {assumed} are assumed",
            folded=True,
        ),
        *map(Line, _system_lines(machine)),
        *(Line(f"source {name}: {text}", "dim") for name, text in machine.sources.items()),
        *(Line(f"note: {note}") for note in machine.notes),
        Line(f"{assumed} values are assumed: override them with --set", "yellow"),
    ]


def efficiency_records(machine: Machine) -> Iterator[Record]:
    """Yield the efficiency of every network by node count."""
    for network in machine.all_networks:
        curve = network.efficiency
        points = zip(curve.num_nodes, curve.fraction, strict=True)
        yield {
            "quantity": f"network.efficiency by nodes {network.name}".rstrip(),
            "value": ", ".join(f"{fraction:.2f} at {nodes}" for nodes, fraction in points),
            "kind": curve.kind,
            "source": curve.source,
        }


def _system_lines(machine: Machine) -> Iterator[str]:
    for network in machine.all_networks if machine.networks else ():
        users = " and ".join(network.frameworks)
        users = users or ("all other jobs" if network is machine.network else "only with --network")
        note = f"; {network.note}" if network.note else ""
        option = f"network {network.name} (--network {network.name})"
        yield f"{option}: {network.topology}; used by {users}{note}"
    for system in machine.file_systems:
        yield f"file system {system.name} ({system.kind})"
    for queue in machine.scheduler.queues:
        note = f" ({queue.note})" if queue.note else ""
        nodes = f"{queue.min_nodes:,}-{queue.max_nodes:,} nodes"
        yield f"queue {queue.name}: {nodes}, {queue.max_hours:g} h{note}"


def _field_table(description: Description) -> Table:
    brief = functools.partial(shorten, limit=_MAX_LENGTH)
    columns = (Column("field", "field"), Column("value", "value", brief, min_width=30))
    return Table(tuple(_fields(description)), columns=columns)


def _fields(description: Description, prefix: str = "") -> Iterator[Record]:
    """Yield the fields that differ from their defaults; nested ones have dotted names."""
    for name, field in type(description).model_fields.items():
        value = getattr(description, name)
        if value == field.default:
            continue
        key = f"{prefix}{name}"
        if isinstance(value, Quantity):
            yield {"field": key, "value": f"{format_quantity(key, value.value)} ({value.kind})"}
        elif isinstance(value, Description):
            yield from _fields(value, f"{key}.")
        else:
            yield {"field": key, "value": _text(value)}


def _text(value: Any) -> str:
    if isinstance(value, (tuple, list)):
        return ", ".join(map(_text, value))
    if isinstance(value, dict):
        return ", ".join(f"{key}: {_text(item)}" for key, item in value.items())
    return f"{value:,}" if isinstance(value, int) and not isinstance(value, bool) else str(value)


_BLOCK_BYTES = ("kernels", "kept", "autocast", "16 bits", "working")


def traced_page(traced: Traced) -> list[Block]:
    """Return the blocks of a traced module; figures are per block and sample."""
    columns = (
        Column("block", "block"),
        Column("count", "count"),
        Column("parameters", "parameters", "{:,}".format),
        Column("products", "products", lambda count: f"{format_count(count)} MAC"),
        *(Column(title, title, format_bytes) for title in _BLOCK_BYTES),
    )
    half = " (half of fp32: it fails with 16-bit weights)" if traced.cast_by_half else ""
    constant = format_bytes(traced.constant_bytes)
    return [
        Line("blocks; figures of one of them and one sample, in fp32 unless stated otherwise:"),
        Table(tuple(map(_block_record, traced.blocks)), columns=columns),
        Line("products: multiply-adds of products, convolutions and attention in a forward pass"),
        Line("kernels: bytes that memory-bound kernels move, forward and backward"),
        Line(
            "kept: from forward to backward, in fp32, under autocast, and with weights of 16 bits"
            f"{half}"
        ),
        Line("working: peak in its backward pass beyond the kept tensors"),
        Line(f"forward: {traced.flop / 2:,.0f} multiply-adds a sample"),
        Line(f"tensor parallelism: {_split_text(traced)}"),
        Line(f"pipeline stages: {traced.no_pp or f'cut before any of {len(traced.units)} blocks'}"),
        Line(f"buffers: {format_bytes(traced.buffer_bytes)}, not in the estimates"),
        Line(f"kept for any batch size: {constant}, not in the estimates either"),
    ]


def _split_text(traced: Traced) -> str:
    if not traced.splits:
        return traced.no_tp or "not traced"
    kinds = Counter(split.kind for split in traced.splits)
    counts = ", ".join(f"{count} by {kind}" for kind, count in kinds.items())
    return f"Linear layers {counts}; the degree divides {traced.split_width}"


def _block_record(block: TracedBlock) -> Record:
    return {
        "block": block.name,
        "count": block.count,
        "parameters": block.num_params,
        "products": sum(operation.flop for operation in block.operations) / 2,
        "kernels": block.forward.fp32 + block.backward.fp32,
        "kept": block.saved.fp32,
        "autocast": block.saved.autocast,
        "16 bits": block.saved.cast,
        "working": block.working.fp32,
    }


def model_toml(model: Model) -> str:
    """Write a model as TOML text; the file's name will be the model's name."""
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
    """Return a block as a TOML table, with one line per list item."""
    import tomlkit

    def line(fields: Mapping[str, Any]) -> Any:
        inline = tomlkit.inline_table()
        inline.update(fields)
        return inline

    table = tomlkit.table()
    for name, value in block.items():
        if isinstance(value, list):
            lines = tomlkit.array()
            for item in value:
                lines.append(line(item) if isinstance(item, dict) else item)
            table.add(name, lines.multiline(True))
        else:
            table.add(name, line(value) if isinstance(value, dict) else value)
    return table
