"""Hugging Face: its models as Accelerate prepares them for FSDP2."""

# mypy: ignore-errors

from __future__ import annotations

from types import SimpleNamespace
from typing import Any

import torch
from accelerate.utils import FullyShardedDataParallelPlugin
from accelerate.utils.fsdp_utils import fsdp2_apply_ac, fsdp2_prepare_model
from torch.distributed.device_mesh import init_device_mesh
from transformers import AutoConfig, AutoModelForCausalLM, masking_utils

from benchmarks.referee.tracked import Job, measure

__all__ = ["run"]

# transformers detects packed sequences from position values, which tensors without data lack;
# a batch of whole sequences has none
masking_utils.find_packed_sequence_indices = lambda position_ids: None


def run(case: dict[str, Any]) -> dict[str, Any]:
    """Track a step of a plain loop; `outputs = model(**batch)` stays alive through backward."""
    layout = case["layout"]
    ranks, passes = layout["dp"], layout["grad_accumulation"]
    shape = (layout["micro_batch"], case["sequence"])

    def build():
        mesh = init_device_mesh("cpu", (ranks,), mesh_dim_names=("dp_shard",))
        config = AutoConfig.for_model(**case["config"])
        config.use_cache = False
        with torch.device("meta"):
            model = AutoModelForCausalLM.from_config(
                config, attn_implementation=case["attention"], dtype=torch.float32
            )
        model.train()
        accelerator = _accelerator(mesh, layout)
        accelerator.state.fsdp_plugin.set_auto_wrap_policy(model)
        if layout["recompute"] == "full":
            model = fsdp2_apply_ac(accelerator, model)
        model = fsdp2_prepare_model(accelerator, model)

        def materialise() -> Job:
            model.to_empty(device="cpu")
            optimizer = torch.optim.AdamW(model.parameters(), foreach=True)
            tokens, labels = (torch.zeros(shape, dtype=torch.long) for _ in range(2))

            def forward():
                outputs = model(input_ids=tokens, labels=labels)
                return outputs.loss, outputs

            job = Job(model, optimizer, forward, passes, batch=[tokens, labels])
            if case.get("no_sync"):
                # Accelerator.no_sync, under which `accumulate` runs all passes but the last
                job.before = model.set_requires_gradient_sync
            return job

        return materialise

    return measure(build, ranks)


def _accelerator(mesh, layout) -> Any:
    """Stand-in with the fields that Accelerate's preparation reads; the real one needs a GPU."""
    plugin = FullyShardedDataParallelPlugin(
        fsdp_version=2,
        reshard_after_forward=layout["zero_stage"] == 3,
        auto_wrap_policy="transformer_based_wrap",
        activation_checkpointing=layout["recompute"] == "full",
        cpu_ram_efficient_loading=False,
    )
    plugin.set_mixed_precision("bf16")
    return SimpleNamespace(
        state=SimpleNamespace(fsdp_plugin=plugin),
        torch_device_mesh=mesh,
        parallelism_config=SimpleNamespace(fsdp_dim_names=["dp_shard"]),
        mixed_precision="bf16",
        is_main_process=False,
        device=torch.device("cpu"),
    )
