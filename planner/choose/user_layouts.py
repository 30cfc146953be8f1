"""User layouts: complete a layout from files and options, estimate it, find a faster one."""

import contextlib
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from planner.choose.legality.check import check_division
from planner.choose.micro_batch import best_micro_batch, micro_batch_options
from planner.choose.planning import estimate_job, estimate_jobs, job_of_layout, plan_job
from planner.cost.estimate import Estimate
from planner.cost.scenario.experience import Experience
from planner.describe.catalogue import load_framework, load_machine, load_model
from planner.describe.configurations.configuration import WIDTH_SQUARED, Changes, Configuration
from planner.describe.framework.framework import Framework
from planner.describe.layout import Layout, with_schedule
from planner.describe.machine import Machine
from planner.describe.model.model import Model
from planner.describe.workload import Workload
from planner.errors import DescriptionError, LayoutError, UnstatedError

Fields = dict[str, Any]
_SIZES = {"micro_batch", "grad_accumulation"}
"""Fields that state how a replica divides its sequences."""


@dataclass(frozen=True, slots=True)
class CompletedLayout:
    """A complete layout with its workload, and notes on how it was completed."""

    layout: Layout
    workload: Workload
    framework: Framework | None
    """None if neither the user nor the files name one."""
    notes: tuple[str, ...]
    is_open: bool = False
    """A global batch is stated without a micro-batch."""


def complete_layout(
    model: Model,
    machine: Machine,
    configuration: Configuration | None = None,
    *,
    nodes: int | None = None,
    layout: Mapping[str, Any] | None = None,
    workload: Mapping[str, Any] | None = None,
    framework: str | Framework | None = None,
    tuned: bool = False,
) -> CompletedLayout:
    """Complete a layout from files and the user's fields; `tuned` chooses the micro-batch, too."""
    files = configuration or Configuration((), ())
    values, override_notes = _merge(files, {**(layout or {}), **(workload or {})})
    notes = [*files.notes, *override_notes, *_delegation_notes(files, values)]
    fields = {key: values[key] for key in Layout.model_fields if key in values}
    fields = _with_degrees(fields, files, machine, nodes, values)
    shape = Layout.described(with_schedule(_with_micro_batches(fields, values, files)))
    own_length = model.default_sequence_length
    if "sequence_length" not in values and files.files:
        notes.append(f"sequence length {own_length}, the model's own")
    usual = {"global_batch": shape.global_batch, "sequence_length": own_length}
    job_fields = {key: values[key] for key in Workload.model_fields if key in values}
    job = Workload.described({**usual, **job_fields}, where="workload")
    notes += _shape_notes(files, model)
    name, chosen = framework or files.framework or files.usual_framework, None
    if name:
        chosen = load_framework(name) if isinstance(name, str) else name
        if "ulysses" not in fields and chosen.context[0] == "ulysses":
            shape = shape.replaced(ulysses=shape.cp)
        if not framework:
            chosen, setting_notes = _configured_framework(chosen, files, shape, job, model)
            notes += setting_notes
    is_open = "global_batch" in values and not _SIZES & values.keys()
    if tuned and is_open:
        spec = job_of_layout(model, machine, shape, job, chosen, Experience())
        results = estimate_jobs([(spec, option) for option in micro_batch_options(shape)])
        with contextlib.suppress(LayoutError):
            shape = best_micro_batch(results).layout
        notes.append(f"micro-batch {shape.micro_batch}, the fastest that fits (none is stated)")
    return CompletedLayout(shape, job, chosen, tuple(notes), is_open)


