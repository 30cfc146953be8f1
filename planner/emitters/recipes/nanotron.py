"""nanotron: one YAML file with model, degrees, batch and optimizer."""

from __future__ import annotations

from typing import Any

from planner.emitters.batch_job import CHECKPOINTS, BatchJob
from planner.emitters.limits import TORCH_DTYPES, ExpressibleLayouts, FrameworkNames, built
from planner.emitters.queue import slot_of
from planner.emitters.recipe import File, Recipe, from_checkout
from planner.emitters.text import yaml_text

__all__ = ["EXPRESSIBLE", "recipe"]

_FRAMEWORK = "nanotron"
EXPRESSIBLE = ExpressibleLayouts(axes=("tp", "pp"))
_PRECISIONS = FrameworkNames("precision", _FRAMEWORK, TORCH_DTYPES)
_OPTIMIZERS = FrameworkNames("optimizer", _FRAMEWORK, {"adam": "adamW", "adamw": "adamW"})
_SCHEDULES = FrameworkNames("schedule", _FRAMEWORK, {"1f1b": "1f1b", "gpipe": "afab"})


def recipe(job: BatchJob) -> Recipe:
    """`nanotron.yaml` for nanotron's own `run_train.py`."""
    built(job)
    program = "run_train.py"
    config: dict[str, Any] = {
        "general": {"project": "planner", "run": job.name, "seed": 42},
        "parallelism": _parallelism(job),
        "model": _model(job),
        "tokens": _tokens(job),
        "optimizer": _optimizer(job),
        "data_stages": [
            {
                "name": "first",
                "start_training_step": 1,
                "data": {"dataset": None, "num_loading_workers": 1, "seed": 42},
            }
        ],
        "checkpoints": {
            "checkpoints_path": CHECKPOINTS,
            "checkpoint_interval": slot_of(job).save_every,
            # the last checkpoint found there; without one it starts from the beginning
            "resume_checkpoint_path": CHECKPOINTS,
        },
        "logging": {"iteration_step_info_interval": 1},
    }
    file = File("nanotron.yaml", "nanotron's configuration", yaml_text(config))
    return Recipe(
        files=(file,),
        default_program=program,
        arguments=(f"--config-file {file.name}",),
        environment={"CUDA_DEVICE_MAX_CONNECTIONS": "1"},
        saves=True,
        notes=(
            from_checkout(program, f"{_FRAMEWORK}'s own"),
            "Without a dataset nanotron makes dummy data, enough to measure time and memory. "
            "Learning rate, warm-up and optimizer in `nanotron.yaml` are those of nanotron's "
            "example: set your own there, with dataset and tokenizer.",
        ),
    )


def _parallelism(job: BatchJob) -> dict[str, Any]:
    layout = job.layout
    return {
        "dp": layout.dp,
        "tp": layout.tp,
        "pp": layout.pp,
        "expert_parallel_size": layout.ep,
        "context_parallel_size": layout.cp,
        # read without a pipeline too
        "pp_engine": _SCHEDULES[layout.schedule if layout.pp > 1 else "1f1b"],
        "tp_mode": "REDUCE_SCATTER",
        "tp_linear_async_communication": True,
        "recompute_layer": layout.recompute == "full",
    }


def _model(job: BatchJob) -> dict[str, Any]:
    model = job.model
    return {
        "dtype": _PRECISIONS[job.workload.precision],
        "init_method": {"std": 0.025},
        "model_config": {
            "is_llama_config": True,
            "hidden_act": "silu",
            "hidden_size": model.hidden_size,
            "intermediate_size": model.ffn_size,
            "max_position_embeddings": job.num_positions,
            "num_attention_heads": model.num_heads,
            "num_hidden_layers": model.num_layers,
            "num_key_value_heads": model.num_kv_heads,
            "tie_word_embeddings": model.tied_embeddings,
            "vocab_size": model.vocab_size,
        },
    }


def _tokens(job: BatchJob) -> dict[str, Any]:
    return {
        "sequence_length": job.workload.sequence_length,
        "micro_batch_size": job.layout.micro_batch,
        "batch_accumulation_per_replica": job.layout.grad_accumulation,
        "train_steps": job.steps,
        "val_check_interval": -1,
    }


def _optimizer(job: BatchJob) -> dict[str, Any]:
    """The optimizer of nanotron's example; accumulation in fp32 as the estimate counts it."""
    return {
        "zero_stage": job.layout.zero_stage,
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
            "name": _OPTIMIZERS[job.workload.optimizer],
            "adam_eps": 1e-8,
            "adam_beta1": 0.9,
            "adam_beta2": 0.95,
            "torch_adam_is_fused": True,
        },
    }
