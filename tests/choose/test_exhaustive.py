"""Exhaustive: nothing that is legal is faster than the plan's best, or fits where nothing should.

Small worlds are enumerated column by column with no filter but the rules of legality; the search
builds its candidates another way.
"""

from __future__ import annotations

import numpy as np
import pytest

from planner.choose.legality import legal
from planner.choose.search import Candidates
from planner.cost.estimate import estimate_times
from planner.cost.memory.footprint import Footprints, footprints
from planner.cost.scenario import Scenario
from planner.cost.shards.layouts import Layouts
from planner.describe.catalogue import load_machine, load_model
from planner.describe.layout import OFFLOAD, RECOMPUTE, SCHEDULES, Layout, divisors
from planner.describe.machine.variants import override_fields
from planner.describe.workload import Workload
from tests.descriptions import searched

TITAN, ENGINE = ("fsdp2", "megatron-lm"), ("deepspeed", "ddp")
BOTH_ENGINES = ("deepspeed", "megatron-deepspeed")
CARD, SMALL = "workstation-1x4090", "device.memory_bytes=12GB"

WORLDS = {
    # model, machine, its changed numbers, nodes, batch, sequence, frameworks
    "offload on one": ("llama-3.1-8b", CARD, "node.host_memory_bytes=256GB", 1, 4, 2048, ENGINE),
    "offload to disk": ("llama-3.2-3b", CARD, "node.host_memory_bytes=32GB", 1, 2, 2048, ENGINE),
    "short memory": ("llama-3.2-1b", "polaris", SMALL, 1, 8, 1024, (*ENGINE, "fsdp2")),
    "odd nodes": ("gpt2", "polaris", "", 3, 24, 1024, ("ddp", "fsdp2")),
    "odd batch": ("gpt2", "polaris", "", 3, 16, 1024, ("ddp", *TITAN)),
    "groups": ("llama-3-8b", "polaris", "", 3, 12, 1024, ("fsdp2",)),
    "experts": ("mixtral-8x7b", "dgx-h100", "", 1, 8, 1024, ("megatron-lm",)),
    "slow links": ("llama-3-8b", "vsc-5", "", 2, 8, 2048, TITAN),
    "tensor alone": ("llama-2-13b", "vsc-5", "device.memory_bytes=24GB", 1, 2, 2048, BOTH_ENGINES),
    "long": ("llama-3.2-3b", "vsc-5", "", 2, 2, 16384, ("megatron-lm", "deepspeed")),
    "nothing fits": ("llama-3.1-70b", CARD, "", 1, 2, 1024, ("deepspeed", "fsdp2")),
}


def every_layout(scenario: Scenario, world: int) -> Layouts:
    """All combinations of all columns that are legal; degrees fill the world and the batch."""
    batch, layers = scenario.workload.global_batch, scenario.model.num_layers
    experts = scenario.model.experts.num_experts if scenario.model.experts else 1
    ways = np.array(divisors(world))
    tp, pp, cp = (a.ravel() for a in np.meshgrid(ways, ways, ways))
    full = (world % (tp * pp * cp) == 0) & (cp <= scenario.workload.sequence_length // 1024)
    columns = {"tp": tp[full], "pp": pp[full], "cp": cp[full]}
    columns["dp"] = world // (columns["tp"] * columns["pp"] * columns["cp"])

    def cross(name: str, values: list[int]) -> None:
        rows = len(columns["tp"])
        for key, column in columns.items():
            columns[key] = np.repeat(column, len(values))
        columns[name] = np.tile(np.array(values), rows)

    def keep(mask: np.ndarray) -> None:
        for key, column in columns.items():
            columns[key] = column[mask]

    def rules() -> None:
        mask, _ = legal(scenario, Layouts.broadcast(**columns), set(columns))
        keep(mask)

    cross("micro_batch", divisors(batch))
    keep(batch % (columns["dp"] * columns["micro_batch"]) == 0)
    columns["grad_accumulation"] = batch // columns["dp"] // columns["micro_batch"]
    for name, values in {
        "ulysses": divisors(world),
        "ep": divisors(experts),
        "etp": [0, *divisors(world)] if experts > 1 else [0],
        "sequence_parallel": [0, 1],
        "zero_stage": [0, 1, 2, 3],
        "dp_shard": divisors(world),
        "reshard": [0, scenario.machine.node.num_devices],
        "offload": list(range(len(OFFLOAD))),
        "schedule": list(range(len(SCHEDULES))),
        "vpp": list(range(1, layers // 2 + 1)),
        "recompute": list(range(len(RECOMPUTE))),
    }.items():
        cross(name, values)
        if name == "ulysses":
            keep(columns["cp"] % columns["ulysses"] == 0)
        if name == "dp_shard":
            keep(
                (columns["dp_shard"] <= columns["dp"]) & (columns["dp"] % columns["dp_shard"] == 0)
            )
        if name == "vpp":
            chunks = columns["vpp"] * columns["pp"]
            even = (columns["vpp"] == 1) | (layers % chunks == 0)
            keep(even)
        rules()
    # a framework that splits sequences with tp by default is searched only so
    if scenario.framework.sequence_parallel == "by-default":
        keep((columns["sequence_parallel"] == 1) == (columns["tp"] > 1))
    mask, _ = legal(scenario, Layouts.broadcast(**columns), set(Layout.model_fields))
    keep(mask)
    # states that one replica shares with nobody are held whole, unless the host holds them
    layouts = Layouts.broadcast(**columns)
    least = layouts.zero_stage == min(
        scenario.framework.zero_stages_for(scenario.workload.precision)
    )
    return layouts.take(np.flatnonzero((layouts.num_replicas > 1) | least | ~layouts.keeps_states))


def fastest(scenario: Scenario, taken: Footprints) -> float:
    fits = np.flatnonzero(taken.fits)
    times = (
        estimate_times(scenario, taken.take(fits)).step_time_s if len(fits) else np.array([np.inf])
    )
    return float(np.min(times))


def best(found: Candidates) -> float:
    return float(np.min(found.estimates.step_time_s, initial=np.inf))


@pytest.mark.parametrize("name", WORLDS)
def test_nothing_legal_is_faster_than_what_is_found(name: str) -> None:
    model, place, changed, nodes, batch, tokens, frameworks = WORLDS[name]
    machine = override_fields(load_machine(place), (changed,) if changed else ())
    job = Workload(global_batch=batch, sequence_length=tokens)
    world = nodes * machine.node.num_devices
    found = searched(load_model(model), machine, nodes, job, frameworks)
    some = 0
    for framework, part in found.items():
        layouts = every_layout(part.scenario, world)
        some += len(layouts)
        if not len(layouts):
            assert not len(part.footprints), framework
            continue
        taken = footprints(part.scenario, layouts)
        untiled = part.only(lambda x: x.tiles == 1)
        assert best(untiled) <= fastest(part.scenario, taken) * (1 + 1e-9), framework
    assert some
    assert name != "nothing fits" or not any(len(part.estimates) for part in found.values())
