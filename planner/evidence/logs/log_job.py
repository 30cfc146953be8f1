"""Log job: the job of a logged run, from a JSON file, or from the log itself with a note."""

import math
import os
from collections.abc import Mapping
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

from planner.choose.legality import check
from planner.choose.user_layouts import complete_layout
from planner.cost.scenario import Scenario
from planner.describe.catalogue import load_framework, load_machine, load_model, names
from planner.describe.configurations.configuration import Configuration
from planner.describe.files import parse_json, read_text
from planner.describe.layout import Layout
from planner.describe.machine import Machine
from planner.describe.model.model import Model
from planner.describe.workload import Workload
from planner.errors import CatalogueError, DescriptionError, shorten
from planner.evidence.logs.steps import RunLog

_FIELDS: dict[str, tuple[Any, str]] = {
    "layout": (dict, 'an object, such as {"dp": 4}'),
    "model": ((str, dict), 'a name, such as "llama-3-8b", or a description'),
    "workload": (dict, 'an object, such as {"sequence_length": 4096}'),
    "framework": (str, 'a name, such as "fsdp2"'),
}
"""Fields of a job file: type, and description for messages."""
_CLOSE = 0.005
ANOTHER_RUN = "they may not be the same run"
"""End of an assumption on figures that log and layout do not share."""


@dataclass(frozen=True, slots=True)
class Job:
    """Scenario and layout of a run, and the assumptions behind them."""

    scenario: Scenario
    layout: Layout
    assumptions: tuple[str, ...]


def read_job(
    log: RunLog,
    machine: str | Machine,
    layout: str | Path | Mapping[str, Any] | Configuration | None = None,
    *,
    model: str | Model | None = None,
    framework: str | None = None,
    sequence_length: int | None = None,
    precision: str | None = None,
) -> Job:
    """Read the job of a log; `layout` may be the `Configuration` of the run's own files."""
    place = machine if isinstance(machine, Machine) else load_machine(machine)
    overrides = {"sequence_length": sequence_length, "precision": precision}
    workload = {name: value for name, value in overrides.items() if value is not None}
    assumed: list[str] = []
    if isinstance(layout, Configuration):
        trained = _model(model or layout.model, log, assumed)
        return _configured_job(layout, log, place, trained, framework, workload, assumed)
    fields = _read_fields(layout)
    trained = _model(model or fields.get("model"), log, assumed)
    job_layout = _layout(fields["layout"], log, place, assumed)
    workload = {**(fields.get("workload") or {}), **workload}
    Workload.described(workload, where="workload")  # check the stated fields before use
    if "sequence_length" not in workload:
        workload["sequence_length"] = _sequence(log, trained, assumed)
    job_layout = _batch(job_layout, fields["layout"], workload, log, assumed)
    workload.setdefault("global_batch", job_layout.global_batch)
    chosen = framework or fields.get("framework")
    if not chosen:
        chosen = log.framework
        assumed.append(f"framework {chosen}, from the form of the log")
    described = Workload.described(workload, where="workload")
    scenario = Scenario(trained, place, described, load_framework(chosen))
    check(scenario, job_layout)
    return Job(scenario, job_layout, tuple(assumed))


def _configured_job(
    files: Configuration,
    log: RunLog,
    machine: Machine,
    model: Model,
    framework: str | None,
    workload: dict[str, Any],
    assumed: list[str],
) -> Job:
    """Make the job from the run's own files and `workload`; the log fills in the rest."""
    if "sequence_length" not in {**files.workload, **workload}:
        workload["sequence_length"] = _sequence(log, model, assumed)
    files = _with_world(files, log, machine, assumed)
    batch = logged_batch(log, {**files.workload, **workload}["sequence_length"])
    if batch and not {"micro_batch", "grad_accumulation"} <= files.layout.keys():
        workload.setdefault("global_batch", files.workload.get("global_batch", batch))
    layout: dict[str, int] = {}
    if "micro_batch" not in files.layout and "grad_accumulation" not in files.layout:
        layout = {"grad_accumulation": 1} if batch else {"micro_batch": 1}
        assumed.append("one pass a step" if batch else "micro-batches of one sequence")
    usual = files.framework or files.usual_framework or log.framework
    job = complete_layout(
        model, machine, files, layout=layout, workload=workload, framework=framework
    )
    if batch and batch != job.layout.global_batch:
        assumed.append(
            f"the files make {job.layout.global_batch} sequences per step but the log states "
            f"{batch}: {ANOTHER_RUN}"
        )
    scenario = Scenario(model, machine, job.workload, job.framework or load_framework(usual))
    check(scenario, job.layout)
    return Job(scenario, job.layout, (*assumed, *job.notes))


def _with_world(
    files: Configuration, log: RunLog, machine: Machine, assumed: list[str]
) -> Configuration:
    """Fill in the number of ranks if the files state neither it nor dp."""
    ranks = int(log.fact("world") or 0)
    if ranks and files.world and ranks != files.world:
        assumed.append(
            f"{files.name} starts {files.world} ranks but the log states {ranks}: they may not be "
            "the same run"
        )
    if files.world or "dp" in files.layout:
        return files
    where = "in the log" if ranks else f"of one node of {machine.name}"
    assumed.append(f"{ranks or machine.node.num_devices} ranks, those {where}")
    return replace(files, world=ranks or machine.node.num_devices)


