"""Workload: what is trained, independent of how it is spread over devices."""

from __future__ import annotations

import math
import re
from typing import Literal, get_args

from pydantic import Field, field_validator, model_validator

from planner.describe.base import Description
from planner.errors import DescriptionError, shorten
from planner.units import parse_quantity

__all__ = [
    "ATTENTIONS",
    "OPTIMIZERS",
    "PRECISIONS",
    "AttentionName",
    "FrozenPart",
    "LoraTarget",
    "OptimizerName",
    "TrainingPrecision",
    "Workload",
    "parse_ramp",
    "parse_tokens",
]

TrainingPrecision = Literal["fp32", "tf32", "fp16", "bf16", "fp8"]
"""fp8 means FP8 GEMMs inside bf16 training."""

OptimizerName = Literal[
    "adam",
    "adamw",
    "sgd",
    "sgd-momentum",
    "adafactor",
    "adam-8bit",
    "muon",
    "lion",
    "paged-adamw",
    "paged-adam-8bit",
]
"""adam-8bit: moments in 8 bits by blocks; paged: in memory that moves to the host by pages where
the device has no room (bitsandbytes)."""

AttentionName = Literal["flash", "eager"]
"""flash: fused kernel that keeps no scores; eager: scores are written to memory."""

LoraTarget = Literal["query", "key", "value", "out", "gate", "up", "down"]
"""Matrices that LoRA can adapt."""

FrozenPart = Literal["embedding", "layers", "head"]

PRECISIONS: tuple[TrainingPrecision, ...] = get_args(TrainingPrecision)
OPTIMIZERS: tuple[OptimizerName, ...] = get_args(OptimizerName)
ATTENTIONS: tuple[AttentionName, ...] = get_args(AttentionName)

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
    attention: AttentionName = "flash"
    """flash: fused kernel that keeps no scores; eager: scores are written to memory."""
    tokens: float = Field(default=0.0, ge=0, le=1e18)
    """Tokens of the whole training, such as 300B or 2e12; 0 where not asked."""
    ramp: str = Field(default="", max_length=20_000)
    """Smaller batches at first, such as 250B:768,500B:1536: 768 sequences a step until 250B tokens
    are trained, 1,536 until 500B, then the global batch."""
    lora_rank: int = Field(default=0, ge=0, le=65536)
    """Rank of LoRA adapters; 0 trains the weights themselves."""
    lora_targets: tuple[LoraTarget, ...] = ("query", "key", "value", "out")
    """Matrices that get an adapter (with lora_rank > 0)."""
    frozen: tuple[FrozenPart, ...] = ()
    """Parts without gradients."""
    dropout: float | None = Field(default=None, ge=0, lt=1)
    """Dropout probability; else the model's own."""

    @field_validator("ramp")
    @classmethod
    def _rising(cls, text: str) -> str:
        parse_ramp(text)
        return text.replace(" ", "")

    @model_validator(mode="after")
    def _check(self) -> Workload:
        if self.lora_rank and not self.lora_targets:
            raise ValueError("lora_rank without lora_targets trains nothing; name targets")
        if set(self.frozen) == set(get_args(FrozenPart)) and not self.lora_rank:
            raise ValueError("everything is frozen, nothing is trained; unfreeze a part")
        return self

    @property
    def adapted(self) -> bool:
        """Whether only adapters or some parts are trained."""
        return bool(self.lora_rank or self.frozen)

    @property
    def compute_bytes(self) -> int:
        """Bytes of one activation element: 4 in fp32 and tf32, else 2."""
        return 4 if self.precision in ("fp32", "tf32") else 2

    @property
    def base_precision(self) -> TrainingPrecision:
        """Precision of everything but FP8 GEMMs, whose peak utilisation is measured against.

        >>> Workload(precision="fp8").base_precision, Workload(precision="tf32").base_precision
        ('bf16', 'tf32')
        """
        return "bf16" if self.precision == "fp8" else self.precision

    @property
    def tokens_per_step(self) -> int:
        """Tokens of one optimizer step.

        >>> Workload(sequence_length=4096, global_batch=64).tokens_per_step
        262144
        """
        return self.sequence_length * self.global_batch

    @property
    def ramp_steps(self) -> tuple[tuple[int, int], ...]:
        """Sequences of the steps before the global batch, and how many such steps there are.

        Only those of the tokens that are asked for; a step that passes a bound is whole
        (Megatron-LM @d98e8a64, num_microbatches_calculator.py).

        >>> Workload(sequence_length=1000, ramp="2M:16,5M:32", tokens=4e6).ramp_steps
        ((16, 125), (32, 63))
        """
        found, done = [], 0
        for until, batch in parse_ramp(self.ramp):
            left = (min(until, self.tokens) if self.tokens else until) - done
            steps = max(math.ceil(left / (batch * self.sequence_length)), 0)
            found.append((batch, steps))
            done += steps * batch * self.sequence_length
        return tuple((batch, steps) for batch, steps in found if steps)

    @property
    def steps(self) -> int:
        """Steps for the tokens that are asked for, the ramp's included; 0 where none are.

        >>> Workload(sequence_length=4096, global_batch=256, tokens=1e9).steps
        954
        """
        if not self.tokens:
            return 0
        ramp = self.ramp_steps
        rest = self.tokens - sum(batch * steps for batch, steps in ramp) * self.sequence_length
        return sum(steps for _, steps in ramp) + max(math.ceil(rest / self.tokens_per_step), 0)


def parse_ramp(text: str) -> tuple[tuple[float, int], ...]:
    """Bounds in tokens, and the sequences of a step up to each. ValueError where it is no ramp.

    >>> parse_ramp("250B:768, 500B:1536")
    ((250000000000.0, 768), (500000000000.0, 1536))
    """
    found: list[tuple[float, int]] = []
    for part in text.split(",") if text.strip() else ():
        bound, colon, batch = part.partition(":")
        try:
            until = parse_tokens(bound)
        except DescriptionError:
            until = 0.0
        size = batch.strip()
        further = until > (found[-1][0] if found else 0.0)
        if not (colon and further and size.isascii() and size.isdigit() and len(size) < 8):
            raise ValueError(
                f"ramp = {shorten(text)!r} is none; write rising tokens, each with the sequences "
                "of a step until then, such as 250B:768,500B:1536"
            )
        if not int(size):
            raise ValueError(f"ramp = {shorten(text)!r} has steps of no sequence; use 1 or more")
        found.append((until, int(size)))
    return tuple(found)


def parse_tokens(text: str) -> float:
    """A number of tokens; `B` is billions here, not bytes. DescriptionError where it is none.

    >>> parse_tokens("300B"), parse_tokens("2e12"), parse_tokens("0.3 T")
    (300000000000.0, 2000000000000.0, 300000000000.0)
    """
    plain = re.sub(r"(?<=\d)\s*[bB]$", "G", text.strip())
    try:
        return parse_quantity(plain)
    except DescriptionError:
        raise DescriptionError(
            f"{shorten(text)!r} is no number of tokens; write for example 300B, 2T or 2e12"
        ) from None
