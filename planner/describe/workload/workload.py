"""Workload: sequences, batch, precision, optimizer, and which parts of the model are trained."""

from __future__ import annotations

import functools
import math
import re
from typing import Any, Literal, get_args

from pydantic import Field, field_validator, model_validator

from planner.describe.base import Description, quote
from planner.describe.workload.documents import MAX_DOCUMENT_TOKENS, MAX_LENGTHS, split_documents
from planner.errors import DescriptionError, shorten
from planner.units import parse_quantity

TrainingPrecision = Literal["fp32", "tf32", "fp16", "bf16", "fp8"]
"""fp8 means FP8 GEMMs inside bf16 training."""

OptimizerName = Literal[
    "adam", "adamw", "sgd", "sgd-momentum", "adafactor", "adam-8bit", "muon", "lion", "paged-adamw",
    "paged-adam-8bit",
]  # fmt: skip
"""adam-8bit: block-wise 8-bit moments; paged: pages move to the host (bitsandbytes)."""

AttentionName = Literal["default", "flash", "eager"]

LoraTarget = Literal["query", "key", "value", "out", "gate", "up", "down"]
"""Matrices that LoRA can adapt."""

FrozenPart = Literal["embedding", "layers", "head"]

BaseFormat = Literal["computed", "nf4", "nf4-double", "int8", "fp8"]
"""Storage of frozen matrices. computed: in the compute precision; nf4: 4 bits with a scale per 64
elements (fp4 takes as much); nf4-double: with 8-bit scales; int8, fp8: 8 bits with a scale per
row."""

Packing = Literal["packed", "padded"]
"""packed: documents share a sequence, seen alone; padded: one per sequence."""

PRECISIONS: tuple[TrainingPrecision, ...] = get_args(TrainingPrecision)
OPTIMIZERS: tuple[OptimizerName, ...] = get_args(OptimizerName)
ATTENTIONS: tuple[AttentionName, ...] = get_args(AttentionName)

_MAX_SEQUENCE = 20_000_000
_MAX_BATCH = 1_000_000
# twice the longest context and ten times the largest batch that were ever trained


