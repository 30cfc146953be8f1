"""Completing: a layout, a workload and a framework from what files and a user state.

What the user says counts before what a file says. What follows from the rest (data-parallel
degree, passes of a step) is worked out; what is neither said nor follows is asked for in one
sentence, and what contradicts itself is refused.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from planner.choose.job_checks import check_division
from planner.describe.catalogue import load_framework
from planner.describe.configurations.configuration import WIDTH_SQUARED, Changes, Configuration
from planner.describe.framework.framework import Framework
from planner.describe.layout import V_SHAPED, Layout
from planner.describe.machine import Machine
from planner.describe.model.model import Model
from planner.describe.workload import Workload
from planner.errors import DescriptionError, LayoutError

__all__ = ["CompletedLayout", "complete_layout"]


@dataclass(frozen=True, slots=True)
class CompletedLayout:
    """A job that can be estimated, and what was taken on the way."""

    layout: Layout
    workload: Workload
    framework: Framework | None
    """None where nothing names one."""
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
    """The job that files and a user state together.

    `layout` and `workload` are the fields that the user states. Raises LayoutError or
    DescriptionError where something is missing or does not fit.
    """
    files = configuration or Configuration((), ())
    notes = list(files.notes)
    ours = {**(layout or {}), **(workload or {})}
    theirs = {**files.usual, **files.layout, **files.workload}
    stated = {**_without_passes(theirs, ours), **ours}
    notes += [
        f"{key} = {ours[key]} as you say, instead of {theirs[key]} of {files.name}"
        for key in ours
        if key in theirs and ours[key] != theirs[key]
    ]
    _check_open(files, stated, framework, notes)
    fields = {key: value for key, value in stated.items() if key in Layout.model_fields}
    fields = _batch(_degrees(fields, files, machine, nodes, stated), stated, files)
    shape = Layout.described(_scheduled(fields))
    job = {key: value for key, value in stated.items() if key in Workload.model_fields}
    if "sequence_length" not in job and files.files:
        notes.append(f"sequence length {model.default_sequence_length}, the model's own")
    job = {"sequence_length": model.default_sequence_length, **job}
    job.setdefault("global_batch", shape.global_batch)
    described = Workload.described(job, where="workload")
    notes += _shape_notes(files, model)
    name = framework or files.framework or files.usual_framework or None
    chosen = load_framework(name) if isinstance(name, str) else name
    if chosen is not None and "ulysses" not in fields and chosen.context[0] == "ulysses":
        shape = shape.replaced(ulysses=shape.cp)
    if chosen is not None and not framework:
        changes = {
            key: value
            for key, value in files.changes.items()
            # what no other rank holds is not sent
            if shape.dp * shape.cp > 1 or not key.startswith("communication.")
        }
        chosen, said = _switched(chosen, files.switches, files.name, described, model)
        chosen, turned = _as_switches(chosen, changes, files.name)
        chosen, changed = _changed(chosen, changes, described.precision, model)
        notes += [*said, *turned, *changed]
    return CompletedLayout(shape, described, chosen, tuple(notes))


def _without_passes(theirs: Mapping[str, Any], ours: Mapping[str, Any]) -> dict[str, Any]:
    """What the files say, without the passes where the user's batch decides them."""
    known = theirs.keys() | ours.keys()
    if {"global_batch", "micro_batch"} <= known and {"global_batch", "micro_batch"} & ours.keys():
        return {key: value for key, value in theirs.items() if key != "grad_accumulation"}
    return dict(theirs)


def _check_open(
    files: Configuration,
    stated: Mapping[str, Any],
    framework: str | Framework | None,
    notes: list[str],
) -> None:
    """What a file leaves to another must be said; offload alone may be taken as none."""
    for field, other in files.left_to.items():
        if field in stated:
            continue
        if field == "offload":
            notes.append(f"{files.name} leaves offload and buckets to {other}: give that too")
            continue
        raise DescriptionError(
            f"{files.name} leaves {field} to {other}; give that file too, or state {field}"
        )


