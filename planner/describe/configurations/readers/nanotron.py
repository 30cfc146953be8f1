"""nanotron: its YAML file."""

from __future__ import annotations

from planner.describe.configurations.configuration import Configuration
from planner.describe.configurations.document import Document
from planner.describe.configurations.statement import DTYPES, Statement
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
    said = Statement(KIND, document.name, table)
    said.is_(framework="nanotron")
    _degrees(said, table.table("parallelism"))
    tokens = table.table("tokens")
    said.layout(
        micro_batch=tokens.number("micro_batch_size"),
        grad_accumulation=tokens.number("batch_accumulation_per_replica"),
    )
    said.workload(sequence_length=tokens.number("sequence_length"))
    model = table.table("model")
    said.workload(precision=said.named(model, "dtype", DTYPES, "bf16"))
    sizes = model.table("model_config")
    said.shape(**{field: sizes.number(key) for field, key in _SHAPE.items()})
    optimizer = table.table("optimizer")
    said.layout(zero_stage=optimizer.number("zero_stage") or 0)
    factory = optimizer.table("optimizer_factory")
    said.workload(optimizer=said.named(factory, "name", _OPTIMIZERS, "adamw"))
    if optimizer.flag("accumulate_grad_in_fp32") is False:
        said.note(
            "optimizer.accumulate_grad_in_fp32 = false is not counted: gradients are taken as "
            "accumulated in fp32"
        )
    return said.configuration(hides=lambda key: not key.startswith("parallelism."))


def _degrees(said: Statement, mesh: Table) -> None:
    tp, pp = mesh.number("tp") or 1, mesh.number("pp") or 1
    mode = mesh.word("tp_mode")
    said.layout(
        dp=mesh.number("dp"),
        tp=tp,
        pp=pp,
        cp=mesh.number("context_parallel_size"),
        ep=mesh.number("expert_parallel_size"),
        sequence_parallel=tp > 1 and mode != "all_reduce",
        recompute="full" if mesh.flag("recompute_layer") else "none",
    )
    schedule = said.named(mesh, "pp_engine", _SCHEDULES, "1f1b")
    if pp > 1:
        said.layout(schedule=schedule or "1f1b")
    if mesh.flag("tp_linear_async_communication") is False and tp > 1:
        said.changes({"communication.overlap_tensor_backward": False})
    if mode == "all_reduce" and tp > 1:
        said.note("parallelism.tp_mode = ALL_REDUCE leaves norms whole on each rank")
    mesh.skip("tp_recompute_allgather", "moe_layer_recompute")
