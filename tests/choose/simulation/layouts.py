"""Random legal layouts of every framework, with the jobs that they are of."""

from __future__ import annotations

import random
from typing import Any

from pydantic import ValidationError

from planner.choose.legality import broken
from planner.cost.scenario import Scenario
from planner.cost.shards.layouts import Layouts
from planner.describe.catalogue import load_framework, load_machine, load_model, names
from planner.describe.layout import Layout
from planner.describe.workload import Workload
from planner.errors import PlannerError

__all__ = ["legal_layouts"]

MODELS = ("llama-3-8b", "gpt2-xl", "gpt3-175b", "mixtral-8x7b", "llama-3.1-70b", "deepseek-v3")
MACHINES = ("polaris", "h100-cluster", "aurora", "frontier", "eos")
CHUNKS = {"interleaved-1f1b": (2, 3, 4, 6), "zero-bubble-v": (2,), "dualpipe-v": (2,)}


def legal_layouts(count: int, seed: int, most_stages: int = 8) -> list[tuple[Scenario, Layout]]:
    """So many of them, the same for a seed; most have a pipeline."""
    rng, found = random.Random(seed), list[tuple[Scenario, Layout]]()
    while len(found) < count:
        framework = load_framework(rng.choice(list(names("framework"))))
        schedules = [s for s in framework.schedules if s != "none"]
        if not schedules and rng.random() < 0.8:
            continue
        schedule = rng.choice(schedules) if schedules and rng.random() < 0.97 else "none"
        fields = _fields(rng, schedule, most_stages)
        try:
            layout = Layout(**fields)
            model, machine = load_model(rng.choice(MODELS)), load_machine(rng.choice(MACHINES))
            length = min(rng.choice((1024, 2048, 4096, 8192)), model.default_sequence_length)
            job = Workload(global_batch=layout.global_batch, sequence_length=length)
            scenario = Scenario(model, machine, job, framework)
            scenario.machine.peak(job.base_precision)
        except (PlannerError, ValidationError):
            continue
        if next(iter(broken(scenario, Layouts.of(layout))), None) is None:
            found.append((scenario, layout))
    return found


def _fields(rng: random.Random, schedule: str, most_stages: int) -> dict[str, Any]:
    pp = (
        1
        if schedule == "none"
        else rng.choice([p for p in (2, 3, 4, 6, 8, 16) if p <= most_stages])
    )
    passes = pp * rng.choice((1, 1, 2, 3, 4))
    if schedule != "interleaved-1f1b" and rng.random() < 0.5:
        passes = rng.randint(1, 4 * pp)
    fields = {
        "pp": pp,
        "vpp": rng.choice(CHUNKS.get(schedule, (1,))),
        "schedule": schedule,
        "grad_accumulation": passes,
        "dp": rng.choice((1, 2, 4, 8)),
        "tp": rng.choice((1, 1, 2, 4, 8)),
        "zero_stage": rng.choice((0, 1, 1, 2, 3)),
        "micro_batch": rng.choice((1, 1, 2, 4)),
        "recompute": rng.choice(("none", "none", "selective", "full")),
    }
    fields["sequence_parallel"] = fields["tp"] > 1 and rng.random() < 0.6
    for name, values, often in (
        ("first_layers", range(1, 9), 0.15),
        ("head_slots", range(4), 0.1),
        ("cp", (2,), 0.1),
        ("ep", (2, 4, 8), 0.2),
    ):
        if rng.random() < often:
            fields[name] = rng.choice(values)
    return fields
