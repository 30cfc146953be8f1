"""Labels: meanings of a row's words, from `labels.toml` and the catalogue, and its software."""

import functools
import re
from pathlib import Path
from typing import Any, Literal

from pydantic import Field

from planner.cost.constants import load
from planner.describe.base import Description, Quantity
from planner.describe.catalogue import load_framework, names
from planner.describe.framework.framework import Framework
from planner.describe.layout import Layout
from planner.describe.workload import TrainingPrecision
from planner.errors import PlannerError, shorten
from planner.evidence.runs.cells import Cells, Note


class Sourced(Description):
    """A fact with its source."""

    source: str = Field(min_length=6)
    """Source of the fact; it says so if the fact is assumed."""


class Meanings(Sourced):
    """Words of a label and their meanings."""

    words: dict[str, str]
    """Meaning by word; the first word found wins."""


class SlowerLinks(Sourced):
    """A device that is another catalogue device with slower links."""

    device: str
    """Device named in a row."""
    like: str
    """Device whose profile is used."""
    overrides: tuple[str, ...]
    """Differences from that profile, as `section.field=value`."""


class Usual(Sourced):
    """Defaults for runs of a framework."""

    dropout: float = Field(default=0.0, ge=0, lt=1)
    """Dropout of a GPT."""
    precision: TrainingPrecision | None = None
    """Training precision; None: bf16 if the device has it, else fp16."""
    data_parallel_unless_stated: bool = False
    """True if a row without degrees means pure data parallelism."""
    zero_stage_with_pipeline: int | None = None
    """ZeRO stage that replaces ZeRO-3 with a pipeline; None: ZeRO-3 stays."""
    sharded_reduce_bytes: float | None = Field(default=None, gt=0)
    """Bytes of a bf16 gradient on the wire in ZeRO-2 and 3 [B]; None: as the framework says."""


class Software(Sourced):
    """Framework behind a software label, and defaults of its runs."""

    words: tuple[str, ...]
    """Words that must all occur in the label."""
    noted: str = ""
    """Words that the row's notes must contain as well; empty: any notes."""
    framework: str
    """Name in the catalogue."""
    zero_stage: int = Field(default=0, ge=0, le=3)
    """ZeRO stage."""
    recompute: Literal["none", "selective", "full"] = "none"
    """Activation recompute."""
    sequence_parallel: bool = False
    """True if norms are split over tp."""
    until_year: int = 9999
    """Last year in which the label means this."""
    flash_since: int = 2023
    """First year whose runs used fused attention."""
    stands_in: bool = False
    """True if the framework is only the nearest to the label's software; noted in the row."""
    whole_experts: bool = False
    """True if its recipes do not split experts under tensor parallelism."""
    pipeline_micro_batches: Literal["tuned", "stages", "single"] = "tuned"
    """Split of a batch in a pipeline: fastest, micro-batches as stages, or single sequences."""
    changes: dict[str, Any] = Field(default_factory=dict)
    """Traits that its recipes or launchers set: `section.field` of the framework, or `field`."""
    changes_without_pipeline: dict[str, Any] = Field(default_factory=dict)
    """Further traits that they set if pp is 1; an empty table removes the section."""
    other_build: dict[str, Any] = Field(default_factory=dict)
    """Traits of a second build; rows do not state the build, but their memory reveals it."""
    first_stage_memory: bool = False
    """True if it prints the memory of the first pipeline stage; False: of the fullest stage."""
    compiles: bool = False
    """True if its runs compile their model."""
    compiled_changes: dict[str, Any] = Field(default_factory=dict)
    """Traits of compiled runs that differ from the switch `compile`."""


Where = dict[str, list[str]]
"""Words by column: a row matches if every cell contains one of its column's words."""


class Switch(Sourced):
    """A switch of frameworks, and the words in a row that turn it on."""

    name: str
    where: Where


class CellRule(Sourced):
    """Cells that other cells of a row imply."""

    where: Where
    replace: dict[str, str] = Field(default_factory=dict)
    """Cells that are overwritten."""
    fill: dict[str, str] = Field(default_factory=dict)
    """Cells that are filled if empty."""


class Labels(Description):
    """The file `labels.toml`."""

    devices: tuple[Meanings, ...]
    """Spellings of devices, and their product names in the catalogue."""
    slower_links: tuple[SlowerLinks, ...]
    usual_machines: tuple[str, ...]
    """Machines used for a device if the row names no system, in order of trial."""
    rates: dict[str, str]
    """Common form of counts and rates of network interfaces, by pattern."""
    infiniband: dict[str, int]
    """Rate of an InfiniBand generation [Gb/s], by pattern."""
    precisions: tuple[Meanings, ...]
    words: dict[str, list[str]]
    """Single words that decide something, by their meaning."""
    adapter_rank: Quantity
    """Rank of adapters if a row states none."""
    switches: tuple[Switch, ...]
    """Switches that rows state, except `compile`, which has its own column."""
    cells: tuple[CellRule, ...]
    """Rules for implied cells; all that match apply."""
    usual: dict[str, Usual]
    """Defaults by framework name."""
    software: tuple[Software, ...]
    """Software labels; the first match wins."""


