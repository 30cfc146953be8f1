"""DeepSpeed: `ds_config.json`, on its own or inside another file."""

from planner.describe.configurations.configuration import WIDTH_SQUARED
from planner.describe.configurations.document import Table
from planner.describe.configurations.stated_job import KEYS, Reader, StatedJob, has_any

_KEYS = KEYS["deepspeed"]


def state(job: StatedJob, table: Table) -> None:
    """Read a DeepSpeed configuration into a job."""
    _batch(job, table)
    _precision(job, table)
    zero = table.table("zero_optimization")
    stage = zero.number("stage")
    job.layout(zero_stage=stage)
    if "stage" not in zero:
        job.by_default(zero_stage=0)
    job.layout(offload=_offload(job, zero))
    _buffers(job, table, zero, stage or 0)
    kind = table.table("optimizer")
    job.workload(optimizer=job.named(kind, "type", _KEYS["optimizers"], "optimizer"))
    job.layout(tp=table.table("tensor_parallel").number("autotp_size"))
    job.not_counted(table, _KEYS["not_counted"])
    job.not_counted(zero, _KEYS["not_counted_in_zero"])
    job.compared(zero, _KEYS["usual_in_zero"])
    zero.skip(*_KEYS["harmless_in_zero"])
    table.skip(*_KEYS["harmless"])
    kind.skip("params")


def _batch(job: StatedJob, table: Table) -> None:
    train_batch = table.number("train_batch_size")
    micro = table.number("train_micro_batch_size_per_gpu")
    passes = table.number("gradient_accumulation_steps")
    absent = "gradient_accumulation_steps" not in table
    if absent and (train_batch is None) != (micro is None):
        passes = 1
    job.workload(global_batch=train_batch)
    job.layout(micro_batch=micro, grad_accumulation=passes)


def _precision(job: StatedJob, table: Table) -> None:
    sections = {"bf16": table.table("bf16", "bfloat16"), "fp16": table.table("fp16")}
    enabled = {name: section.flag("enabled") for name, section in sections.items()}
    chosen = [name for name, on in enabled.items() if on]
    if len(chosen) > 1:
        raise job.refused("bf16 and fp16 are both enabled; enable one of them")
    left = any(section.is_open("enabled") for section in sections.values())
    job.workload(precision=chosen[0] if chosen else None)
    if not left:
        job.by_default(precision="fp32")
    for section in sections.values():
        if not section.flag("bf16_optimizer_states"):
            for key in ("bf16_master_weights_and_grads", "fp16_master_weights_and_grads"):
                job.not_counted(section, {key: "master weights are estimated in fp32"})
        section.skip(*_KEYS["loss_scaling"])


def _offload(job: StatedJob, zero: Table) -> str:
    places = {}
    for key, old in (("offload_optimizer", "cpu_offload"), ("offload_param", "cpu_offload_params")):
        section = zero.table(key)
        device = section.word("device")
        places[key] = device or ("cpu" if zero.flag(old) else "none")
        section.skip(*_KEYS["offload_details"])
        job.not_counted(section, {"ratio": "all optimizer states are estimated as offloaded"})
    states, weights = places["offload_optimizer"], places["offload_param"]
    for place in (states, weights):
        if place not in ("none", "cpu", "nvme"):
            raise job.refused(f"offload to {place!r} is not known; write cpu, nvme or none")
    if weights not in ("none", states):
        job.note(
            f"parameters are offloaded to {weights} and optimizer states to {states}, which is "
            f"not supported; both are estimated on {weights}"
        )
    return offload_of(states, weights)


def offload_of(states: str, weights: str) -> str:
    """Name a layout's offload from the places of optimizer states and parameters."""
    if weights != "none":
        return f"all-{weights}"
    return "none" if states == "none" else f"optimizer-{states}"


def _buffers(job: StatedJob, table: Table, zero: Table, stage: int) -> None:
    sizes = ("reduce_bucket_size", "allgather_bucket_size", "overlap_comm")
    zero.skip(*sizes, "stage3_max_live_parameters")
    if not stage:
        return
    overlaps = zero.flag("overlap_comm")
    if overlaps is None:
        overlaps = stage == 3  # DeepSpeed's default
    accumulation_bytes = _KEYS["dtype_bytes"].get(
        table.table("data_types").word("grad_accum_dtype") or ""
    )
    if accumulation_bytes == 4 and job.fields["workload"].get("precision") == "bf16":
        job.turn_on("fp32-gradients")
    sent = _KEYS["dtype_bytes"].get(table.word("communication_data_type") or "")
    if sent is None and accumulation_bytes == 4 and stage >= 2:
        sent = 2  # reduced in the type of the weights, even if accumulated in fp32
    job.changes(
        {
            "communication.overlap_gradients": overlaps,
            "buffers.num_reduce_buckets": 2 if overlaps else 1,
            "buffers.reduce_bucket_elements": _elements(zero, "reduce_bucket_size"),
            "states.reduce_bytes": sent,
            "states.accumulated_bytes": accumulation_bytes,
        }
    )
    if stage < 3:
        job.changes({"buffers.gather_bucket_elements": zero.number("allgather_bucket_size")})
    else:
        job.refuse(zero, _KEYS["refused_in_zero"])
        second = zero.number("zero_hpz_partition_size") or 0
        job.layout(reshard=second if second > 1 else None)
        live = zero.number("stage3_max_live_parameters")
        job.changes({"buffers.live_elements": live})


def _elements(zero: Table, key: str) -> float | str | None:
    """Read a bucket size in elements; for `auto` the Trainer takes the square of hidden size."""
    return WIDTH_SQUARED if zero.word(key) is None and zero.is_open(key) else zero.number(key)


DEEPSPEED = Reader(
    "DeepSpeed's configuration",
    has_any("zero_optimization", "train_micro_batch_size_per_gpu", "train_batch_size"),
    state,
    "deepspeed",
    harmless=_KEYS["harmless"],
)
