"""Least: bounds hold for whatever a search looks at."""

from __future__ import annotations

import numpy as np
import pytest

from planner.choose.search import enumerate_layouts, search
from planner.choose.search.lower_bounds import memory_lower_bound_bytes, step_time_lower_bound_s
from planner.cost.estimate import estimate_times
from planner.cost.memory.footprint import footprints
from tests import descriptions

JOBS = {
    "dense": ("llama-3-8b", "megatron-lm", "polaris", {"global_batch": 64}, 8),
    "shards": ("llama-3-8b", "fsdp2", "aurora", {"global_batch": 96}, 24),
    "offload": ("mistral-7b", "deepspeed", "vsc-5", {"global_batch": 32}, 8),
    "experts": ("mixtral-8x7b", "megatron-lm", "dgx-h100", {"global_batch": 64}, 16),
    "pairs": ("deepseek-v3", "megatron-deepep", "dgx-h100", {"global_batch": 64}, 64),
    "long": ("llama-3.1-8b", "megatron-lm", "dgx-h100", {"sequence_length": 65536}, 16),
    "adapters": ("llama-3-8b", "fsdp2", "polaris", {"lora_rank": 16}, 8),
    "eight bits": ("llama-3-8b", "megatron-lm", "dgx-h100", {"precision": "fp8"}, 16),
}


@pytest.mark.parametrize("name", JOBS)
def test_every_candidate_takes_at_least_its_bounds(name: str) -> None:
    model, framework, machine, job, world = JOBS[name]
    asked = descriptions.scenario(model, framework, machine, **job)
    layouts, _ = enumerate_layouts(asked, world)
    taken = footprints(asked, layouts)
    assert len(taken) > 50
    memory = memory_lower_bound_bytes(asked, layouts) / taken.memory_bytes
    assert np.max(memory) <= 1
    # worth having: nearly all that it takes of some, and much of most
    assert np.max(memory) > 0.85
    assert np.median(memory) > 0.3
    time_s = estimate_times(asked, taken).step_time_s
    for alone in (False, True):
        assert np.max(step_time_lower_bound_s(asked, layouts, final=alone) / time_s) <= 1 + 1e-9
    assert np.max(step_time_lower_bound_s(asked, layouts, final=True) / time_s) > 0.6


@pytest.mark.parametrize("name", JOBS)
def test_so_does_what_is_tried_further(name: str) -> None:
    model, framework, machine, job, world = JOBS[name]
    asked = descriptions.scenario(model, framework, machine, **job)
    found = search(asked, world)
    memory = memory_lower_bound_bytes(asked, found.footprints.layouts)
    assert np.max(memory / found.footprints.memory_bytes) <= 1
    estimates = found.estimates
    for alone in (False, True):
        least_s = step_time_lower_bound_s(asked, estimates.layouts, final=alone)
        assert np.max(least_s / estimates.step_time_s, initial=0.0) <= 1 + 1e-9
