"""GPT-NeoX: its YAML files, which hold Megatron's settings beside DeepSpeed's own."""

from planner.describe.configurations.document import Document, Table
from planner.describe.configurations.readers import deepspeed
from planner.describe.configurations.stated_job import KEYS, Reader, StatedJob

_KEYS = KEYS["neox"]


def _table(document: Document) -> Table:
    """Return the values of a file; GPT-NeoX takes `-` and `_` alike."""
    values = {key.replace("-", "_"): value for key, value in document.tables.items()}
    return Table(values, document.name)


def _recognises(document: Document) -> bool:
    return any(mark in _table(document) for mark in _KEYS["marks"])


def _state(job: StatedJob, table: Table) -> None:
    job.refuse(table, _KEYS["refused"])
    if table.word("train_impl") not in (None, "normal"):
        raise table.refused("train_impl", "is not estimated; only normal, the usual loss, is")
    deepspeed.state(job, table)
    job.shape(**table.numbers(_KEYS["shape"]))
    tp, pp = table.number("model_parallel_size") or 1, table.number("pipe_parallel_size") or 1
    layers_each = table.number("checkpoint_num_layers") or 1
    recomputes = bool(table.flag("checkpoint_activations"))
    job.layout(
        tp=tp,
        pp=pp,
        sequence_parallel=bool(table.flag("sequence_parallel")) and tp > 1,
        recompute="full" if recomputes else "none",
    )
    if recomputes and layers_each > 1:
        job.note(f"checkpoint_num_layers = {layers_each} is estimated as recompute of each layer")
    job.workload(
        sequence_length=table.number("seq_length"),
        dropout=table.real("hidden_dropout"),
        attention=_attention(table),
        optimizer="adam-8bit" if table.flag("use_bnb_optimizer") else None,
    )
    job.by_default(dropout=0.0, grad_accumulation=1)
    _precision(job, table)
    gpus, nodes = table.number("num_gpus"), table.number("num_nodes")
    job.set_single(world=gpus * nodes if gpus and nodes and nodes > 0 else 0)
    job.not_counted(table, _KEYS["not_counted"])


def _precision(job: StatedJob, table: Table) -> None:
    """Read the precision, which `precision` or the type of `fp16` may state too."""
    job.workload(precision=job.named(table, "precision", _KEYS["precisions"], "precision"))
    section = table.table("fp16")
    kind = section.word("type")
    section.skip("fp16")
    table.table("bf16").skip("bf16")
    if kind == "bfloat16" and section.flag("enabled"):
        job.workload(precision="bf16")


def _attention(table: Table) -> str:
    """Read the kernel of the layers; other layers than dense attention are refused."""
    config = table.get("attention_config")
    kinds = {str(kind) for part in config or [[["global"], "all"]] for kind in part[0]}
    if len(kinds) != 1 or not kinds <= _KEYS["attentions"].keys():
        raise table.refused("attention_config", "is not estimated; use flash or global for all")
    return str(_KEYS["attentions"][kinds.pop()])


NEOX = Reader(
    "GPT-NeoX's configuration",
    _recognises,
    _state,
    "megatron-deepspeed",
    table=_table,
    harmless=(*KEYS["deepspeed"]["harmless"], *_KEYS["harmless"]),
)
