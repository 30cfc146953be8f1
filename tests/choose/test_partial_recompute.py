"""Less recompute: between none and full the search finds what trying everything finds."""

from __future__ import annotations

import itertools

import numpy as np
import pytest

from planner.choose.legality import legal
from planner.choose.preferences import preferences
from planner.choose.search import search
from planner.choose.search.candidates import fits_safely
from planner.cost.arrays import Mask
from planner.cost.estimate import Estimates, estimate_times
from planner.cost.memory.footprint import footprints
from planner.cost.operators.backward import FREES_NOTHING
from planner.cost.scenario import Scenario
from planner.cost.shards.layout_codes import module_bits
from planner.cost.shards.layouts import Layouts
from planner.describe.catalogue import load_framework, load_machine, load_model
from planner.describe.layout import RECOMPUTE, Layout
from planner.describe.machine.variants import override_fields
from planner.describe.workload import Workload

RISK = preferences().risk

WORLDS = {
    # model, its layers, bytes of a device, framework, batch
    "layers": ("llama-3.2-1b", 16, "20GB", "megatron-lm", 16),
    "chunks": ("llama-3.2-1b", 16, "12GB", "megatron-lm", 8),
    "every": ("llama-3.2-1b", 16, "16GB", "fsdp2", 16),
    "experts": ("qwen3-30b-a3b", 4, "20GB", "megatron-lm", 16),
    "latent": ("deepseek-v2", 3, "28GB", "megatron-lm", 16),
}


def scenario_of(name: str, **job: object) -> Scenario:
    model, layers, room, framework, batch = WORLDS[name]
    machine = override_fields(load_machine("polaris"), [f"device.memory_bytes={room}"])
    workload = Workload(sequence_length=2048, global_batch=batch).replaced(**job)
    shape = load_model(model)
    experts = shape.experts.replaced(num_experts=16) if shape.experts else None
    shape = shape.replaced(num_layers=layers, experts=experts)
    return Scenario(shape, machine, workload, load_framework(framework))


def crossed(scenario: Scenario, plain: Layouts) -> Layouts:
    """Every layout with every number of layers, every n-th layer and every set of modules."""
    layers = range(1, scenario.model.num_layers)
    # fused attention keeps softmax statistics alone, for which its repetition is not searched
    modules = [name for name in scenario.framework.recompute_modules if name != "core_attn"]
    sets = itertools.chain.from_iterable(
        itertools.combinations(modules, size) for size in range(1, len(modules) + 1)
    )
    full, selective = RECOMPUTE.index("full"), RECOMPUTE.index("selective")
    changes = [
        *({"recompute": full, "recompute_layers": n} for n in layers),
        *({"recompute": full, "recompute_every": n} for n in (*layers, layers[-1] + 1)),
        *({"recompute": selective, "recompute_modules": module_bits(some)} for some in sets),
    ]
    columns = {name: np.asarray(getattr(plain, name)) for name in Layout.model_fields}
    every = Layouts.joined(
        [
            Layouts.broadcast(**{**columns, **change})
            for change in changes
            if change["recompute"] == full or scenario.framework.recompute_modules
        ]
    )
    mask, _ = legal(scenario, every, set(Layout.model_fields))
    return every.take(np.flatnonzero(mask))


def fastest(estimates: Estimates) -> dict[tuple[int, ...], float]:
    """The fastest of the layouts that differ in recompute alone, by the rest of them."""
    rest = [name for name in Layout.model_fields if not name.startswith("recompute")]
    columns = zip(*(getattr(estimates.layouts, name) for name in rest), strict=True)
    found: dict[tuple[int, ...], float] = {}
    for key, seconds in zip(columns, estimates.step_time_s, strict=True):
        found[key] = min(seconds, found.get(key, np.inf))
    return found


