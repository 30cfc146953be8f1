"""Meanings of the words in tables of runs.

The meanings are data, with a source per row, in `labels.toml`. Labels are compared in lower case;
any characters but letters, digits and dots become one blank.
"""

from __future__ import annotations

import functools
import re
from pathlib import Path
from typing import Literal

from pydantic import Field

from planner.describe.base import Description, Quantity
from planner.describe.files import read_toml
from planner.describe.framework.traits import Loss
from planner.describe.workload import TrainingPrecision
from planner.errors import PlannerError, shorten

__all__ = [
    "KernelChanges",
    "Labels",
    "Software",
    "Usual",
    "known_labels",
    "normalised",
    "precision_of",
    "year_of",
]


class Sourced(Description):
    """A fact with its source."""

    source: str = Field(min_length=6)
    """Source of the fact; it says so where the fact is assumed."""


class Meanings(Sourced):
    """Words of a label and what each means."""

    words: dict[str, str]
    """Meaning by word; the first word that occurs wins."""


class SlowerLinks(Sourced):
    """A device that is another one of the catalogue with slower links."""

    device: str
    """The device that a row names."""
    like: str
    """The device whose profile is taken."""
    overrides: tuple[str, ...]
    """Differences from that profile, as `section.field=value`."""


class UsualMachines(Sourced):
    """Machines that stand for a device where no system is named."""

    names: tuple[str, ...]
    """Names in the catalogue, in the order in which they are tried."""


class OtherName(Sourced):
    """A model that a framework's tables call by a name that others use for another."""

    label: str
    """Content of the column `model`, in words as those of labels."""
    framework: str
    """A word of the column `framework`."""
    name: str
    """Name in the catalogue."""


class Words(Description):
    """Single words that decide something."""

    other_models: tuple[str, ...]
    """Words of models that are no transformers of a known kind."""
    plain_models: tuple[str, ...]
    """Words of models whose feed-forward network has no gate."""
    waiting: tuple[str, ...]
    """Words of notes that say that a step waits for its input."""
    adapters: tuple[str, ...]
    """Words of a model label that mean adapters on frozen weights."""
    optimizer_sharded: tuple[str, ...]
    """Words of a sharding label that mean ZeRO-1."""
    not_compiled: tuple[str, ...]
    """Entries of the column `compile` that mean eager execution."""


class KernelChanges(Sourced):
    """Changes of a framework's description by a compiler or a library of kernels."""

    fused_norm: bool | None = None
    """As in the description; None: unchanged."""
    fused_activation: bool | None = None
    """As in the description; None: unchanged."""
    fused_residual: bool | None = None
    """As in the description; None: unchanged."""
    fused_rope: bool | None = None
    """As in the description; None: unchanged."""
    repeats_to_end: bool | None = None
    """As in the description; None: unchanged."""
    stops_early: bool | None = None
    """As in the description; None: unchanged."""
    loss: Loss | None = None
    """As in the description; None: unchanged."""
    saves_gathered: bool | None = None
    """As in the description; None: unchanged."""

    def changes(self) -> dict[str, object]:
        """The fields that change."""
        return self.model_dump(exclude={"source"}, exclude_none=True)


class Usual(Sourced):
    """Defaults of the runs of a described framework."""

    dropout: float = Field(default=0.0, ge=0, lt=1)
    """Dropout of a GPT."""
    precision: TrainingPrecision | None = None
    """Training precision; None: bf16 where the device has it, else fp16."""
    data_parallel_unless_stated: bool = False
    """Whether a row that states no degrees means data parallelism alone."""
    zero_stage_with_pipeline: int | None = None
    """ZeRO stage that replaces ZeRO-3 with a pipeline; None: ZeRO-3 stays."""
    sharded_reduce_bytes: float | None = Field(default=None, gt=0)
    """A bf16 gradient on the wire where gradients are sharded (ZeRO-2 and 3), unless a run's
    configuration says otherwise; None: as described [B]."""


class MicroBatch(Description):
    """Samples at a time that scripts set for a precision."""

    precision: TrainingPrecision
    """The precision."""
    size: int = Field(ge=1)
    """Samples."""