def _merge(files: Configuration, user: Fields) -> tuple[Fields, list[str]]:
    """Merge the files' fields with the user's, which win, and note each override."""
    from_files = {**files.usual, **files.layout, **files.workload}
    notes = [
        f"{key} = {value} (your option) overrides {from_files[key]} in {files.name}"
        for key, value in user.items()
        if key in from_files and value != from_files[key]
    ]
    merged, sizes = {**from_files, **user}, {"global_batch", "micro_batch"}
    if sizes <= merged.keys() and sizes & user.keys() and "grad_accumulation" not in user:
        # the user's batch decides the number of micro-batches
        merged.pop("grad_accumulation", None)
    return merged, notes


def _delegation_notes(files: Configuration, values: Fields) -> list[str]:
    """Note offload that a file leaves to another file. Raises DescriptionError for other fields."""
    for field, words in files.unclear.items():
        if field not in values:
            raise DescriptionError(f"{files.name}: {words} is not known here; state {field}")
    left = {field: target for field, target in files.left_to.items() if field not in values}
    for field, target in left.items():
        if field != "offload":
            raise DescriptionError(
                f"{files.name} leaves {field} to {target}; give that file too, or state {field}"
            )
    return [
        f"{files.name} leaves offload and buckets to {target}: give that too"
        for target in left.values()
    ]


def _with_degrees(
    fields: Fields, files: Configuration, machine: Machine, nodes: int | None, values: Fields
) -> Fields:
    """Add the data-parallel degree and the sharding group."""
    # the layout's own check rejects degrees below one
    model_ranks = max(fields.get("tp", 1) * fields.get("pp", 1) * fields.get("cp", 1), 1)
    dp = fields.get("dp")
    if files.world:
        _check_world(files, machine, nodes, dp, model_ranks)
    if nodes is None and files.world:
        dp = files.world // model_ranks
    elif nodes is None and dp is None and files.files:
        dp = _dp_of_batch(values, files)
    else:
        dp = check_division(machine, nodes, dp, model_ranks)
    return {**fields, "dp": dp, **_sharding_group(fields, files, machine, dp)}


def _check_world(
    files: Configuration, machine: Machine, nodes: int | None, dp: int | None, model_ranks: int
) -> None:
    """Raise LayoutError if the ranks that files start do not match the nodes or the degrees."""
    per_node, world = machine.node.num_devices, files.world
    if nodes is not None and nodes * per_node != world:
        raise LayoutError(
            f"{files.name} starts {world} ranks, but {nodes} nodes of {machine.name} hold "
            f"{nodes * per_node}; use {-(-world // per_node)} nodes, or change the file"
        )
    if nodes is None and (world % model_ranks or (dp is not None and dp * model_ranks != world)):
        raise LayoutError(
            f"{files.name} starts {world} ranks, which dp * tp * pp * cp = "
            f"{(dp or 1) * model_ranks} does not fill; change one of them"
        )


def _dp_of_batch(values: Fields, files: Configuration) -> int:
    sizes = [values.get(key) for key in ("global_batch", "micro_batch", "grad_accumulation")]
    if None in sizes:
        raise UnstatedError(f"{files.name} does not state the number of ranks; give the nodes")
    batch, micro, passes = (int(size or 0) for size in sizes)
    if micro < 1 or passes < 1 or batch % (micro * passes):
        raise LayoutError(_batch_message(files, batch, micro, passes, None))
    return batch // (micro * passes)


