"""Bundle: all files of one job, as text."""

from __future__ import annotations

import json
from dataclasses import replace

from planner.describe.workload import BaseFormat, Workload
from planner.emitters.batch_job import BatchJob
from planner.emitters.queue import slot_of
from planner.emitters.readme import readme
from planner.emitters.recipe import OWN_PROGRAM, File, Recipe
from planner.emitters.registry import writer_of
from planner.emitters.scripts.job import benchmark_files, job_files
from planner.errors import EmitError, shorten

__all__ = ["files_of"]


def files_of(job: BatchJob) -> dict[str, str]:
    """Name to text, sorted by name."""
    recipe = _with_adapters(job, writer_of(job.framework)(job))
    slot = slot_of(job)
    files = [*recipe.files, *job_files(job, recipe, slot), _layout(job)]
    if job.benchmark:
        files += [f for f in benchmark_files(job, slot) if f.name not in {g.name for g in files}]
    texts = {file.name: file.text for file in files}
    texts["README.md"] = readme(job, recipe, slot, files)
    return dict(sorted(texts.items()))


def _with_adapters(job: BatchJob, recipe: Recipe) -> Recipe:
    """What is trained is up to the program: say it to a user's own, refuse it for another."""
    workload = job.workload
    if not workload.adapted:
        return recipe
    if recipe.default_program != OWN_PROGRAM:
        raise EmitError(
            f"adapters and frozen parts are not written for {shorten(job.framework.name)}; use a "
            "framework that runs your own program, such as deepspeed or accelerate"
        )
    notes = [*recipe.notes]
    if workload.lora_rank:
        notes.append(f"`{OWN_PROGRAM}` trains {_adapters(workload)}.")
    if workload.frozen:
        notes.append(f"`{OWN_PROGRAM}` freezes {', '.join(workload.frozen)}.")
    if workload.quantized:
        notes.append(f"`{OWN_PROGRAM}` loads the frozen layers {_LOADED[workload.base_format]}.")
    return replace(recipe, notes=tuple(notes))


_LOADED: dict[BaseFormat, str] = {
    "nf4": "in 4 bits: `load_in_4bit`, `bnb_4bit_quant_type: nf4` of transformers' "
    "BitsAndBytesConfig, with `bnb_4bit_quant_storage` in 16 bits where shards are gathered",
    "nf4-double": "in 4 bits with scales in 8: `load_in_4bit`, `bnb_4bit_quant_type: nf4`, "
    "`bnb_4bit_use_double_quant` of transformers' BitsAndBytesConfig, with "
    "`bnb_4bit_quant_storage` in 16 bits where shards are gathered",
    "int8": "in 8 bits: `load_in_8bit` of transformers' BitsAndBytesConfig",
    "fp8": "in 8-bit floating point, a scale per row, such as torchao's",
}


def _adapters(workload: Workload) -> str:
    """The adapters of a job, in words."""
    kind, targets = "DoRA" if workload.dora else "LoRA", ", ".join(workload.lora_targets)
    dropout = f" with dropout {workload.lora_dropout:g}" if workload.lora_dropout else ""
    return f"{kind} adapters of rank {workload.lora_rank} on {targets}{dropout}"


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
