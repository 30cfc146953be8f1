"""nanotron: one YAML file with model, degrees, batch and optimizer."""

from __future__ import annotations

from typing import Any

from planner.emitters.job import Recipe, Run
from planner.emitters.recipes.llama import unlike_llama
from planner.emitters.syntax import yaml_text
from planner.errors import EmitError

__all__ = ["recipe"]

_DTYPES = {"bf16": "bfloat16", "fp16": "float16", "fp32": "float32", "tf32": "float32"}
_CHECKPOINT_STEPS = 1000
"""As in nanotron's example; its trainer reads this section in any case."""
_ENGINES = {"1f1b": "1f1b", "gpipe": "afab", "none": "1f1b"}


def recipe(run: Run) -> Recipe:
    """`nanotron.yaml` for nanotron's own `run_train.py`."""
    _check(run)
    config: dict[str, Any] = {
        "general": {"project": "planner", "run": run.name, "seed": 42},
        "parallelism": _parallelism(run),
        "model": _model(run),
        "tokens": _tokens(run),
        "optimizer": _optimizer(run),
        "data_stages": [
            {
                "name": "first",
                "start_training_step": 1,
                "data": {"dataset": None, "num_loading_workers": 1, "seed": 42},
            }
        ],
        "checkpoints": {
            "checkpoints_path": "checkpoints",
            "checkpoint_interval": min(run.steps, _CHECKPOINT_STEPS),
        },
        "logging": {"iteration_step_info_interval": 1},
    }
    return Recipe(
        files={"nanotron.yaml": yaml_text(config)},
        default_program="run_train.py",
        arguments=("--config-file nanotron.yaml",),
        environment={"CUDA_DEVICE_MAX_CONNECTIONS": "1"},
        notes=(
            "`run_train.py` is nanotron's own: run from its checkout, or set PROGRAM to its path.",
            "Without a dataset nanotron makes dummy data, enough to measure time and memory. The "
            "learning rate and its optimizer are those of nanotron's example: set your own.",
        ),
    )


def _check(run: Run) -> None:
    model = run.model
    odd = unlike_llama(model, run.workload.sequence_length)
    if odd:
        raise EmitError(
            f"model {model.name[:60]!r} {odd}, which nanotron's Llama does not have; use a "
            "framework that runs the model's own code, such as deepspeed or accelerate"
        )
    if run.workload.precision not in _DTYPES:
        raise EmitError(
            f"precision {run.workload.precision} is not written for nanotron; use bf16 or fp32"
        )
    if run.workload.optimizer not in ("adam", "adamw"):
        raise EmitError(
            f"optimizer {run.workload.optimizer} is not written for nanotron; use adamw"
        )
    if run.layout.cp > 1 or run.layout.ep > 1:
        raise EmitError(
            f"cp = {run.layout.cp} and ep = {run.layout.ep} need nanotron's Qwen2, which is not "
            "written; use a layout with cp = ep = 1"
        )


def _parallelism(run: Run) -> dict[str, Any]:
    layout = run.layout
    return {
        "dp": layout.dp,
        "tp": layout.tp,
        "pp": layout.pp,
        "expert_parallel_size": layout.ep,
        "context_parallel_size": layout.cp,
        "pp_engine": _ENGINES[layout.schedule],
        "tp_mode": "REDUCE_SCATTER",
        "tp_linear_async_communication": True,
        "recompute_layer": layout.recompute == "full",
    }


def _model(run: Run) -> dict[str, Any]:
    model = run.model
    return {
        "dtype": _DTYPES[run.workload.precision],
        "init_method": {"std": 0.025},
        "model_config": {
            "is_llama_config": True,
            "hidden_act": "silu",
            "hidden_size": model.hidden_size,
            "intermediate_size": model.ffn_size,
            "max_position_embeddings": max(model.max_sequence_length, run.workload.sequence_length),
            "num_attention_heads": model.num_heads,
            "num_hidden_layers": model.num_layers,
            "num_key_value_heads": model.num_kv_heads,
            "tie_word_embeddings": model.tied_embeddings,
            "vocab_size": model.vocab_size,
        },
    }


def _tokens(run: Run) -> dict[str, Any]:
    return {
        "sequence_length": run.workload.sequence_length,
        "micro_batch_size": run.layout.micro_batch,
        "batch_accumulation_per_replica": run.layout.grad_accumulation,
        "train_steps": run.steps,
        "val_check_interval": -1,
    }


def _optimizer(run: Run) -> dict[str, Any]:
    """The optimizer of nanotron's example; accumulation in fp32 as the estimate counts it."""
    return {
        "zero_stage": run.layout.zero_stage,
        "weight_decay": 0.01,
        "clip_grad": 1.0,
        "accumulate_grad_in_fp32": True,
        "learning_rate_scheduler": {
            "learning_rate": 0.0003,
            "lr_warmup_steps": 2,
            "lr_warmup_style": "linear",
            "lr_decay_style": "cosine",
            "min_decay_lr": 1e-5,
        },
        "optimizer_factory": {
            "name": "adamW",
            "adam_eps": 1e-8,
            "adam_beta1": 0.9,
            "adam_beta2": 0.95,
            "torch_adam_is_fused": True,
        },
    }