@pytest.mark.parametrize("name", WORLDS)
def test_the_fastest_is_that_of_trying_every_number_and_every_set(name: str) -> None:
    scenario = scenario_of(name)
    found, modes = search(scenario, 4), [RECOMPUTE.index(mode) for mode in ("none", "full")]
    layouts = found.footprints.layouts
    told = layouts.recomputes_partly | (layouts.recompute_modules > 0)
    none, full = (np.flatnonzero((layouts.recompute == mode) & ~told) for mode in modes)
    every = footprints(scenario, crossed(scenario, layouts.take(none)))
    best = fastest(estimate_times(scenario, every.take(np.flatnonzero(every.fits))))
    ours = fastest(found.estimates)
    enough = found.footprints.take(full)
    repeated = fastest(estimate_times(scenario, enough.take(np.flatnonzero(enough.fits))))
    # what could not be near the fastest without any recompute is left out
    near = {key for key in best if best[key] < 1.1 * min(ours.values())}
    assert near & repeated.keys()
    for key in near & repeated.keys():
        assert ours[key] <= best[key] * (1 + 1e-9)
    # and nothing that less recompute makes faster is overlooked for want of full recompute
    assert min(ours.values()) <= min(best.values()) * (1 + 1e-9)
    assert any(ours[key] < repeated[key] for key in repeated)
    partly = found.estimates.layouts
    assert np.any(partly.recomputes_partly | (partly.recompute_modules > 0))


@pytest.mark.parametrize("name", WORLDS)
def test_the_fastest_safe_one_is_that_of_trying_every_number_and_every_set(name: str) -> None:
    """The fewest layers that fit fill the device; those that fit safely are tried as well."""
    scenario = scenario_of(name)
    found = search(scenario, 4)
    layouts = found.footprints.layouts
    plain = ~layouts.recomputes_partly & (layouts.recompute_modules == 0)
    none = (layouts.recompute == RECOMPUTE.index("none")) & plain
    crossing = footprints(scenario, crossed(scenario, layouts.take(np.flatnonzero(none))))
    every = estimate_times(scenario, crossing.take(np.flatnonzero(fits_safely(scenario, crossing))))
    safe = np.flatnonzero(fits_safely(scenario, found.estimates))
    ours = found.estimates.take(safe)
    assert ours.step_time_s.min() <= every.step_time_s.min() * (1 + 1e-9)
    assert np.all(ours.out_of_memory_probability <= RISK)


def test_selective_recompute_that_frees_nothing_is_not_tried() -> None:
    scenario = scenario_of("layers")
    found = search(scenario, 4)
    layouts = found.footprints.layouts
    assert not np.any(layouts.recomputes_selectively & (layouts.recompute_modules == 0))
    assert found.dropped[f"selective recompute: {FREES_NOTHING}"] > 0
    eager = search(scenario_of("layers", attention="eager"), 4).footprints.layouts
    assert np.any(eager.recomputes_selectively & (eager.recompute_modules == 0))


def test_modules_that_8_bit_training_does_not_repeat_are_not_tried() -> None:
    latent = scenario_of("latent", precision="fp8")
    hopper = load_machine("dgx-h100", ("device.memory_bytes=28GB",))
    tried = {}
    for name in ("megatron-lm", "megatron-lm+fp8-blockwise"):
        asked = Scenario(latent.model, hopper, latent.workload, load_framework(name))
        sets = search(asked, 8).footprints.layouts
        tried[name] = sets.recomputes_module(("moe_act", "layernorm")), sets.recompute_modules > 0
    assert np.any(tried["megatron-lm"][1])
    assert not np.any(tried["megatron-lm"][0])
    assert np.any(tried["megatron-lm+fp8-blockwise"][0])


def test_less_recompute_is_tried_of_the_kind_that_is_looked_for() -> None:
    """A kind that is far from the fastest of all is refined where it alone is looked for."""
    scenario = scenario_of("every")

    def kind(layouts: Layouts) -> Mask:
        return layouts.tp == 2

    whole, alone = search(scenario, 4).only(kind), search(scenario, 4, kind)
    assert kind(alone.footprints.layouts).all()
    fastest_s = [np.min(each.estimates.step_time_s) for each in (alone, whole)]
    assert fastest_s[0] < fastest_s[1]
    of_kind = fastest(alone.estimates)
    assert all(of_kind[key] <= seconds for key, seconds in fastest(whole.estimates).items())
