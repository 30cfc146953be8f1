"""torchtitan: the TOML file of releases up to 0.2, and the Python configuration of 0.3."""

import re
from collections.abc import Mapping
from typing import Any

from planner.describe.configurations.document import CALLED, Document, Table
from planner.describe.configurations.stated_job import DTYPES, KEYS, Reader, StatedJob, split_fields
from planner.errors import shorten

_ENDS = (1, 1)
_EVENLY = "ignored: layers are split evenly; set module_fqns_per_model_part or --split"
_KEYS = KEYS["torchtitan"]
_AC = "activation_checkpoint"
_TOML = re.compile(r"^\s*\[\s*training\s*\]", re.MULTILINE)
_CHUNKED = "ChunkedLossWrapper"
_ASYNC = "enable_async_tensor_parallel"


def _recognises(document: Document) -> bool:
    training = document.tables.get("training")
    if not isinstance(training, dict) or "tokens" in document.tables:
        return False
    return any(mark in training for mark in _KEYS["marks"])


def _state(job: StatedJob, table: Table) -> None:
    job.set_single(framework="torchtitan" if _has_pieces(job, table) else "fsdp2")
    mesh = table.table("parallelism")
    degrees = {name: size or 1 for name, size in mesh.numbers(_KEYS["degrees"]).items()}
    # torchtitan always combines tensor with sequence parallelism
    job.layout(**degrees, sequence_parallel=degrees["tp"] > 1)
    pp = degrees["pp"]
    _sharding(job, mesh, pp)
    _pipeline(job, mesh, pp)
    _training(job, table, mesh, pp)
    _recompute(
        job, table, _KEYS["usual_in_toml"] if _TOML.search(job.document.text) else _KEYS["usual"]
    )
    for section, meanings in _KEYS["not_counted"].items():
        job.not_counted(table.table(section), meanings)
    _compile(job, table)


def _has_pieces(job: StatedJob, table: Table) -> bool:
    """True if release 0.3 computes the loss in chunks; reads their number too."""
    constructed = _constructed(table)
    loss = constructed.get("loss")
    if not isinstance(loss, Mapping) or not str(loss.get(CALLED)).startswith(_CHUNKED):
        return False
    pieces = constructed.table("loss").number("num_chunks")
    job.changes({} if pieces is None else {"kernels.loss_chunks": pieces})
    return True


def _constructed(table: Table) -> Table:
    """Constructor arguments of release 0.3, or the tables of 0.2."""
    return table.table("config") if isinstance(table.get("config"), Mapping) else table


def _sharding(job: StatedJob, mesh: Table, pp: int) -> None:
    replicate = mesh.number("data_parallel_replicate_degree") or 1
    shard = mesh.number("data_parallel_shard_degree")
    shard = -1 if shard is None else shard
    policy = mesh.word("fsdp_reshard_after_forward") or "default"
    if policy not in ("always", "never", "default"):
        raise job.refused(
            f"fsdp_reshard_after_forward = {policy} is not known; use default, always or never"
        )
    gathers_again = policy == "always" or (policy == "default" and pp == 1)
    cp = mesh.number("context_parallel_degree") or 1
    job.layout(zero_stage=fsdp2_stage(shard * cp, replicate, gathers_again=gathers_again))
    if shard > 0:
        job.layout(dp=replicate * shard)
    if shard != 1:
        job.set_single(replicas=replicate)


def fsdp2_stage(shard: int, replicate: int, *, gathers_again: bool) -> int:
    """ZeRO stage of FSDP2 over groups of `shard` ranks; 0 for several groups of one rank."""
    if shard == 1 and (replicate > 1 or not gathers_again):
        return 0
    return 3 if gathers_again else 2


