"""Switches: the switches of the chosen frameworks, as words of the address."""

from collections.abc import Iterator, Sequence
from typing import NamedTuple

from planner.app.address import QueryReader
from planner.app.draw import on_page
from planner.describe.catalogue import load_framework
from planner.describe.framework.switches import split_name
from planner.describe.machine import Machine
from planner.describe.model.model import Model
from planner.describe.workload import Workload
from planner.errors import PlannerError

SWITCHES = "switches"
"""Name of the address parameter."""


class Setting(NamedTuple):
    """What decides which switches are possible."""

    machine: Machine
    model: Model
    workload: Workload | None
    """None if the job is invalid."""


def offered(frameworks: Sequence[str], setting: Setting) -> list[str]:
    """List switches as FRAMEWORK+SWITCH that the machine's devices and the workload allow."""
    return [word for word, _ in _offered(frameworks, setting)]


def _offered(frameworks: Sequence[str], setting: Setting) -> Iterator[tuple[str, str]]:
    machine, model, workload = setting
    for framework in frameworks:
        for name, switch in load_framework(framework).switches.items():
            unfit = workload is not None and switch.refuses_workload(workload, model)
            if not (switch.refuses(machine.device) or unfit):
                value = f"={switch.usual}" if switch.takes else ""
                yield f"{framework}+{name}{value}", switch.does


def help_of(frameworks: Sequence[str], setting: Setting) -> str:
    """Write the help text of the control."""
    words = _offered(frameworks, setting)
    lines = [f"- `{word}`: {on_page(effect)}" for word, effect in words]
    about = "What is turned on, as FRAMEWORK+SWITCH; another value is typed."
    return "\n".join([about, "", *lines]) if lines else "None of these frameworks has switches."


def switched(reader: QueryReader, frameworks: Sequence[str], setting: Setting) -> tuple[str, ...]:
    """Return the chosen frameworks with their switches; drop invalid ones with a message."""
    raw_value = reader.query.get(SWITCHES, "")
    # a plus sign typed into an address is decoded as a blank
    requested = [word.strip().replace(" ", "+") for word in raw_value.split(",") if word.strip()]
    if raw_value:
        reader.query[SWITCHES] = ",".join(requested)
    fine = [word for word in requested if split_name(word)[0] in frameworks and _is_fine(word)]
    accepted = [*offered(frameworks, setting), *fine]
    words = reader.words(SWITCHES, list(dict.fromkeys(accepted)))
    full_names = {name: _full_name(name, words) for name in frameworks}
    return tuple(
        name if _refused(reader, name, text, setting) else text for name, text in full_names.items()
    )


def _is_fine(word: str) -> bool:
    """True if the framework accepts the switches, together with those that they need."""
    name, switches = split_name(word)
    catalogue = load_framework(name).switches
    needed = [
        each for switch in switches if switch in catalogue for each in catalogue[switch].needs
    ]
    try:
        load_framework("+".join([name, *needed, *switches]))
    except PlannerError:
        return False
    return bool(switches)


def _full_name(name: str, words: Sequence[str]) -> str:
    chosen = [split_name(word) for word in words]
    return "+".join([name, *(each for of, all_on in chosen if of == name for each in all_on)])


def _refused(reader: QueryReader, name: str, full_name: str, setting: Setting) -> bool:
    """True, with a message, if the switches conflict with each other or with the job."""
    try:
        machine, model, workload = setting
        refused = load_framework(full_name).refuses(machine, workload, model)
    except PlannerError as error:
        refused = error.plain
    if refused:
        reader.messages.append(f"Switches: {refused}; {name} is searched without any.")
    return bool(refused)
