"""nanotron: one YAML file with model, degrees, batch and optimizer."""

from planner.emitters.batch_job import BatchJob
from planner.emitters.limits import TORCH_DTYPES, ExpressibleLayouts, FrameworkNames, built
from planner.emitters.recipe import Page, Recipe

_FRAMEWORK = "nanotron"
EXPRESSIBLE = ExpressibleLayouts(axes=("tp", "pp"))
_PRECISIONS = FrameworkNames("precision", _FRAMEWORK, TORCH_DTYPES)
_OPTIMIZERS = FrameworkNames("optimizer", _FRAMEWORK, {"adam": "adamW", "adamw": "adamW"})
_SCHEDULES = FrameworkNames("schedule", _FRAMEWORK, {"1f1b": "1f1b", "gpipe": "afab"})


def recipe(job: BatchJob) -> Recipe:
    """Write `nanotron.yaml` for nanotron's own `run_train.py`."""
    built(job)
    page = Page(
        _FRAMEWORK,
        job,
        schedule=_SCHEDULES[job.layout.schedule if job.layout.pp > 1 else "1f1b"],
        dtype=_PRECISIONS[job.workload.precision],
        optimizer=_OPTIMIZERS[job.workload.optimizer],
        save_every=job.slot.save_every,
    )
    file = page.file("nanotron.yaml", "nanotron's configuration")
    return Recipe(
        files=(file,),
        default_program="run_train.py",
        arguments=(f"--config-file {file.name}",),
        environment={"CUDA_DEVICE_MAX_CONNECTIONS": "1"},
        saves=True,
        notes=page.notes(),
    )
