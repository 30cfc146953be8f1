"""Frameworks of runs: the description behind a label, and the changes of its recipes."""

from __future__ import annotations

import functools

from planner.describe.catalogue import load_framework, names
from planner.describe.framework.framework import Framework
from planner.describe.layout import Layout
from planner.errors import shorten
from planner.evidence.runs.cells import Cells
from planner.evidence.runs.labels import (
    Software,
    Usual,
    known_labels,
    normalised,
)
from planner.evidence.runs.reading import Reading, as_stated, assumed, guessed

__all__ = [
    "configured",
    "described_framework",
    "is_compiled",
    "software_of",
    "software_of_label",
    "switches_of",
    "usual",
]

_NOTHING_USUAL = Usual(source="the framework's description")


def software_of_label(label: str, year: int | None, notes: str = "") -> Software | None:
    """Find the software behind a label; None where no description is near it.

    >>> software_of_label("NeMo (Megatron-Core)", 2024).framework
    'megatron-lm'
    """
    text, noted = normalised(label), normalised(notes)
    for row in (*known_labels().software, *_catalogue()):
        named = all(word in text for word in row.words) and row.noted in noted
        if named and (year or 9999) <= row.until_year:
            return row
    return None


@functools.cache
def _catalogue() -> tuple[Software, ...]:
    """Every description by its own names, the longest first."""
    rows = [
        Software(words=(label,), framework=name, source=framework.source)
        for name in names("framework")
        for framework in [load_framework(name)]
        for label in (normalised(name), *framework.labels)
    ]
    return tuple(sorted(rows, key=lambda row: (-len(row.words[0]), row.words[0])))


def software_of(cells: Cells, year: int | None) -> Reading[Software]:
    """Find the software of a row, or its nearest description."""
    label = cells.text("framework")
    software = software_of_label(label, year, cells.text("notes"))
    if software is None:
        name = _likely_framework(cells)
        nearest = software_of_label(name, year)
        assert nearest is not None
        sentence = f"{shorten(label, 40)!r} is not described; as {name}" if label else ""
        return guessed(nearest, sentence or f"framework missing: {name}")
    if software.stands_in:
        return assumed(software, f"{shorten(label, 40)} is not described; as {software.framework}")
    return as_stated(software)


def _likely_framework(cells: Cells) -> str:
    """Guess the framework of a row from its degrees and its sharding."""
    if max(cells.count(axis) or 1 for axis in ("tp", "pp", "cp", "ep")) > 1:
        return "megatron-lm"
    sharded = cells.count("zero_stage", zero=True)
    if sharded is None:
        return "fsdp2" if cells.text("framework") else "ddp"
    return "fsdp2" if sharded >= 2 else "deepspeed" if sharded else "ddp"


def is_compiled(cells: Cells, software: Software) -> Reading[bool]:
    """Whether a run compiled its model."""
    label = cells.text("compile").lower()
    if software.compiles and not label:
        return assumed(True, "compile missing: yes, usual there")
    return as_stated(label not in known_labels().words.not_compiled)


def switches_of(cells: Cells, compiled: bool) -> tuple[str, ...]:
    """Switches that a run had on.

    >>> switches_of(Cells({"notes": "2D + AsyncTP"}), compiled=True)
    ('compile', 'async-tp')
    """
    on = ["compile"] if compiled else []
    for noted in known_labels().switches:
        text = normalised(cells.text(noted.column))
        notes = normalised(cells.text("notes"))
        if any(word in text for word in noted.words) and noted.noted in notes:
            on.append(noted.name)
    return tuple(on)


_LENDER = "accelerate"
"""The framework whose switches are taken where a run's framework has none of the name."""


@functools.cache
def described_framework(software: Software, switches: tuple[str, ...] = ()) -> Framework:
    """A framework of the catalogue with the changes and switches of a run's recipes."""
    framework: Framework = load_framework(software.framework)
    if software.gradient_bytes is not None:
        gradients = dict.fromkeys(("gradient_bytes", "reduce_bytes"), software.gradient_bytes)
        mixed = framework.mixed.replaced(**gradients).model_dump()
        framework = framework.replaced(mixed=mixed)
    if software.awaits_kernels:
        framework = _blocking(framework)
    framework = _switched(framework, switches)
    applied = [software.kernels, software.compiled_kernels if "compile" in switches else None]
    changes = {name: value for row in applied if row for name, value in row.changes().items()}
    if not changes:
        return framework
    return framework.replaced(kernels=framework.kernels.replaced(**changes).model_dump())


def _switched(framework: Framework, switches: tuple[str, ...]) -> Framework:
    """Turn on switches that the framework has, or that another lends it."""
    lent = load_framework(_LENDER).switches
    by_name = {name: lent[name] for name in switches if name in lent} | framework.switches
    needed = (n for s in switches if s in by_name for n in (*by_name[s].needs, s))
    names = list(dict.fromkeys(needed))
    if not names:
        return framework
    fields = {name: switch.model_dump() for name, switch in by_name.items()}
    return framework.replaced(switches=fields).with_switches(*names)


_OVERLAPS = (
    "overlap_gradients",
    "overlap_parameters",
    "overlap_pipeline",
    "overlap_tensor_backward",
)


def _blocking(framework: Framework) -> Framework:
    """The framework where every launch waits for its kernel, so that nothing overlaps."""
    nothing = dict.fromkeys(_OVERLAPS, False)
    return framework.replaced(
        host=framework.host.replaced(awaits_kernels=True).model_dump(),
        communication=framework.communication.replaced(**nothing).model_dump(),
        name=f"{framework.name} with blocking launches",
    )


def configured(framework: Framework, software: Software, layout: Layout) -> Framework:
    """The framework with the gradients that its runs sum and send as their scripts configure it."""
    if stages := software.all_reduced_stages:
        communication = framework.communication.replaced(all_reduced_stages=stages)
        framework = framework.replaced(communication=communication.model_dump())
    if software.plain_bf16 and layout.pp == 1:
        return framework.replaced(bf16=None)
    wire = software.sent_gradient_bytes
    if wire is None and layout.zero_stage >= 2:
        wire = usual(software).sharded_reduce_bytes
    if wire is None or framework.bf16 is None:
        return framework
    return framework.replaced(bf16=framework.bf16.replaced(reduce_bytes=wire).model_dump())


def usual(software: Software) -> Usual:
    """Defaults of the framework that stands for some software."""
    return known_labels().usual.get(software.framework, _NOTHING_USUAL)
