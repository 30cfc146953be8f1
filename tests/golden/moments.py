"""Memory of every moment of a step, stage by stage, of layouts of all frameworks [B].

A peak is one moment's; the others are seen here.
"""

from __future__ import annotations

import itertools
from collections.abc import Iterator

import numpy as np

from planner.choose.legality import check
from planner.cost.memory.phases import MOMENTS, PeakInputs
from planner.cost.scenario import Scenario
from planner.cost.shards.stages import Stages
from planner.describe.catalogue import names
from planner.describe.layout import Layout
from planner.errors import LayoutError
from tests.descriptions import scenario

LAYOUTS = (
    Layout(),
    Layout(dp=4, grad_accumulation=3),
    *(
        Layout(dp=4, zero_stage=zero, grad_accumulation=passes, recompute=again)
        for zero, passes, again in itertools.product((1, 2, 3), (1, 3), ("none", "selective"))
    ),
    Layout(dp=2, tp=2, sequence_parallel=True, zero_stage=2, grad_accumulation=2),
    Layout(dp=2, tp=4, recompute="full", grad_accumulation=2),
    *(
        Layout(dp=2, pp=2, schedule="1f1b", zero_stage=zero, grad_accumulation=passes)
        for zero, passes in itertools.product((0, 1, 2, 3), (2, 8))
    ),
    Layout(dp=4, zero_stage=3, offload="all-cpu"),
    Layout(dp=4, zero_stage=3, offload="all-nvme", tiles=4),
)
MODELS = ("gpt2-xl", "llama-3-8b", "mixtral-8x7b")


def cases() -> Iterator[tuple[str, Scenario, Layout]]:
    """Every legal combination; models take turns."""
    for number, (framework, layout) in enumerate(itertools.product(names("framework"), LAYOUTS)):
        model = MODELS[number % len(MODELS)]
        job = scenario(model, framework, sequence_length=1024, global_batch=layout.global_batch)
        try:
            check(job, layout)
        except LayoutError:
            continue
        yield f"{model} {framework} {layout}", job, layout


def moments() -> dict[str, dict[str, list[int]]]:
    """Bytes of every moment by case, one figure a stage."""
    return {name: _moments(job, layout) for name, job, layout in cases()}


def _moments(job: Scenario, layout: Layout) -> dict[str, list[int]]:
    sheet = PeakInputs.of(Stages.of_pipeline(job, layout))
    found = {}
    for name, moment in MOMENTS.items():
        alive = moment(sheet)
        total = sum(getattr(alive, part) for part in type(alive).__slots__)
        found[name] = [round(float(value)) for value in np.ravel(total)]
    return found
