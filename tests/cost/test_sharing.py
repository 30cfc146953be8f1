"""Sharing: what layouts have in common is worked out once, and no estimate can tell."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace

import numpy as np
import pytest

from planner.choose.search import enumerate_layouts
from planner.cost.arrays import Float
from planner.cost.estimate import Estimates, estimate_fitting, estimate_layouts
from planner.cost.scenario import Scenario
from planner.cost.shards.layouts import Layouts
from planner.describe.layout import OFFLOAD, RECOMPUTE, SCHEDULES
from tests.descriptions import scenario as asked

JOBS: dict[str, tuple[str, str, str, int, int, dict[str, object]]] = {
    # model, machine, framework, ranks, batch, what else is asked
    "megatron": ("llama-3-8b", "polaris", "megatron-lm", 64, 256, {}),
    "fsdp": ("llama-3-8b", "polaris", "fsdp2", 64, 64, {}),
    "deepspeed": ("gpt2-xl", "vsc-5", "deepspeed", 8, 64, {"attention": "eager"}),
    "experts": ("mixtral-8x7b", "dgx-a100", "megatron-lm", 64, 512, {}),
    "latent": ("deepseek-v3", "eos", "megatron-deepep", 1024, 8192, {"precision": "fp8"}),
    "adapters": ("llama-3-8b", "polaris", "fsdp2", 16, 64, {"lora_rank": 16}),
    "sorted by cost": ("llama-3-8b", "eos", "nanotron", 64, 256, {}),
}
NUM_LAYOUTS = 12
"""Which differ in much; every one has neighbours that differ from it in one column."""
EVERY = 2
"""Of which so many are estimated alone."""


def neighbours(some: Layouts) -> Iterator[Layouts]:
    """The same layouts with one column changed, whether that is legal or not."""
    for name in ("dp", "tp", "cp", "micro_batch", "grad_accumulation", "tiles"):
        yield replace(some, **{name: 2 * getattr(some, name)})
    yield replace(some, ep=np.where(some.ep > 1, 2 * some.ep, 1))
    yield replace(some, pp=np.where(some.piped, 2 * some.pp, 1))
    yield replace(
        some, vpp=np.where(some.uses_schedule("interleaved-1f1b"), 2 * some.vpp, some.vpp)
    )
    yield replace(some, dp_shard=np.maximum(some.dp_shard // 2, 1))
    yield replace(some, zero_stage=(some.zero_stage + 1) % 4)
    yield replace(some, reshard=np.where(some.shards_weights, 2, 0))
    yield replace(some, sequence_parallel=1 - some.sequence_parallel)
    yield replace(some, etp=np.where(some.ep > 1, some.tp, 0))
    yield replace(some, offload=(some.offload + 1) % len(OFFLOAD))
    yield replace(some, offload_activations=1 - some.offload_activations)
    yield replace(some, embedding_slots=np.where(some.piped, 1, -1))
    yield replace(some, head_slots=np.where(some.piped, 1, -1))
    full = some.recomputes_layers
    yield replace(some, recompute=np.where(full, RECOMPUTE.index("none"), RECOMPUTE.index("full")))
    yield replace(some, recompute_layers=np.where(full, 1, 0))
    yield replace(some, recompute_every=np.where(full, 2, 1))
    plain = some.piped & (some.vpp == 1)
    flat = np.where(some.uses_schedule("gpipe"), SCHEDULES.index("1f1b"), SCHEDULES.index("gpipe"))
    yield replace(some, schedule=np.where(plain, flat, some.schedule))


def some_layouts(name: str) -> tuple[Scenario, Layouts]:
    """Candidates of all kinds and their neighbours, in no order."""
    model, machine, framework, world, batch, more = JOBS[name]
    scenario = asked(model, framework, machine, sequence_length=2048, global_batch=batch, **more)
    every, _ = enumerate_layouts(scenario, world)
    mixed = np.random.default_rng(7)
    some = every.take(mixed.choice(len(every), min(NUM_LAYOUTS, len(every)), replace=False))
    changed = Layouts.joined(list(neighbours(some)))
    around = Layouts.joined([some, changed])
    # experts lie on ranks that there are
    there = around.with_default_etp(scenario.framework).expert_dp > 0
    around = around.take(np.flatnonzero(there))
    return scenario, around.take(mixed.permutation(len(around)))


def figures(found: Estimates) -> dict[str, Float]:
    parts: dict[str, Float] = {f"time {k}": v for k, v in found.time_parts_s.items()}
    parts |= {f"memory {k}": v for k, v in found.memory_parts_bytes.items()}
    parts |= {f"host {k}": v for k, v in found.host_parts_bytes.items()}
    return parts | {"disk": found.disk_bytes, "stage": found.worst_stage.astype(float)}


@pytest.mark.slow
@pytest.mark.parametrize("name", JOBS)
def test_a_set_in_any_order_is_estimated_as_one_by_one(name: str) -> None:
    scenario, layouts = some_layouts(name)
    together = figures(estimate_layouts(scenario, layouts))
    for row in range(0, len(layouts), EVERY):
        alone = figures(estimate_layouts(scenario, layouts.take(np.array([row]))))
        for part, values in alone.items():
            assert together[part][row] == pytest.approx(values[0], rel=1e-12), (part, layouts[row])


@pytest.mark.parametrize("name", JOBS)
def test_those_that_fit_are_estimated_as_among_all(name: str) -> None:
    scenario, layouts = some_layouts(name)
    every = estimate_layouts(scenario, layouts)
    taken, found = estimate_fitting(scenario, layouts)
    assert taken.fits.tolist() == every.fits.tolist()
    assert len(found) == every.fits.sum() > 0
    for part, values in figures(found).items():
        np.testing.assert_array_equal(values, figures(every)[part][every.fits], err_msg=part)
