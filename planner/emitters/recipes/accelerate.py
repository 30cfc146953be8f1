"""Accelerate: `accelerate.yaml`, and `training_arguments.json` for the Hugging Face Trainer."""

from typing import Any

from planner.emitters.batch_job import BatchJob
from planner.emitters.limits import WORDS, ExpressibleLayouts, framework_names
from planner.emitters.recipe import File, Page, Recipe

EXPRESSIBLE = ExpressibleLayouts(axes=("tp", "cp"), offload=("none", "all-cpu"), hybrid=True)

_PRECISIONS = framework_names("precision", "Accelerate")
_OPTIMIZERS = WORDS["Accelerate"]["trainer_optimizer"]
TRAINER_ARGUMENT = '${TRAINING_ARGUMENTS:+"${TRAINING_ARGUMENTS}"}'
"""Path of the Trainer's arguments, as a shell word; empty if the user has not set it."""


def accelerate_files(job: BatchJob, kind: str, **values: Any) -> tuple[File, ...]:
    """Write `accelerate.yaml`, and `training_arguments.json` if the Trainer can express the job."""
    workload = job.workload
    page = Page("accelerate", job, kind=kind, **values)
    config = page.file("accelerate.yaml", "Accelerate's configuration")
    if workload.optimizer not in _OPTIMIZERS or workload.precision == "fp8":
        return (config,)
    page.values |= {"optimizer": _OPTIMIZERS[workload.optimizer], "save_every": job.slot.save_every}
    purpose = "arguments of the Hugging Face Trainer, for a program that uses it"
    return config, page.file("training_arguments.json", purpose)


def recipe(job: BatchJob) -> Recipe:
    """Write `accelerate.yaml` for the user's own program."""
    layout = job.layout
    syncs = layout.grad_accumulation > 1 and layout.world > 1
    kind = "NO" if layout.world == 1 else "FSDP"
    files = accelerate_files(job, kind, precision=_PRECISIONS[job.workload.precision], syncs=syncs)
    return Recipe(
        files=files,
        arguments=(TRAINER_ARGUMENT,),
        launcher="accelerate",
        # `accelerate launch` has no key for it outside DeepSpeed; the library reads this
        environment={"ACCELERATE_GRADIENT_ACCUMULATION_STEPS": str(layout.grad_accumulation)},
        notes=Page("accelerate", job, syncs=syncs, trained=len(files) > 1).notes(),
    )
