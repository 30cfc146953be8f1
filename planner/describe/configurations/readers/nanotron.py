"""nanotron: its YAML configuration file."""

from planner.describe.configurations.document import Document, Table
from planner.describe.configurations.stated_job import DTYPES, KEYS, Reader, StatedJob

_KEYS = KEYS["nanotron"]


def _recognises(document: Document) -> bool:
    return all(isinstance(document.tables.get(key), dict) for key in ("parallelism", "tokens"))


def _state(job: StatedJob, table: Table) -> None:
    _degrees(job, table.table("parallelism"))
    tokens = table.table("tokens")
    job.layout(**tokens.numbers(_KEYS["batch"]))
    job.workload(sequence_length=tokens.number("sequence_length"))
    model, optimizer = table.table("model"), table.table("optimizer")
    job.workload(precision=job.named(model, "dtype", DTYPES, "precision"))
    job.shape(**model.table("model_config").numbers(_KEYS["shape"]))
    job.layout(zero_stage=optimizer.number("zero_stage") or 0)
    factory = optimizer.table("optimizer_factory")
    job.workload(optimizer=job.named(factory, "name", _KEYS["optimizers"], "optimizer"))
    if optimizer.flag("accumulate_grad_in_fp32") is False:
        job.note(
            "optimizer.accumulate_grad_in_fp32 = false is ignored: gradients are estimated as "
            "accumulated in fp32"
        )


def _degrees(job: StatedJob, mesh: Table) -> None:
    tp, pp = mesh.number("tp") or 1, mesh.number("pp") or 1
    mode = mesh.word("tp_mode")
    job.layout(
        dp=mesh.number("dp"),
        tp=tp,
        pp=pp,
        cp=mesh.number("context_parallel_size"),
        ep=mesh.number("expert_parallel_size"),
        sequence_parallel=tp > 1 and mode != "all_reduce",
        recompute="full" if mesh.flag("recompute_layer") else "none",
    )
    schedule = job.named(mesh, "pp_engine", _KEYS["schedules"], "schedule")
    if pp > 1:
        job.layout(schedule=schedule or "1f1b")
    if mesh.flag("tp_linear_async_communication") is False and tp > 1:
        job.changes({"communication.overlap_tensor_backward": False})
    if mode == "all_reduce" and tp > 1:
        job.note("parallelism.tp_mode = ALL_REDUCE keeps full norms on each rank")
    mesh.skip("tp_recompute_allgather", "moe_layer_recompute")


NANOTRON = Reader(
    "nanotron's configuration", _recognises, _state, "nanotron", harmless=_KEYS["harmless"]
)
