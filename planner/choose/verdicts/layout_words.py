"""Layout words: layouts in words, and the meaning of the letters in their code."""

from __future__ import annotations

from collections.abc import Iterator

from planner.describe.layout import Layout
from planner.errors import shorten
from planner.units import counted

_SPLITS = (("dp", "{} replicas"), ("tp", "{}-way tensor"), ("pp", "{}-stage pipeline"))


def layout_words(layout: Layout, brief: bool = False) -> str:
    """Describe a layout in words; briefly: degrees, sharding, micro-batch and memory savings.

    >>> layout_words(Layout(dp=8, tp=4, sequence_parallel=True, zero_stage=1), brief=True)
    '8 replicas x 4-way tensor, ZeRO-1, micro-batch 1'
    """
    words = (*_degrees(layout, brief), *_batching(layout, brief))
    return ", ".join(words if brief else (*words, *_stage_layers(layout)))


def _degrees(layout: Layout, brief: bool) -> Iterator[str]:
    """Describe over how many devices the model and its states are split."""
    splits = [text.format(n) for axis, text in _SPLITS if (n := getattr(layout, axis)) > 1]
    if layout.cp > 1:
        ulysses = {1: "", layout.cp: " (Ulysses)"}
        groups = f" (Ulysses in groups of {layout.ulysses})"
        splits.append(f"{layout.cp}-way context{ulysses.get(layout.ulysses, groups)}")
    yield " x ".join(splits) or "one device"
    if layout.ep > 1:
        yield f"experts over {layout.ep}"
    if layout.etp > 1:
        yield f"each expert over {layout.etp}"
    if layout.vpp > 1:
        yield f"{layout.vpp} chunks a stage"
    if layout.sequence_parallel and not brief:
        yield "sequence parallel"
    if layout.etp == 1 and not brief:
        yield "whole experts"
    if layout.zero_stage:
        hybrid = layout.dp_shard not in (0, layout.dp)
        within = f" within {layout.dp_shard} replicas" if hybrid else ""
        second = f", second shards over {layout.reshard} ranks" if layout.reshard else ""
        yield f"ZeRO-{layout.zero_stage}{within}{second}"


def _batching(layout: Layout, brief: bool) -> Iterator[str]:
    """Describe the micro-batches, the schedule and the memory savings of a step."""
    repeated = "" if brief else f" x {layout.grad_accumulation}"
    yield f"micro-batch {layout.micro_batch}{repeated}"
    if layout.recomputed:
        of_layers = brief and layout.recompute == "full" and layout.recompute_layers
        yield layout.recomputed.removeprefix("full ") if of_layers else layout.recomputed
    if layout.schedule not in ("none", "1f1b", "interleaved-1f1b"):
        yield f"{layout.schedule} schedule"
    if layout.offload != "none":
        where = "host memory" if layout.offload.endswith("cpu") else "NVMe"
        states = "all states" if layout.offload.startswith("all") else "optimizer states"
        yield f"{states} in {where}"
    if layout.offload_activations:
        yield "activations in host memory"
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
