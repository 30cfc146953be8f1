"""Layout words: layouts in words, the code of layouts read from text, and its meaning."""

import re
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from planner.cost.estimate import Estimate
from planner.describe.files import read_toml
from planner.describe.layout import OFFLOAD, RECOMPUTE, SCHEDULES, Layout, with_schedule
from planner.errors import LayoutError, shorten
from planner.units import counted

_COMPLETE = {"dp", "zero_stage", "micro_batch", "grad_accumulation"}
"""Fields that every printed layout states."""
_AXES = {"tp": 1, "pp": 1, "cp": 1, "ep": 1}
_PLAIN = {**_AXES, "dp_shard": 0, "offload": "none", "offload_activations": False, "tiles": 1}
"""Values of fields that a text leaves out if it states a degree or a ZeRO stage."""


@dataclass(frozen=True, slots=True)
class LayoutText:
    """A layout as a user writes it: the fields that the text states, and the framework."""

    fields: dict[str, Any]
    framework: str = ""
    """Empty if the text names none."""
    text: str = ""

    @property
    def complete(self) -> bool:
        """Whether a printed layout was copied: what it leaves out then has its default."""
        return self.fields.keys() >= _COMPLETE

    @property
    def read(self) -> dict[str, Any]:
        """The fields that are fixed: those stated, and with a degree or a ZeRO stage plain ones."""
        is_split = self.fields.keys() & {"dp", "zero_stage", *_AXES}
        return {**_PLAIN, **self.fields} if is_split else self.fields

    @property
    def layout(self) -> Layout:
        """The layout with defaults for what is left out, and the usual schedule of a pipeline."""
        return Layout.described(with_schedule(self.fields))


_NUMBER = r"(\d{1,9})"
_FORMS: tuple[tuple[str, tuple[str, ...]], ...] = (
    (rf"dp ?=? ?{_NUMBER}(?: ?\(shard {_NUMBER}\))?", ("dp", "dp_shard")),
    (rf"cp ?=? ?{_NUMBER}(?: ?\(ulysses {_NUMBER}\))?", ("cp", "ulysses")),
    *((rf"{name} ?=? ?{_NUMBER}", (name,)) for name in ("tp", "pp", "vpp", "ep", "etp")),
    (rf"zero-? ?{_NUMBER}(?: ?\(reshard {_NUMBER}\))?", ("zero_stage", "reshard")),
    (rf"mb ?=? ?{_NUMBER}(?:x{_NUMBER})?", ("micro_batch", "grad_accumulation")),
    (rf"({'|'.join(RECOMPUTE)}) recompute", ("recompute",)),
    (rf"of {_NUMBER} layers?", ("recompute_layers",)),
    (rf"of 1 in {_NUMBER} layers", ("recompute_every",)),
    (rf"by {_NUMBER} layers", ("recompute_span",)),
    (r"of ([a-z_+]+)", ("recompute_modules",)),
    (r"()offload activations", ("offload_activations",)),
    (rf"offload ({'|'.join(OFFLOAD)})", ("offload",)),
    (rf"{_NUMBER} tiles", ("tiles",)),
    *((rf"{name}{_NUMBER}", (f"{name}_slots",)) for name in ("embedding", "head")),
    *((rf"{name}{_NUMBER}", (f"{name}_layers",)) for name in ("first", "last")),
    (r"split([\d*,]+)", ("split",)),
    (rf"({'|'.join(sorted(SCHEDULES, key=len, reverse=True))})", ("schedule",)),
    (r"()sp", ("sequence_parallel",)),
    (r"(?:with |\[)([a-z0-9_.+=-]+)\]?", ("framework",)),
)
"""Parts of the code of layouts, and the fields that they state."""
_FLAGS = ("sequence_parallel", "offload_activations")
_TEXTS = ("recompute", "recompute_modules", "offload", "split", "schedule", "framework")


def parse_layout(text: str) -> LayoutText:
    """Read a layout in its printed code, in any order. Raises LayoutError for other words."""
    rest = " ".join(text.lower().replace(", ", " ").split())
    if not rest:
        raise LayoutError("the layout is empty; write for example dp4 tp4 sp zero1 mb1x64")
    fields: dict[str, Any] = {}
    while rest:
        matches = ((names, re.match(rf"{form}(?= |$)", rest)) for form, names in _FORMS)
        names, match = next(((n, match) for n, match in matches if match), ((), None))
        if match is None:
            raise LayoutError(
                f"{shorten(rest.split()[0])!r} is not part of a layout; write for example dp4 tp4 "
                "sp zero1 mb1x64"
            )
        for name, value in zip(names, match.groups(), strict=True):
            if value is None:
                continue
            if name in fields:
                raise LayoutError(f"{shorten(text)!r} states {name} twice; state it once")
            fields[name] = True if name in _FLAGS else value if name in _TEXTS else int(value)
        rest = rest[match.end() :].strip()
    framework = fields.pop("framework", "")
    return LayoutText(fields, framework, text.strip())


_SPLITS = (("dp", "{} replicas"), ("tp", "{}-way tensor"), ("pp", "{}-stage pipeline"))


def layout_words(layout: Layout, brief: bool = False) -> str:
    """Describe a layout in words; briefly: degrees, sharding, micro-batch and memory savings."""
    words = (*_degrees(layout, brief), *_batching(layout, brief))
    return ", ".join(words if brief else (*words, *_stage_layers(layout)))


def estimate_words(estimate: Estimate, brief: bool = True) -> str:
    """Name the framework of an estimate and describe its layout."""
    return f"{estimate.framework}, {layout_words(estimate.layout, brief)}"


def degree_words(layout: Layout) -> str:
    """Describe a layout in a few words: its degrees, and ZeRO or offload."""
    splits = _splits(layout)
    of_data = layout.dp == layout.world
    experts = [f"{layout.ep}-way experts"] * (layout.ep > 1)
    states = [f"ZeRO-{layout.zero_stage}"] * (layout.zero_stage > 0 and of_data)
    return ", ".join([splits, *experts, *states, *["offload"] * (layout.offload != "none")])


def _splits(layout: Layout, ulysses: str = "") -> str:
    """Multiply out over how many devices the model and the batch are split."""
    splits = [text.format(n) for axis, text in _SPLITS if (n := getattr(layout, axis)) > 1]
    if layout.cp > 1:
        splits.append(f"{layout.cp}-way context{ulysses}")
    return " x ".join(splits) or "one device"


def _degrees(layout: Layout, brief: bool) -> Iterator[str]:
    kinds = {1: "", layout.cp: " (Ulysses)"}
    yield _splits(layout, kinds.get(layout.ulysses, f" (Ulysses in groups of {layout.ulysses})"))
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
    for name in ("embedding", "head"):
        if (slots := getattr(layout, f"{name}_slots")) >= 0:
            yield f"{name} dealt as {counted(slots, 'layer')}"
    for name in ("first", "last"):
        if layers := getattr(layout, f"{name}_layers"):
            yield f"{counted(layers, 'layer')} on the {name} stage"
    if layout.split:
        yield f"layers of chunks {shorten(layout.split)}"


TEXTS = read_toml(Path(__file__).with_name("texts.toml"))
"""Texts of verdicts."""
CODE: dict[str, str] = TEXTS["code"]
"""The code of layouts, by example."""
