"""Files: all that a job is started with, as text."""

from __future__ import annotations

import json

from planner.emitters.batch_job import BatchJob
from planner.emitters.bundle.adapters import with_adapters
from planner.emitters.bundle.documents import with_documents
from planner.emitters.bundle.readme import readme
from planner.emitters.queue import slot_of
from planner.emitters.recipe import File
from planner.emitters.registry import writer_of
from planner.emitters.scripts.job_script import benchmark_files, job_files

__all__ = ["files_of"]


def files_of(job: BatchJob) -> dict[str, str]:
    """Name to text, sorted by name."""
    recipe = with_documents(job, with_adapters(job, writer_of(job.framework)(job)))
    slot = slot_of(job)
    files = [*recipe.files, *job_files(job, recipe, slot), _layout(job)]
    if job.benchmark:
        files += [f for f in benchmark_files(job, slot) if f.name not in {g.name for g in files}]
    texts = {file.name: file.text for file in files}
    texts["README.md"] = readme(job, recipe, slot, files)
    return dict(sorted(texts.items()))


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