class Workload(Description):
    """Training workload: sequences, batch, precision, optimizer, trained parts."""

    sequence_length: int = Field(default=2048, ge=1, le=_MAX_SEQUENCE)
    """Tokens of one sequence."""
    global_batch: int = Field(default=256, ge=1, le=_MAX_BATCH)
    """Sequences per optimizer step, over all replicas."""
    precision: TrainingPrecision = "bf16"
    """Number format of the matrix products."""
    optimizer: OptimizerName = "adamw"
    """Optimizer; sets the states kept per parameter."""
    attention: AttentionName = "default"
    """default: the library's for the model; flash: keeps no scores; eager: writes scores."""
    tokens: float = Field(default=0.0, ge=0, le=1e18)
    """Tokens of the whole training, such as 300B or 2e12; 0: not given."""
    ramp: str = Field(default="", max_length=20_000)
    """Batch-size ramp: 250B:768,500B:1536 is 768 sequences up to 250B tokens, 1,536 to 500B."""
    samples: int = Field(default=0, ge=0, le=10**15)
    """Samples of the data set (documents, if their lengths are given); 0: not given."""
    epochs: float = Field(default=1.0, gt=0, le=1e6)
    """Passes over the samples."""
    document_lengths: tuple[int, ...] = ()
    """Lengths of documents in sequences, a mean or distribution [tokens]; empty: one a sequence."""
    packing: Packing = "packed"
    """Whether documents share sequences (packed), or each is padded to a sequence."""
    lora_rank: int = Field(default=0, ge=0, le=65536)
    """Rank of LoRA adapters; 0: train the weights."""
    lora_targets: tuple[LoraTarget, ...] = ("query", "key", "value", "out")
    """Matrices with an adapter (with lora_rank > 0); `all-linear`: all of them."""
    lora_dropout: float = Field(default=0.0, ge=0, lt=1)
    """Dropout probability on the input of the adapters."""
    dora: bool = False
    """DoRA: adapters also learn a magnitude for every output."""
    base_format: BaseFormat = "computed"
    """Storage of frozen matrices: the compute precision, or 4 or 8 bits (QLoRA)."""
    frozen: tuple[FrozenPart, ...] = ()
    """Frozen parts, which get no gradients."""
    dropout: float | None = Field(default=None, ge=0, lt=1)
    """Dropout probability; None: the model's own."""
    expert_imbalance: float = Field(default=1.0, ge=1, le=1024)
    """Tokens of the fullest expert rank / mean over the ranks."""
    expert_capacity: float = Field(default=0.0, ge=0, le=1024)
    """Expert capacity factor: most tokens of an expert / mean; others are dropped. 0: no limit."""
    pad_experts: bool = False
    """Whether experts are padded to expert_capacity."""

    @model_validator(mode="before")
    @classmethod
    def _expand_all_linear(cls, fields: Any) -> Any:
        if isinstance(fields, dict) and "all-linear" in (fields.get("lora_targets") or ()):
            return {**fields, "lora_targets": get_args(LoraTarget)}
        return fields

    @field_validator("ramp")
    @classmethod
    def _check_ramp(cls, text: str) -> str:
        parse_ramp(text)
        return text.replace(" ", "")

    @model_validator(mode="after")
    def _check(self) -> Workload:
        if self.lora_rank and not self.lora_targets:
            raise ValueError("lora_rank without lora_targets trains nothing; name targets")
        if set(self.frozen) == set(get_args(FrozenPart)) and not self.lora_rank:
            raise ValueError("everything is frozen, nothing is trained; unfreeze a part")
        for name in ("dora", "lora_dropout", "lora_targets"):
            is_set = getattr(self, name) != type(self).model_fields[name].default
            if is_set and not self.lora_rank:
                raise ValueError(f"{name} needs adapters; set lora_rank")
        if self.quantized and not self.lora_rank and "layers" not in self.frozen:
            raise ValueError(
                f"base_format = {self.base_format} stores frozen layers, and all layers are "
                "trained; set lora_rank or freeze layers"
            )
        if self.pad_experts and not self.expert_capacity:
            raise ValueError("pad_experts needs expert_capacity; set both")
        return self

    @model_validator(mode="after")
    def _check_data(self) -> Workload:
        lengths = self.document_lengths
        if len(lengths) > MAX_LENGTHS:
            raise ValueError(
                f"document_lengths has {len(lengths)} numbers, more than the limit of "
                f"{MAX_LENGTHS}; give quantiles"
            )
        for length in lengths:
            if not 1 <= length <= MAX_DOCUMENT_TOKENS:
                raise ValueError(
                    f"document_lengths = {quote(length)} is not a document length; give whole "
                    f"numbers of tokens from 1 to {MAX_DOCUMENT_TOKENS:,}"
                )
        if self.packing == "padded" and not lengths:
            raise ValueError("packing = padded needs document_lengths; give their mean")
        if self.epochs != 1 and not self.samples:
            raise ValueError(
                f"epochs = {self.epochs:g} needs samples, the size of the data set; set samples"
            )
        if self.samples and self.tokens:
            raise ValueError(
                f"tokens = {self.tokens:g} and samples = {self.samples} both set the length "
                "of the training; leave one out"
            )
        return self

    @property
    def adapted(self) -> bool:
        """True if only adapters or parts of the model are trained."""
        return bool(self.lora_rank or self.frozen)

    @property
    def quantized(self) -> bool:
        """True if frozen matrices are stored in fewer bits than the compute precision."""
        return self.base_format != "computed"

    @property
    def compute_bytes(self) -> int:
        """Bytes of one activation element: 4 in fp32 and tf32, else 2 [B]."""
        return 4 if self.precision in ("fp32", "tf32") else 2

    @property
    def base_precision(self) -> TrainingPrecision:
        """Precision of everything except FP8 GEMMs; utilisation refers to its peak."""
        return "bf16" if self.precision == "fp8" else self.precision

    @property
    def documents(self) -> tuple[tuple[int, int], ...]:
        """Pairs of document length (at most one sequence) and count; empty without lengths."""
        return documents_in(self.document_lengths, self.sequence_length, self.packing)

    @property
    def unit(self) -> str:
        """Unit of throughput: tokens, or samples if there are no sequences."""
        return "samples" if self.sequence_length == 1 else "tokens"

    @property
    def batch_unit(self) -> str:
        """Unit of a batch: sequences, or samples."""
        return "samples" if self.sequence_length == 1 else "sequences"

    @property
    def tokens_per_step(self) -> int:
        """Tokens trained per optimizer step, without padding."""
        if self.packing == "packed" or not self.documents:
            return self.sequence_length * self.global_batch
        return round(self.global_batch * _mean(self.documents))

    @property
    def all_tokens(self) -> float:
        """Tokens of the whole training, over all epochs; 0: not given."""
        if not self.samples:
            return self.tokens
        lengths = self.document_lengths
        mean = sum(lengths) / len(lengths) if lengths else self.sequence_length
        if self.packing == "padded":
            mean = _mean(self.documents)
        return self.samples * self.epochs * mean

    @property
    def ramp_steps(self) -> tuple[tuple[int, int], ...]:
        """Pairs of batch size and steps before the global batch, within the training's tokens."""
        counts, done, length = [], 0.0, self.tokens_per_step / self.global_batch
        for until, batch in parse_ramp(self.ramp):
            left = (min(until, self.all_tokens) if self.all_tokens else until) - done
            steps = max(math.ceil(left / (batch * length)), 0)
            counts.append((batch, steps))
            done += steps * batch * length
        return tuple((batch, steps) for batch, steps in counts if steps)

    @property
    def steps(self) -> int:
        """Steps of the whole training, with the ramp; 0 if its length is not given."""
        ramp, length = self.ramp_steps, self.tokens_per_step / self.global_batch
        rest = self.all_tokens - sum(batch * steps for batch, steps in ramp) * length
        full_steps = max(math.ceil(rest / self.tokens_per_step), 0)
        return sum(steps for _, steps in ramp) + full_steps if self.all_tokens else 0


