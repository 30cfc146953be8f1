"""Choices that the row of a run leaves open: the fastest that fits, as in a tuned run.

Published runs were tuned before they were printed. Where a row does not state a choice, the planner
takes the one that it ranks first, with a note in the row. The memory of a run shows which of two
builds ran.
"""

from __future__ import annotations

import itertools
import math
from dataclasses import replace

import numpy as np
from numpy.typing import NDArray

from planner.choose.legality import legal
from planner.choose.search import enumerate_layouts, rank_fastest
from planner.cost.estimate import estimate_layouts
from planner.cost.memory.footprint import stage_memory
from planner.cost.operators.backward import selective_frees_nothing
from planner.cost.parts import MemoryKind, unseen_parts
from planner.cost.scenario import Scenario
from planner.cost.shards.layouts import Layouts
from planner.describe.framework.framework import Framework
from planner.describe.layout import RECOMPUTE, Layout
from planner.errors import PlannerError
from planner.evidence.runs.cells import Cells
from planner.evidence.runs.labels import Software
from planner.evidence.runs.reading import Note, Reading, as_stated, assumed, guessed
from planner.evidence.runs.run_layout import StatedLayout

__all__ = ["choose_build", "choose_layout", "first_stage_bytes", "tune_layout"]

_MICRO_BATCHES = (1, 2, 4, 8, 16, 32, 64)
_ALIKE = 0.01
"""Builds whose memory differs by less cannot be told apart."""
_STATED_COLUMNS = ("micro_batch", "grad_accumulation", "cp", "ep", "vpp", "zero_stage")
_COLUMNS = {"grad_accumulation": "grad_accum"}


def tune_layout(cells: Cells, scenario: Scenario, stated_layout: StatedLayout) -> Reading[Layout]:
    """The layout of a row with the fastest micro-batch and virtual stages that fit.

    Counted: only what the row leaves open, and virtual stages only where it says nothing of the
    micro-batch either. A run that failed, and one that nothing makes fit, keeps its layout.
    """
    layout = stated_layout.layout
    if not stated_layout.batches.micro_batch_is_open:
        return as_stated(layout)
    options = _options(cells, scenario, layout)
    estimates = estimate_layouts(scenario, options)
    best = rank_fastest(estimates, 1)
    if cells.flag("oom") or not len(best):
        return assumed(layout, f"micro_batch missing: {layout.micro_batch}")
    layout = options[int(best[0])]
    notes = [Note(f"micro_batch missing: {layout.micro_batch}, the fastest that fits")]
    if layout.pp > 1 and cells.count("vpp") is None:
        notes.append(Note(f"vpp missing: {layout.vpp}, the fastest that fits"))
    return Reading(layout, tuple(notes))


def _options(cells: Cells, scenario: Scenario, layout: Layout) -> Layouts:
    """List the layouts that a row can mean."""
    per_replica = layout.micro_batch * layout.grad_accumulation
    micro = [m for m in _MICRO_BATCHES if per_replica % m == 0]
    vpp = [layout.vpp]
    if layout.pp > 1 and cells.count("vpp") is None:
        vpp = list(range(1, scenario.model.num_layers // layout.pp + 1))
    layouts = Layouts.stack(
        layout.replaced(
            micro_batch=m,
            grad_accumulation=per_replica // m,
            vpp=v,
            schedule="interleaved-1f1b" if v > 1 else layout.schedule,
        )
        for m, v in itertools.product(micro, vpp)
    )
    mask, _ = legal(scenario, layouts, {"pp", "vpp", "schedule", "grad_accumulation"})
    return layouts.take(mask)


def choose_layout(
    cells: Cells, software: Software, scenario: Scenario, num_ranks: int
) -> Reading[Layout]:
    """The fastest layout that fits and agrees with what the row states.

    Sharding and recompute that the row does not state are the framework's usual ones where
    anything fits with them. PlannerError where nothing does.
    """
    layouts = _run_by_people(scenario, enumerate_layouts(scenario, num_ranks)[0])
    layouts = layouts.take(_agreeing(cells, layouts))
    usual = layouts.take(
        (layouts.recompute == RECOMPUTE.index(software.recompute))
        & (layouts.zero_stage == software.zero_stage)
    )
    for offered in (usual, layouts):
        if len(offered) and len(best := rank_fastest(estimate_layouts(scenario, offered), 1)):
            layout = offered[int(best[0])]
            return guessed(layout, f"dp, tp and pp missing: {layout}, the fastest that fits")
    raise PlannerError("dp, tp and pp are empty, and no such layout fits; fill them in")


def _run_by_people(scenario: Scenario, layouts: Layouts) -> Layouts:
    """Candidates, and those with selective recompute that frees nothing, which is not searched."""
    if "selective" not in scenario.framework.recompute or not selective_frees_nothing(scenario):
        return layouts
    none = layouts.take(layouts.recompute == RECOMPUTE.index("none"))
    mode = np.full_like(none.recompute, RECOMPUTE.index("selective"))
    return Layouts.joined([layouts, replace(none, recompute=mode)])


def _agreeing(cells: Cells, layouts: Layouts) -> NDArray[np.bool_]:
    """Layouts with the degrees and choices that the row states, and nothing offloaded."""
    mask = layouts.offload == 0
    for name in _STATED_COLUMNS:
        value = cells.count(_COLUMNS.get(name, name), zero=True)
        if value is not None:
            mask = mask & (getattr(layouts, name) == value)
    stated_recompute = [mode for mode in RECOMPUTE if mode in cells.text("recompute").lower()]
    if stated_recompute:
        mask = mask & (layouts.recompute == RECOMPUTE.index(stated_recompute[0]))
    return np.asarray(mask)


def choose_build(
    software: Software, scenario: Scenario, layout: Layout, memory: tuple[float | None, MemoryKind]
) -> Reading[Framework]:
    """The framework as it was built: of two builds the one whose memory is nearer to the run's.

    Without a note where the software has one build, no memory was measured, or both take as much.
    """
    framework, (peak, kind) = scenario.framework, memory
    if software.other_build is None or peak is None or layout.tp == 1:
        return as_stated(framework)
    kernels = framework.kernels.replaced(**software.other_build.changes()).model_dump()
    builds = (framework, framework.replaced(kernels=kernels))
    sizes = [first_stage_bytes(replace(scenario, framework=each), layout, kind) for each in builds]
    if math.isclose(*sizes, rel_tol=_ALIKE):
        return as_stated(framework)
    distance, second = (abs(math.log(size / peak)) for size in sizes)
    how = " and ".join(name.replace("_", " ") for name in software.other_build.changes())
    sentence = f"build missing: {how}{' not' * (distance <= second)}, nearer to the memory"
    return assumed(builds[distance > second], sentence)


def first_stage_bytes(scenario: Scenario, layout: Layout, kind: MemoryKind) -> float:
    """Memory of a pipeline's first stage that a way of measuring sees [B]."""
    parts = stage_memory(scenario, layout)[0]
    return sum(parts.values()) - sum(parts[name] for name in unseen_parts(kind))
