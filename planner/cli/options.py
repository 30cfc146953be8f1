"""Command line, options: what several commands ask for in the same words."""

from __future__ import annotations

import re
from enum import StrEnum
from typing import Annotated, Any

import typer

from planner.describe.workload import Workload
from planner.errors import PlannerError
from planner.units import parse_quantity

__all__ = [
    "FITS",
    "NOTHING_FITS",
    "WRONG_USE",
    "AsCsv",
    "AsJson",
    "Attention",
    "AttentionName",
    "Frameworks",
    "Frozen",
    "GlobalBatch",
    "LoraRank",
    "LoraTargets",
    "MachineName",
    "Optimizer",
    "OptimizerName",
    "Overrides",
    "Precision",
    "PrecisionName",
    "RecomputeName",
    "Sequence",
    "Tokens",
    "longest",
    "words",
    "workload_of",
]

FITS, NOTHING_FITS, WRONG_USE = 0, 1, 2


class PrecisionName(StrEnum):
    """Number formats."""

    fp32 = "fp32"
    tf32 = "tf32"
    fp16 = "fp16"
    bf16 = "bf16"
    fp8 = "fp8"


class OptimizerName(StrEnum):
    """Optimizers."""

    adam = "adam"
    adamw = "adamw"
    sgd = "sgd"
    sgd_momentum = "sgd-momentum"
    adafactor = "adafactor"
    adam_8bit = "adam-8bit"
    muon = "muon"


class AttentionName(StrEnum):
    """Attention kernels."""

    flash = "flash"
    eager = "eager"


class RecomputeName(StrEnum):
    """Recompute modes."""

    none = "none"
    selective = "selective"
    full = "full"


def _number(text: str) -> float:
    try:
        # in a count of tokens B is billions, not bytes
        return parse_quantity(re.sub(r"(?<=\d)\s*[bB]$", "G", str(text).strip()))
    except PlannerError as error:
        raise typer.BadParameter(str(error)) from None


MachineName = Annotated[str, typer.Option("--machine", "-m", help="Machine name or TOML file.")]
Overrides = Annotated[
    list[str] | None,
    typer.Option("--set", help="Override of the profile: device.memory_bytes=80GB (repeatable)."),
]
Sequence = Annotated[
    int | None, typer.Option("--seq-length", "--sequence-length", help="Tokens per sequence.")
]
Precision = Annotated[PrecisionName, typer.Option(help="Number format of the matrix products.")]
Optimizer = Annotated[OptimizerName, typer.Option(help="Optimizer.")]
Attention = Annotated[AttentionName, typer.Option(help="Attention kernel.")]
LoraRank = Annotated[int, typer.Option(help="Rank of LoRA adapters; 0 trains all weights.")]
LoraTargets = Annotated[
    str, typer.Option(help="Matrices with an adapter: query,key,value,out,gate,up,down.")
]
Frozen = Annotated[str, typer.Option(help="Parts without gradients: embedding,layers,head.")]
GlobalBatch = Annotated[
    int, typer.Option("--global-batch", "--global-batch-size", help="Sequences per step.")
]
Tokens = Annotated[
    float, typer.Option(parser=_number, metavar="NUMBER", help="Tokens to train on: 2e12, 300B.")
]
Frameworks = Annotated[
    list[str] | None, typer.Option("--framework", "-f", help="Framework (repeatable).")
]
AsJson = Annotated[bool, typer.Option("--json", help="Print JSON.")]
AsCsv = Annotated[bool, typer.Option("--csv", help="Print CSV.")]


def words(text: str) -> list[str]:
    """The words of a list with commas."""
    return [word.strip() for word in text.split(",") if word.strip()]


def workload_of(sequence: int | None, longest_tokens: int, **fields: Any) -> Workload:
    """The workload; the sequence defaults to the model's own, at most 4096 tokens."""
    if sequence is None:
        sequence = min(longest_tokens or 2048, 4096)
    return Workload.described({"sequence_length": sequence, **fields}, where="workload")


def longest(model: Any) -> int:
    """The model's own sequence: its positions, or the patches of an image."""
    if model.vision is not None:
        return int((model.vision.image_size // model.vision.patch_size) ** 2 + 1)
    return int(model.max_sequence_length)
