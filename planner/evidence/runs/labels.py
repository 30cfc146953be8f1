"""Labels: what the words of a row mean, by `labels.toml` and the catalogue, and its software."""

from __future__ import annotations

import functools
import re
from pathlib import Path
from typing import Any, Literal

from pydantic import Field

from planner.describe.base import Description, Quantity
from planner.describe.catalogue import load_framework, names
from planner.describe.files import read_toml
from planner.describe.framework.framework import Framework
from planner.describe.layout import Layout
from planner.describe.workload import TrainingPrecision
from planner.errors import PlannerError, shorten
from planner.evidence.runs.cells import Cells, Note


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
    """A bf16 gradient on the wire where gradients are sharded (ZeRO-2 and 3); None: as described
    [B]."""


class Software(Sourced):
    """Framework behind a label of software, and defaults of such runs."""

    words: tuple[str, ...]
    """All of them occur in the label."""
    noted: str = ""
    """Words that the notes must hold as well; empty: any."""
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
    changes: dict[str, Any] = Field(default_factory=dict)
    """Traits that its recipes or launchers set: `section.field` of the framework, or `field`."""
    changes_without_pipeline: dict[str, Any] = Field(default_factory=dict)
    """Traits that they set besides where pp is 1; an empty table takes the section away."""
    other_build: dict[str, Any] = Field(default_factory=dict)
    """Traits of a second build, which runs do not state but their memory tells."""
    first_stage_memory: bool = False
    """Whether the memory that it prints is of the pipeline's first stage, else of the fullest."""
    compiles: bool = False
    """Whether its runs compile their model."""
    compiled_changes: dict[str, Any] = Field(default_factory=dict)
    """Traits that differ from the switch `compile` where its runs compile."""


Where = dict[str, list[str]]
"""Words by column: one of each column's occurs in its cell."""


class Switch(Sourced):
    """A switch of frameworks, as words of a row say that it is on."""

    name: str
    where: Where


class CellRule(Sourced):
    """Cells that other cells of a row mean."""

    where: Where
    replace: dict[str, str] = Field(default_factory=dict)
    """Cells that are written whatever stands there."""
    fill: dict[str, str] = Field(default_factory=dict)
    """Cells that are written where they are empty."""


class Labels(Description):
    """The file `labels.toml`."""

    devices: tuple[Meanings, ...]
    """Spellings of devices in the catalogue's product names."""
    slower_links: tuple[SlowerLinks, ...]
    usual_machines: tuple[str, ...]
    """Machines that stand for a device where no system is named, in the order of trial."""
    rates: dict[str, str]
    """Common form of counts and rates of interfaces, by pattern."""
    infiniband: dict[str, int]
    """Rate of a generation [Gb/s], by pattern."""
    precisions: tuple[Meanings, ...]
    words: dict[str, list[str]]
    """Single words that decide something, by what they mean."""
    adapter_rank: Quantity
    """Rank of adapters where a row does not say."""
    switches: tuple[Switch, ...]
    """Switches that rows state, besides `compile`, which has its own column."""
    cells: tuple[CellRule, ...]
    """Cells that others mean, all that match."""
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


def _occurs(where: Where, cells: Cells) -> bool:
    texts = {column: normalised(cells.text(column)) for column in where}
    return all(any(w in texts[column] for w in words) for column, words in where.items())


def canonical(cells: Cells) -> Cells:
    """The cells with what labels mean written in the cells of other columns.

    >>> canonical(Cells({"fsdp_sharding": "distributed_fused_adam"})).text("zero_stage")
    '1'
    """
    row, notes = dict(cells.row), list(cells.notes)
    for rule in known_labels().cells:
        if not _occurs(rule.where, cells):
            continue
        filled = {column: text for column, text in rule.fill.items() if not cells.text(column)}
        sentences = [f"{name} missing: {text}" for name, text in filled.items()]
        sentences += [f"{name} is taken as {text}" for name, text in rule.replace.items()]
        notes += [Note(f"{sentence}, as the row's labels mean") for sentence in sentences]
        row |= filled | rule.replace
    return Cells(row, notes)