# --- degrees and batch ------------------------------------------------------------------------


def _degrees(
    fields: dict[str, Any],
    files: Configuration,
    machine: Machine,
    nodes: int | None,
    stated: Mapping[str, Any],
) -> dict[str, Any]:
    """The fields with the data-parallel degree, and the group over which states are sharded."""
    # degrees below one are refused with the layout
    others = max(fields.get("tp", 1) * fields.get("pp", 1) * fields.get("cp", 1), 1)
    dp = fields.get("dp")
    ranks = None if nodes is None else nodes * machine.node.num_devices
    if files.world and ranks is not None and ranks != files.world:
        raise LayoutError(
            f"{files.name} starts {files.world} ranks, but {nodes} nodes of {machine.name} hold "
            f"{ranks}; use {-(-files.world // machine.node.num_devices)} nodes, or change the file"
        )
    if nodes is None and files.world:
        if files.world % others or (dp is not None and dp * others != files.world):
            raise LayoutError(
                f"{files.name} starts {files.world} ranks, which dp * tp * pp * cp = "
                f"{(dp or 1) * others} does not fill; change one of them"
            )
        dp = files.world // others
    elif nodes is None and dp is None and files.files:
        dp = _dp_of_batch(stated, files)
    else:
        dp = check_division(machine, nodes, dp, others)
    return {**fields, "dp": dp, **_groups(fields, files, machine, dp)}


def _dp_of_batch(stated: Mapping[str, Any], files: Configuration) -> int:
    """The data-parallel degree that all three sizes of the batch leave."""
    sizes = [stated.get(key) for key in ("global_batch", "micro_batch", "grad_accumulation")]
    if None in sizes:
        raise LayoutError(f"{files.name} does not say how many ranks it runs on; give --nodes")
    whole, micro, passes = (int(size or 0) for size in sizes)
    if micro < 1 or passes < 1 or whole % (micro * passes):
        raise LayoutError(_unequal(files, whole, micro, passes, None))
    return whole // (micro * passes)


def _groups(
    fields: Mapping[str, Any], files: Configuration, machine: Machine, dp: int
) -> dict[str, int]:
    """The sharding group of hybrid sharding, from the number of replicas or the node."""
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


def _batch(
    fields: dict[str, Any], stated: Mapping[str, Any], files: Configuration
) -> dict[str, Any]:
    """The fields with micro-batch and passes; what is missing of the three sizes follows."""
    whole, dp = stated.get("global_batch"), max(fields["dp"], 1)
    micro, passes = fields.get("micro_batch"), fields.get("grad_accumulation")
    if micro is None and files.files:
        if whole is None or passes is None:
            raise LayoutError(
                f"{files.name} does not state the sequences of a replica and pass; give "
                "--micro-batch"
            )
        micro, rest = divmod(whole, dp * max(passes, 1))
        if rest or micro < 1:
            raise LayoutError(_unequal(files, whole, None, passes, dp))
    micro = 1 if micro is None else micro
    if whole is not None and passes is None:
        passes, rest = divmod(whole, dp * max(micro, 1))
        if files.files and (rest or passes < 1):
            raise LayoutError(_unequal(files, whole, micro, None, dp))
    elif whole is not None and files.files and whole != micro * (passes or 1) * dp:
        raise LayoutError(_unequal(files, whole, micro, passes, dp))
    return {**fields, "micro_batch": micro, "grad_accumulation": max(passes or 1, 1)}


def _unequal(
    files: Configuration, whole: int, micro: int | None, passes: int | None, dp: int | None
) -> str:
    """The refusal of a batch whose sizes do not multiply."""
    sizes = {"micro-batch": micro, "passes": passes, "dp": dp}
    said = " * ".join(f"{name} {size}" for name, size in sizes.items() if size is not None)
    if micro and passes and dp and whole % (micro * passes) == 0:
        remedy = (
            f"give as many --nodes as dp = {whole // (micro * passes)} needs, or --global-batch"
        )
    elif micro and dp and not passes and whole % micro == 0:
        remedy = (
            f"use as many --nodes as a dp that divides {whole // micro} needs, or --global-batch"
        )
    else:
        remedy = "give --global-batch or --micro-batch so that they multiply"
    return f"{files.name}: the global batch {whole} is not made by {said}; {remedy}"


