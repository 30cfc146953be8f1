"""Files: everything that starts a job: the recipe's files, scripts, layout and README."""

import json
import re
from collections.abc import Iterable
from dataclasses import replace
from typing import Any, get_args

from planner.choose.verdicts.answer_lines import estimate_lines
from planner.choose.verdicts.plan_notes import network_notes
from planner.describe.configurations.readers.huggingface import MODULES
from planner.describe.workload import LoraTarget
from planner.emitters.batch_job import CHECKPOINTS, FINISHED, BatchJob, slug
from planner.emitters.limits import TORCH_DTYPES, not_expressible
from planner.emitters.recipe import OWN_PROGRAM, File, Page, Recipe
from planner.emitters.registry import recipe_of
from planner.emitters.scripts.job_script import benchmark_files, job_files
from planner.emitters.scripts.systems import SYSTEMS
from planner.emitters.text import render
from planner.errors import EmitError, shorten
from planner.training.job_slot import Slot, walltime_text


def files_of(job: BatchJob) -> dict[str, str]:
    """Write all files of a job: name to text, sorted by name."""
    recipe = _with_own_program(job, recipe_of(job))
    slot = job.slot
    files = [*recipe.files, *job_files(job, recipe, slot), _layout(job)]
    if job.benchmark:
        files += [f for f in benchmark_files(job, slot) if f.name not in {g.name for g in files}]
    texts = {file.name: file.text for file in files}
    texts["README.md"] = _readme(job, recipe, slot, files)
    return dict(sorted(texts.items()))


def _with_own_program(job: BatchJob, recipe: Recipe) -> Recipe:
    """Add adapters, frozen parts and documents to a recipe for the user's own program."""
    workload, lengths = job.workload, job.workload.document_lengths
    if recipe.default_program != OWN_PROGRAM:
        if workload.adapted:
            raise EmitError(
                f"adapters and frozen parts are not written for {shorten(job.framework.name)}; use "
                "a framework that runs your own program, such as deepspeed or accelerate"
            )
        if lengths and not job.framework.code.masks_documents:
            raise not_expressible("document_lengths", job.framework.name, "no document_lengths")
        return recipe
    if not workload.adapted and not lengths:
        return recipe
    targets = workload.lora_targets
    page = Page(
        "own_program",
        job,
        all_linear=set(targets) == set(get_args(LoraTarget)),
        modules=[module for module, target in MODULES.items() if target in targets],
        dtype={**TORCH_DTYPES, "fp8": "bfloat16"}[workload.precision],
        mean_length=f"{sum(lengths) / len(lengths):,.0f}" if lengths else "",
    )
    files = [*recipe.files]
    if workload.lora_rank:
        files.append(page.file("adapter_config.json", "the adapters, as peft loads them"))
    if workload.quantized and workload.base_format != "fp8":
        purpose = "the frozen base, as transformers and bitsandbytes load it"
        files.append(page.file("quantization_config.json", purpose))
    return replace(recipe, files=tuple(files), notes=(*recipe.notes, *page.notes()))


def _layout(job: BatchJob) -> File:
    data = {
        "layout": job.layout.model_dump(mode="json"),
        "workload": job.workload.model_dump(mode="json"),
        "framework": job.framework.name,
    }
    model = job.model
    if job.model_is_catalogued:
        data["model"] = model.name
    elif not job.saves and model.traced is None:
        # the smaller model of a probe is in no catalogue and no file
        texts = {"source", "note", "reported_how"}
        shapes = model.model_dump(mode="json", exclude_defaults=True, exclude=texts)
        data["model"] = {**shapes, "name": job.name}
    text = json.dumps(data, indent=1, allow_nan=False) + "\n"
    return File("layout.json", "the layout, for `planner compare`", text)


def _readme(job: BatchJob, recipe: Recipe, slot: Slot, files: Iterable[File]) -> str:
    estimate, launch = job.estimate, job.launch
    variables, kind = _variables(job, recipe), job.machine.scheduler.kind
    words = [f"{name}=..." for name in variables]
    words += [f"PROGRAM={recipe.default_program}"] if recipe.default_program else []
    return render(
        "readme",
        job=job,
        recipe=recipe,
        slot=slot,
        workload=job.workload,
        estimate=estimate,
        answer=list(estimate_lines(estimate, job.machine.device.memory_bytes.value)),
        kind=kind,
        machine=slug(job.machine.name),
        files=sorted(files, key=lambda file: f"- `{file.name}`: {file.meaning}"),
        switches=job.framework.active_switches,
        command=" ".join([*words, "bash", "job.sh" if kind == "none" else "submit.sh"]),
        variables=variables,
        walltime=walltime_text(slot.seconds),
        slow=estimate.interval_step_time_s[1],
        checkpoints=CHECKPOINTS,
        finished=FINISHED,
        memory={
            "memory of that rank": estimate.memory_bytes,
            "host memory of a node": estimate.host_memory_bytes,
        },
        notes=[*recipe.notes, *network_notes(job.scenario, job.nodes), *launch.notes],
        source=launch.source,
        **_queue(job, slot),
    )


def _variables(job: BatchJob, recipe: Recipe) -> dict[str, str]:
    kind = job.machine.scheduler.kind
    required = SYSTEMS[kind].variables
    if not required and kind != "none" and job.launch.account:
        required = {"PROJECT": "the account that pays for the job"}
    if job.account:
        required = {name: text for name, text in required.items() if name != "PROJECT"}
    return {**required, **recipe.variables}


def _queue(job: BatchJob, slot: Slot) -> dict[str, Any]:
    """Values for the README: the queue, queues with longer limits, and assumed numbers."""
    scheduler, cores, queue = job.machine.scheduler, job.machine.node.num_cores, slot.queue
    requests_cpus = scheduler.kind not in ("none", "pbs")
    return {
        "queue": _plain(queue.name) if queue is not None else None,
        "longer": [
            f"{_plain(q.name)} ({q.min_nodes}-{q.max_nodes} nodes, {q.max_hours:g} h)"
            for q in scheduler.queues
            if queue is not None and q.max_hours > queue.max_hours and not q.on_request
        ],
        "limits_are_assumed": scheduler.kind_of_limits == "assumed",
        "assumed_cpus": f"{cores.value:.0f}"
        * (requests_cpus and job.launch.cpus is None and cores.kind == "assumed"),
    }


def _plain(name: str) -> str:
    """Remove characters with a meaning in Markdown from a name of a profile."""
    return re.sub(r"[^\w ().:@+-]", "-", name)
