"""Page job: the job that the address describes, adapted to the model and the machine."""

import contextlib
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

import streamlit as st

from planner.app import link
from planner.app.address import Query, QueryReader
from planner.app.controls.fields import Kind, bounds, kind_of, options_of
from planner.app.controls.switches import SWITCHES, Setting, switched
from planner.choose.jobs.job_spec import JobSpec
from planner.choose.planning import TOP
from planner.choose.preferences import preferences
from planner.describe.catalogue import aliases, load_framework, load_machine, load_model, names
from planner.describe.job_description import JobDescription
from planner.describe.machine import Machine, variants
from planner.describe.model.huggingface.hub import load_from_hub, parse_hub_name
from planner.describe.model.model import Model
from planner.describe.workload import (
    PRECISIONS,
    TrainingPrecision,
    Workload,
    parse_documents,
    parse_tokens,
)
from planner.emitters.batch_job import slug
from planner.errors import CatalogueError, PlannerError
from planner.evidence.learning import Learned
from planner.show.job_texts import PARAMETERS

_HUB_CACHE_S = 60
"""Seconds after which the hub is queried again for a name, known or not."""


def hub_model(name: str) -> Model:
    """Load a model from the Hugging Face hub. Raises CatalogueError if that fails."""
    if isinstance(result := _answer(name), str):
        raise CatalogueError(result)
    return result


@st.cache_data(ttl=_HUB_CACHE_S, max_entries=64, show_spinner="Querying the Hugging Face hub ...")
def _answer(name: str) -> Model | str:
    """Return the model, or an error message; failures are cached too, because they take seconds."""
    try:
        return load_from_hub(name)
    except PlannerError as error:
        return error.plain


YOURS = "yours"
"""Option that stands for the user's own model or machine."""
OWN_PARAMETER = {"model": "config", "machine": "profile"}
"""Address parameter that holds the user's own description."""
MOST_TOLERANCE = 100
"""Largest tolerance: percent by which the recommended layout may be slower than the fastest."""
MOST_LAYOUTS = 1000
"""Largest number of ranked layouts."""
_LAYOUT = "layout"
PINS = "pins"
"""Address parameter that holds the pinned answers, on every page."""
_NODES = 4
_TOLERANCE = round(100 * preferences().tolerance)


@dataclass(frozen=True, slots=True, init=False)
class PageJob(JobSpec):
    """The job of a page, with page options that are not fields of a job."""

    top: int = TOP
    """Layouts to rank."""
    layout: str = ""
    """Packed layout that the user chose; empty for the recommended one."""
    free: int = 0
    """Percent of device memory left free; already subtracted from `machine`."""
    devices: int = 0
    """Devices of one node if the job uses part of it (`machine` is that part); 0: whole nodes."""
    runs: str = ""
    """Digest of the user's own runs; empty if there are none."""
    learned: Learned | None = field(default=None, compare=False)
    """Corrections learned from the user's own runs."""

    def __init__(
        self,
        *job: Any,
        top: int = TOP,
        layout: str = "",
        free: int = 0,
        devices: int = 0,
        runs: str = "",
        learned: Learned | None = None,
        **fields: Any,
    ) -> None:
        """Check the fields of the job like `JobSpec`; `learned` provides the experience."""
        if learned is not None:
            fields["experience"] = learned.experience
        JobSpec.__init__(self, *job, **fields)
        page = {"top": top, "layout": layout, "free": free, "devices": devices}
        for name, value in {**page, "runs": runs, "learned": learned}.items():
            object.__setattr__(self, name, value)

    @property
    def key(self) -> str:
        """Cache key: the job as text, without the chosen layout."""
        texts = [part.model_dump_json() for part in (self.model, self.machine, self.workload)]
        texts += map(str, (self.nodes, self.top, self.tolerance, self.exact))
        return "\n".join([*texts, *(each.name for each in self.frameworks), self.runs])

    @property
    def file_name(self) -> str:
        """Base name of the job's downloads."""
        return f"{slug(self.model.name)}-{self.machine.name}-{self.nodes}"


