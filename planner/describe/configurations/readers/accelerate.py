"""Accelerate: files of `accelerate config`, for FSDP 1 and 2, DeepSpeed, Megatron-LM and DDP."""

from planner.describe.configurations.document import Table
from planner.describe.configurations.readers.deepspeed import offload_of
from planner.describe.configurations.stated_job import KEYS, Reader, StatedJob, has_any

_KEYS = KEYS["accelerate"]
_STRATEGIES: dict[str, tuple[int, bool]] = {k: (s, h) for k, (s, h) in _KEYS["strategies"].items()}
"""FSDP 1 strategies: ZeRO stage, and whether each node is its own sharding group."""
_STRATEGY_NUMBERS = dict(zip("12345", _STRATEGIES, strict=True))


def _state(job: StatedJob, table: Table) -> None:
    job.set_single(world=table.number("num_processes"))
    precision = job.named(table, "mixed_precision", _KEYS["precisions"], "precision")
    # `no` is the file's default; the program may set another precision
    job.workload(precision=None if precision == "fp32" else precision)
    job.by_default(precision="fp32")
    kind = table.word("distributed_type") or ""
    kind = "fsdp" if not kind and "fsdp_config" in table else kind
    if kind in _PLUGINS:
        section, state = _PLUGINS[kind]
        state(job, table.table(section))
    elif kind in ("multi_gpu", "multi_xpu", "multi_cpu", "multi_npu", "no", "false", ""):
        job.set_single(usual_framework="ddp")
        job.by_default(zero_stage=0)
    else:
        raise job.refused(
            f"distributed_type = {kind.upper()} is not supported; use FSDP, DEEPSPEED, "
            "MEGATRON_LM or MULTI_GPU"
        )
    _mesh(job, table.table("parallelism_config"))
    table.number("num_machines")
    job.not_counted(table, _KEYS["not_counted"])
    backend = table.table("dynamo_config").word("dynamo_backend") or table.word("dynamo_backend")
    if backend not in (None, "no"):
        job.turn_on("compile")


def state_fsdp(job: StatedJob, plugin: Table) -> None:
    """Read the section of the FSDP plugin."""
    job.set_single(framework="accelerate")
    strategy = plugin.word("fsdp_sharding_strategy")
    stage, hybrid = fsdp_stage(job, strategy) if strategy else (None, False)
    gathers = plugin.word("fsdp_reshard_after_forward")
    if gathers in _STRATEGIES:
        stage, hybrid = _STRATEGIES[gathers]
    elif gathers is not None:
        stage = 3 if plugin.flag("fsdp_reshard_after_forward") else 2
    elif (plugin.number("fsdp_version") or 1) == 2 and stage is None:
        stage = 3
    job.layout(zero_stage=3 if stage is None else stage)
    job.set_single(shards_per_node=hybrid)
    job.layout(offload="all-cpu" if plugin.flag("fsdp_offload_params") else None)
    job.layout(recompute="full" if plugin.flag("fsdp_activation_checkpointing") else None)
    # the program may turn on both itself
    job.by_default(offload="none", recompute="none")
    if plugin.number("fsdp_version") != 2:
        job.note("FSDP 1 is estimated as FSDP 2, which shards each tensor by rows")
    prefetch = plugin.word("fsdp_backward_prefetch")
    if prefetch in ("no_prefetch", "backward_post"):
        job.note(f"fsdp_backward_prefetch = {prefetch} is ignored: gathers are prefetched")
    plugin.skip(*(f"fsdp_{name}" for name in _KEYS["harmless_in_fsdp"]))


def fsdp_stage(job: StatedJob, strategy: str) -> tuple[int, bool]:
    """ZeRO stage of an FSDP 1 strategy, and whether each node is its own sharding group."""
    name = _STRATEGY_NUMBERS.get(strategy, strategy)
    if name not in _STRATEGIES:
        raise job.refused(
            f"fsdp_sharding_strategy = {strategy} is not known; use one of "
            f"{', '.join(strategy_name.upper() for strategy_name in _STRATEGIES)}"
        )
    return _STRATEGIES[name]


def _mesh(job: StatedJob, mesh: Table) -> None:
    sizes = {
        name: mesh.number(f"parallelism_config_{name}_size")
        for name in ("dp_replicate", "dp_shard", "tp", "cp")
    }
    if not any(sizes.values()):
        return
    job.layout(tp=sizes["tp"] or 1, cp=sizes["cp"] or 1)
    replicate, shard = sizes["dp_replicate"] or 1, sizes["dp_shard"] or 1
    job.layout(dp=replicate * shard)
    job.set_single(replicas=replicate if shard > 1 else 0)
    if shard == 1 and replicate > 1 and (sizes["cp"] or 1) == 1:
        job.layout(zero_stage=0)  # groups of one rank shard nothing
    mesh.skip("parallelism_config_cp_comm_strategy", "parallelism_config_cp_backend")
    job.refuse(mesh, _KEYS["refused"])


def _deepspeed(job: StatedJob, plugin: Table) -> None:
    job.set_single(framework="deepspeed")
    file = plugin.get("deepspeed_config_file")
    if isinstance(file, str):
        job.left_to(file, "zero_stage")
        # DeepSpeed's file decides; `accelerate config` writes a precision anyway
        job.fields["workload"].pop("precision", None)
        job.fields["usual"].pop("precision", None)
    else:
        states = plugin.word("offload_optimizer_device") or "none"
        weights = plugin.word("offload_param_device") or "none"
        plugin.skip("offload_optimizer_nvme_path", "offload_param_nvme_path")
        job.layout(
            zero_stage=plugin.number("zero_stage"),
            grad_accumulation=plugin.number("gradient_accumulation_steps"),
            offload=offload_of(states, weights),
        )
    plugin.skip(*_KEYS["harmless_in_deepspeed"])


def _megatron(job: StatedJob, plugin: Table) -> None:
    job.set_single(framework="megatron-lm")
    split = plugin.flag("megatron_lm_sequence_parallelism")
    recomputes = plugin.flag("megatron_lm_recompute_activations")
    job.layout(
        tp=plugin.number("megatron_lm_tp_degree"),
        pp=plugin.number("megatron_lm_pp_degree"),
        sequence_parallel=split,
        recompute=None if recomputes is None else "selective" if recomputes else "none",
        zero_stage=1 if plugin.flag("megatron_lm_use_distributed_optimizer") else 0,
    )
    job.layout(grad_accumulation=plugin.number("megatron_lm_num_micro_batches"))
    plugin.skip("megatron_lm_gradient_clipping")


_PLUGINS = {
    "fsdp": ("fsdp_config", state_fsdp),
    "fsdp2": ("fsdp_config", state_fsdp),
    "deepspeed": ("deepspeed_config", _deepspeed),
    "megatron_lm": ("megatron_lm_config", _megatron),
}
"""By `distributed_type`: the section of the file, and the function that reads it."""

ACCELERATE = Reader(
    "Accelerate's configuration",
    has_any("distributed_type", "compute_environment"),
    _state,
    harmless=_KEYS["harmless"],
)
