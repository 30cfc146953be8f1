"""Job: what wishes of the address mean, adapted to the model and the machine.

A field of the workload that nobody asked for is as the model and the machine have it: no bf16
where the device has none, no more nodes than there are. What was asked and cannot be is said.
"""

from __future__ import annotations

import contextlib
import dataclasses
from dataclasses import dataclass, field
from typing import Any

from planner.app import link
from planner.app.address import Reading, Wishes
from planner.app.controls.fields import Kind, bounds, kind_of, options_of
from planner.app.controls.hub import hub_model
from planner.app.controls.switches import SWITCHES, switched
from planner.choose.preferences import preferences
from planner.cost.scenario.experience import Experience
from planner.describe.catalogue import (
    aliases,
    load_framework,
    load_machine,
    load_model,
    names,
)
from planner.describe.machine import Machine
from planner.describe.machine.variants import (
    MAX_FREE_PERCENT,
    override_fields,
    reserve_memory,
    take_devices,
)
from planner.describe.model.huggingface.hub import parse_hub_name
from planner.describe.model.model import Model
from planner.describe.workload import (
    PRECISIONS,
    TrainingPrecision,
    Workload,
    parse_documents,
    parse_tokens,
)
from planner.emitters.batch_job import slug
from planner.errors import PlannerError
from planner.evidence.learning import Learned

__all__ = ["SHORT", "YOURS", "Asked", "Job", "follow", "moved", "precisions", "read"]

SHORT = {"global_batch": "batch", "sequence_length": "seq", "lora_rank": "lora"}
"""Fields of the workload whose name in the address is another."""
YOURS = "yours"
"""The choice of a model or machine that the user described."""
OWN = {"model": "config", "machine": "profile"}
"""Where the address carries a user's own description."""
MOST_TOLERANCE = 100
"""Percent by which the recommended layout may be slower than the fastest."""
MOST_LAYOUTS = 1000
"""Layouts that a ranking may hold."""
_LAYOUT = "layout"
_NODES, _TOP = 4, 20
_TOLERANCE = round(100 * preferences().tolerance)


@dataclass(frozen=True, slots=True)
class Job:
    """What is asked: a model on some nodes of a machine, for a workload."""

    model: Model
    machine: Machine
    nodes: int
    workload: Workload
    frameworks: tuple[str, ...] = ()
    """Names of those that are searched, with their switches; none: the usual ones."""
    top: int = _TOP
    layout: str = ""
    """The layout that the user chose, packed; empty for the recommended one."""
    free: int = 0
    """Percent of the devices' memory that is left free; the machine has as much less."""
    devices: int = 0
    """Devices of one node, where the job has a part of it; the machine is that part."""
    tolerance: int = _TOLERANCE
    """Percent by which the recommended layout may be slower than the fastest."""
    runs: str = ""
    """Digest of the user's own runs; empty where there are none."""
    learned: Learned | None = field(default=None, compare=False)
    """What they taught."""

    @property
    def experience(self) -> Experience:
        """What corrects all estimates."""
        return Experience() if self.learned is None else self.learned.experience

    @property
    def key(self) -> str:
        """The job as text, whatever layout is chosen; equal jobs have equal text."""
        parts = (self.model, self.machine, self.workload)
        said = [part.model_dump_json() for part in parts]
        return "\n".join(
            [*said, *map(str, (self.nodes, self.top, self.tolerance)), *self.frameworks, self.runs]
        )

    @property
    def num_devices(self) -> int:
        """Devices of its nodes."""
        return self.nodes * self.machine.node.num_devices

    @property
    def file_name(self) -> str:
        """What its downloads are called."""
        return f"{slug(self.model.name)}-{self.machine.name}-{self.nodes}"


@dataclass(frozen=True, slots=True)
class Asked:
    """What this run of the app is about."""

    reading: Reading
    job: Job | None
    trouble: str = ""
    """Why the wishes describe no job."""


def read(reading: Reading) -> Asked:
    """The job that wishes describe."""
    model: Model = _described(reading, "model", "llama-3-8b")
    machine: Machine = _described(reading, "machine", "polaris")
    machine = reading.checked(
        "set", lambda text: override_fields(machine, tuple(text.splitlines()))
    )
    machine = _networked(reading, machine)
    free = reading.number("free", 0, MAX_FREE_PERCENT, 0)
    machine = reserve_memory(machine, free)
    devices = reading.number("devices", 0, machine.node.num_devices, 0)
    if devices:
        machine = take_devices(machine, devices)
    most = int(machine.num_nodes.value)
    nodes = reading.number("nodes", 1, most, min(_NODES, most))
    fields = {name: _field(reading, name, model, machine) for name in Workload.model_fields}
    workload, trouble = _workload(fields)
    named = reading.words("frameworks", running_on(machine))
    frameworks = switched(reading, named, machine, model, workload)
    top = reading.number("top", 1, MOST_LAYOUTS, _TOP)
    tolerance = reading.number("tolerance", 0, MOST_TOLERANCE, _TOLERANCE)
    layout = reading.packed(_LAYOUT)
    if workload is None:
        return Asked(reading, None, trouble)
    return Asked(
        reading,
        Job(model, machine, nodes, workload, frameworks, top, layout, free, devices, tolerance),
    )


def _workload(fields: dict[str, Any]) -> tuple[Workload | None, str]:
    """The workload of some fields, or why they describe none."""
    try:
        return Workload.described(fields, where="job"), ""
    except PlannerError as error:
        return None, error.plain


