"""Workload: what is trained, independent of how it is spread over devices."""

from __future__ import annotations

from typing import Literal

from pydantic import Field, model_validator

from planner.describe.base import Description

__all__ = ["LORA_TARGETS", "OptimizerName", "TrainingPrecision", "Workload"]

TrainingPrecision = Literal["fp32", "tf32", "fp16", "bf16", "fp8"]
"""fp8 means FP8 GEMMs inside bf16 training."""

OptimizerName = Literal["adam", "adamw", "sgd", "sgd-momentum", "adafactor", "adam-8bit", "muon"]

LORA_TARGETS = ("query", "key", "value", "out", "gate", "up", "down")
"""Matrices that LoRA can adapt."""

_MAX_SEQUENCE = 20_000_000
_MAX_BATCH = 1_000_000
# twice the longest context trained so far, and ten times the largest batch of sequences


class Workload(Description):
    """One training job: sequence, batch, numbers, optimizer, what is trained."""

    sequence_length: int = Field(default=2048, ge=1, le=_MAX_SEQUENCE)
    """Tokens of one sequence."""
    global_batch: int = Field(default=256, ge=1, le=_MAX_BATCH)
    """Sequences of one optimizer step, over all replicas."""
    precision: TrainingPrecision = "bf16"
    """Number format of the matrix products."""
    optimizer: OptimizerName = "adamw"
    """Optimizer; decides the states kept per parameter."""
    attention: Literal["flash", "eager"] = "flash"
    """flash: fused kernel that keeps no scores; eager: scores are written to memory."""
    tokens: float = Field(default=0.0, ge=0, le=1e18)
    """Tokens of the whole training; 0 where not asked."""
    lora_rank: int = Field(default=0, ge=0, le=65536)
    """Rank of LoRA adapters; 0 trains the weights themselves."""
    lora_targets: tuple[str, ...] = ("query", "key", "value", "out")
    """Matrices that get an adapter (with lora_rank > 0)."""
    frozen: tuple[Literal["embedding", "layers", "head"], ...] = ()
    """Parts without gradients."""
    dropout: float | None = Field(default=None, ge=0, lt=1)
    """Dropout probability; None takes the model's own."""

    @model_validator(mode="after")
    def _check(self) -> Workload:
        unknown = sorted(set(self.lora_targets) - set(LORA_TARGETS))
        if unknown:
            raise ValueError(
                f"lora_targets {', '.join(unknown)} are not known; use {', '.join(LORA_TARGETS)}"
            )
        if self.lora_rank and not self.lora_targets:
            raise ValueError("lora_rank without lora_targets trains nothing; name targets")
        if set(self.frozen) == {"embedding", "layers", "head"} and not self.lora_rank:
            raise ValueError("everything is frozen, nothing is trained; unfreeze a part")
        return self

    @property
    def compute_bytes(self) -> int:
        """Bytes of one activation element: 4 in fp32 and tf32, else 2."""
        return 4 if self.precision in ("fp32", "tf32") else 2

    @property
    def tokens_per_step(self) -> int:
        """Tokens of one optimizer step.

        >>> Workload(sequence_length=4096, global_batch=64).tokens_per_step
        262144
        """
        return self.sequence_length * self.global_batch
