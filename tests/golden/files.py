"""Files of layouts of every framework that writes some, word by word."""

from __future__ import annotations

from collections.abc import Mapping
from types import MappingProxyType
from typing import Any, NamedTuple

from planner import Layout
from tests.emitters.emitted import files_of


class Case(NamedTuple):
    """A layout of a job, and what else its files depend on."""

    model: str
    machine: str
    nodes: int
    framework: str
    layout: Layout
    options: Mapping[str, Any] = MappingProxyType({})


_PIPED: dict[str, Any] = {"schedule": "1f1b", "grad_accumulation": 8}
CASES = {
    "ddp": Case("gpt2", "polaris", 2, "ddp", Layout(dp=8, micro_batch=2)),
    "ddp-slurm": Case(
        "gpt2-xl", "vsc-5", 2, "ddp+compile", Layout(dp=4, grad_accumulation=4), {"steps": 50}
    ),
    "horovod": Case("gpt2", "perlmutter", 2, "horovod", Layout(dp=8, micro_batch=4)),
    "ezpz": Case("gpt2-xl", "aurora", 1, "ezpz", Layout(dp=12, micro_batch=2)),
    "accelerate": Case(
        "llama-3-8b", "leonardo", 4, "accelerate",
        Layout(dp=16, dp_shard=4, zero_stage=3, recompute="full"),
    ),
    "deepspeed-cpu": Case(
        "llama-2-7b", "vsc-5", 1, "deepspeed",
        Layout(dp=2, zero_stage=2, offload="optimizer-cpu", recompute="full"),
        {"precision": "fp16", "optimizer": "adam"},
    ),
    "deepspeed-disk": Case(
        "llama-2-13b", "summit", 1, "deepspeed",
        Layout(dp=6, zero_stage=3, offload="all-nvme", tiles=4, recompute="full"),
        {"precision": "fp16", "benchmark": True},
    ),
    "deepspeed-groups": Case(
        "llama-2-7b", "polaris", 4, "deepspeed", Layout(dp=16, zero_stage=3, reshard=4),
    ),
    "deepspeed-adapters": Case(
        "llama-2-7b", "vsc-5-a40", 1, "deepspeed", Layout(dp=2, zero_stage=2),
        {"lora_rank": 16, "lora_targets": ("query", "value"), "base_format": "nf4"},
    ),
    "fsdp2": Case(
        "llama-3-8b", "dgx-h100", 2, "fsdp2",
        Layout(dp=8, tp=2, sequence_parallel=True, zero_stage=3, recompute="full"),
        {"document_lengths": (300, 700)},
    ),
    "torchtitan": Case(
        "llama-3-8b", "polaris", 8, "torchtitan+compile",
        Layout(dp=4, tp=2, sequence_parallel=True, pp=4, zero_stage=2, **_PIPED),
        {"tokens": 5e9},
    ),
    "torchtitan-context": Case(
        "llama-3-8b", "aurora", 4, "torchtitan",
        Layout(dp=12, cp=4, zero_stage=3, recompute="full"),
        {"sequence_length": 16384},
    ),
    "nanotron": Case(
        "llama-3-8b", "h100-cluster", 2, "nanotron",
        Layout(dp=4, tp=2, sequence_parallel=True, pp=2, zero_stage=1, **_PIPED),
    ),
    "megatron": Case(
        "llama-3-70b", "dgx-h100", 8, "megatron-lm",
        Layout(
            dp=2, tp=4, sequence_parallel=True, pp=4, cp=2, vpp=5, zero_stage=1,
            schedule="interleaved-1f1b", grad_accumulation=8, recompute="selective",
        ),
        {"steps": 200},
    ),
    "megatron-experts": Case(
        "mixtral-8x7b", "eos", 4, "megatron-lm",
        Layout(dp=16, tp=2, sequence_parallel=True, ep=8, zero_stage=1, grad_accumulation=2),
        {"precision": "fp8", "expert_capacity": 1.25},
    ),
    "megatron-uneven": Case(
        "llama-3.1-405b", "eos", 16, "megatron-lm",
        Layout(
            dp=1, tp=8, sequence_parallel=True, pp=16, zero_stage=1, schedule="1f1b",
            grad_accumulation=32, recompute="full",
        ),
        {"sequence_length": 8192},
    ),
    "megatron-ramp": Case(
        "gpt3-175b", "polaris", 32, "megatron-lm",
        Layout(dp=8, tp=4, pp=4, zero_stage=1, **_PIPED, recompute="full", recompute_layers=3),
        {"ramp": "1B:32", "tokens": 3e9, "dropout": 0.0, "queue": "prod"},
    ),
    "megatron-deepspeed": Case(
        "llama-2-7b", "aurora", 8, "megatron-deepspeed",
        Layout(dp=24, tp=4, zero_stage=1, grad_accumulation=2, recompute="full"),
    ),
    "megatron-deepspeed-pipeline": Case(
        "gpt3-175b", "frontier", 16, "megatron-deepspeed",
        Layout(dp=4, tp=4, pp=8, zero_stage=1, **_PIPED, recompute="full"),
        {"precision": "fp16", "attention": "eager"},
    ),
}  # fmt: skip


def files(name: str) -> dict[str, list[str]]:
    """Return the lines of every file of a case."""
    model, machine, nodes, framework, layout, options = CASES[name]
    found = files_of(model, machine, nodes, layout, framework, **options)
    return {file: text.splitlines() for file, text in found.items()}


def emitted() -> dict[str, dict[str, list[str]]]:
    """Return the files of every case."""
    return {name: files(name) for name in CASES}
