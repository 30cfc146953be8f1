"""Command line, catalogue: `planner models`, `machines`, `frameworks`, `datasets`, `show`."""

import json
import os
import textwrap
from collections.abc import Iterable, Iterator
from pathlib import Path
from typing import Annotated, Any

import typer

from planner.cli.options.option_styles import AsJson, Overrides
from planner.describe import catalogue
from planner.describe.base import Description
from planner.describe.files import read_toml
from planner.describe.framework.framework import Framework
from planner.describe.framework.switches import split_name
from planner.describe.model.model import Model
from planner.describe.model.traced_file import is_python_file
from planner.describe.model.weight_blocks import weight_blocks
from planner.errors import DescriptionError, UnknownNameError, shorten
from planner.units import format_bytes, format_count

_INDENT = " " * 21


def register(app: typer.Typer) -> None:
    """Add the commands to the application."""
    app.command("models")(models_command)
    app.command("machines")(machines_command)
    app.command("frameworks")(frameworks_command)
    app.command("datasets")(datasets_command)
    app.command("show")(show_command)


def _print_list(as_json: bool, records: Iterable[object], lines: Iterable[str]) -> int:
    if as_json:
        print(json.dumps(list(records), indent=1))
    else:
        print("\n".join(lines))
    return 0


def models_command(as_json: AsJson = False) -> int:
    """List the models of the catalogue."""
    models = [catalogue.load_model(name) for name in catalogue.names("model")]
    return _print_list(
        as_json,
        [{"name": m.name, "num_params": m.num_params, "family": m.family} for m in models],
        [f"{m.name:22} {format_count(m.num_params):>8}  {m.family}" for m in models],
    )


def machines_command(as_json: AsJson = False) -> int:
    """List the machines of the catalogue."""
    machines = [catalogue.load_machine(name) for name in catalogue.names("machine")]
    records = [
        {
            "name": m.name,
            "num_devices": m.num_devices,
            "title": m.title,
            "num_nodes": int(m.num_nodes.value),
            "networks": [n.name for n in m.all_networks if n.name],
            "evidence": m.evidence,
        }
        for m in machines
    ]
    wide = max(len(m.device.name) for m in machines)
    lines = [
        f"{m.name:20} {int(m.num_nodes.value):>6} x {m.node.num_devices:<2} "
        f"{m.device.name:{wide}}  {m.title}"
        for m in machines
    ]
    return _print_list(as_json, records, lines)


def frameworks_command(as_json: AsJson = False) -> int:
    """List the frameworks of the catalogue and their switches (`-f fsdp2+compile`)."""
    frameworks = [catalogue.load_framework(name) for name in catalogue.names("framework")]
    records = [
        {
            "name": framework.name,
            "title": framework.title,
            "switches": {name: switch.does for name, switch in framework.switches.items()},
        }
        for framework in frameworks
    ]
    return _print_list(as_json, records, _framework_lines(frameworks))


def _framework_lines(frameworks: list[Framework]) -> Iterator[str]:
    from planner.show.descriptions import spelled

    for framework in frameworks:
        yield f"{framework.name:20} {framework.title}"
        switches = [spelled(*each) for each in framework.switches.items()]
        if switches:
            text = textwrap.fill(" ".join(switches), 100 - len(_INDENT), break_on_hyphens=False)
            yield textwrap.indent(text, _INDENT)


def datasets_command(as_json: AsJson = False) -> int:
    """List the datasets of the catalogue (`planner ask data --dataset NAME`)."""
    datasets = [catalogue.load_dataset(name) for name in catalogue.names("dataset")]
    return _print_list(
        as_json,
        [dataset.model_dump(mode="json") for dataset in datasets],
        [f"{each.name:20} {format_bytes(each.total_bytes):>11}  {each.title}" for each in datasets],
    )


def _kind_of_file(name: str) -> str | None:
    """Return the kind of description that a file or folder holds; None for a plain name."""
    # os.path.isdir accepts any text, unlike Path.is_dir
    is_folder = os.path.isdir(name) and name not in catalogue.names("machine")
    if is_python_file(name) or name.endswith(".json") or is_folder:
        return "model"
    if "/" in name and not name.endswith(".toml"):
        from planner.describe.model.huggingface.hub import parse_hub_name

        return "model" if parse_hub_name(name) else None
    if not name.endswith(".toml"):
        return None
    content = set(read_toml(Path(name)))
    shapes = {"num_layers", "hidden_size", "convolutional"}
    return "machine" if "device" in content else "model" if shapes & content else "framework"


