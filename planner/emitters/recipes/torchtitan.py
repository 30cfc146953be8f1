"""torchtitan: a Python configuration for release 0.3.0, and the TOML file of 0.2.2 for Llamas."""

import tomllib
from typing import Any

from planner.cost.shards.layers_per_stage import LayerSplit, layer_split, layers_on_stage
from planner.emitters import limits
from planner.emitters.batch_job import BatchJob
from planner.emitters.recipe import File, Page, Recipe
from planner.emitters.recipes import fully_shard
from planner.emitters.text import assigned, toml_text

EXPRESSIBLE = limits.ExpressibleLayouts(
    axes=("tp", "pp", "cp", "ep"),
    recompute=("none", "selective", "full"),
    offload=("none", "all-cpu"),
    hybrid=True,
    reshard=True,  # only for other models, through fully_shard
    stages=True,
)
_OLD_MODULE = "llama3"
"""Module whose models also get the TOML file of release 0.2.2."""
_OLD_FLAVORS = ("8B", "70B", "405B")
_OURS = "planned"
"""Name of the model's sizes if they are not a flavor of torchtitan."""
_PRECISIONS = limits.FrameworkNames(
    "precision",
    "torchtitan",
    {name: limits.TORCH_DTYPES[name] for name in ("bf16", "fp32", "tf32")},
)
_SCHEDULES = limits.framework_names("schedule", "torchtitan")
_CHECKPOINTING = limits.WORDS["torchtitan"]["checkpointing"]
_VARIABLES = {
    "HF_ASSETS": "the folder of the tokenizer that belongs to the model",
    "LEARNING_RATE": "the learning rate of your recipe",
    "WARMUP_STEPS": "the steps over which it warms up",
}
_OLD_ARGUMENTS = (
    "--job.config_file torchtitan.toml",
    '--model.hf_assets_path "${HF_ASSETS}"',
    '--optimizer.lr "${LEARNING_RATE}"',
    '--lr_scheduler.warmup_steps "${WARMUP_STEPS}"',
)
_ASYNC = "enable_async_tensor_parallel"


def recipe(job: BatchJob) -> Recipe:
    """Write torchtitan's files for a model that it builds; for others FSDP2's `sharding.py`."""
    built = job.framework.code.builds(job.model, job.workload)
    if built is None or not built.module:
        return fully_shard.recipe(job)
    flavor = built.flavor(job.model)
    old = built.module == _OLD_MODULE and _is_old(job)
    page = Page(
        "torchtitan",
        job,
        module=built.module,
        flavor=flavor,
        loss_chunks=job.framework.kernels.loss_chunks,
        checkpointing=_CHECKPOINTING[job.layout.recompute],
        tables=_settings(job),
        replacement=" ".join(_OLD_ARGUMENTS) if old else "",
    )
    purpose = "torchtitan's configuration for release 0.3.0"
    return Recipe(
        files=(
            page.file("torchtitan_plan.py", purpose),
            *(_old_files(job, page, flavor) if old else ()),
        ),
        program="-m torchtitan.train",
        default_program="",
        arguments=("--module torchtitan_plan", "--config plan"),
        variables=_VARIABLES,
        saves=True,
        notes=page.notes(),
        states_switches=True,
    )


def _settings(job: BatchJob, flavor: str = "") -> dict[str, Any]:
    """Settings by section: for release 0.2.2 if a flavor is given, else for 0.3.0."""
    page = Page(
        "torchtitan",
        job,
        old=bool(flavor),
        flavor=flavor,
        dtype=_PRECISIONS[job.workload.precision],
        schedule=_SCHEDULES[job.layout.schedule] if job.layout.pp > 1 else "",
        chunks=_chunks(job, "output" if flavor else "lm_head"),
        save_every=job.slot.save_every,
    )
    return assigned(tomllib.loads(page.text("settings", ".toml")), job.framework.switch_arguments)


def _chunks(job: BatchJob, head: str) -> list[list[str]]:
    if job.layout.pp == 1:
        return []
    number, layers = job.layout.pp * job.layout.vpp, job.model.num_layers
    # by default both ends count as one layer
    deal = layer_split(layers, job.layout, LayerSplit(1, 1))
    chunks = []
    for chunk in range(number):
        first, count = layers_on_stage(layers, number, chunk, deal)
        chunks.append([f"layers.{layer}" for layer in range(int(first), int(first + count))])
    return [["tok_embeddings", *chunks[0]], *chunks[1:-1], [*chunks[-1], "norm", head]]


def _is_old(job: BatchJob) -> bool:
    # no tied embeddings, chunked loss or document masks; tp and pp only together with FSDP
    layout = job.layout
    if job.framework.kernels.loss_chunks > 1 or job.workload.document_lengths:
        return False
    is_data_parallel = layout.tp * layout.pp == 1
    sharded = job.sharding[1] * layout.cp > 1
    return not job.model.tied_embeddings and (is_data_parallel or sharded)


def _old_files(job: BatchJob, page: Page, flavor: str) -> list[File]:
    """Write `torchtitan.toml`, and a module of the model's sizes if they are not a flavor."""
    has_flavor = flavor in _OLD_FLAVORS
    tables = _settings(job, flavor if has_flavor else _OURS)
    if _ASYNC in tables.get("compile", {}):
        # release 0.2.2 has it under `parallelism`
        tables.setdefault("parallelism", {})[_ASYNC] = tables["compile"].pop(_ASYNC)
    if not has_flavor:
        tables["experimental"] = {"custom_import": "torchtitan_model"}
    text = toml_text(tables, "torchtitan 0.2.2 and older; newer releases read no TOML")
    files = [File("torchtitan.toml", "torchtitan's configuration up to release 0.2.2", text)]
    if not has_flavor:
        purpose = "the model's sizes, which torchtitan 0.2.2 imports"
        files.append(page.file("torchtitan_model.py", purpose))
    return files
