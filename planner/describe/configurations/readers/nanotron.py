"""nanotron: its YAML file."""

from __future__ import annotations

from planner.describe.configurations.configuration import Configuration
from planner.describe.configurations.document import Document
from planner.describe.configurations.stated_job import DTYPES, StatedJob
from planner.describe.configurations.table import Table

__all__ = ["KIND", "read", "recognises"]

KIND = "nanotron's configuration"
_SCHEDULES = {"1f1b": "1f1b", "afab": "gpipe"}
_OPTIMIZERS = {"adamw": "adamw", "adam": "adamw", "sgd": "sgd-momentum"}
_SHAPE = {
    "num_layers": "num_hidden_layers",
    "hidden_size": "hidden_size",
    "num_heads": "num_attention_heads",
    "ffn_size": "intermediate_size",
    "vocab_size": "vocab_size",
}


def recognises(document: Document) -> bool:
    """Whether `parallelism` and `tokens` stand there."""
    tables = document.tables
    return isinstance(tables.get("parallelism"), dict) and isinstance(tables.get("tokens"), dict)


def read(document: Document) -> Configuration:
    """What it says."""
    table = document.table()
    stated_job = StatedJob(KIND, document.name, table)
    stated_job.is_(framework="nanotron")
    _degrees(stated_job, table.table("parallelism"))
    tokens = table.table("tokens")
    stated_job.layout(
        micro_batch=tokens.number("micro_batch_size"),
        grad_accumulation=tokens.number("batch_accumulation_per_replica"),
    )
    stated_job.workload(sequence_length=tokens.number("sequence_length"))
    model = table.table("model")
    stated_job.workload(precision=stated_job.named(model, "dtype", DTYPES, "bf16"))
    sizes = model.table("model_config")
    stated_job.shape(**{field: sizes.number(key) for field, key in _SHAPE.items()})
    optimizer = table.table("optimizer")
    stated_job.layout(zero_stage=optimizer.number("zero_stage") or 0)
    factory = optimizer.table("optimizer_factory")
    stated_job.workload(optimizer=stated_job.named(factory, "name", _OPTIMIZERS, "adamw"))
    if optimizer.flag("accumulate_grad_in_fp32") is False:
        stated_job.note(
            "optimizer.accumulate_grad_in_fp32 = false is not counted: gradients are taken as "
            "accumulated in fp32"
        )
    return stated_job.configuration(hides=lambda key: not key.startswith("parallelism."))


def _degrees(stated_job: StatedJob, mesh: Table) -> None:
    tp, pp = mesh.number("tp") or 1, mesh.number("pp") or 1
    mode = mesh.word("tp_mode")
    stated_job.layout(
        dp=mesh.number("dp"),
        tp=tp,
        pp=pp,
        cp=mesh.number("context_parallel_size"),
        ep=mesh.number("expert_parallel_size"),
        sequence_parallel=tp > 1 and mode != "all_reduce",
        recompute="full" if mesh.flag("recompute_layer") else "none",
    )
    schedule = stated_job.named(mesh, "pp_engine", _SCHEDULES, "1f1b")
    if pp > 1:
        stated_job.layout(schedule=schedule or "1f1b")
    if mesh.flag("tp_linear_async_communication") is False and tp > 1:
        stated_job.changes({"communication.overlap_tensor_backward": False})
    if mode == "all_reduce" and tp > 1:
        stated_job.note("parallelism.tp_mode = ALL_REDUCE leaves norms whole on each rank")
    mesh.skip("tp_recompute_allgather", "moe_layer_recompute")