@functools.lru_cache(maxsize=256)
def documents_in(
    lengths: tuple[int, ...], sequence: int, packing: Packing
) -> tuple[tuple[int, int], ...]:
    """Cut documents into sequences; truncate them if padded."""
    if packing == "padded":
        return tuple((min(length, sequence), 1) for length in lengths)
    return split_documents(lengths, sequence)


def _mean(documents: tuple[tuple[int, int], ...]) -> float:
    return sum(length * times for length, times in documents) / sum(n for _, n in documents)


def parse_tokens(text: str) -> float:
    """Parse a number of tokens; `B` is billions, not bytes. Raises DescriptionError."""
    plain = re.sub(r"(?<=\d)\s*[bB]$", "G", text.strip())
    try:
        return parse_quantity(plain)
    except DescriptionError:
        raise DescriptionError(
            f"{shorten(text)!r} is not a number of tokens; write for example 300B, 2T or 2e12"
        ) from None


def parse_ramp(text: str) -> tuple[tuple[float, int], ...]:
    """Parse a ramp into pairs of token bound and batch size, both rising. Raises ValueError."""
    bounds: list[tuple[float, int]] = []
    for part in text.split(",") if text.strip() else ():
        bound, colon, batch = part.partition(":")
        try:
            until = parse_tokens(bound)
        except DescriptionError:
            until = 0.0
        size = batch.strip()
        further = until > (bounds[-1][0] if bounds else 0.0)
        if not (colon and further and size.isascii() and size.isdigit() and len(size) < 8):
            raise ValueError(
                f"ramp = {shorten(text)!r} is not a batch-size ramp; write TOKENS:SEQUENCES pairs "
                "with rising tokens, such as 250B:768,500B:1536"
            )
        if not int(size):
            raise ValueError(f"ramp = {shorten(text)!r} has steps of 0 sequences; use 1 or more")
        if bounds and int(size) <= bounds[-1][1]:
            raise ValueError(
                f"ramp = {shorten(text)!r} has {size} sequences a step after {bounds[-1][1]}; "
                "write rising batches"
            )
        bounds.append((until, int(size)))
    return tuple(bounds)
