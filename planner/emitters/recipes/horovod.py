"""Horovod: one process a device under the site's MPI, and what wraps the optimizer.

`mpiexec` (or `srun`, `jsrun`, `mpirun`) starts `python train.py` once a device, and Horovod asks
MPI which rank a process is; a machine without a batch system takes `horovodrun`.
"""

from __future__ import annotations

from planner.emitters.batch_job import BatchJob
from planner.emitters.limits import (
    TORCH_DTYPES,
    ExpressibleLayouts,
    FrameworkNames,
    not_expressible,
)
from planner.emitters.recipe import File, Recipe
from planner.emitters.scripts.script_templates import render

__all__ = ["EXPRESSIBLE", "recipe"]

EXPRESSIBLE = ExpressibleLayouts()
_PRECISIONS = FrameworkNames("precision", "Horovod", TORCH_DTYPES)
_COMPRESSION = {4: "none", 2: "fp16"}
"""By the bytes of an element that is reduced."""


def recipe(job: BatchJob) -> Recipe:
    """`horovod_plan.py`, and the variables of the fusion buffer."""
    if job.machine.scheduler.kind == "kubernetes":
        raise not_expressible("a PyTorchJob, which knows no MPI,", "Horovod", "framework ddp")
    layout, framework = job.layout, job.framework
    states = framework.states(job.workload.precision)
    text = render(
        "horovod_plan.py",
        dtype=_PRECISIONS[job.workload.precision],
        micro_batch=layout.micro_batch,
        grad_accumulation=layout.grad_accumulation,
        compression=_COMPRESSION[4 if states.reduce_bytes > 2 else 2],
    )
    threshold = framework.buffers.reduce_bucket_elements * states.reduce_bytes
    launch = job.machine.scheduler.launch
    sees_one_device = launch is not None and launch.one_device_each
    device = "the only one that it sees" if sees_one_device else "that of `hvd.local_rank()`"
    notes = [
        f"`train.py` is your program on Horovod: it calls `hvd.init()`, its device is {device}, "
        "`distributed` of `horovod_plan.py` wraps its optimizer, and it computes under "
        "`torch.autocast` with the `DTYPE` there.",
        f"Each rank takes {job.batches}, the loss divided by `GRAD_ACCUMULATION`.",
        "Horovod needs the MPI that the job's launcher belongs to (`HOROVOD_WITH_MPI=1` when it is "
        "built); `horovodrun --check-build` says what it has.",
    ]
    if layout.recompute == "full":
        notes.append("It recomputes every layer (`torch.utils.checkpoint`).")
    return Recipe(
        files=(File("horovod_plan.py", "what wraps your optimizer", text),),
        launcher="horovod",
        environment={
            "HOROVOD_FUSION_THRESHOLD": f"{threshold:.0f}",
            "HOROVOD_CYCLE_TIME": f"{1e3 * framework.reduction.cycle_s:g}",
        },
        notes=tuple(notes),
    )
