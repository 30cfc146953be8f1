"""DeepSpeed: `ds_config.json` with every value written out, and `accelerate.yaml`."""

from planner.describe.layout import OFFLOAD
from planner.emitters.batch_job import BatchJob
from planner.emitters.limits import ExpressibleLayouts, framework_names
from planner.emitters.recipe import File, Page, Recipe
from planner.emitters.recipes.accelerate import accelerate_files

EXPRESSIBLE = ExpressibleLayouts(offload=OFFLOAD, hybrid=True, reshard=True, tiles=True)

_OWN_DISK = "nvme/"
_SWAP_BUFFERS = {"offload_optimizer": 4, "offload_param": 5}
_PRECISIONS = framework_names("precision", "DeepSpeed")


def config_file(job: BatchJob) -> File:
    """Write `ds_config.json`."""
    return _page(job).file("ds_config.json", "DeepSpeed's configuration")


def disk_folder(job: BatchJob) -> dict[str, str]:
    """Folder that the user must provide for NVMe offload if the profile states no local disk."""
    if "nvme" not in job.layout.offload or job.launch.local_disk:
        return {}
    return {_OWN_DISK: "make it a folder on the disk of every node, or a link to one"}


def recipe(job: BatchJob) -> Recipe:
    """Write `ds_config.json` for the user's own program, and `accelerate.yaml` that names it."""
    config = config_file(job)
    return Recipe(
        files=(config, *accelerate_files(job, "DEEPSPEED", syncs=False)),
        arguments=("--deepspeed", "--deepspeed_config", config.name),
        needed=disk_folder(job),
        notes=_page(job).notes(),
    )


def _page(job: BatchJob) -> Page:
    layout, framework = job.layout, job.framework
    precision = _PRECISIONS[job.workload.precision]
    states = framework.states(job.workload.precision)
    # accumulating in fp32 takes a full fp32 buffer in addition to 16-bit gradients
    widens = states.gradient_bytes + states.unsharded_gradient_bytes >= 4
    moved = 0 if layout.offload == "none" else 2 if layout.offload.startswith("all-") else 1
    return Page(
        "deepspeed",
        job,
        framework=framework,
        buffers=framework.buffers,
        precision=precision,
        reduced="fp32" if states.reduce_bytes == 4 else precision,
        accumulated="fp32" if widens else precision,
        offloads=dict(list(_SWAP_BUFFERS.items())[:moved]),
        disk=job.launch.local_disk or _OWN_DISK,
        # a buffer must hold the largest parameter
        largest=_largest_parameter(job),
        needed=disk_folder(job),
    )


def _largest_parameter(job: BatchJob) -> int:
    """Elements of the model's largest matrix, rounded up to whole millions."""
    model = job.model
    width = max(model.vocab_size, model.ffn_size)
    return -(-width * model.hidden_size // 1_000_000) * 1_000_000