def _sharding_group(
    fields: Fields, files: Configuration, machine: Machine, dp: int
) -> dict[str, int]:
    if "dp_shard" in fields:
        return {}
    if files.shards_per_node:
        group = min(machine.node.num_devices, dp)
        return {} if group == dp else {"dp_shard": group}
    if files.replicas <= 1:
        return {}
    if dp % files.replicas:
        raise LayoutError(
            f"{files.replicas} replicas of {files.name} do not divide dp = {dp}; change one of them"
        )
    return {"dp_shard": dp // files.replicas}


def _with_micro_batches(fields: Fields, values: Fields, files: Configuration) -> Fields:
    """Add the micro-batch and gradient accumulation, derived where not stated."""
    batch, dp = values.get("global_batch"), max(fields["dp"], 1)
    micro, passes = fields.get("micro_batch"), fields.get("grad_accumulation")
    if micro is None:
        micro = _micro_batch(files, batch, passes, dp) if files.files else 1
    at_once = dp * max(micro, 1)
    accumulation = passes if passes is not None or batch is None else batch // at_once
    accumulation = max(accumulation or 1, 1)
    if batch is not None and files.files and batch != at_once * accumulation:
        raise LayoutError(_batch_message(files, batch, micro, passes, dp))
    return {**fields, "micro_batch": micro, "grad_accumulation": accumulation}


def _micro_batch(files: Configuration, batch: int | None, passes: int | None, dp: int) -> int:
    if batch is None or passes is None:
        raise UnstatedError(f"{files.name} does not state the micro-batch; give it")
    micro, rest = divmod(batch, dp * max(passes, 1))
    if rest or micro < 1:
        raise LayoutError(_batch_message(files, batch, None, passes, dp))
    return micro


def _batch_message(
    files: Configuration, batch: int, micro: int | None, passes: int | None, dp: int | None
) -> str:
    sizes = {"micro-batch": micro, "passes": passes, "dp": dp}
    product = " * ".join(f"{name} {size}" for name, size in sizes.items() if size is not None)
    remedy = "change the global batch or the micro-batch"
    if micro and dp and batch % (micro * (passes or 1)) == 0:
        replicas = batch // (micro * (passes or 1))
        dp_choice = f"dp = {replicas}" if passes else f"a dp that divides {replicas}"
        remedy = f"change the nodes to get {dp_choice}, or change the global batch"
    multiple = "a multiple of " if None in sizes.values() else ""
    return f"{files.name}: the global batch {batch} is not {multiple}{product}; {remedy}"


def _shape_notes(files: Configuration, model: Model) -> list[str]:
    """Note model sizes in the files that differ from the model's."""
    # a vocabulary may be padded
    sizes = [
        f"{name} = {size} not {getattr(model, name)}"
        for name, size in files.shape.items()
        if size != getattr(model, name) and not (name == "vocab_size" and size > model.vocab_size)
    ]
    text = f"{files.name} describes another model ({', '.join(sizes)})"
    return [f"{text}; {model.name} is estimated"] if sizes else []


def _configured_framework(
    framework: Framework, files: Configuration, layout: Layout, workload: Workload, model: Model
) -> tuple[Framework, list[str]]:
    """Apply the switches and values that the files set to the framework, with notes."""
    # a single data-parallel rank communicates nothing
    sends = layout.dp * layout.cp > 1
    changes = {
        key: value
        for key, value in files.changes.items()
        if sends or not key.startswith("communication.")
    }
    framework, switch_notes = _with_switches(framework, files, workload, model)
    framework, word_notes = _changes_as_switches(framework, changes, files.name)
    framework, notes = _with_changes(framework, changes, workload.precision, model)
    return framework, [*switch_notes, *word_notes, *notes]


def _with_switches(
    framework: Framework, files: Configuration, workload: Workload, model: Model
) -> tuple[Framework, list[str]]:
    """Turn on the files' switches if they suit the framework and the workload, with notes."""
    reasons, names = {}, {word: word.partition("=")[0] for word in files.switches}
    for word, name in names.items():
        if (switch := framework.switches.get(name)) is None:
            reasons[word] = f"{framework.name} has no such switch"
        elif unfit := switch.refuses_workload(workload, model):
            reasons[word] = f"it {unfit}"
    fitting = [word for word in files.switches if word not in reasons]
    notes = [f"{word} of {files.name} is ignored: {why}" for word, why in reasons.items()]
    notes += [
        f"{files.name} turns on {word}: {framework.switches[names[word]].does}" for word in fitting
    ]
    return (framework.with_switches(*fitting) if fitting else framework), notes


def _changes_as_switches(
    framework: Framework, changes: Changes, files: str
) -> tuple[Framework, list[str]]:
    """Turn on the switches that explain changed values, with notes."""
    different = {
        path: value
        for path, value in changes.items()
        if not path.startswith("states.") and framework.trait(path) not in (None, value)
    }
    notes = []
    for name, switch in framework.switches.items():
        word = switch.word_for(name, different, changes)
        if word and name not in framework.active_switches:
            framework = framework.with_switches(word)
            notes.append(f"{files} turns on {word}: {switch.does}")
            different = {p: v for p, v in different.items() if framework.trait(p) != v}
    return framework, notes


def _with_changes(
    framework: Framework, changes: Changes, precision: str, model: Model
) -> tuple[Framework, list[str]]:
    tables, notes = framework.model_dump(), []
    states, prefix = framework.states(precision), framework.states_of(precision)
    for key, change in changes.items():
        value = model.hidden_size**2 if change == WIDTH_SQUARED else change
        if key == "states.accumulated_bytes":
            gradient_bytes = states.gradient_bytes + states.unsharded_gradient_bytes
            if (gradient_bytes >= 4) != (value == 4):
                counted = f"gradients are estimated with {gradient_bytes:g} bytes"
                notes.append(f"{counted} per element, not {value}")
            continue
        *path, name = key.replace("states.", f"{prefix}.").split(".")
        table = tables
        for part in path:
            table = table[part]
        # None: the framework does not have this option
        if table[name] is not None and table[name] != value:
            before, after = (
                str(each).lower() if isinstance(each, bool | str) else f"{float(each):g}"
                for each in (table[name], value)
            )
            notes.append(f"{framework.name} with {key} = {after}, not {before}")
            table[name] = value
    return (type(framework).described(tables) if notes else framework), notes


@dataclass(frozen=True, slots=True)
class ConfigurationEstimate:
    """Estimate of a configured layout."""

    job: CompletedLayout
    """Completed layout, with notes on how the files were read."""
    estimate: Estimate
    """Memory and step time."""
    better: Estimate | None
    """Faster layout in the same framework on the same nodes, or one that fits; else None."""


def estimate_configuration(
    model: str | Model,
    machine: str | Machine,
    configuration: Configuration,
    *,
    nodes: int | None = None,
    layout: Mapping[str, Any] | None = None,
    workload: Mapping[str, Any] | None = None,
    framework: str | Framework | None = None,
    experience: Experience = Experience(),
) -> ConfigurationEstimate:
    """Estimate a configured layout, and find a better one in the same framework."""
    model = model if isinstance(model, Model) else load_model(model)
    machine = machine if isinstance(machine, Machine) else load_machine(machine)
    job = complete_layout(
        model,
        machine,
        configuration,
        nodes=nodes,
        layout=layout,
        workload=workload,
        framework=framework,
    )
    spec = job_of_layout(model, machine, job.layout, job.workload, job.framework, experience)
    configured = estimate_job(spec, job.layout)
    better = faster_layout(model, machine, job, configured, experience)
    return ConfigurationEstimate(job, configured, better)


def faster_layout(
    model: Model,
    machine: Machine,
    job: CompletedLayout,
    configured: Estimate,
    experience: Experience = Experience(),
) -> Estimate | None:
    """Find a faster layout in the same framework, or one that fits; None without one."""
    if job.layout.world % machine.node.num_devices:
        return None
    framework = job.framework or load_framework(configured.framework)
    try:
        spec = job_of_layout(model, machine, job.layout, job.workload, framework, experience)
        answer = plan_job(spec.replaced(exact=True), top=1)
    except LayoutError:
        return None
    # the recommended one, or the fastest if the recommended one is no gain
    for better in filter(None, (answer.recommended, answer.best)):
        if better.step_time_s < configured.step_time_s or not configured.fits:
            return None if better.layout == configured.layout else better
    return None
