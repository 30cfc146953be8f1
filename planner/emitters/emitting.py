"""Emitting: all files of one layout of a plan, as text."""

from __future__ import annotations

import json
from dataclasses import replace

from planner.choose.plan import Plan
from planner.cost.estimate import Estimate
from planner.describe.catalogue import load_framework, load_machine, load_model
from planner.describe.framework import Framework
from planner.describe.machine import Machine
from planner.describe.model.model import Model
from planner.describe.question import Question
from planner.emitters.batch_job import BatchJob, steps_of
from planner.emitters.queue import slot_of
from planner.emitters.readme import readme
from planner.emitters.recipe import OWN_PROGRAM, File, Recipe
from planner.emitters.registry import writer_of
from planner.emitters.script import job_files
from planner.errors import EmitError, shorten

__all__ = ["emit", "emit_estimate"]


def emit(
    plan: Plan,
    rank: int = 1,
    *,
    model: Model | None = None,
    machine: Machine | None = None,
    framework: Framework | None = None,
    steps: int | None = None,
    queue: str = "",
) -> dict[str, str]:
    """Files (name to text) that run the `rank`-th layout of a plan.

    A plan knows its model, machine and framework by name; give those that are not in the
    catalogue, or were changed. Raises EmitError where the files cannot express the layout.

    >>> import planner
    >>> workload = planner.Workload(sequence_length=1024, global_batch=64)
    >>> answer = planner.plan("gpt2", "polaris", nodes=1, workload=workload, frameworks=["ddp"])
    >>> sorted(planner.emit(answer))
    ['README.md', 'job.sh', 'layout.json', 'nanogpt.args', 'rank.sh', 'submit.sh']
    """
    if not plan.ranked:
        raise EmitError(f"nothing fits on {plan.nodes} nodes, so there is nothing to run")
    if not 1 <= rank <= len(plan.ranked):
        raise EmitError(
            f"rank = {rank} is not among the {len(plan.ranked)} layouts of the plan; use 1 to "
            f"{len(plan.ranked)}"
        )
    return emit_estimate(
        plan,
        plan.ranked[rank - 1],
        model=model,
        machine=machine,
        framework=framework,
        steps=steps,
        queue=queue,
    )


def emit_estimate(
    plan: Plan,
    estimate: Estimate,
    *,
    model: Model | None = None,
    machine: Machine | None = None,
    framework: Framework | None = None,
    steps: int | None = None,
    queue: str = "",
) -> dict[str, str]:
    """Files that run one estimate of a plan's question, as `emit`."""
    if steps is not None and steps < 1:
        raise EmitError(f"steps = {steps} must be at least 1; give a positive number")
    question = Question(
        model or load_model(plan.model),
        machine or load_machine(plan.machine),
        plan.workload,
        framework or load_framework(estimate.framework),
    )
    return _files(BatchJob(question, estimate, plan.nodes, steps or steps_of(plan.workload), queue))


def _files(job: BatchJob) -> dict[str, str]:
    """Name to text, sorted by name."""
    recipe = _with_adapters(job, writer_of(job.framework)(job))
    slot = slot_of(job)
    files = [*recipe.files, *job_files(job, recipe, slot), _layout(job)]
    texts = {file.name: file.text for file in files}
    texts["README.md"] = readme(job, recipe, slot, files)
    return dict(sorted(texts.items()))


def _with_adapters(job: BatchJob, recipe: Recipe) -> Recipe:
    """What is trained is up to the program: say it to a user's own, refuse it for another."""
    workload = job.workload
    if not workload.lora_rank and not workload.frozen:
        return recipe
    if recipe.default_program != OWN_PROGRAM:
        raise EmitError(
            f"adapters and frozen parts are not written for {shorten(job.framework.name)}; use a "
            "framework that runs your own program, such as deepspeed or accelerate"
        )
    notes = [*recipe.notes]
    if workload.lora_rank:
        targets = ", ".join(workload.lora_targets)
        notes.append(
            f"`{OWN_PROGRAM}` trains LoRA adapters of rank {workload.lora_rank} on {targets}."
        )
    if workload.frozen:
        notes.append(f"`{OWN_PROGRAM}` freezes {', '.join(workload.frozen)}.")
    return replace(recipe, notes=tuple(notes))


def _layout(job: BatchJob) -> File:
    """The layout with its question, as `planner compare --layout` reads it."""
    data = {
        "layout": job.layout.model_dump(mode="json"),
        "workload": job.workload.model_dump(mode="json"),
        "framework": job.framework.name,
    }
    if job.model_is_catalogued:
        data["model"] = job.model.name
    text = json.dumps(data, indent=1, allow_nan=False) + "\n"
    return File("layout.json", "the layout, for `planner compare`", text)
