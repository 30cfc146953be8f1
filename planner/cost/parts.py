"""Parts: every named part of memory and step time, one record each."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from typing import Any, Literal

from planner.errors import UnknownNameError

__all__ = [
    "DEVICE_PARTS",
    "HOST_PARTS",
    "TIME_CAUSES",
    "TIME_PARTS",
    "Hatch",
    "Hue",
    "MemoryKind",
    "MemoryPart",
    "Part",
    "TimeCause",
    "TimePart",
    "order_parts",
    "part",
    "time_spread",
    "unseen_parts",
]

Hue = Literal["blue", "orange", "green", "pink", "sky", "red", "grey"]
"""Names of colours; `planner.show` has their shades."""

Hatch = Literal["", "/", "x"]
"""Patterns that tell parts of one hue apart."""

MemoryKind = Literal["allocated", "reserved", "device"]
"""Ways of measuring memory: tensors, the caching allocator's reserve, the whole process."""

TimeCause = Literal["compute", "traffic", "host"]
"""Cause of a part: computation, traffic of devices, nodes and hosts, or the host that issues."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Part:
    """A summand of an estimate."""

    name: str
    """Key in the answers."""
    hue: Hue
    hatch: Hatch = ""
    meaning: str
    """Its contents, in half a sentence."""
    title: str = ""
    """Name for a reader, where it is not the key in words."""

    @property
    def label(self) -> str:
        """Name for a reader."""
        return self.title or self.name.replace("_", " ")


@dataclass(frozen=True, slots=True, kw_only=True)
class MemoryPart(Part):
    """A part of a device's memory."""

    counted_by: tuple[MemoryKind, ...] = ("allocated", "reserved", "device")
    """Ways of measuring memory that count it."""


@dataclass(frozen=True, slots=True, kw_only=True)
class TimePart(Part):
    """A part of the step time."""

    cause: TimeCause
    spread: float
    """Relative uncertainty: of computation least, of exposed communication most."""


_DEVICE = (
    MemoryPart(
        name="weights", hue="blue", meaning="the copies of the weights that stay on the device"
    ),
    MemoryPart(
        name="gradients", hue="orange", meaning="gradients that stay, and buckets that hold them"
    ),
    MemoryPart(
        name="optimizer_states",
        hue="green",
        meaning="fp32 copy and moments (where the fp32 copy is the parameter itself it counts as "
        "weights)",
    ),
    MemoryPart(
        name="activations",
        hue="pink",
        meaning="kept by embedding and layers from forward to backward, for all micro-batches in "
        "flight",
    ),
    MemoryPart(
        name="working_set",
        title="working set (temporaries)",
        hue="pink",
        hatch="/",
        meaning="what one layer computes again, and the gradients inside it",
    ),
    MemoryPart(
        name="logits_and_loss", hue="sky", meaning="logits, what the loss keeps, its gradient"
    ),
    MemoryPart(
        name="gathered_parameters",
        hue="blue",
        hatch="/",
        meaning="weights gathered for use (ZeRO-3)",
    ),
    MemoryPart(
        name="communication_buffers",
        hue="orange",
        hatch="/",
        meaning="reduction buckets, gradients in backward, inputs of reductions, the gathered "
        "sequence, receive buffers of a pipeline",
    ),
    MemoryPart(
        name="optimizer_temporaries",
        hue="green",
        hatch="/",
        meaning="copies that the optimizer step makes",
    ),
    MemoryPart(
        name="runtime_context",
        title="runtime (context, libraries)",
        hue="grey",
        meaning="driver context and communicators",
        counted_by=("device",),
    ),
    MemoryPart(
        name="allocator_reserve",
        hue="grey",
        hatch="/",
        meaning="what the caching allocator holds beyond the peak",
        counted_by=("reserved", "device"),
    ),
)

_HOST = (
    Part(
        name="processes",
        hue="blue",
        meaning="interpreter, libraries and loader buffers of every rank",
    ),
    Part(
        name="checkpoint_load", hue="orange", meaning="checkpoints in memory while they are loaded"
    ),
    Part(
        name="offloaded_states",
        hue="green",
        meaning="states, gradients and weights that live on the host",
    ),
    Part(name="pinned_buffers", hue="pink", meaning="pinned buffers for what is on the disk"),
    Part(
        name="device_memory",
        hue="sky",
        meaning="what the devices of a node take of it, where their memory is the host's",
    ),
)