@dataclass(frozen=True, slots=True)
class PageRequest:
    """Query of one app run and the job that it describes."""

    reader: QueryReader
    job: PageJob | None
    problem: str = ""
    """Why the query does not describe a job."""
    description: JobDescription = field(default=JobDescription(model="", machine=""))
    """The job as a user would write it, with the names of own files."""


def read(reader: QueryReader) -> PageRequest:
    """Read the job that the query describes."""
    model: Model = _described(reader, "model", "llama-3-8b")
    machine: Machine = _described(reader, "machine", "polaris")
    machine = _on_network(reader, machine)
    machine, overrides = reader.checked(
        "set",
        lambda text: (variants.override_fields(machine, lines := tuple(text.splitlines())), lines),
    )
    free = reader.number("free", 0, variants.MAX_FREE_PERCENT, 0)
    machine = variants.reserve_memory(machine, free)
    devices = reader.number("devices", 0, machine.node.num_devices, 0)
    if devices:
        machine = variants.take_devices(machine, devices)
    most = int(machine.num_nodes.value)
    nodes = reader.number("nodes", 1, most, min(_NODES, most))
    fields = {name: _field(reader, name, model, machine) for name in Workload.model_fields}
    workload, problem = None, ""
    try:
        workload = Workload.described(fields, where="job")
    except PlannerError as error:
        problem = error.plain
    named = reader.words("frameworks", running_on(machine))
    frameworks = switched(reader, named, Setting(machine, model, workload))
    top = reader.number("top", 1, MOST_LAYOUTS, TOP)
    tolerance = reader.number("tolerance", 0, MOST_TOLERANCE, _TOLERANCE)
    exact, layout = reader.truth("exact", False), reader.packed(_LAYOUT)
    reader.packed(PINS)
    if workload is None:
        return PageRequest(reader, None, problem)
    choices = {"top": top, "layout": layout, "free": free, "devices": devices}
    choices |= {"nodes": nodes, "frameworks": frameworks, "tolerance": tolerance / 100}
    choices["exact"] = exact
    try:
        job = PageJob(model, machine, workload=workload, **choices)
    except PlannerError as error:
        return PageRequest(reader, None, error.plain)
    return PageRequest(reader, job, description=_describe(reader, job, overrides))


def _describe(reader: QueryReader, job: PageJob, overrides: tuple[str, ...]) -> JobDescription:
    """Describe a job as a user would: batch, sequence, and what differs from the defaults."""
    shape = {"sequence_length": job.workload.sequence_length}
    shape["global_batch"] = job.workload.global_batch
    return JobDescription(
        model=_name(reader, "model"),
        machine=_name(reader, "machine"),
        nodes=job.nodes,
        devices=job.devices or None,
        network=reader.values.get("network", ""),
        set=overrides,
        leave_free=job.free,
        frameworks=tuple(each.name for each in job.frameworks),
        tolerance=None if round(100 * job.tolerance) == _TOLERANCE else job.tolerance,
        exact=job.exact,
        workload={**shape, **job.workload.model_dump(exclude_defaults=True)},
    )


def _name(reader: QueryReader, kind: str) -> str:
    if reader.values[kind] == YOURS:
        return link.unpack_own(reader.query[OWN_PARAMETER[kind]]).file_name
    return str(reader.values[kind])


def follow(query: Query, changed: set[str], shown: Mapping[str, Any]) -> None:
    """Adapt the query to the user's changes: model name, own descriptions, chosen layout."""
    if not st.session_state.get("ask_start"):
        # an answer belongs to the question it was asked for
        query.pop("answer", None)
    if "model" in changed and "model" in query:
        query["model"] = _match_model(query["model"], query, str(shown["model"]))
    for kind, parameter in OWN_PARAMETER.items():
        if kind not in changed:
            continue
        if query.get(kind) == YOURS:
            query[parameter] = query.pop(f"kept_{parameter}", "")
            del query[kind]
        elif parameter in query:
            # kept, so that it can be chosen again
            query[f"kept_{parameter}"] = query.pop(parameter)
    jobs = {"network", "set", "free", "devices", "nodes", "frameworks", SWITCHES, *OWN_PARAMETER}
    if changed & {*jobs, *(PARAMETERS.get(f, f) for f in Workload.model_fields)}:
        # a layout belongs to the job it was chosen for
        query.pop(_LAYOUT, None)


