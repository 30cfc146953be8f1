"""Labels of published tables that no user's own table has: canonical cells, and frameworks as run.

What the labels mean is data with sources, in `source_labels.toml`.
"""

from __future__ import annotations

import functools
import math
from collections.abc import Mapping
from dataclasses import replace
from pathlib import Path

from canonical import PublishedRun
from pydantic import Field

from planner.cost.memory.footprint import stage_memory
from planner.cost.parts import unseen_parts
from planner.describe.base import Description
from planner.describe.files import read_toml
from planner.describe.framework.framework import Framework
from planner.describe.layout import Layout
from planner.evidence.runs.labels import normalised, year_of
from planner.evidence.runs.run import RefusedRun

Row = Mapping[str, str]

_WAITING = "dominated by io"
"""Words of notes that say that a step waits for its input."""
_ALIKE = 0.01
"""Builds whose memory differs by less cannot be told apart."""
_OVERLAPS = (
    "overlap_gradients",
    "overlap_parameters",
    "overlap_pipeline",
    "overlap_tensor_backward",
)


class OtherName(Description):
    """A model that a framework's tables call by a name that others use for another."""

    label: str
    """The column `model`."""
    framework: str
    """A word of the column `framework`."""
    name: str
    """Name in the catalogue."""
    source: str = Field(min_length=6)


class CellRule(Description):
    """Cells that labels mean."""

    where: dict[str, str]
    """Words of columns that all occur."""
    replace: dict[str, str] = Field(default_factory=dict)
    """Cells that are written whatever stands there."""
    fill: dict[str, str] = Field(default_factory=dict)
    """Cells that are written where they are empty."""
    append: dict[str, str] = Field(default_factory=dict)
    """Words that are added to cells."""
    source: str = Field(min_length=6)


class SourceLabels(Description):
    """The file `source_labels.toml`."""

    models: tuple[OtherName, ...]
    cells: tuple[CellRule, ...]


@functools.cache
def source_labels() -> SourceLabels:
    """Read what labels of published tables mean."""
    path = Path(__file__).with_name("source_labels.toml")
    return SourceLabels.described(read_toml(path), where=path.name)


def canonical_cells(row: Row) -> dict[str, str]:
    """The row in words that a user's table has."""
    cells, notes = dict(row), []
    for model in source_labels().models:
        framework = normalised(row["framework"]).split()
        if normalised(row["model"]) == model.label and model.framework in framework:
            cells["model"] = model.name
    for rule in source_labels().cells:
        if all(_has(row, column, words) for column, words in rule.where.items()):
            cells |= rule.replace
            filled = {column: text for column, text in rule.fill.items() if not cells[column]}
            notes += [
                f"{column} missing: {text}, as the label means" for column, text in filled.items()
            ]
            cells |= filled
            cells |= {column: cells[column] + text for column, text in rule.append.items()}
    return {**cells, "assumed": "; ".join(notes)}


def _has(row: Row, column: str, words: str) -> bool:
    return words in normalised(row.get(column, ""))


def as_run(run: PublishedRun | RefusedRun, row: Row) -> PublishedRun | RefusedRun:
    """The run of a row with the framework as its source configured it."""
    if _has(row, "notes", _WAITING):
        reason = (
            f"notes say {_WAITING!r}: a step is estimated without waiting for its input; give the "
            "time without it"
        )
        return RefusedRun(run.row_id, run.source, reason)
    if isinstance(run, RefusedRun):
        return run
    label, year = normalised(row["framework"]), year_of(row["year"]) or 9999
    run = replace(run, open_recompute=not row["recompute"])
    framework = run.framework
    if "megatron deepspeed bigscience" in label and year > 2021:
        framework = blocking(framework)
    if "megatron deepspeed alcf" in label:
        framework = as_alcf_runs_it(framework, run.layout)
    if "llm foundry" in label and _has(row, "notes", "mixed precision default"):
        framework = reduced_in_fp32(framework)
    run = replace(run, framework=framework)
    return with_build(run) if "nanotron" in label else run


def _with_kernels(framework: Framework, **changes: object) -> Framework:
    return framework.replaced(kernels=framework.kernels.replaced(**changes).model_dump())


def blocking(framework: Framework) -> Framework:
    """The framework where every launch waits for its kernel, so that nothing overlaps.

    bigscience @003b2505, train/tr11-176B-ml: chronicles-prequel.md, dealing with JZ hanging, and
    every script since: CUDA_LAUNCH_BLOCKING=1.
    """
    nothing = dict.fromkeys(_OVERLAPS, False)
    return framework.replaced(
        host=framework.host.replaced(awaits_kernels=True).model_dump(),
        communication=framework.communication.replaced(**nothing).model_dump(),
        name=f"{framework.name} with blocking launches",
    )


def as_alcf_runs_it(framework: Framework, layout: Layout) -> Framework:
    """Megatron-DeepSpeed with the gradients that ALCF's launcher sums and sends.

    argonne-lcf/Megatron-DeepSpeed@ffa3456d, ALCF/helpers.sh: reduce_scatter false in ZeRO-3; no
    communication_data_type in bf16, and 3,788 MiB of all-reduces a step for 1.986 B parameters in
    ALCF/notes/cooldown.md; generateDSconfig sets grad_accum_dtype to fp32 only where PP > 1, else
    engine.py of DeepSpeed 0.17.5 takes stage_1_and_2.py, not BF16_Optimizer: cooldown.md prints
    3.71 GB after a step, the 16-bit weights alone.
    """
    communication = framework.communication.replaced(all_reduced_stages=(1, 2, 3))
    framework = framework.replaced(communication=communication.model_dump())
    if layout.pp == 1 or framework.bf16 is None:
        return framework.replaced(bf16=None)
    return framework.replaced(bf16=framework.bf16.replaced(reduce_bytes=2.0).model_dump())


def reduced_in_fp32(framework: Framework) -> Framework:
    """llm-foundry @b2a43a147 (2023-10-19), scripts/train/benchmarking: gradients reduced in fp32
    (composer v0.16.4, mosaic_fsdp_utils.py: DEFAULT); sweep.sh: torch 2.1, dist_strategy.py:
    CheckpointImpl.NO_REENTRANT."""
    mixed = framework.mixed.replaced(gradient_bytes=4.0, reduce_bytes=4.0).model_dump()
    return _with_kernels(framework.replaced(mixed=mixed), stops_early=True)


def with_build(run: PublishedRun) -> PublishedRun:
    """A run of nanotron as it was built: of two builds the one whose memory is nearer to the run's.

    huggingface/nanotron, parallelism_config.py: tp_recompute_allgather keeps gathered inputs where
    it is off. Unchanged where no memory was measured, or both take as much.
    """
    if run.memory_bytes is None or run.layout.tp == 1:
        return run
    builds = (run, replace(run, framework=_with_kernels(run.framework, saves_gathered=True)))
    sizes = [_memory(build) for build in builds]
    if math.isclose(*sizes, rel_tol=_ALIKE):
        return run
    distance, second = (abs(math.log(size / run.memory_bytes)) for size in sizes)
    negation = " not" * (distance <= second)
    sentence = f"build missing: saves gathered{negation}, nearer to the memory"
    assumed = (*run.assumed, sentence)
    return replace(builds[distance > second], assumed=assumed, told_by_memory=True)


def _memory(run: PublishedRun) -> float:
    """Memory of the pipeline's first stage that the run's way of measuring sees [B]."""
    parts = stage_memory(run.scenario, run.layout)[0]
    return sum(parts.values()) - sum(parts[name] for name in unseen_parts(run.memory_kind))