_TIME = (
    TimePart(
        name="forward",
        cause="compute",
        hue="blue",
        meaning="forward computation of all micro-batches on the slowest stage",
        spread=0.10,
    ),
    TimePart(
        name="backward",
        cause="compute",
        hue="green",
        meaning="backward computation of all micro-batches on the slowest stage",
        spread=0.10,
    ),
    TimePart(
        name="recompute",
        cause="compute",
        hue="sky",
        meaning="forward work done again in backward",
        spread=0.15,
    ),
    TimePart(
        name="host_overhead",
        cause="host",
        hue="sky",
        hatch="/",
        meaning="devices waiting for the host to issue work",
        spread=0.50,
    ),
    TimePart(
        name="tensor_parallel",
        cause="traffic",
        hue="orange",
        meaning="tensor-parallel collectives that nothing hides",
        spread=0.30,
    ),
    TimePart(
        name="context_parallel",
        cause="traffic",
        hue="orange",
        hatch="/",
        meaning="passing keys and values, as far as attention does not hide it",
        spread=0.40,
    ),
    TimePart(
        name="expert_parallel",
        cause="traffic",
        hue="orange",
        hatch="x",
        meaning="dispatch and combine of tokens",
        spread=0.50,
    ),
    TimePart(
        name="parameter_gathering",
        cause="traffic",
        hue="pink",
        meaning="exposed gathers of weights for use (ZeRO-3; FSDP below it too), reductions of "
        "gradients (ZeRO-3)",
        spread=0.50,
    ),
    TimePart(
        name="pipeline_bubble",
        cause="compute",
        hue="grey",
        meaning="idle time while the pipeline fills and drains",
        spread=0.20,
    ),
    TimePart(
        name="pipeline_transfer",
        cause="traffic",
        hue="grey",
        hatch="/",
        meaning="exposed transfers between stages",
        spread=0.50,
    ),
    TimePart(
        name="gradient_reduction",
        cause="traffic",
        hue="pink",
        hatch="/",
        meaning="exposed reduction of gradients (ZeRO-0 to 2)",
        spread=0.50,
    ),
    TimePart(
        name="optimizer",
        cause="compute",
        hue="blue",
        hatch="/",
        meaning="optimizer step on the device",
        spread=0.40,
    ),
    TimePart(
        name="parameter_update_gathering",
        cause="traffic",
        hue="pink",
        hatch="x",
        meaning="gathering updated weights (ZeRO-1 and 2)",
        spread=0.50,
    ),
    TimePart(
        name="offload",
        cause="traffic",
        hue="red",
        hatch="/",
        meaning="host transfers, optimizer on the CPU, NVMe",
        spread=0.60,
    ),
)


def _names(parts: Iterable[Part]) -> tuple[str, ...]:
    return tuple(part.name for part in parts)


DEVICE_PARTS = _names(_DEVICE)
"""Parts of a device's memory, in the order of every answer."""
HOST_PARTS = _names(_HOST)
"""Parts of a node's memory."""
TIME_PARTS = _names(_TIME)
"""Parts of the step time."""
TIME_CAUSES = {part.name: part.cause for part in _TIME}
"""Cause of each of them."""

_BY_NAME: dict[str, Part] = {part.name: part for part in (*_DEVICE, *_HOST, *_TIME)}
_SPREAD = {part.name: part.spread for part in _TIME}


def order_parts(figures: Mapping[str, Any], names: tuple[str, ...]) -> dict[str, Any]:
    """Estimated parts in the order of their records; a missing part or record is an error of
    ours."""
    odd = ", ".join(sorted(set(figures) ^ set(names)))
    assert not odd, f"parts without a record, or records without a part: {odd}"
    return {name: figures[name] for name in names}


def part(name: str) -> Part:
    """The record of a part; UnknownNameError where nobody wrote one."""
    if name not in _BY_NAME:
        raise UnknownNameError("part", name, _BY_NAME, f"`{__name__}` has all {len(_BY_NAME)}")
    return _BY_NAME[name]


def time_spread(name: str) -> float:
    """Relative uncertainty of a part of the step time [1].

    Counted: the assumption of the part's record. Left out: that parts err together; no fit stands
    behind it. Definition.

    >>> time_spread("forward"), time_spread("pipeline_transfer")
    (0.1, 0.5)
    """
    return _SPREAD[part(name).name]


def unseen_parts(kind: MemoryKind) -> tuple[str, ...]:
    """Parts of a device's memory that a way of measuring does not count."""
    return tuple(part.name for part in _DEVICE if kind not in part.counted_by)
