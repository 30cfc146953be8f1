"""Frameworks of runs: which description a label stands for, and what such runs do by default.

Tables first, the functions that read them below. Labels are compared as `normalised` writes them.
"""

from __future__ import annotations

import functools
from dataclasses import dataclass
from typing import Literal

from planner.describe.catalogue import load_framework
from planner.describe.framework import Framework
from planner.evidence.runs.labels import normalised

__all__ = [
    "FrameworkRule",
    "described_framework",
    "framework_rule",
    "published_schedule",
]


@dataclass(frozen=True, slots=True)
class FrameworkRule:
    """What a framework label stands for, and what such runs do where a row does not say."""

    words: tuple[str, ...]
    """All of them occur in the label."""
    framework: str
    """Name in our catalogue."""
    zero_stage: int = 0
    """ZeRO stage where the row does not say."""
    recompute: str = "none"
    """Activation recompute where the row does not say."""
    sequence_parallel: bool = False
    """Whether norms are split over tp where the row does not say."""
    until_year: int = 9999
    """Last year in which the label means this."""
    flash_since: int = 2023
    """First year whose runs used fused attention where the row does not say."""
    stands_in: bool = False
    """The nearest description, of other software than the label's; said in the row."""
    pipeline_micro_batches: Literal["", "stages", "single"] = ""
    """How a pipeline splits a batch where the row does not say: into as many micro-batches as
    stages, or into single sequences; empty: as tuned."""
    compiles: bool = False
    """Whether runs that do not say compile their model, and all that do also compile the loss,
    which then keeps no fp32 logits."""
    gradient_bytes: float | None = None
    """Main gradients and what is sent of them, where the label's recipes set them [B]."""
    fused_loss: bool = False
    """Whether its recipes use Transformer Engine's fused cross entropy."""


FRAMEWORKS: tuple[FrameworkRule, ...] = (
    FrameworkRule(("gpt neox",), "megatron-deepspeed", 1, "full"),
    FrameworkRule(("megatron", "deepspeed"), "megatron-deepspeed", 0, "full", flash_since=2024),
    FrameworkRule(("megatron", "fsdp"), "megatron-lm", 1, "selective", True),
    FrameworkRule(("megascale",), "megatron-lm", 1, "selective", True, stands_in=True),
    FrameworkRule(("meta internal",), "fsdp2", 3, "selective", True, stands_in=True),
    FrameworkRule(("axonn",), "megatron-lm", stands_in=True),
    FrameworkRule(("colossal",), "deepspeed", 3, stands_in=True),
    FrameworkRule(("levanter",), "fsdp2", 3, stands_in=True),
    FrameworkRule(("maxtext",), "fsdp2", 3, stands_in=True),
    FrameworkRule(("jax",), "fsdp2", 3, stands_in=True),
    FrameworkRule(("paxml",), "fsdp2", 3, stands_in=True),
    FrameworkRule(("alpa",), "megatron-lm-2021", stands_in=True),
    FrameworkRule(("automodel",), "fsdp2", 3, "none", stands_in=True),
    FrameworkRule(("nemo",), "megatron-lm", 1, "none", True, until_year=2023, flash_since=2024),
    # grad_sync_dtype or grad_reduce_in_fp32 in NVIDIA's later performance recipes
    FrameworkRule(("nemo",), "megatron-lm", 1, "none", True, gradient_bytes=2),
    FrameworkRule(
        ("megatron", "bridge"), "megatron-lm", 1, "none", True, gradient_bytes=2, fused_loss=True
    ),
    FrameworkRule(("megatron", "core"), "megatron-lm", 1, "none", True),
    FrameworkRule(("primus",), "megatron-lm", 1, "none", True),
    FrameworkRule(("megatron",), "megatron-lm-2021", 0, "full", until_year=2022, flash_since=2023),
    FrameworkRule(("megatron",), "megatron-lm", 0, "selective", True),
    FrameworkRule(("nanotron",), "nanotron", 0, "none", True),
    # pipeline_parallel_microbatches was None then: as many as stages; the loss ran uncompiled
    FrameworkRule(
        ("torchtitan",), "fsdp2", 3, "selective", True, 2024, pipeline_micro_batches="stages"
    ),
    # compile.components is ["model", "loss"], pipeline_parallel_microbatch_size 1
    FrameworkRule(
        ("torchtitan",),
        "fsdp2",
        3,
        "selective",
        True,
        pipeline_micro_batches="single",
        compiles=True,
    ),
    FrameworkRule(("llm foundry",), "llm-foundry", 3, "full"),
    FrameworkRule(("composer",), "llm-foundry", 3, "full"),
    FrameworkRule(("deepspeed", "zero 3"), "deepspeed-2021", 3, "full", until_year=2021),
    FrameworkRule(("deepspeed", "zero 1"), "deepspeed", 1),
    FrameworkRule(("deepspeed", "zero 2"), "deepspeed", 2),
    FrameworkRule(("deepspeed",), "deepspeed", 3, "full"),
    FrameworkRule(("accelerate",), "accelerate", 3),
    FrameworkRule(("trainer",), "accelerate"),
    FrameworkRule(("transformers",), "accelerate"),
    FrameworkRule(("fsdp",), "fsdp2", 3, "full"),
    FrameworkRule(("fully shard",), "fsdp2", 3, "full"),
    FrameworkRule(("horovod",), "horovod"),
    FrameworkRule(("ddp",), "ddp"),
    FrameworkRule(("nanogpt",), "ddp"),
    FrameworkRule(("distributeddataparallel",), "ddp"),
)
"""First match wins. Defaults are the frameworks' own or those of their published scripts."""