def _match_model(typed: str, query: Query, shown: str) -> str:
    """Complete a partly typed model name: the first that starts with it, else contains it."""
    labels = {name: name for name in names("model")}
    packed = query.get(OWN_PARAMETER["model"]) or query.get(f"kept_{OWN_PARAMETER['model']}")
    if packed:
        with contextlib.suppress(PlannerError):
            labels = {link.unpack_own(packed).name: YOURS, **labels}
    if typed == YOURS or typed in labels.values() or parse_hub_name(typed):
        return typed
    text = typed.lower()
    # of a name pasted over the shown one, Streamlit sends what it inserts there
    pasted = [shown[:i] + typed + shown[i:] for i in range(len(shown))]
    matches = [name for name in labels if text in name.lower()]
    matches.sort(key=lambda name: (name not in pasted, not name.lower().startswith(text)))
    return labels[matches[0]] if matches else typed


def precisions(machine: Machine) -> tuple[TrainingPrecision, ...]:
    """Return the training precisions that a machine's devices support."""
    peaks = machine.device.peak_flop_per_s
    return tuple(
        p for p in PRECISIONS if p in peaks and Workload(precision=p).base_precision in peaks
    )


def _usual_precision(machine: Machine) -> TrainingPrecision:
    possible = precisions(machine)
    wanted: tuple[TrainingPrecision, ...] = ("bf16", "fp16")
    return next((p for p in (*wanted, *possible) if p in possible), Workload().precision)


def running_on(machine: Machine) -> list[str]:
    """Return the names of the frameworks that run on a machine's devices."""
    return [name for name in names("framework") if not load_framework(name).refuses(machine)]


def _described(reader: QueryReader, kind: str, usual: str) -> Any:
    """Load the requested model or machine: from the catalogue, the hub, or the user."""
    packed = reader.packed(OWN_PARAMETER[kind])
    if packed:
        try:
            description = link.unpack_own(packed)
            loaded = description.model() if kind == "model" else description.machine()
        except PlannerError as error:
            reader.messages.append(f"Your own {kind}: {error.plain}; using {usual}.")
        else:
            reader.keys.append(kind)
            reader.values[kind] = reader.defaults[kind] = YOURS
            return loaded
    query, load = reader.query, load_model if kind == "model" else load_machine
    if kind == "machine" and query.get(kind, "").lower() in aliases():
        query[kind] = aliases()[query[kind].lower()]
    if kind == "model" and parse_hub_name(query.get(kind, "")):
        name = reader.text(kind, usual)
        try:
            return hub_model(name)
        except PlannerError as error:
            reader.messages.append(f"{error.plain}; using {usual}.")
            reader.values[kind] = usual
            return load(usual)
    return load(reader.choice(kind, names(kind), usual))


def _on_network(reader: QueryReader, machine: Machine) -> Machine:
    if not machine.networks:
        return machine
    chosen = reader.choice("network", ("", *(each.name for each in machine.all_networks)), "")
    return machine.on_network(chosen) if chosen else machine


def _field(reader: QueryReader, name: str, model: Model, machine: Machine) -> Any:
    """Read a workload field; its default depends on the model and the machine."""
    key, usual = PARAMETERS.get(name, name), Workload.model_fields[name].default
    least, most = bounds(Workload, name)
    if name == "tokens":
        return reader.checked(key, lambda text: parse_tokens(text) if text.strip() else 0.0)
    if name == "document_lengths":
        return reader.checked(key, parse_documents)
    if name == "precision":
        return reader.choice(key, precisions(machine), _usual_precision(machine))
    if name == "sequence_length":
        usual = model.default_sequence_length
        most = model.longest_sequence if model.position == "learned" else most
    kind = kind_of(Workload, name)
    if kind is Kind.CHOICE:
        return reader.choice(key, options_of(Workload, name), usual)
    if kind is Kind.TEXT:
        return reader.text(key, usual)
    if kind is Kind.WORDS:
        return tuple(reader.words(key, options_of(Workload, name), usual))
    if kind is Kind.TRUTH:
        return reader.truth(key, usual)
    return reader.number(key, least, most or bounds(Workload, name)[1], usual, kind.number)
