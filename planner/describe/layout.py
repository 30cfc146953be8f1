"""Layout: how one job is spread over devices.

    world = dp * tp * pp * cp        global_batch = micro_batch * grad_accumulation * dp

Ranks are numbered with tp fastest, then cp, dp and pp, as in Megatron-LM and torchtitan.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Mapping
from itertools import groupby
from typing import TYPE_CHECKING, Any, Literal, get_args

from pydantic import Field, field_validator, model_validator

from planner.describe.base import Description
from planner.errors import shorten

Recompute = Literal["none", "selective", "full"]
"""Activation recompute: none, part of each layer, or whole layers."""

Module = Literal["core_attn", "moe_act", "layernorm", "mla_up_proj", "mlp", "moe", "shared_experts"]
"""Parts of a layer that selective recompute can repeat, with the names of Megatron Core."""

Context = Literal["ring", "ulysses", "two-level"]
"""ring: keys and values go around; ulysses: tokens for heads; two-level: Ulysses in a ring."""

Schedule = Literal[
    "none", "gpipe", "1f1b", "interleaved-1f1b", "zero-bubble", "zero-bubble-v", "dualpipe-v"
]
"""Pipeline schedules; `none` without a pipeline."""

V_SHAPED: tuple[Schedule, ...] = ("zero-bubble-v", "dualpipe-v")
"""Schedules with two chunks per stage: the model runs to the last stage and back."""

PAIRED: tuple[Schedule, ...] = ("dualpipe-v",)
"""Schedules that run a forward and a backward pass of different micro-batches together."""

Offload = Literal["none", "optimizer-cpu", "optimizer-nvme", "all-cpu", "all-nvme"]
"""Offloading: nothing, optimizer states, or optimizer states and parameters."""

RECOMPUTE: tuple[Recompute, ...] = get_args(Recompute)
RECOMPUTE_MODULES: tuple[Module, ...] = get_args(Module)
SCHEDULES: tuple[Schedule, ...] = get_args(Schedule)
OFFLOAD: tuple[Offload, ...] = get_args(Offload)

STAGE_FIELDS = ("embedding_slots", "head_slots", "first_layers", "last_layers", "split")
"""Fields of a layout that place layers on pipeline stages."""

_STAGES = {"no-shard": 0, "shard-grad-op": 2, "full-shard": 3}
_HYBRID = {"hybrid-shard": 3, "-hybrid-shard-zero2": 2}
"""Sharding strategies of torch's FSDP, in lower case with hyphens, and their ZeRO stages."""
_PART = re.compile(r"(\d{1,5})(?:\*(\d{1,6}))?")
_MOST_CHUNKS = 100_000
_SHARING = "the {} ranks that share weights"


class Sharding:
    """Tensors that a ZeRO stage shards (arXiv:1910.02054), for one layout or an array of them."""

    __slots__ = ()
    if TYPE_CHECKING:
        zero_stage: Any

    @property
    def shards_states(self) -> Any:
        """True if optimizer states are sharded: ZeRO-1 and up."""
        return self.zero_stage >= 1

    @property
    def shards_gradients(self) -> Any:
        """True if gradients are sharded: ZeRO-2 and up."""
        return self.zero_stage >= 2

    @property
    def shards_weights(self) -> Any:
        """True if weights are sharded and gathered for use: ZeRO-3, FSDP's full shard."""
        return self.zero_stage >= 3

    @property
    def gathers_updates(self) -> Any:
        """True if updated weights are gathered once after the step: ZeRO-1 and 2."""
        return self.shards_states & (self.zero_stage < 3)