COMPILED: dict[str, object] = {
    "fused_norm": True,
    "fused_activation": True,
    "fused_residual": True,
    "fused_rope": True,
}
"""What torch.compile changes in a description: element-wise chains become one kernel."""

LIGER: dict[str, object] = {
    "fused_norm": True,
    "fused_activation": True,
    "fused_rope": True,
    "loss": "fused",
}
"""What Liger kernels change (linkedin/Liger-Kernel): fused norm, gate, rotary and loss."""

NOT_COMPILED = ("", "no", "false", "eager", "none", "0")
"""Entries of the column `compile` that mean eager execution."""

ADAPTER_WORDS = ("lora", "peft")
"""Words of a model label that mean adapters on frozen weights."""

LORA_RANK = 16
"""Rank of adapters where a row does not say; hardly changes the time of a step."""

OPTIMIZER_SHARDED = ("zero 1", "optimizer", "distributed fused adam")
"""Words of a sharding label that mean ZeRO-1."""

PUBLISHED: dict[str, tuple[int, int]] = {
    "gpt 1.7b": (16, 1),
    "gpt 3.6b": (16, 1),
    "gpt 7.5b": (16, 1),
    "gpt 18.4b": (8, 1),
    "gpt 39.1b": (4, 1),
    "gpt 76.1b": (2, 3),
    "gpt 145.6b": (2, 2),
    "gpt 310.1b": (1, 2),
    "gpt 529.6b": (1, 1),
    "gpt 1008b": (1, 1),
}
"""Micro-batch and virtual stages of NVIDIA/Megatron-LM
examples/academic_paper_scripts/sc21/run_table_1.sh (arXiv:2104.04473, table 1)."""


def framework_rule(label: str, year: int | None) -> FrameworkRule | None:
    """The rule for a framework label; None where no description is near it.

    >>> framework_rule("NeMo (Megatron-Core)", 2024).framework
    'megatron-lm'
    """
    text = normalised(label)
    for rule in FRAMEWORKS:
        if all(word in text for word in rule.words) and (year or 9999) <= rule.until_year:
            return rule
    return None


@functools.cache
def described_framework(rule: FrameworkRule, compiled: bool, liger: bool) -> Framework:
    """A framework of the catalogue with what a run's recipes and kernels change."""
    framework: Framework = load_framework(rule.framework)
    if rule.gradient_bytes is not None:
        gradients = {"gradient_bytes": rule.gradient_bytes, "reduce_bytes": rule.gradient_bytes}
        mixed = framework.mixed.replaced(**gradients).model_dump()
        framework = framework.replaced(mixed=mixed)
    changes = {**(COMPILED if compiled else {}), **(LIGER if liger else {})}
    if rule.fused_loss or (compiled and rule.compiles):
        changes.setdefault("loss", "fused-copy")
    if not changes:
        return framework
    kernels = framework.kernels.replaced(**changes).model_dump()
    suffix = " with torch.compile" * compiled + " with Liger kernels" * liger
    return framework.replaced(name=framework.name + suffix, kernels=kernels)


def published_schedule(model: str, framework: str) -> tuple[int, int] | None:
    """Micro-batch and virtual stages that the published script gives for this model."""
    return PUBLISHED.get(normalised(model)) if framework == "megatron-lm-2021" else None