@functools.cache
def known_labels() -> Labels:
    """Read the meanings of labels."""
    return load(Path(__file__).with_name("labels.toml"), Labels)


def normalised(label: str) -> str:
    """Lower-case a label, and turn all but letters, digits and dots into single blanks."""
    return " ".join(re.findall(r"[a-z0-9.]+", label.lower()))


def year_of(label: str) -> int | None:
    """Return the first year in a label; container versions such as 25.09 count as years."""
    year = re.search(r"(?:19|20)\d\d", label)
    if year:
        return int(year[0])
    release = re.match(r"(\d\d)\.\d\d\b", label.strip())
    return 2000 + int(release[1]) if release else None


def month_of(label: str) -> str:
    """Return the month in a label, December of the first year without a month; else empty."""
    month = re.search(r"(20\d\d)-(0[1-9]|1[0-2])\b", label)
    release = re.match(r"(\d\d)\.(0[1-9]|1[0-2])\b", label.strip())
    if month:
        return month[0]
    if release:
        return f"20{release[1]}-{release[2]}"
    year = year_of(label)
    return f"{year}-12" if year else ""


def precision_of(label: str) -> str | None:
    """Return the training precision of a label; None if it names none."""
    text = normalised(label)
    if "fp4" in text:
        raise PlannerError(f"precision = {shorten(label, 40)!r}: 4-bit training is not modelled")
    pairs = (pair for row in known_labels().precisions for pair in row.words.items())
    return next((name for word, name in pairs if word in text), None)


def _occurs(where: Where, cells: Cells) -> bool:
    texts = {column: normalised(cells.text(column)) for column in where}
    return all(any(w in texts[column] for w in words) for column, words in where.items())


def canonical(cells: Cells) -> Cells:
    """Write the cells that other cells of a row imply."""
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


def software_of_label(label: str, year: int | None, notes: str = "") -> Software | None:
    """Find the software behind a label; None if no description matches."""
    text, noted = normalised(label), normalised(notes)
    for row in (*known_labels().software, *_catalogue()):
        named = all(word in text for word in row.words) and row.noted in noted
        if named and (year or 9999) <= row.until_year:
            return row
    return None


@functools.cache
def _catalogue() -> tuple[Software, ...]:
    """List every catalogue framework under its own names, the longest first."""
    rows = [
        Software(words=(normalised(name),), framework=name, source=load_framework(name).source)
        for name in names("framework")
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
            f"{short_label!r} is not described; treated as {name}"
            if label
            else f"framework missing: {name}"
        )
        return cells.assume(nearest, sentence, guess=True)
    if software.stands_in:
        cells.assume(software, f"{short_label} is not described; treated as {software.framework}")
    return software


def _likely_framework(cells: Cells) -> str:
    if max(cells.count(axis) or 1 for axis in ("tp", "pp", "cp", "ep")) > 1:
        return "megatron-lm"
    sharded = cells.count("zero_stage", zero=True)
    if sharded is None:
        return "fsdp2" if cells.text("framework") else "ddp"
    return "fsdp2" if sharded >= 2 else "deepspeed" if sharded else "ddp"


def switches_of(cells: Cells, software: Software) -> tuple[str, ...]:
    """List the switches that a run had on."""
    label = cells.text("compile").lower()
    if software.compiles and not label:
        label = cells.assume("yes", "compile missing: yes, usual there")
    on = [] if label in known_labels().words["not_compiled"] else ["compile"]
    on += [switch.name for switch in known_labels().switches if _occurs(switch.where, cells)]
    return tuple(dict.fromkeys(on))


_LENDER = "accelerate"
"""Framework whose switch is used if the run's own framework has none of that name."""


def described_framework(
    software: Software, switches: tuple[str, ...] = (), month: str = ""
) -> Framework:
    """Load a catalogue framework with the changes and switches of a run's recipes, at a month."""
    changes = software.changes | (software.compiled_changes if "compile" in switches else {})
    dated = {"software_date": month} if month else {}
    return changed(_switched(software.framework, switches), changes | dated)


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
    """Change traits of a framework, by `section.field` or `field`; an empty value removes it."""
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
    """Configure a framework for a layout as its runs do: without a pipeline, and bf16 gradients."""
    if layout.pp == 1 and software.changes_without_pipeline:
        return changed(framework, software.changes_without_pipeline)
    wire = usual(software).sharded_reduce_bytes if layout.zero_stage >= 2 else None
    if wire is None or framework.bf16 is None:
        return framework
    return changed(framework, {"bf16.reduce_bytes": wire})


def usual(software: Software) -> Usual:
    """Return the defaults for runs of a software's framework."""
    nothing = Usual(source="the framework's description")
    return known_labels().usual.get(software.framework, nothing)
