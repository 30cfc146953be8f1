"""Readme: what the files are, what to set, what to expect, and how to check the run afterwards."""

from __future__ import annotations

import re
from collections.abc import Iterable, Mapping

from planner.describe.machine import Queue
from planner.emitters.batch_job import CHECKPOINTS, FINISHED, BatchJob, slug
from planner.emitters.queue import Slot, walltime_text
from planner.emitters.recipe import File, Recipe
from planner.emitters.scripts.kubernetes import CLUSTER
from planner.units import format_bytes, format_seconds

__all__ = ["readme"]


def readme(job: BatchJob, recipe: Recipe, slot: Slot, files: Iterable[File]) -> str:
    """The README of the folder, in Markdown."""
    parts = [
        f"# {job.name} on {slug(job.machine.name)}\n\n`{job.summary}`",
        _files(files),
        _switches(job),
        _submit(job, recipe),
        _queue(job, slot),
        _checkpoints(recipe, slot),
        _expect(job),
        _check(job),
        _notes(job, recipe),
    ]
    return "\n\n".join(part for part in parts if part) + "\n"


def _files(files: Iterable[File]) -> str:
    rows = sorted(f"- `{file.name}`: {file.meaning}" for file in files)
    return "## Files\n\n" + "\n".join(rows)


def _switches(job: BatchJob) -> str:
    on = job.framework.active_switches.items()
    rows = [f"- `{word}`: {switch.does}" for word, switch in on]
    return "\n\n".join(["## Switched on", "\n".join(rows)]) if rows else ""


def _submit(job: BatchJob, recipe: Recipe) -> str:
    kind, launch = job.machine.scheduler.kind, job.machine.scheduler.launch
    meant = {**recipe.variables}
    if kind == "kubernetes":
        meant = {**CLUSTER, **meant}
    elif kind != "none" and launch is not None and launch.account:
        meant = {"PROJECT": "the account that pays for the job", **meant}
    words = [f"{name}=..." for name in meant]
    if recipe.default_program:
        words.append(f"PROGRAM={recipe.default_program}")
    command = " ".join([*words, "bash", "job.sh" if kind == "none" else "submit.sh"])
    lines = [
        "## Start",
        "",
        "Copy the folder to the machine, go into it, and:",
        "",
        f"    {command}",
    ]
    if meant:
        lines += ["", *(f"- `{name}`: {meaning}" for name, meaning in meant.items())]
    lines += [
        "",
        "Write the activation of your own environment (conda, venv) into `environment.sh`; the job "
        "reads it where it exists.",
    ]
    return "\n".join(lines)


def _queue(job: BatchJob, slot: Slot) -> str:
    if job.machine.scheduler.kind in ("none", "kubernetes"):
        return ""
    slow = format_seconds(job.estimate.interval_step_time_s[1])
    time = walltime_text(slot.seconds)
    text = f"## Queue\n\n{job.steps:,} steps of at most {slow} take {format_seconds(job.seconds)}. "
    if slot.queue is None:
        text += f"`job.sh` asks for {time}. The profile knows no queue of this machine: name one "
        return text + "with `planner emit --queue`, or rely on the site's default."
    text += f"`job.sh` asks queue {_plain(slot.queue.name)} for {time}."
    if slot.jobs > 1:
        text += (
            f" That is too short: {slot.jobs} jobs in a row are needed, each good for about "
            f"{slot.steps:,} steps. {_chain(slot)}{_longer(job, slot.queue)}"
        )
    if job.machine.scheduler.kind_of_limits == "assumed":
        text += " The queue's limits are assumed; ask the site."
    return text


def _chain(slot: Slot) -> str:
    """How many of the jobs are submitted at once."""
    if slot.chained == 1:
        return "`submit.sh` submits one: start it again when that has ended."
    jobs_phrase = "them" if slot.chained == slot.jobs else f"the next {slot.chained}"
    restart_phrase = "" if slot.chained == slot.jobs else "; start it again when they have ended"
    return (
        f"`submit.sh` submits {jobs_phrase} in a chain, each after the one before{restart_phrase}. "
        "`JOBS=1 bash submit.sh` submits one."
    )