def logged_batch(log: RunLog, length: int) -> int | None:
    """Return the sequences per step, as logged or from the logged tokens; None if unknown."""
    batch, tokens = log.fact("global_batch"), log.fact("tokens_per_step")
    if batch is None and tokens is None:
        rate, time = log.median("tokens_per_s"), log.median("time_s")
        tokens = rate * time if rate and time else None
    if batch is None and tokens is not None:
        batch = tokens / length
    return round(batch) if batch else None


def _read_fields(layout: str | Path | Mapping[str, Any] | None) -> dict[str, Any]:
    if layout is None:
        return {"layout": {}}
    if isinstance(layout, Mapping):
        where, data = "layout", dict(layout)
    else:
        where = shorten(str(layout))
        data = parse_json(read_text(Path(os.path.expanduser(layout))), where)
    if not isinstance(data, dict):
        raise CatalogueError(f'{where} must hold an object, such as {{"dp": 4, "tp": 2}}')
    if "best" in data:
        if not isinstance(data["best"], dict):
            raise CatalogueError(f'{where}: "best" must be an object; give a plan with a layout')
        data = {**data["best"], "model": data.get("model"), "workload": data.get("workload")}
    if "layout" not in data and not set(data) & set(_FIELDS):
        return {"layout": data}
    fields = {name: data[name] for name in _FIELDS if data.get(name) is not None}
    for name, (kind, example) in _FIELDS.items():
        if name in fields and not isinstance(fields[name], kind):
            raise CatalogueError(f'{where}: "{name}" must be {example}')
    return {"layout": {}, **fields}


def _model(model: str | Mapping[str, Any] | Model | None, log: RunLog, assumed: list[str]) -> Model:
    if isinstance(model, Model):
        return model
    if isinstance(model, Mapping):
        return Model.described(dict(model), where="model")
    if model:
        return load_model(str(model), run=False)
    count = log.fact("num_params")
    if count is None:
        raise DescriptionError(
            f"{log.source} does not state the model; name the model, or give a "
            '"model" in the layout file'
        )
    candidates = models_of_size(count)
    if len(candidates) != 1:
        listed = ", ".join(candidates) or "no model of the catalogue"
        raise DescriptionError(
            f"{log.source} states {count:,.0f} parameters, which is the count of {listed}; "
            "name the model"
        )
    assumed.append(f"model {candidates[0]}, by its {count:,.0f} parameters in the log")
    return load_model(candidates[0])


def is_of_size(model: Model, count: float) -> bool:
    """True if a model has this number of parameters, as counted or as reported."""
    sizes = (model.num_params, model.reported_params)
    return min(abs(size / count - 1) for size in sizes if size) < _CLOSE


def models_of_size(count: float) -> list[str]:
    """Name the models of the catalogue with this number of parameters."""
    return [name for name in names("model") if is_of_size(load_model(name), count)]


def _layout(fields: Mapping[str, Any], log: RunLog, machine: Machine, assumed: list[str]) -> Layout:
    fields, world = dict(fields), log.fact("world")
    if "dp" not in fields:
        degrees = (fields.get(axis, 1) for axis in ("tp", "pp", "cp"))
        rest = math.prod(d for d in degrees if isinstance(d, int) and d > 0)
        ranks = int(world) if world else machine.node.num_devices
        if ranks % rest:
            raise DescriptionError(
                f"{ranks} ranks cannot be split over tp * pp * cp = {rest}; state dp"
            )
        fields["dp"] = ranks // rest
        where = "in the log" if world else f"of one node of {machine.name}"
        assumed.append(f"dp = {ranks // rest}, from the {ranks} ranks {where}")
    layout = Layout.described(fields, where="layout")
    if world and layout.world != world:
        assumed.append(
            f"the layout has {layout.world} ranks but the log states {world:.0f}: "
            "they may not be the same run"
        )
    return layout


def _sequence(log: RunLog, model: Model, assumed: list[str]) -> int:
    if logged := log.fact("sequence_length"):
        return int(logged)
    if model.max_sequence_length < 1:
        raise DescriptionError(
            f"{log.source} does not state the sequence length; state the sequence length"
        )
    assumed.append(f"sequence length {model.max_sequence_length}, the model's own")
    return int(model.max_sequence_length)


def _batch(
    layout: Layout,
    layout_fields: Mapping[str, Any],
    fields: dict[str, Any],
    log: RunLog,
    assumed: list[str],
) -> Layout:
    """Set the batch of a layout from the workload or the log, if the file leaves it open."""
    batch = fields.get("global_batch") or logged_batch(log, fields["sequence_length"])
    if not batch or batch == layout.global_batch:
        return layout
    if "grad_accumulation" in layout_fields or batch % (layout.dp * layout.micro_batch):
        assumed.append(
            f"the layout makes {layout.global_batch} sequences per step but the log states "
            f"{batch}: they may not be the same run"
        )
        return layout
    passes = batch // (layout.dp * layout.micro_batch)
    if "micro_batch" in layout_fields:
        assumed.append(f"grad_accumulation = {passes}, from {batch} sequences per step")
        return layout.replaced(grad_accumulation=passes)
    assumed.append(f"micro_batch = {passes}, from {batch} sequences per step in one pass")
    return layout.replaced(micro_batch=passes)