class Chunks:
    """Placement of chunks on stages (arXiv:2405.15362, figure 2), for one layout or an array."""

    __slots__ = ()
    if TYPE_CHECKING:
        pp: Any
        vpp: Any

    @property
    def v_shaped(self) -> Any:
        """True if the model turns back at the last stage; the first holds embedding and head."""
        raise NotImplementedError

    def chunk(self, stage: Any, number: Any) -> Any:
        """Position in the model of the `number`-th chunk of a stage, from 0."""
        turned = self.v_shaped * (number % 2)
        return number * self.pp + stage + turned * (self.pp - 1 - 2 * stage)

    def stage_of(self, chunk: Any) -> Any:
        """Stage that holds the chunk at a position in the model."""
        number, stage = chunk // self.pp, chunk % self.pp
        return stage + self.v_shaped * (number % 2) * (self.pp - 1 - 2 * stage)


def _hyphenated(name: Any) -> Any:
    return name.lower().replace("_", "-") if isinstance(name, str) else name


class Layout(Sharding, Chunks, Description):
    """One parallel layout. `Layout(tp=4, dp=8)` has 32 ranks."""

    dp: int = Field(default=1, ge=1, le=10_000_000)
    """Data-parallel degree."""
    dp_shard: int = Field(default=0, ge=0, le=10_000_000)
    """Ranks over which ZeRO/FSDP shards; 0: dp (no hybrid sharding)."""
    tp: int = Field(default=1, ge=1, le=100_000)
    """Tensor-parallel degree."""
    sequence_parallel: bool = False
    """Sequence parallelism: norms and dropout are split over the tp group."""
    pp: int = Field(default=1, ge=1, le=100_000)
    """Pipeline stages."""
    vpp: int = Field(default=1, ge=1, le=100_000)
    """Model chunks per stage (interleaved and V-shaped schedules)."""
    cp: int = Field(default=1, ge=1, le=100_000)
    """Context-parallel degree."""
    ulysses: int = Field(default=1, ge=1, le=100_000)
    """Context ranks that exchange tokens for heads (Ulysses); below cp, in a ring; 1: ring."""
    ep: int = Field(default=1, ge=1, le=100_000)
    """Expert-parallel degree."""
    etp: int = Field(default=0, ge=0, le=100_000)
    """Tensor-parallel degree inside each expert; 0: the framework's default."""
    zero_stage: int = Field(default=0, ge=0, le=3)
    """ZeRO stage; FSDP full shard is 3."""
    reshard: int = Field(default=0, ge=0, le=10_000_000)
    """Ranks over which ZeRO-3 weights stay sharded after forward (hpZ); 0: all that share them."""
    micro_batch: int = Field(default=1, ge=1, le=1_000_000)
    """Sequences per replica and forward pass."""
    grad_accumulation: int = Field(default=1, ge=1, le=100_000_000)
    """Micro-batches per replica and step."""
    recompute: Recompute = "none"
    """Activation recompute (checkpointing)."""
    recompute_layers: int = Field(default=0, ge=0, le=10_000)
    """First layers of each chunk that full recompute repeats; 0: all layers."""
    recompute_every: int = Field(default=1, ge=1, le=10_000)
    """Full recompute repeats every n-th layer of a stage; 1: all layers."""
    recompute_span: int = Field(default=1, ge=1, le=10_000)
    """Layers per activation checkpoint of full recompute."""
    recompute_modules: tuple[Module, ...] = ()
    """Modules that selective recompute repeats; empty: the framework's own policy."""
    offload_activations: bool = False
    """Whether layers' activations are kept in host memory until backward."""
    schedule: Schedule = "none"
    """Pipeline schedule."""
    offload: Offload = "none"
    """Offloading of optimizer states, or of states and parameters, to host memory or NVMe."""
    tiles: int = Field(default=1, ge=1, le=65536)
    """Tiles of the largest matrix (memory-centric tiling)."""
    embedding_slots: int = Field(default=-1, ge=-1, le=64)
    """Layers that the embedding counts as in balancing stages; -1: the framework's default."""
    head_slots: int = Field(default=-1, ge=-1, le=64)
    """Layers that head and loss count as in balancing stages; -1: the framework's default."""
    first_layers: int = Field(default=0, ge=0, le=100_000)
    """Layers of the first pipeline stage; 0: balanced."""
    last_layers: int = Field(default=0, ge=0, le=100_000)
    """Layers of the last pipeline stage; 0: balanced."""
    split: str = Field(default="", max_length=2000)
    """Layers of every chunk in model order, such as 7,8*14,7; empty: balanced."""

    @field_validator("zero_stage", mode="before")
    @classmethod
    def _read_zero_stage(cls, stage: Any) -> Any:
        """Read names of stages: `zero-3`, or FSDP's sharding strategies such as FULL_SHARD."""
        name = _hyphenated(stage)
        if not isinstance(name, str):
            return stage
        if name in _HYBRID:
            raise ValueError(
                f"it is ZeRO-{_HYBRID[name]} in groups; use zero_stage = {_HYBRID[name]} and "
                "dp_shard = the ranks of a group"
            )
        number = name.removeprefix("zero").removeprefix("-")
        if name not in _STAGES and number not in ("0", "1", "2", "3"):
            raise ValueError("use 0 to 3, or a sharding strategy of FSDP such as FULL_SHARD")
        return _STAGES[name] if name in _STAGES else int(number)

    @field_validator("schedule", mode="before")
    @classmethod
    def _read_schedule(cls, schedule: Any) -> Any:
        name = _hyphenated(schedule)
        return "interleaved-1f1b" if name == "interleaved" else name

    @field_validator("split")
    @classmethod
    def _normalise_split(cls, text: str) -> str:
        return format_split(parse_split(text))

    @model_validator(mode="after")
    def _check(self) -> Layout:
        for name, group, ranks, words in (
            ("dp_shard", self.dp_shard, self.dp, "dp = {}"),
            ("ulysses", self.ulysses, self.cp, "cp = {}"),
            ("reshard", self.reshard, (self.dp_shard or self.dp) * self.cp, _SHARING),
        ):
            if group and ranks % group:
                raise ValueError(
                    f"{name} = {group} must divide {words.format(ranks)}; use one of "
                    f"{', '.join(map(str, divisors(ranks)))}"
                )
        self._check_stage_fields()
        return self

    @field_validator("recompute_modules", mode="before")
    @classmethod
    def _split_words(cls, names: Any) -> Any:
        return tuple(names.split("+")) if isinstance(names, str) else names

    @field_validator("recompute_modules")
    @classmethod
    def _sort_modules(cls, names: tuple[Module, ...]) -> tuple[Module, ...]:
        return tuple(name for name in RECOMPUTE_MODULES if name in names)

    def _check_stage_fields(self) -> None:
        """Refuse several ways to place layers on stages, and a split of the wrong length."""
        ends = max(self.embedding_slots, self.head_slots) >= 0
        ways = {
            "embedding_slots and head_slots": ends,
            "first_layers and last_layers": self.first_layers or self.last_layers,
            "split": self.split,
        }
        stated_ways = [way for way, is_stated in ways.items() if is_stated]
        if len(stated_ways) > 1:
            ways_in_words = " as well as ".join(stated_ways)
            raise ValueError(f"{ways_in_words} place layers on stages; set only one of them")
        if self.split and len(self.chunk_layers) != self.pp * self.vpp:
            raise ValueError(
                f"split = {shorten(self.split)} has {len(self.chunk_layers)} chunks, but "
                f"pp * vpp = {self.pp * self.vpp}; give one number for each chunk"
            )

    @property
    def chunk_layers(self) -> tuple[int, ...]:
        """Layers of every chunk in model order; empty if stages are balanced."""
        return parse_split(self.split)

    @property
    def v_shaped(self) -> bool:
        """True if the model turns back at the last stage; the first holds embedding and head."""
        return self.schedule in V_SHAPED

    @property
    def recomputed(self) -> str:
        """Recompute settings in words; empty without recompute."""
        if self.recompute == "none":
            return ""
        parts = [f"{self.recompute} recompute"]
        if self.recompute_modules:
            parts.append(f"of {'+'.join(self.recompute_modules)}")
        if self.recompute_layers:
            parts.append(f"of {self.recompute_layers} layer{'s' * (self.recompute_layers > 1)}")
        if self.recompute_every > 1:
            parts.append(f"of 1 in {self.recompute_every} layers")
        if self.recompute_span > 1:
            parts.append(f"by {self.recompute_span} layers")
        return " ".join(parts)

    @property
    def world(self) -> int:
        """Number of ranks."""
        return self.dp * self.tp * self.pp * self.cp

    @property
    def global_batch(self) -> int:
        """Sequences per optimizer step."""
        return self.micro_batch * self.grad_accumulation * self.dp

    def __str__(self) -> str:
        parts = [f"dp{self.dp}"]
        if self.dp_shard not in (0, self.dp):
            parts[0] += f"(shard {self.dp_shard})"
        for name in ("tp", "pp", "vpp", "cp", "ep"):
            if getattr(self, name) > 1:
                parts.append(f"{name}{getattr(self, name)}")
            if name == "cp" and self.ulysses > 1:
                parts[-1] += f"(ulysses {self.ulysses})"
        if self.etp:
            parts.append(f"etp{self.etp}")
        if self.sequence_parallel:
            parts.append("sp")
        parts.append(f"zero{self.zero_stage}")
        if self.reshard:
            parts[-1] += f"(reshard {self.reshard})"
        parts.append(f"mb{self.micro_batch}x{self.grad_accumulation}")
        if self.recomputed:
            parts.append(self.recomputed)
        if self.schedule not in ("none", "1f1b", "interleaved-1f1b"):
            parts.append(self.schedule)
        if self.offload != "none":
            parts.append(f"offload {self.offload}")
        if self.offload_activations:
            parts.append("offload activations")
        if self.tiles > 1:
            parts.append(f"{self.tiles} tiles")
        for name in STAGE_FIELDS:
            if (value := getattr(self, name)) != type(self).model_fields[name].default:
                parts.append(f"{name.partition('_')[0]}{value}")
        return " ".join(parts)


