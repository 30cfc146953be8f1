"""axolotl: its YAML files, whose job is one of the Hugging Face Trainer."""

from planner.describe.configurations.document import Document, Table
from planner.describe.configurations.readers import huggingface
from planner.describe.configurations.stated_job import KEYS, Reader, StatedJob

_KEYS = KEYS["axolotl"]


def _recognises(document: Document) -> bool:
    tables = document.tables
    return "base_model" in tables and any(mark in tables for mark in _KEYS["marks"])


def _state(job: StatedJob, settings: Table) -> None:
    job.refuse(settings, _KEYS["refused"])
    per_rank = settings.number("batch_size")
    micro = settings.number("micro_batch_size")
    if "gradient_accumulation_steps" not in settings and per_rank and micro:
        job.layout(grad_accumulation=max(per_rank // micro, 1))
    huggingface.state_trainer(job, settings)
    sizes = {name: settings.number(*keys) for name, keys in _KEYS["degrees"].items()}
    job.layout(tp=sizes["tp"], cp=sizes["cp"])
    if sizes["dp_shard"] or sizes["dp_replicate"]:
        replicas = sizes["dp_replicate"] or 1
        job.layout(dp=(sizes["dp_shard"] or 1) * replicas)
        job.set_single(replicas=replicas if sizes["dp_shard"] else 0)
    kernels = [key for key in _KEYS["liger"] if settings.flag(key)]
    if len(kernels) == len(_KEYS["liger"]):
        job.turn_on("liger")
    elif kernels:
        job.note(f"{', '.join(kernels)} are ignored: the other kernels are not Liger's")
    job.not_counted(settings, _KEYS["not_counted"])


AXOLOTL = Reader(
    "axolotl's configuration",
    _recognises,
    _state,
    harmless=(*KEYS["huggingface"]["harmless"], *_KEYS["harmless"]),
)