def _scheduled(fields: dict[str, Any]) -> dict[str, Any]:
    """The fields with the usual schedule of a pipeline."""
    if fields.get("pp", 1) == 1:
        return {"schedule": "none", **fields}
    if fields.get("schedule") in V_SHAPED:
        return {"vpp": 2, **fields}
    usual = "1f1b" if fields.get("vpp", 1) == 1 else "interleaved-1f1b"
    return {"schedule": usual, **fields}


# --- model and framework ----------------------------------------------------------------------


def _shape_notes(files: Configuration, model: Model) -> list[str]:
    """Where the files train a model of other sizes."""
    other = {
        name: size
        for name, size in files.shape.items()
        if size != getattr(model, name) and not (name == "vocab_size" and size > model.vocab_size)
    }
    if not other:
        return []
    sizes = ", ".join(f"{name} = {size} not {getattr(model, name)}" for name, size in other.items())
    return [f"{files.name} is for another model than {model.name} ({sizes}), which is estimated"]


def _switched(
    framework: Framework, switches: Sequence[str], files: str, workload: Workload, model: Model
) -> tuple[Framework, list[str]]:
    """The framework with what files turn on, as far as it has such switches for the workload."""
    named = {word: word.partition("=")[0] for word in switches}
    why = {}
    for word, name in named.items():
        switch = framework.switches.get(name)
        unfit = switch.unfit(workload, model) if switch else ""
        why[word] = (
            f"it {unfit}" * bool(unfit) if switch else f"{framework.name} has no such switch"
        )
    on = [word for word in switches if not why[word]]
    notes = [f"{word} of {files} is not counted: {why[word]}" for word in switches if why[word]]
    notes += [f"{files} turns on {word}: {framework.switches[named[word]].does}" for word in on]
    return (framework.with_switches(*on) if on else framework), notes


def _as_switches(framework: Framework, changes: Changes, files: str) -> tuple[Framework, list[str]]:
    """The framework with the switches that say what files change, where there are such."""
    different = {
        path: value
        for path, value in changes.items()
        if not path.startswith("states.") and framework.trait(path) not in (None, value)
    }
    notes = []
    for name, switch in framework.switches.items():
        word = switch.saying(name, different, changes)
        if word and name not in framework.on_by_name:
            framework = framework.with_switches(word)
            notes.append(f"{files} turns on {word}: {switch.does}")
            different = {p: v for p, v in different.items() if framework.trait(p) != v}
    return framework, notes


def _changed(
    framework: Framework, changes: Changes, precision: str, model: Model
) -> tuple[Framework, list[str]]:
    """The framework as the files set it, and what that changes."""
    fields, notes = framework.model_dump(), []
    states = framework.states(precision)
    place = framework.states_of(precision)
    for key, value in changes.items():
        new = model.hidden_size**2 if value == WIDTH_SQUARED else value
        if key == "states.accumulated_bytes":
            kept = states.gradient_bytes + states.unsharded_gradient_bytes
            if (kept >= 4) != (new == 4):
                notes.append(f"gradients are counted with {kept:g} bytes, not accumulated in {new}")
            continue
        *path, last = key.replace("states.", f"{place}.").split(".")
        table = fields
        for part in path:
            table = table[part]
        # None: it has no such choice
        if table[last] is not None and table[last] != new:
            notes.append(f"{framework.name} with {key} = {_plain(new)}, not {_plain(table[last])}")
            table[last] = new
    return (type(framework).described(fields) if notes else framework), notes


def _plain(value: object) -> str:
    said = isinstance(value, bool | str)
    return str(value).lower() if said else f"{float(str(value)):g}"
