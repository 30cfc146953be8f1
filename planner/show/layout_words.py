"""Layout words: layouts in words, and the meaning of the letters in their code."""

from __future__ import annotations

from collections.abc import Iterator

from planner.describe.layout import Layout
from planner.errors import shorten
from planner.units import counted

_AXES = {"dp": "data", "tp": "tensor", "pp": "pipeline", "cp": "context", "ep": "expert"}


def layout_words(layout: Layout) -> str:
    """Describe a layout in words."""
    return ", ".join((*_degrees(layout), *_batching(layout), *_stage_layers(layout)))


def _degrees(layout: Layout) -> Iterator[str]:
    """Describe over how many devices the model and its states are split."""
    degrees = ((getattr(layout, axis), word) for axis, word in _AXES.items())
    split = ", ".join(f"{degree} x {word}" for degree, word in degrees if degree > 1)
    yield f"{split} parallel" if split else "one device"
    if layout.ulysses > 1:
        yield f"heads dealt to {layout.ulysses} context ranks"
    if layout.sequence_parallel:
        yield "sequence parallel"
    if layout.etp:
        yield "whole experts" if layout.etp == 1 else f"experts split over {layout.etp}"
    if layout.vpp > 1:
        yield f"{layout.vpp} chunks per stage"
    if layout.zero_stage:
        hybrid = layout.dp_shard not in (0, layout.dp)
        within = f" within {layout.dp_shard} replicas" if hybrid else ""
        second = f" with second shards over {layout.reshard} ranks" if layout.reshard else ""
        yield f"ZeRO-{layout.zero_stage}{within}{second}"


def _batching(layout: Layout) -> Iterator[str]:
    """Describe the micro-batches, the schedule and the memory savings of a step."""
    yield f"micro-batch {layout.micro_batch} x {layout.grad_accumulation}"
    if layout.recomputed:
        yield layout.recomputed
    if layout.schedule not in ("none", "1f1b", "interleaved-1f1b"):
        yield f"{layout.schedule} schedule"
    if layout.offload != "none":
        yield f"offload ({layout.offload})"
    if layout.offload_activations:
        yield "offload of activations"
    if layout.tiles > 1:
        yield f"{layout.tiles} tiles"


def _stage_layers(layout: Layout) -> Iterator[str]:
    """Describe how layers are assigned to pipeline stages, if the layout states it."""
    for name in ("embedding", "head"):
        if (slots := getattr(layout, f"{name}_slots")) >= 0:
            yield f"{name} dealt as {counted(slots, 'layer')}"
    for name in ("first", "last"):
        if layers := getattr(layout, f"{name}_layers"):
            yield f"{counted(layers, 'layer')} on the {name} stage"
    if layout.split:
        yield f"layers of chunks {shorten(layout.split)}"


CODE = {
    "dp4": "4 replicas of the model, each with its part of the batch (data parallel)",
    "(shard 8)": "ZeRO or FSDP shards over groups of 8 of them (hybrid)",
    "tp4": "every matrix is cut over 4 devices (tensor parallel)",
    "sp": "norms and dropouts are cut over the tensor-parallel group too (sequence parallel)",
    "pp8": "8 pipeline stages",
    "vpp2": "2 chunks of layers per stage (interleaved schedule)",
    "cp2": "every sequence is cut over 2 devices (context parallel)",
    "(ulysses 2)": "which exchange their tokens for heads around attention",
    "ep8": "experts are spread over 8 devices (expert parallel)",
    "zero1": "the ZeRO stage: 0 shards nothing, 1 optimizer states, 2 gradients too, 3 weights too",
    "embedding1 head1": "embedding and head count as a layer each when stages get their layers",
    "first7 last5": "layers of the first and the last stage; the others share the rest",
    "split7,8*2,7": "layers of every chunk of the pipeline, in the order of the model",
    "mb2x32": "micro-batches of 2 sequences, 32 of them per step and replica",
}
"""The code of layouts, by example."""