class Software(Sourced):
    """Framework behind a label of software, and defaults of such runs."""

    words: tuple[str, ...]
    """All of them occur in the label."""
    noted: str = ""
    """Words that the notes must hold as well, as those of labels; empty: any."""
    framework: str
    """Name in the catalogue."""
    zero_stage: int = Field(default=0, ge=0, le=3)
    """ZeRO stage."""
    recompute: Literal["none", "selective", "full"] = "none"
    """Activation recompute."""
    sequence_parallel: bool = False
    """Whether norms are split over tp."""
    until_year: int = 9999
    """Last year in which the label means this."""
    flash_since: int = 2023
    """First year whose runs used fused attention."""
    stands_in: bool = False
    """The nearest description, of other software than the label's; said in the row."""
    whole_experts: bool = False
    """Whether its recipes leave experts whole beside tensor parallelism."""
    pipeline_micro_batches: Literal["tuned", "stages", "single"] = "tuned"
    """Split of a batch in a pipeline: as tuned, into as many micro-batches as stages, or into
    single sequences."""
    micro_batch: int | None = Field(default=None, ge=1)
    """Sequences at a time that its scripts set without a pipeline; None: as tuned."""
    micro_batches: tuple[MicroBatch, ...] = ()
    """Sequences at a time by training precision, where a row states no batch."""
    plain_bf16: bool = False
    """Whether its scripts leave bf16 gradients in 16 bit where there is no pipeline."""
    awaits_kernels: bool = False
    """Whether its scripts make every launch wait for its kernel."""
    all_reduced_stages: tuple[int, ...] = ()
    """ZeRO stages at which its configuration has gradients all-reduced; none: as described."""
    sent_gradient_bytes: float | None = Field(default=None, gt=0)
    """A bf16 gradient on the wire, at every ZeRO stage; None: as usual for the framework [B]."""
    gradient_bytes: float | None = Field(default=None, gt=0)
    """Main gradients and what is sent of them; None: as described [B/parameter]."""
    kernels: KernelChanges | None = None
    """Kernels that its recipes set."""
    other_build: KernelChanges | None = None
    """Kernels of another build that its tables hold, which only a run's memory tells apart."""
    first_stage_memory: bool = False
    """Whether the memory that it prints is of the pipeline's first stage, else of the fullest."""
    compiles: bool = False
    """Whether its runs compile their model."""
    compiled_kernels: KernelChanges | None = None
    """Differences from the switch `compile` where its runs compile."""


class Noted(Sourced):
    """A switch of frameworks, as words of a column say that it is on."""

    name: str
    """The switch."""
    column: str
    """The column."""
    words: tuple[str, ...]
    """Words, one of which is there."""
    noted: str = ""
    """Words that the notes must hold as well, as those of labels; empty: any."""


class Labels(Description):
    """The file `labels.toml`."""

    devices: tuple[Meanings, ...]
    """Spellings of devices in the catalogue's product names."""
    slower_links: tuple[SlowerLinks, ...]
    """Devices that are others with slower links."""
    usual_machines: UsualMachines
    """Machines taken where no system is named."""
    precisions: tuple[Meanings, ...]
    """Training precisions."""
    models: tuple[OtherName, ...]
    """Models by other names."""
    words: Words
    """Words that decide something."""
    adapter_rank: Quantity
    """Rank of adapters where a row does not say."""
    switches: tuple[Noted, ...]
    """Switches that rows state, besides `compile`, which has its own column."""
    usual: dict[str, Usual]
    """By name of a framework."""
    software: tuple[Software, ...]
    """Labels of software; the first match wins."""


@functools.cache
def known_labels() -> Labels:
    """Read the meanings of labels."""
    path = Path(__file__).with_name("labels.toml")
    return Labels.described(read_toml(path), where=path.name)


def normalised(label: str) -> str:
    """Lower case, everything but letters, digits and dots as single blanks.

    >>> normalised("Megatron-DeepSpeed (bigscience)")
    'megatron deepspeed bigscience'
    """
    return " ".join(re.findall(r"[a-z0-9.]+", label.lower()))


def year_of(label: str) -> int | None:
    """First year in a label; NVIDIA's container versions such as 25.09 count as years.

    >>> year_of("2022-02-28"), year_of("26.04.01"), year_of("")
    (2022, 2026, None)
    """
    year = re.search(r"(?:19|20)\d\d", label)
    if year:
        return int(year[0])
    release = re.match(r"(\d\d)\.\d\d\b", label.strip())
    return 2000 + int(release[1]) if release else None


def precision_of(label: str) -> str | None:
    """Training precision of a label; None where it names none.

    >>> precision_of("bf16 (fp32 grad accumulation)"), precision_of("mxfp8")
    ('bf16', 'fp8')
    """
    text = normalised(label)
    if "fp4" in text:
        raise PlannerError(f"precision = {shorten(label, 40)!r}: 4-bit training is not modelled")
    pairs = (pair for row in known_labels().precisions for pair in row.words.items())
    return next((name for word, name in pairs if word in text), None)