def _checkpoints(recipe: Recipe, slot: Slot) -> str:
    """What is saved, and who saves it."""
    who = "The program saves" if recipe.saves else "Your program has to save"
    goes = "goes" if recipe.saves else "to go"
    return (
        f"## Checkpoints\n\n{who} into `{CHECKPOINTS}/` every {slot.save_every:,} steps, and "
        f"{goes} on from the last checkpoint there when the job starts again. A job that comes to "
        f"its last step leaves the file `{FINISHED}`, and jobs after it end at once. Output is "
        "appended to `run.log`."
    )


def _longer(job: BatchJob, queue: Queue) -> str:
    """Queues that hold a job longer, with the numbers of nodes that they take."""
    longer = [
        f"{_plain(q.name)} ({q.min_nodes}-{q.max_nodes} nodes, {q.max_hours:g} h)"
        for q in job.machine.scheduler.queues
        if q.max_hours > queue.max_hours and not q.on_request
    ]
    return f" Longer queues: {', '.join(longer)}." if longer else ""


def _plain(name: str) -> str:
    """A name of a profile without anything that Markdown would read."""
    return re.sub(r"[^\w ().:@+-]", "-", name)


def _expect(job: BatchJob) -> str:
    estimate = job.estimate
    low, high = (format_seconds(value) for value in estimate.interval_step_time_s)
    lines = [
        "## Expect",
        "",
        f"- a step takes {format_seconds(estimate.step_time_s)} (90 % of comparable runs lay "
        f"between {low} and {high})",
        f"- {estimate.tokens_per_s:,.0f} {job.workload.unit}/s, "
        f"{100 * estimate.mfu:.1f} % of the peak (MFU)",
        f"- the fullest rank is on stage {estimate.worst_stage}; its peak falls in "
        f"{estimate.peak_moment.replace('_', ' ')}",
        "",
        *_table("memory of that rank", estimate.memory_bytes),
        "",
        *_table("host memory of a node", estimate.host_memory_bytes),
    ]
    return "\n".join(lines)


def _table(title: str, parts: Mapping[str, float]) -> list[str]:
    """Parts and their total as a Markdown table; empty parts are left out."""
    rows = [
        f"| {name.replace('_', ' ')} | {format_bytes(value)} |"
        for name, value in parts.items()
        if value and name != "total"
    ]
    total = f"| total | {format_bytes(parts['total'])} |"
    return [f"| {title} | |", "|---|---:|", *rows, total]


def _check(job: BatchJob) -> str:
    machine = slug(job.machine.name) if job.machine_is_catalogued else "YOUR-MACHINE.toml"
    model = "" if job.model_is_catalogued else " --model YOUR-MODEL.toml"
    return (
        "## Check\n\nAfterwards, see whether the run did what was expected, and which part did "
        f"not:\n\n    planner compare run.log --machine {machine} --layout layout.json{model}"
    )


def _notes(job: BatchJob, recipe: Recipe) -> str:
    launch = job.machine.scheduler.launch
    notes = [*recipe.notes, *(launch.notes if launch is not None else ())]
    if not recipe.saves:
        notes.append("Data, tokenizer, learning rate and its warm-up are those of your program.")
    if job.workload.precision == "tf32":
        notes.append('TF32 is on after `torch.set_float32_matmul_precision("high")`.')
    cores = job.machine.node.num_cores
    asks = job.machine.scheduler.kind not in ("none", "pbs")
    if asks and (launch is None or launch.cpus is None) and cores.kind == "assumed":
        notes.append(
            f"The job asks for {cores.value:.0f} CPUs a node, which are assumed: correct that "
            "where the nodes have others."
        )
    source = launch.source if launch is not None else "the profile says nothing; standard options"
    notes.append(f"Where the form of the job script comes from: {source}.")
    return "## Notes\n\n" + "\n".join(f"- {note}" for note in notes)