def with_schedule(fields: Mapping[str, Any]) -> dict[str, Any]:
    """Add the usual pipeline schedule, or two chunks if the stated schedule needs several."""
    if fields.get("pp", 1) == 1:
        return {"schedule": "none", **fields}
    if fields.get("schedule") in (*V_SHAPED, "interleaved", "interleaved-1f1b"):
        return {"vpp": 2, **fields}
    return {"schedule": "1f1b" if fields.get("vpp", 1) == 1 else "interleaved-1f1b", **fields}


def parse_split(text: str) -> tuple[int, ...]:
    """Parse a split such as 7,8*14,7 into layers per chunk; raises ValueError."""
    counts: list[int] = []
    for part in text.split(",") if text.strip() else ():
        match = _PART.fullmatch(part.strip())
        times = int(match[2] or 1) if match else 0
        if not match or not 0 < times <= _MOST_CHUNKS - len(counts):
            raise ValueError(
                f"split = {shorten(text)!r} is not a list of layers; write one number for each "
                "chunk, such as 7,8*14,7"
            )
        counts += [int(match[1])] * times
    return tuple(counts)


def format_split(counts: Iterable[int]) -> str:
    """Format layers per chunk in the shortest form, such as 7,8*14,7."""
    runs = [(count, len(list(same))) for count, same in groupby(counts)]
    return ",".join(f"{count}*{times}" if times > 1 else f"{count}" for count, times in runs)


def divisors(number: int) -> list[int]:
    """List the divisors of a number in rising order."""
    small = [d for d in range(1, int(number**0.5) + 1) if number % d == 0]
    return small + [number // d for d in reversed(small) if d * d != number]
