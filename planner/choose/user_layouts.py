"""User layouts: complete what files and a user state of a layout, estimate and improve it."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from planner.choose.legality.check import check_division
from planner.choose.planning import estimate_job, job_of_layout, plan_job
from planner.cost.estimate import Estimate
from planner.cost.scenario.experience import Experience
from planner.describe.catalogue import load_framework, load_machine, load_model
from planner.describe.configurations.configuration import WIDTH_SQUARED, Changes, Configuration
from planner.describe.framework.framework import Framework
from planner.describe.layout import V_SHAPED, Layout
from planner.describe.machine import Machine
from planner.describe.model.model import Model
from planner.describe.workload import Workload
from planner.errors import DescriptionError, LayoutError

Fields = dict[str, Any]


@dataclass(frozen=True, slots=True)
class CompletedLayout:
    """A layout that can be estimated, and notes on how it was completed."""

    layout: Layout
    workload: Workload
    framework: Framework | None
    """None if neither the user nor the files name one."""
    notes: tuple[str, ...]


def complete_layout(
    model: Model,
    machine: Machine,
    configuration: Configuration | None = None,
    *,
    nodes: int | None = None,
    layout: Mapping[str, Any] | None = None,
    workload: Mapping[str, Any] | None = None,
    framework: str | Framework | None = None,
) -> CompletedLayout:
    """Complete the layout that files state together with a user's own fields, which count first."""
    files = configuration or Configuration((), ())
    values, override_notes = _merge(files, {**(layout or {}), **(workload or {})})
    notes = [*files.notes, *override_notes, *_delegation_notes(files, values)]
    fields = {key: value for key, value in values.items() if key in Layout.model_fields}
    fields = _with_degrees(fields, files, machine, nodes, values)
    shape = Layout.described(_with_schedule(_with_micro_batches(fields, values, files)))
    own_length = model.default_sequence_length
    if "sequence_length" not in values and files.files:
        notes.append(f"sequence length {own_length}, the model's own")
    usual = {"global_batch": shape.global_batch, "sequence_length": own_length}
    job_fields = {key: value for key, value in values.items() if key in Workload.model_fields}
    job = Workload.described({**usual, **job_fields}, where="workload")
    notes += _shape_notes(files, model)
    name = framework or files.framework or files.usual_framework
    if not name:
        return CompletedLayout(shape, job, None, tuple(notes))
    chosen = load_framework(name) if isinstance(name, str) else name
    if "ulysses" not in fields and chosen.context[0] == "ulysses":
        shape = shape.replaced(ulysses=shape.cp)
    if not framework:
        chosen, setting_notes = _configured_framework(chosen, files, shape, job, model)
        notes += setting_notes
    return CompletedLayout(shape, job, chosen, tuple(notes))


def _merge(files: Configuration, user: Fields) -> tuple[Fields, list[str]]:
    """The fields of the files with the user's on top, and a note for each that differs."""
    from_files = {**files.usual, **files.layout, **files.workload}
    notes = [
        f"{key} = {value} as you say, instead of {from_files[key]} of {files.name}"
        for key, value in user.items()
        if key in from_files and value != from_files[key]
    ]
    merged, sizes = {**from_files, **user}, {"global_batch", "micro_batch"}
    if sizes <= merged.keys() and sizes & user.keys() and "grad_accumulation" not in user:
        # the user's batch decides the number of micro-batches
        merged.pop("grad_accumulation", None)
    return merged, notes


def _delegation_notes(files: Configuration, values: Fields) -> list[str]:
    """Notes on fields that a file leaves to another; any but offload must be stated."""
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
    """The fields with the data-parallel degree and the sharding group."""
    # degrees below one are refused with the layout
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
    """Raise LayoutError where the ranks that files start fill neither the nodes nor the degrees."""
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
    """The data-parallel degree that follows from all three sizes of the batch."""
    sizes = [values.get(key) for key in ("global_batch", "micro_batch", "grad_accumulation")]
    if None in sizes:
        raise LayoutError(f"{files.name} does not say how many ranks it runs on; give --nodes")
    batch, micro, passes = (int(size or 0) for size in sizes)
    if micro < 1 or passes < 1 or batch % (micro * passes):
        raise LayoutError(_batch_message(files, batch, micro, passes, None))
    return batch // (micro * passes)


def _sharding_group(
    fields: Fields, files: Configuration, machine: Machine, dp: int
) -> dict[str, int]:
    """The group of hybrid sharding, from the number of replicas or the node."""
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
    """The fields with the micro-batch and the micro-batches of a step, computed where open."""
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
    """The micro-batch that follows from batch, number of micro-batches and replicas."""
    if batch is None or passes is None:
        raise LayoutError(
            f"{files.name} does not state the sequences of a replica and pass; give --micro-batch"
        )
    micro, rest = divmod(batch, dp * max(passes, 1))
    if rest or micro < 1:
        raise LayoutError(_batch_message(files, batch, None, passes, dp))
    return micro