def _show_constants(as_json: bool) -> int:
    from planner.cost.constants import network_constants, step_constants
    from planner.show.descriptions import constants_page
    from planner.show.terminal import console, print_page
    from planner.training.data.input import constants as of_data
    from planner.training.energy import constants as of_energy
    from planner.training.resilience.checkpoints import constants as of_checkpoints
    from planner.training.resilience.failures import constants as of_failures
    from planner.training.resilience.start import constants as of_start

    sections: dict[str, Description] = {
        "collectives": network_constants(),
        "step": step_constants(),
        "start-up": of_start(),
        "checkpoints": of_checkpoints(),
        "failures": of_failures(),
        "input": of_data(),
        "energy": of_energy(),
    }
    if as_json:
        print(json.dumps({key: value.model_dump(mode="json") for key, value in sections.items()}))
    else:
        print_page(constants_page(sections), console())
    return 0


def _show_preferences(as_json: bool) -> int:
    from planner.choose.preferences import preferences, user_file
    from planner.show.descriptions import quantity_table
    from planner.show.terminal import console, print_table

    if as_json:
        print(preferences().model_dump_json(indent=1))
        return 0
    out = console()
    changes = f", with those of {path}" if (path := user_file()) else ""
    out.print(f"preferences{changes}:", style="bold", highlight=False)
    print_table(quantity_table(preferences()), out)
    return 0


def show_command(
    name: Annotated[
        str,
        typer.Argument(
            help="Machine, model (also org/name of the Hugging Face hub, or FILE.py:FUNCTION, "
            "which runs that file), framework[+SWITCH...], `constants` or `preferences`."
        ),
    ],
    as_json: AsJson = False,
    as_toml: Annotated[
        bool, typer.Option("--toml", help="Print TOML that can replace the name of a model.")
    ] = False,
    overrides: Overrides = None,
) -> int:
    """Show everything known about a machine, a model, a framework, constants or preferences."""
    if name == "constants":
        return _show_constants(as_json)
    if name == "preferences":
        return _show_preferences(as_json)
    plain, _ = split_name(name)
    kind = _kind_of_file(plain)
    if plain in catalogue.names("framework") or kind == "framework":
        described: Any = catalogue.load_framework(name)
    elif name in catalogue.names("model") or kind == "model":
        described = catalogue.load_model(name)
    else:
        kinds = {*catalogue.names("machine"), *catalogue.aliases()}
        if name.lower() not in kinds and kind is None:
            everything = [*kinds, *catalogue.names("model"), *catalogue.names("framework")]
            lists = "`planner machines`, `models`, `frameworks`"
            raise UnknownNameError("name", name, everything, lists)
        described = catalogue.load_machine(name, tuple(overrides or ()))
    if as_toml:
        if not isinstance(described, Model):
            raise DescriptionError(f"{shorten(name)} is not a model; omit --toml, or use --json")
        from planner.show.descriptions import model_toml

        print(model_toml(described), end="")
    elif as_json:
        print(described.model_dump_json(indent=1))
    elif hasattr(described, "node") or hasattr(described, "switches"):
        from planner.show.terminal import console, show

        show(described, console())
    else:
        _show_model(described)
    return 0


def _show_model(model: Model) -> None:
    net = model.convolutional
    for field, value in model.model_dump(exclude_defaults=True).items():
        if field not in ("convolutional", "traced"):
            print(f"{field}: {value}")
    print(f"num_params: {model.num_params:,}")
    for stage, block in zip(net.sized_stages() if net else (), weight_blocks(model), strict=False):
        shapes = [(stage.in_channels, stage.in_places), (stage.out_channels, stage.out_places)]
        sizes = [" x ".join(map(str, (channels, *places))) for channels, places in shapes]
        times = f"{stage.stage.count} times " * (stage.stage.count > 1)
        print(f"{block.name}: {times}{' -> '.join(sizes)}, {block.num_params:,} parameters")
    for number, dense in enumerate(net.dense if net else ()):
        print(f"dense {number + 1}: {dense.outputs:,} outputs")
    if model.traced is not None:
        from planner.show.descriptions import traced_page
        from planner.show.terminal import console, print_page

        print_page(traced_page(model.traced), console())
