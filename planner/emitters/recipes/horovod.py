"""Horovod: one process per device under the site's MPI, and a module to wrap the optimizer."""

from planner.emitters import limits
from planner.emitters.batch_job import BatchJob
from planner.emitters.recipe import Page, Recipe

EXPRESSIBLE = limits.ExpressibleLayouts()
_PRECISIONS = limits.FrameworkNames("precision", "Horovod", limits.TORCH_DTYPES)


def recipe(job: BatchJob) -> Recipe:
    """Write `horovod_plan.py`, and set the variables of the fusion buffer."""
    if job.machine.scheduler.kind == "kubernetes":
        raise limits.not_expressible("a PyTorchJob, which has no MPI", "Horovod", "framework ddp")
    framework = job.framework
    states = framework.states(job.workload.precision)
    page = Page(
        "horovod",
        job,
        dtype=_PRECISIONS[job.workload.precision],
        compression="none" if states.reduce_bytes > 2 else "fp16",
        sees_one_device=job.launch.one_device_each,
    )
    threshold = framework.buffers.reduce_bucket_elements * states.reduce_bytes
    return Recipe(
        files=(page.file("horovod_plan.py", "what wraps your optimizer"),),
        launcher="horovod",
        environment={
            "HOROVOD_FUSION_THRESHOLD": f"{threshold:.0f}",
            "HOROVOD_CYCLE_TIME": f"{1e3 * framework.reduction.cycle_s:g}",
        },
        notes=page.notes(),
    )