def _pipeline(job: StatedJob, mesh: Table, pp: int) -> None:
    schedule = mesh.word("pipeline_parallel_schedule")
    parts: Any = mesh.get("module_fqns_per_model_part", "model_fqns_per_model_part")
    split = mesh.get("pipeline_parallel_split_points")
    layers = mesh.get("pipeline_parallel_layers_per_stage")
    less = [mesh.number(f"pipeline_parallel_{end}_stage_less_layers") for end in ("first", "last")]
    if pp == 1:
        return
    schedule = schedule or "1f1b"
    if schedule not in _KEYS["schedules"]:
        job.note(
            f"pipeline_parallel_schedule = {schedule} is not supported; interleaved 1F1B is "
            "estimated"
        )
    kind = _KEYS["schedules"].get(schedule, "interleaved-1f1b")
    job.layout(schedule=kind)
    chunks = len(parts) if isinstance(parts, list) else 0
    if isinstance(split, list) and split:
        chunks = len(split) + 1
    if chunks and chunks % pp:
        raise job.refused(
            f"{chunks} model parts are not a multiple of {pp} pipeline stages; correct one of them"
        )
    if layers is not None:
        job.note(f"pipeline_parallel_layers_per_stage = {layers} is ignored; set --vpp")
    # torchtitan's default: two chunks per stage for schedules with several chunks
    default = 1 if kind in ("1f1b", "gpipe") else 2
    job.layout(vpp=chunks // pp if chunks else default)
    if isinstance(parts, list):
        job.layout(**split_fields([_layers_of(part) for part in parts], _ENDS))
    elif isinstance(split, list):
        if split:
            job.note(f"pipeline_parallel_split_points are {_EVENLY}")
    elif less != [None, None]:
        slots = [
            usual if number is None else number for number, usual in zip(less, _ENDS, strict=True)
        ]
        if tuple(slots) != _ENDS:
            job.layout(embedding_slots=slots[0], head_slots=slots[1])


def _layers_of(part: Any) -> int:
    names = part if isinstance(part, list) else ()
    return sum(str(name).startswith("layers.") for name in names)


def _training(job: StatedJob, table: Table, mesh: Table, pp: int) -> None:
    training = table.table("training")
    local = training.number("local_batch_size", "batch_size")
    local = local if local is not None or "local_batch_size" in training else None
    train_batch = training.number("global_batch_size")
    micro = mesh.number("pipeline_parallel_microbatch_size")
    if pp > 1:
        micro = micro or 1  # torchtitan's default
        if local is not None and local % micro:
            raise job.refused(
                f"local_batch_size = {local} is not a multiple of "
                f"pipeline_parallel_microbatch_size = {micro}; correct one of them"
            )
        job.layout(micro_batch=micro)
        at_once = local // micro if local else None
    else:
        job.layout(micro_batch=local)
        at_once = 1
    if train_batch is None or train_batch < 0:
        job.layout(grad_accumulation=at_once)
    else:
        job.workload(global_batch=train_batch)
    offloads = training.flag("enable_cpu_offload")
    job.layout(offload="all-cpu" if offloads else "none")
    dtype = job.named(training, "mixed_precision_param", DTYPES, "precision")
    job.workload(
        sequence_length=training.number("seq_len"),
        precision="fp8" if _is_fp8(table) else dtype or "bf16",
    )
    training.skip("mixed_precision_reduce")
    optimizer = table.table("optimizer")
    job.workload(optimizer=job.named(optimizer, "name", _KEYS["optimizers"], "optimizer"))


def _is_fp8(table: Table) -> bool:
    if not isinstance(table.get("model"), Mapping):
        return False  # a Python configuration builds the model by code
    model = table.table("model")
    model.skip(*_KEYS["harmless_in_model"])
    return "float8" in str(model.get("converters"))


def _recompute(job: StatedJob, table: Table, usual: Mapping[str, str]) -> None:
    checkpointing = _checkpointing(job, table, usual)
    mode = checkpointing.word("mode")
    kind = job.named(checkpointing, "mode", _KEYS["checkpointing"], "recompute") if mode else None
    option = checkpointing.word("selective_ac_option")
    if kind == "selective" and option is not None and option.isdecimal():
        # whole layers, every n-th one
        job.layout(recompute="full", recompute_every=max(int(option), 1))
        return
    if kind == "selective" and option not in (None, "op"):
        job.note(
            f"selective_ac_option = {option} is estimated as op, which recomputes every second "
            "product of each layer"
        )
    job.layout(recompute=kind or "none")


def _checkpointing(job: StatedJob, table: Table, usual: Mapping[str, str]) -> Table:
    """Read recompute mode and option, with the release's defaults for missing ones."""
    keys = (_AC, f"{_AC}_config")
    parts = (table, _constructed(table))
    place = next((part for part in parts if any(key in part for key in keys)), None)
    mode_settings: Any = {} if place is None else place.get(*keys)
    if place is None and usual is _KEYS["usual"] and CALLED not in parts[1]:
        job.note(f"{_AC} is set by the flavor, which is not read; SelectiveAC is estimated")
    called = mode_settings if isinstance(mode_settings, str) else None
    if isinstance(mode_settings, dict):
        called = mode_settings.get(CALLED)
    if called:
        # release 0.3 has a class per mode
        name = str(called).partition(".")[0].lower()
        mode_settings = {"mode": _KEYS["classes"].get(name, called)}
    elif mode_settings is None:
        mode_settings = {"mode": "none"}
    elif not isinstance(mode_settings, dict):
        raise job.refused(
            f"{_AC} = {shorten(str(mode_settings))} is not a section; write its mode below it"
        )
    return Table({**usual, **mode_settings}, job.document.name, f"{_AC}.")


def _compile(job: StatedJob, table: Table) -> None:
    """Read compile switches; release 0.2 has async tensor parallelism under `parallelism`."""
    section = _constructed(table).table("compile")
    on = section.flag("enable") or table.table("training").flag("compile")
    parts = section.get("components")
    section.skip("backend")
    if on and isinstance(parts, list) and not ("model" in parts and "loss" in parts):
        on = "model" in parts
        named = ", ".join(map(str, parts)) or "[]"
        both = "layers and loss are" if on else "neither layers nor loss are"
        job.note(f"compile.components = {named}: {both} estimated as compiled")
    if not on:
        job.turn_off("compile", "async-tp")
    if on:
        job.turn_on("compile")
    degrees = table.table("parallelism").flag(_ASYNC)
    if (section.flag(_ASYNC) or degrees) and on:
        job.turn_on("async-tp")


TORCHTITAN = Reader("torchtitan's configuration", _recognises, _state, harmless=_KEYS["harmless"])
