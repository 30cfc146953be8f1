"""Bundle: all files of one run."""

from __future__ import annotations

import importlib
import json
from dataclasses import replace

from planner.emitters.job import Recipe, Run
from planner.emitters.queue import slot
from planner.emitters.readme import readme
from planner.emitters.script import job_files
from planner.errors import EmitError, shorten

__all__ = ["bundle"]

_OWN_PROGRAM = "train.py"


def bundle(run: Run) -> dict[str, str]:
    """The files of a run, name to text, sorted by name."""
    recipe = _recipe(run)
    place = slot(run)
    files = {
        **recipe.files,
        **job_files(run, recipe, place),
        "layout.json": _layout(run),
    }
    files["README.md"] = readme(run, recipe, place, files)
    return dict(sorted(files.items()))


def _recipe(run: Run) -> Recipe:
    """What the framework's own module makes of the layout."""
    form = run.framework.configuration
    if form == "none":
        raise EmitError(
            f"no files are written for {shorten(run.framework.name)}, which is described for "
            "comparison with published runs; use a framework of today, such as deepspeed or "
            "megatron-lm"
        )
    recipe: Recipe = importlib.import_module(f"planner.emit.{form}").recipe(run)
    return _with_adapters(run, recipe)


def _with_adapters(run: Run, recipe: Recipe) -> Recipe:
    """What is trained is up to the program: say it to a user's own, refuse it for another."""
    workload = run.workload
    if not workload.lora_rank and not workload.frozen:
        return recipe
    if recipe.default_program != _OWN_PROGRAM:
        raise EmitError(
            f"adapters and frozen parts are not written for {shorten(run.framework.name)}; use a "
            "framework that runs your own program, such as deepspeed or accelerate"
        )
    notes = [*recipe.notes]
    if workload.lora_rank:
        targets = ", ".join(workload.lora_targets)
        notes.append(f"`train.py` trains LoRA adapters of rank {workload.lora_rank} on {targets}.")
    if workload.frozen:
        notes.append(f"`train.py` freezes {', '.join(workload.frozen)}.")
    return replace(recipe, notes=tuple(notes))


def _layout(run: Run) -> str:
    """The layout with its question, as `planner compare --layout` reads it."""
    data = {
        "layout": run.layout.model_dump(mode="json"),
        "workload": run.workload.model_dump(mode="json"),
        "framework": run.framework.name,
    }
    if run.model_is_catalogued:
        data["model"] = run.model.name
    return json.dumps(data, indent=1, allow_nan=False) + "\n"
