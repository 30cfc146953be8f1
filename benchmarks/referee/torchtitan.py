"""torchtitan: its Llama 3 with its own parallelisation, release 0.2.2 or 0.3.0 as installed."""

# mypy: ignore-errors

from __future__ import annotations

from dataclasses import replace
from importlib.metadata import version
from typing import Any

import torch
from torch import nn

from planner.validate.folder.tracked import Job, measure
from planner.validate.sharding.attention import fused_rms_norm

__all__ = ["run"]

# torchtitan treats a machine without accelerator as one with CUDA
torch._utils._get_available_device_type = lambda: "cpu"
_FLASH_ON_CPU = torch.ops.aten._scaled_dot_product_flash_attention_for_cpu.default
_POLICY = {"none": "none", "full": "full", "selective": "selective"}


def _like_cuda() -> None:
    """Make RMS norm one kernel that keeps its input, as on CUDA; on the CPU it is composite."""
    nn.functional.rms_norm = lambda x, shape, weight=None, eps=None: fused_rms_norm(x, weight, eps)


def run(case: dict[str, Any]) -> dict[str, Any]:
    """Track a step of the trainer's loop: `del pred` before backward, fused AdamW."""
    _like_cuda()
    newer = version("torchtitan").startswith("0.3")
    build = _build_03 if newer else _build_02
    ranks = case["layout"]["dp"] * case["layout"]["tp"]
    return measure(lambda: build(case), ranks)


def _degrees(layout) -> dict[str, int]:
    shard = layout["dp_shard"] or layout["dp"]
    return {
        "dp_replicate": layout["dp"] // shard,
        "dp_shard": shard,
        "cp": 1,
        "tp": layout["tp"],
        "pp": 1,
        "ep": 1,
        "world_size": layout["dp"] * layout["tp"],
    }


def _policy(case) -> str:
    return case.get("reshard") or ("default" if case["layout"]["zero_stage"] == 3 else "never")


def _job(model, forward, context, case, batch) -> Job:
    optimizer = torch.optim.AdamW(model.parameters(), fused=True)
    passes = case["layout"]["grad_accumulation"]
    return Job(model, optimizer, forward, passes, context, batch)


def _tokens(case):
    shape = (case["layout"]["micro_batch"], case["sequence"])
    return [torch.zeros(shape, dtype=torch.long) for _ in range(2)]


# --- 0.2.2 ---------------------------------------------------------------------------------------


def _build_02(case):
    from torchtitan.components.loss import cross_entropy_loss
    from torchtitan.config import JobConfig
    from torchtitan.distributed import ParallelDims
    from torchtitan.distributed import utils as dist_utils
    from torchtitan.models.llama3 import Transformer, llama3_args
    from torchtitan.models.llama3.infra import parallelize

    layout, job = case["layout"], JobConfig()
    job.training.seq_len = case["sequence"]
    job.parallelism.fsdp_reshard_after_forward = _policy(case)
    job.activation_checkpoint.mode = _POLICY[layout["recompute"]]
    job.activation_checkpoint.selective_ac_option = "op"
    parallelize._op_sac_save_list.add(_FLASH_ON_CPU)
    dims = ParallelDims(etp=1, **_degrees(layout))
    dims.build_mesh()
    arguments = replace(llama3_args[case["flavor"]], max_seq_len=case["sequence"])
    if case["layers"]:
        arguments = replace(arguments, n_layers=case["layers"])
    with torch.device("meta"):
        model = Transformer(arguments)
    model.train()
    parallelize.parallelize_llama(model, dims, job)
    context = dist_utils.get_train_context(layout["tp"] > 1)

    def materialise() -> Job:
        model.to_empty(device="cpu")
        tokens, labels = _tokens(case)

        def forward():
            return cross_entropy_loss(model(tokens), labels)

        return _job(model, forward, context, case, [tokens, labels])

    return materialise


# --- 0.3.0 ---------------------------------------------------------------------------------------


def _build_03(case):
    from torchtitan.components.loss import ChunkedLossWrapper, CrossEntropyLoss
    from torchtitan.config import CompileConfig, ParallelismConfig, TrainingConfig
    from torchtitan.distributed import ParallelDims
    from torchtitan.distributed import activation_checkpoint as checkpointing
    from torchtitan.distributed import utils as dist_utils
    from torchtitan.models.common import attention
    from torchtitan.models.llama3 import llama3_configs, parallelize_llama

    layout = case["layout"]
    attention.FlexAttention.compiled_flex_attn = staticmethod(_flex_attention)
    default = checkpointing._get_default_save_ops
    checkpointing._get_default_save_ops = lambda: default() | {_FLASH_ON_CPU}
    training = TrainingConfig(seq_len=case["sequence"])
    parallelism = ParallelismConfig(
        fsdp_reshard_after_forward=_policy(case),
        tensor_parallel_degree=layout["tp"],
        # torchtitan's default, spmd_types, needs a later torch
        spmd_backend="partial_dtensor",
    )
    dist_utils.set_spmd_backend(parallelism.spmd_backend)
    dims = ParallelDims(spmd_backend=parallelism.spmd_backend, **_degrees(layout))
    dims.build_mesh()
    config = llama3_configs[case["flavor"]](attn_backend="flex")
    if case["layers"]:
        config.layers = config.layers[: case["layers"]]
    config.update_from_config(config=_Sizes(parallelism))
    for layer in config.layers:
        layer.attention.rope.max_seq_len = case["sequence"]
    with torch.device("meta"):
        model = config.build()
    model.train()
    policy = {
        "none": None,
        "full": checkpointing.FullAC.Config(),
        "selective": checkpointing.SelectiveAC.Config(),
    }[layout["recompute"]]
    model = parallelize_llama(
        model,
        parallel_dims=dims,
        training=training,
        parallelism=parallelism,
        compile_config=CompileConfig(enable=False),
        ac_config=policy,
        dump_folder="",
    )
    plain = CrossEntropyLoss.Config(global_vocab_size=config.vocab_size)
    chunked = not case.get("plain_loss")
    loss_config = ChunkedLossWrapper.Config(loss_fn=plain) if chunked else plain
    loss_fn = loss_config.build(compile_config=CompileConfig(enable=False))
    if chunked:
        loss_fn.set_lm_head(model.lm_head)
        model._skip_lm_head = True

    context = dist_utils.get_spmd_context(parallel_dims=dims, spmd_typechecking=False)

    def materialise() -> Job:
        model.to_empty(device="cpu")
        tokens, labels = _tokens(case)
        valid = torch.ones(())
        mask = _Mask()

        def forward():
            return loss_fn(model(tokens, attention_masks=mask), labels, valid)[0]

        return _job(model, forward, context, case, [tokens, labels])

    return materialise


class _Sizes:
    """Stand-in with the job fields that a model's configuration reads."""

    def __init__(self, parallelism):
        self.parallelism = parallelism


def _Mask():
    """Make a causal block mask without its tables, which take a few hundred bytes per block."""
    from torch.nn.attention.flex_attention import BlockMask

    return object.__new__(BlockMask)


def _flex_attention(q, k, v, *, scale, enable_gqa, **_):
    """Replace flex attention by a flash kernel: both keep q, k, v, output and log-sum-exp."""
    out = nn.functional.scaled_dot_product_attention(
        q, k, v, is_causal=True, scale=scale, enable_gqa=enable_gqa
    )
    return out, None
