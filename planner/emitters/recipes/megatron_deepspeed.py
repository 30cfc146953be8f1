"""Megatron-DeepSpeed: Megatron's arguments in that fork's spelling, and DeepSpeed's JSON."""

from dataclasses import replace

from planner.emitters.batch_job import BatchJob
from planner.emitters.limits import ExpressibleLayouts, built, framework_names
from planner.emitters.recipe import Page, Recipe
from planner.emitters.recipes.deepspeed import config_file, disk_folder
from planner.emitters.recipes.megatron import ARGUMENTS, START, common_options

_FRAMEWORK = "Megatron-DeepSpeed"
EXPRESSIBLE = ExpressibleLayouts(
    axes=("tp", "pp", "cp"),
    offload=("none", "optimizer-cpu", "optimizer-nvme"),
    hybrid=True,
    reshard=True,
    ulysses=True,
    activations=True,
)
_PRECISIONS = framework_names("precision", _FRAMEWORK)
_OPTIMIZERS = framework_names("optimizer", _FRAMEWORK)


def recipe(job: BatchJob) -> Recipe:
    """Write `megatron.args` and `ds_config.json`; the user provides `data.args`."""
    built(job)
    config = config_file(job)
    page = Page(
        "megatron_deepspeed",
        job,
        common=common_options(job),
        optimizer=_OPTIMIZERS[job.workload.optimizer],
        precision=_PRECISIONS[job.workload.precision],
    )
    return replace(
        START,
        files=(page.file("megatron.args", ARGUMENTS), config),
        default_program="pretrain_gpt_alcf.py",
        needed={
            "data.args": "write the options of your data and tokenizer into it, one per line",
            **disk_folder(job),
        },
        environment={"CUDA_DEVICE_MAX_CONNECTIONS": "1"},
        notes=page.notes(),
    )
