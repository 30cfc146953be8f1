"""Frameworks: a framework and its switches, for the terminal."""

from __future__ import annotations

from rich import box
from rich.console import Console
from rich.table import Table

from planner.describe.framework.framework import Framework
from planner.describe.framework.switches import Switch

__all__ = ["show_framework", "spelled", "written"]


def spelled(name: str, switch: Switch) -> str:
    """How a switch is named behind a framework.

    >>> from planner.describe.catalogue import load_framework
    >>> switches = load_framework("deepspeed").switches
    >>> [spelled(name, switches[name]) for name in ("liger", "bucket")]
    ['+liger', '+bucket=VALUE']
    """
    return f"+{name}=VALUE" if switch.takes else f"+{name}"


def written(switch: Switch) -> str:
    """What its files are told, or that they cannot be."""
    if switch.arguments is None:
        return "estimated only: no file is told"
    variables = [f"{key}={value}" for key, value in switch.environment.items()]
    return ", ".join([*switch.arguments, *variables]) or "the settings that it changes"


def show_framework(framework: Framework, out: Console) -> None:
    """Print a framework: its switches, then every trait that is not as usual."""
    out.print(f"{framework.name}: {framework.title}", style="bold", highlight=False)
    if framework.switches:
        example = next(iter(framework.switches.items()))
        out.print(
            f"switches, as -f {framework.family}{spelled(*example)}; several are added up:",
            highlight=False,
        )
        out.print(_switches(framework))
    fields = framework.model_dump(exclude_defaults=True, exclude={"switches", "switched"})
    for field, value in fields.items():
        out.print(f"{field}: {value}", highlight=False, markup=False)


def _switches(framework: Framework) -> Table:
    table = Table("switch", "what it does", "what files are told", box=box.SIMPLE)
    names = {word.partition("=")[0]: word for word in framework.switched}
    for name, switch in framework.switches.items():
        more = f"; goes with {', '.join(switch.needs)}" if switch.needs else ""
        more += "; saves memory" if switch.saves_memory else ""
        on = f"+{names[name]} (on)" if name in names else spelled(name, switch)
        table.add_row(on, switch.does + more, written(switch))
    return table
