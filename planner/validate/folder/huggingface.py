"""Hugging Face: its models under Accelerate's FSDP2, `sharding.py`, or on one device."""

# mypy: ignore-errors

from types import SimpleNamespace
from typing import Any

import torch
import transformers
from torch import nn
from torch.distributed.device_mesh import init_device_mesh
from transformers import AutoConfig, masking_utils

from planner.validate.folder.tracked import Job, measure
from planner.validate.sharding.attention import flash_attention

# transformers detects packed sequences from position values, which tensors without data lack;
# a batch of whole sequences has none
masking_utils.find_packed_sequence_indices = lambda position_ids: None
_sdpa = nn.functional.scaled_dot_product_attention


def _sdpa_like_cuda(query, key, value, attn_mask=None, dropout_p=0.0, is_causal=False, **more):
    """CUDA's fused kernels take values of another head width, the CPU's keeps the scores."""
    if attn_mask is None and query.shape[-1] != value.shape[-1]:
        return flash_attention(query, key, value, is_causal, [])[0]
    return _sdpa(query, key, value, attn_mask, dropout_p, is_causal, **more)


nn.functional.scaled_dot_product_attention = _sdpa_like_cuda
_KINDS = {
    "decoder": "AutoModelForCausalLM",
    "encoder": "AutoModelForMaskedLM",
    "encoder-decoder": "AutoModelForSeq2SeqLM",
}


def run(case: dict[str, Any]) -> dict[str, Any]:
    """Track a step of a plain loop; `outputs = model(**batch)` stays alive through backward."""
    return measure(lambda: _build(case), case["layout"]["dp"])


def _build(case: dict[str, Any]):
    layout = case["layout"]
    mesh = init_device_mesh("cpu", (layout["dp"],), mesh_dim_names=("dp_shard",))
    model = _WRAPPED[case.get("wrap", "accelerate")](meta_model(case), mesh, case)

    def materialise() -> Job:
        model.to_empty(device="cpu")
        if hasattr(model, "tie_weights"):
            model.tie_weights()
        trained = [param for param in model.parameters() if param.requires_grad]
        way = {"fused": True} if case.get("fused") else {"foreach": True}
        optimizer = torch.optim.AdamW(trained, **way)
        shape = (layout["micro_batch"], case["sequence"])
        tokens, labels = (torch.zeros(shape, dtype=torch.long) for _ in range(2))
        autocast = case.get("wrap") == "single" and case.get("precision", "bf16") == "bf16"

        def forward():
            with torch.autocast("cpu", dtype=torch.bfloat16, enabled=autocast):
                outputs = model(input_ids=tokens, labels=labels)
            return outputs.loss, outputs

        job = Job(model, optimizer, forward, layout["grad_accumulation"], batch=[tokens, labels])
        if case.get("no_sync"):
            # Accelerator.no_sync, under which `accumulate` runs all passes but the last
            job.before = model.set_requires_gradient_sync
        return job

    return materialise


def meta_model(case) -> nn.Module:
    """Make the model of a case without storage."""
    config = AutoConfig.for_model(**case["config"])
    config.use_cache = False
    kind = getattr(transformers, _KINDS[case.get("kind", "decoder")])
    dtype = torch.bfloat16 if case.get("dtype") == "bf16" else torch.float32
    attention = {} if case["attention"] == "default" else {"attn_implementation": case["attention"]}
    with torch.device("meta"):
        model = kind.from_config(config, dtype=dtype, **attention)
        if case.get("lora"):
            from peft import LoraConfig, get_peft_model

            model = get_peft_model(model, LoraConfig(**case["lora"]))
    model.train()
    return model


def _accelerate(model, mesh, case):
    from accelerate.utils.fsdp_utils import fsdp2_apply_ac, fsdp2_prepare_model

    accelerator = _accelerator(mesh, case)
    accelerator.state.fsdp_plugin.set_auto_wrap_policy(model)
    if case["layout"]["recompute"] == "full":
        model = fsdp2_apply_ac(accelerator, model)
    return fsdp2_prepare_model(accelerator, model)


def _sharding_py(model, mesh, case):
    """`sharding.py` as `planner emit` writes it, with transformers' own checkpointing."""
    _checkpointed(model, case)
    scope: dict[str, Any] = {}
    exec(case["sharding"], scope)
    layers = max(
        (module for module in model.modules() if isinstance(module, nn.ModuleList)), key=len
    )
    return scope["shard"](model, layers, device="cpu")


def _checkpointed(model, *rest):
    if rest[-1]["layout"]["recompute"] == "full":
        model.gradient_checkpointing_enable()
    return model


_WRAPPED = {"accelerate": _accelerate, "sharding.py": _sharding_py, "single": _checkpointed}


def _accelerator(mesh, case) -> Any:
    """Stand-in with the fields that Accelerate's preparation reads; the real one needs a GPU."""
    from accelerate.utils import FullyShardedDataParallelPlugin

    layout = case["layout"]
    plugin = FullyShardedDataParallelPlugin(
        fsdp_version=2,
        reshard_after_forward=layout["zero_stage"] == 3,
        auto_wrap_policy="transformer_based_wrap",
        activation_checkpointing=layout["recompute"] == "full",
        cpu_ram_efficient_loading=False,
    )
    precision = {"bf16": "bf16", "fp32": "no"}[case.get("precision", "bf16")]
    if precision != "no":
        plugin.set_mixed_precision(precision)
    return SimpleNamespace(
        state=SimpleNamespace(fsdp_plugin=plugin),
        torch_device_mesh=mesh,
        parallelism_config=SimpleNamespace(fsdp_dim_names=["dp_shard"]),
        mixed_precision=precision,
        is_main_process=False,
        device=torch.device("cpu"),
    )
