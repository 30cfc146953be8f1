"""Ends as layers: tried where that can matter, with the winner of trying it everywhere."""

from __future__ import annotations

from dataclasses import replace
from functools import partial

import numpy as np
import pytest

from planner.choose.legality import legal
from planner.choose.search import search
from planner.cost.estimate import estimate_times
from planner.cost.memory.footprint import footprints
from planner.cost.scenario import Scenario
from planner.cost.shards.layouts import Layouts
from planner.describe.catalogue import load_framework, load_machine, load_model
from planner.describe.layout import SCHEDULES, Layout
from planner.describe.workload import Workload

INTERLEAVED = SCHEDULES.index("interleaved-1f1b")


def _scenario(model: str, layers: int, memory: str, batch: int, framework: str) -> Scenario:
    machine = load_machine("polaris", (f"device.memory_bytes={memory}",))
    workload = Workload(sequence_length=1024, global_batch=batch)
    described = load_model(model).replaced(num_layers=layers)
    return Scenario(described, machine, workload, load_framework(framework))


scenario = partial(_scenario, framework="megatron-lm")
CASES = {
    # model, layers, device memory, batch: a large vocabulary; chunks that are even with ends
    # alone, three memories; a head as light as half a layer
    "vocabulary": ("llama-3.2-1b", 16, "40GB", 32),
    "chunks": ("llama-3-8b", 14, "40GB", 64),
    "little memory": ("llama-3-8b", 14, "20GB", 64),
    "less memory": ("llama-3-8b", 14, "9GB", 64),
    "light head": ("llama-2-13b", 22, "24GB", 32),
}


def _everywhere(q: Scenario, found: Layouts) -> Layouts:
    """Every layout with ends as layers, with any number of chunks."""
    plain = found.take(np.flatnonzero(found.piped & ~found.counts_embedding_or_head))
    once = plain.take(np.flatnonzero(plain.uses_schedule("1f1b")))
    several = [
        replace(once, vpp=np.full(len(once), v), schedule=np.full(len(once), INTERLEAVED))
        for v in range(2, q.model.num_layers)
    ]
    joined = Layouts.joined([plain, *several])
    ones = np.ones(len(joined), dtype=np.int64)
    joined = replace(joined, embedding_slots=ones, head_slots=ones)
    chunks, slots = joined.pp * joined.vpp, q.model.num_layers + 2
    even = -(-slots // chunks) * chunks <= 1.05 * slots
    mask, _ = legal(q, joined, set(Layout.model_fields))
    return joined.take(np.flatnonzero(mask & (even | (joined.vpp == 1))))


@pytest.mark.parametrize("case", CASES)
def test_the_winner_is_that_of_trying_ends_everywhere(case: str) -> None:
    q = scenario(*CASES[case])
    found = search(q, 16)
    everywhere = estimate_times(q, footprints(q, _everywhere(q, found.footprints.layouts)))
    both = [
        float(np.min(np.where(some.fits, some.step_time_s, np.inf), initial=np.inf))
        for some in (found.estimates, everywhere)
    ]
    assert both[0] <= both[1] * (1 + 1e-12)


def test_ends_count_where_that_is_faster() -> None:
    """14 layers and 2 ends are even on 4 stages of 4 chunks, and a stage of the head has less."""
    found = search(scenario(*CASES["chunks"]), 16)
    told = found.estimates.layouts.counts_embedding_or_head
    assert np.any(told)
    assert np.any(~told & found.estimates.layouts.piped)
    layouts = found.footprints.layouts
    chunks = set(layouts.vpp[layouts.counts_embedding_or_head & (layouts.pp == 4)].tolist())
    assert {2, 4} <= chunks


@pytest.mark.parametrize("framework", ["fsdp2", "nanotron", "megatron-deepspeed"])
def test_frameworks_that_deal_so_or_are_not_told_are_not_searched_so(framework: str) -> None:
    found = search(_scenario(*CASES["chunks"], framework), 16)
    assert not np.any(found.footprints.layouts.counts_embedding_or_head)


def test_no_ends_where_they_change_nothing() -> None:
    """No head to speak of, and memory enough: a layer less on two stages makes none faster."""
    q = _scenario("llama-3-70b", 80, "1000GB", 64, "megatron-lm")
    q = replace(q, model=q.model.replaced(vocab_size=4000))
    assert not np.any(search(q, 16).footprints.layouts.counts_embedding_or_head)