def _batch_message(
    files: Configuration, batch: int, micro: int | None, passes: int | None, dp: int | None
) -> str:
    """Refuse a batch that is not the product of its sizes."""
    sizes = {"micro-batch": micro, "passes": passes, "dp": dp}
    product = " * ".join(f"{name} {size}" for name, size in sizes.items() if size is not None)
    remedy = "give --global-batch or --micro-batch so that they multiply"
    if micro and dp and batch % (micro * (passes or 1)) == 0:
        replicas = batch // (micro * (passes or 1))
        wanted = f"give as many --nodes as dp = {replicas}"
        if not passes:
            wanted = f"use as many --nodes as a dp that divides {replicas}"
        remedy = f"{wanted} needs, or --global-batch"
    return f"{files.name}: the global batch {batch} is not made by {product}; {remedy}"


def _with_schedule(fields: Fields) -> Fields:
    """The fields with the usual schedule of a pipeline."""
    if fields.get("schedule") in V_SHAPED and fields.get("pp", 1) != 1:
        return {"vpp": 2, **fields}
    usual = "1f1b" if fields.get("vpp", 1) == 1 else "interleaved-1f1b"
    return {"schedule": "none" if fields.get("pp", 1) == 1 else usual, **fields}


# --- model and framework ----------------------------------------------------------------------


def _shape_notes(files: Configuration, model: Model) -> list[str]:
    """A note where the files train a model of other sizes."""
    # a vocabulary may be padded
    sizes = [
        f"{name} = {size} not {getattr(model, name)}"
        for name, size in files.shape.items()
        if size != getattr(model, name) and not (name == "vocab_size" and size > model.vocab_size)
    ]
    text = f"{files.name} is for another model than {model.name} ({', '.join(sizes)})"
    return [f"{text}, which is estimated"] if sizes else []


def _configured_framework(
    framework: Framework, files: Configuration, layout: Layout, workload: Workload, model: Model
) -> tuple[Framework, list[str]]:
    """The framework with the switches and values that the files set, and notes on them."""
    # a single rank sends nothing
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
    """The framework with the switches that files turn on, if they suit it and the workload."""
    reasons, names = {}, {word: word.partition("=")[0] for word in files.switches}
    for word, name in names.items():
        if (switch := framework.switches.get(name)) is None:
            reasons[word] = f"{framework.name} has no such switch"
        elif unfit := switch.refuses_workload(workload, model):
            reasons[word] = f"it {unfit}"
    fitting = [word for word in files.switches if word not in reasons]
    notes = [f"{word} of {files.name} is not counted: {why}" for word, why in reasons.items()]
    notes += [
        f"{files.name} turns on {word}: {framework.switches[names[word]].does}" for word in fitting
    ]
    return (framework.with_switches(*fitting) if fitting else framework), notes


def _changes_as_switches(
    framework: Framework, changes: Changes, files: str
) -> tuple[Framework, list[str]]:
    """The framework with the switches that stand for changed values."""
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
    """The framework with changed values, and a note for each."""
    tables, notes = framework.model_dump(), []
    states, prefix = framework.states(precision), framework.states_of(precision)
    for key, change in changes.items():
        value = model.hidden_size**2 if change == WIDTH_SQUARED else change
        if key == "states.accumulated_bytes":
            gradient_bytes = states.gradient_bytes + states.unsharded_gradient_bytes
            if (gradient_bytes >= 4) != (value == 4):
                counted = f"gradients are counted with {gradient_bytes:g} bytes"
                notes.append(f"{counted}, not accumulated in {value}")
            continue
        *path, name = key.replace("states.", f"{prefix}.").split(".")
        table = tables
        for part in path:
            table = table[part]
        # None: the framework has no such choice
        if table[name] is not None and table[name] != value:
            before, after = (
                str(each).lower() if isinstance(each, bool | str) else f"{float(each):g}"
                for each in (table[name], value)
            )
            notes.append(f"{framework.name} with {key} = {after}, not {before}")
            table[name] = value
    return (type(framework).described(tables) if notes else framework), notes


# --- estimate -------------------------------------------------------------------------------------


@dataclass(frozen=True, slots=True)
class ConfigurationEstimate:
    """The estimate of a configuration."""

    job: CompletedLayout
    """The layout as completed, with notes on how the files were understood."""
    estimate: Estimate
    """Memory and step time."""
    better: Estimate | None
    """A faster layout of the same framework on the same nodes, or one that fits; None without."""


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
    """Estimate the layout that files configure, and the best that their framework can do."""
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
    """Find a faster layout of the same framework for the job, or one that fits; else None."""
    if job.layout.world % machine.node.num_devices:
        return None
    framework = job.framework or load_framework(configured.framework)
    try:
        spec = job_of_layout(model, machine, job.layout, job.workload, framework, experience)
        best = plan_job(spec, top=1).best
    except LayoutError:
        return None
    if best is None or best.layout == configured.layout:
        return None
    is_faster = best.step_time_s < configured.step_time_s
    return best if is_faster or not configured.fits else None