# --- software ---------------------------------------------------------------------------------


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


def software_of(cells: Cells) -> Software:
    """Find the software of a row, or its nearest description."""
    label, year = cells.text("framework"), year_of(cells.text("year"))
    software = software_of_label(label, year, cells.text("notes"))
    short_label = shorten(label, 40)
    if software is None:
        name = _likely_framework(cells)
        nearest = software_of_label(name, year)
        assert nearest is not None
        sentence = (
            f"{short_label!r} is not described; as {name}"
            if label
            else f"framework missing: {name}"
        )
        return cells.assume(nearest, sentence, guess=True)
    if software.stands_in:
        cells.assume(software, f"{short_label} is not described; as {software.framework}")
    return software


def _likely_framework(cells: Cells) -> str:
    """Guess the framework of a row from its degrees and its sharding."""
    if max(cells.count(axis) or 1 for axis in ("tp", "pp", "cp", "ep")) > 1:
        return "megatron-lm"
    sharded = cells.count("zero_stage", zero=True)
    if sharded is None:
        return "fsdp2" if cells.text("framework") else "ddp"
    return "fsdp2" if sharded >= 2 else "deepspeed" if sharded else "ddp"


def switches_of(cells: Cells, software: Software) -> tuple[str, ...]:
    """Switches that a run had on.

    >>> cells = Cells({"compile": "yes", "framework": "FSDP2 + AsyncTP"})
    >>> switches_of(cells, software_of(cells))
    ('compile', 'async-tp')
    """
    label = cells.text("compile").lower()
    if software.compiles and not label:
        label = cells.assume("yes", "compile missing: yes, usual there")
    on = [] if label in known_labels().words["not_compiled"] else ["compile"]
    on += [switch.name for switch in known_labels().switches if _occurs(switch.where, cells)]
    return tuple(dict.fromkeys(on))


_LENDER = "accelerate"
"""The framework whose switches are taken where a run's framework has none of the name."""


def described_framework(software: Software, switches: tuple[str, ...] = ()) -> Framework:
    """A framework of the catalogue with the changes and switches of a run's recipes."""
    changes = software.changes | (software.compiled_changes if "compile" in switches else {})
    return changed(_switched(software.framework, switches), changes)


@functools.cache
def _switched(name: str, switches: tuple[str, ...]) -> Framework:
    framework: Framework = load_framework(name)
    lent = load_framework(_LENDER).switches
    by_name = {name: lent[name] for name in switches if name in lent} | framework.switches
    needed = (n for s in switches if s in by_name for n in (*by_name[s].needs, s))
    if on := list(dict.fromkeys(needed)):
        fields = {name: switch.model_dump() for name, switch in by_name.items()}
        framework = framework.replaced(switches=fields).with_switches(*on)
    return framework


def changed(framework: Framework, changes: dict[str, Any]) -> Framework:
    """A framework with other traits, by `section.field` or `field`; no value takes one away."""
    fields: dict[str, Any] = {}
    for path, value in changes.items():
        section, _, name = path.partition(".")
        if name:
            traits = fields.get(section) or getattr(framework, section).model_dump()
            fields[section] = {**traits, name: value}
        else:
            fields[section] = value or None
    return framework.replaced(**fields) if fields else framework


def configured(framework: Framework, software: Software, layout: Layout) -> Framework:
    """The framework as its runs configure it for a layout: bf16 gradients, and without pipeline."""
    if layout.pp == 1 and software.changes_without_pipeline:
        return changed(framework, software.changes_without_pipeline)
    wire = usual(software).sharded_reduce_bytes if layout.zero_stage >= 2 else None
    if wire is None or framework.bf16 is None:
        return framework
    return changed(framework, {"bf16.reduce_bytes": wire})


def usual(software: Software) -> Usual:
    """Defaults of the framework that stands for some software."""
    nothing = Usual(source="the framework's description")
    return known_labels().usual.get(software.framework, nothing)