def follow(wishes: Wishes, changed: set[str]) -> None:
    """What else changes with what the user changed."""
    if "model" in changed and "model" in wishes:
        wishes["model"] = _meant(wishes["model"], wishes)
    for kind, own in OWN.items():
        if kind not in changed:
            continue
        if wishes.get(kind) == YOURS:
            wishes[own] = wishes.pop(f"kept_{own}", "")
            del wishes[kind]
        elif own in wishes:
            # it can be chosen again
            wishes[f"kept_{own}"] = wishes.pop(own)
    jobs = {
        *OWN,
        "network",
        "set",
        "free",
        "devices",
        "nodes",
        "frameworks",
        SWITCHES,
        *(SHORT.get(f, f) for f in Workload.model_fields),
    }
    if changed & jobs:
        # a layout belongs to the job it was chosen for
        wishes.pop(_LAYOUT, None)


def _meant(typed: str, wishes: Wishes) -> str:
    """The choice of a model that was typed in part: the first that begins so, else that holds it.

    >>> _meant("mistral", {}), _meant("org/name", {}), _meant("nobody", {})
    ('mistral-7b', 'org/name', 'nobody')
    """
    labels = {name: name for name in names("model")}
    packed = wishes.get(OWN["model"]) or wishes.get(f"kept_{OWN['model']}")
    if packed:
        with contextlib.suppress(PlannerError):
            labels = {link.unpack_own(packed).name: YOURS, **labels}
    if typed == YOURS or typed in labels.values() or parse_hub_name(typed):
        return typed
    text = typed.lower()
    near = [name for name in labels if text in name.lower()]
    first = sorted(near, key=lambda name: not name.lower().startswith(text))[:1]
    return labels[first[0]] if first else typed


def moved(job: Job, machine: Machine) -> tuple[Job, str]:
    """The same job on at least as many devices of another machine, and what had to change."""
    machine = reserve_memory(machine, job.free)
    if 0 < job.devices < machine.node.num_devices:
        machine = take_devices(machine, job.devices)
    nodes = -(-job.num_devices // machine.node.num_devices)
    workload, said = job.workload, ""
    possible = precisions(machine)
    if workload.precision not in possible and possible:
        other = _usual_precision(machine)
        said = f"{machine.name} computes no {workload.precision}: {other} there."
        workload = workload.replaced(precision=other)
    frameworks = tuple(
        n for n in job.frameworks if not load_framework(n).refuses(machine, workload, job.model)
    )
    found = dataclasses.replace(
        job, machine=machine, nodes=nodes, workload=workload, frameworks=frameworks, layout=""
    )
    return found, said


def precisions(machine: Machine) -> tuple[TrainingPrecision, ...]:
    """Precisions of training that a machine's devices compute in."""
    peaks = machine.device.peak_flop_per_s
    return tuple(
        p for p in PRECISIONS if p in peaks and Workload(precision=p).base_precision in peaks
    )


def _usual_precision(machine: Machine) -> TrainingPrecision:
    possible = precisions(machine)
    wanted: tuple[TrainingPrecision, ...] = ("bf16", "fp16")
    return next((p for p in (*wanted, *possible) if p in possible), Workload().precision)


def running_on(machine: Machine) -> list[str]:
    """Frameworks that run on a machine's devices."""
    return [name for name in names("framework") if not load_framework(name).refuses(machine)]


def _described(reading: Reading, kind: str, usual: str) -> Any:
    """The model or machine that is asked: a catalogue's, or the user's own."""
    packed = reading.packed(OWN[kind])
    if packed:
        try:
            own = link.unpack_own(packed)
            found = own.model() if kind == "model" else own.machine()
        except PlannerError as error:
            reading.said.append(f"Your own {kind}: {error.plain}; {usual} is shown.")
        else:
            reading.keys.append(kind)
            reading.values[kind] = reading.usual[kind] = YOURS
            return found
    wishes, load = reading.wishes, load_model if kind == "model" else load_machine
    if kind == "machine" and wishes.get(kind, "").lower() in aliases():
        wishes[kind] = aliases()[wishes[kind].lower()]
    if kind == "model" and parse_hub_name(wishes.get(kind, "")):
        name = reading.text(kind, usual)
        try:
            return hub_model(name)
        except PlannerError as error:
            reading.said.append(f"{error.plain}; {usual} is shown.")
            reading.values[kind] = usual
            return load(usual)
    return load(reading.choice(kind, names(kind), usual))


def _networked(reading: Reading, machine: Machine) -> Machine:
    """The machine on the network that is asked, where software makes several of its wires."""
    if not machine.networks:
        return machine
    names_of_all = [network.name for network in machine.all_networks]
    chosen = reading.choice("network", ("", *names_of_all), "")
    return machine.on_network(chosen) if chosen else machine


def _field(reading: Reading, name: str, model: Model, machine: Machine) -> Any:
    """A field of the workload; what nobody asked is as model and machine have it."""
    key, usual = SHORT.get(name, name), Workload.model_fields[name].default
    least, most = bounds(Workload, name)
    if name == "tokens":
        return reading.checked(key, lambda text: parse_tokens(text) if text.strip() else 0.0)
    if name == "document_lengths":
        return reading.checked(key, parse_documents)
    if name == "precision":
        return reading.choice(key, precisions(machine), _usual_precision(machine))
    if name == "sequence_length":
        usual = model.default_sequence_length
        most = model.longest_sequence if model.position == "learned" else most
    kind = kind_of(Workload, name)
    if kind is Kind.CHOICE:
        return reading.choice(key, options_of(Workload, name), usual)
    if kind is Kind.TEXT:
        return reading.text(key, usual)
    if kind is Kind.WORDS:
        return tuple(reading.words(key, options_of(Workload, name), usual))
    if kind is Kind.TRUTH:
        return reading.truth(key, usual)
    return reading.number(key, least, most or bounds(Workload, name)[1], usual, kind.number)
