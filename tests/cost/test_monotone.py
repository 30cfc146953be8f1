"""Monotone: random jobs with more work are not faster, but as docs/reference/properties.md says.

Each exception is a named constant here and a row there.
"""

from __future__ import annotations

import functools
import random
from collections.abc import Iterator
from dataclasses import replace

import numpy as np
import pytest

from planner.choose.legality import legal
from planner.choose.legality.check import check_routing, check_sequence
from planner.choose.search import enumerate_layouts
from planner.cost.arrays import Float, Mask
from planner.cost.estimate import Estimates, estimate_layouts
from planner.cost.scenario import Scenario
from planner.cost.shards.layouts import Layouts
from planner.describe.catalogue import load_framework, load_machine, load_model
from planner.describe.layout import RECOMPUTE, Layout
from planner.describe.machine.variants import override_fields
from planner.describe.workload import Workload
from planner.errors import PlannerError
from tests.choose.test_contract import FRAMEWORKS, MACHINES

MODELS = ("gpt2", "llama-3.2-1b", "llama-3-8b", "qwen3-30b-a3b", "ptdp-7.5b", "t5-large")
SAMPLE = 20
ROUNDING = 1e-6
DEALT_WAITS = 0.04
"""Waits for the host are dealt to the passes by their computation, and other stages of a pipeline
wait as long as the one with the longest wait: either moves up to so much of a step."""
EXPOSED = (
    *("parameter_gathering", "gradient_reduction", "parameter_update_gathering", "offload"),
    *("tensor_parallel", "context_parallel", "expert_parallel", "pipeline_transfer"),
)
COMPUTED = ("forward", "backward", "recompute", "host_overhead", "optimizer")

by_framework = pytest.mark.parametrize("name", FRAMEWORKS)


def jobs(name: str, count: int = 4) -> Iterator[tuple[Scenario, Layouts]]:
    """Draw jobs of one framework, each with a sample of the layouts of the search."""
    draw = random.Random(f"monotone {name}")
    rows = np.random.default_rng(len(name))
    while count:
        model, machine = load_model(draw.choice(MODELS)), load_machine(draw.choice(MACHINES))
        workload = Workload(
            sequence_length=draw.choice([512, 1024]), global_batch=draw.choice([32, 64, 256])
        )
        job = Scenario(model, machine, workload, load_framework(name))
        nodes = min(draw.choice([1, 2, 8]), int(machine.num_nodes.value))
        if "bf16" in machine.device.peak_flop_per_s and not refused(job):
            every, _ = enumerate_layouts(job, nodes * machine.node.num_devices)
            if len(every):
                some = rows.choice(len(every), min(SAMPLE, len(every)), replace=False)
                count -= 1
                yield job, every.take(np.sort(some))


def refused(job: Scenario) -> bool:
    """Whether the framework or the model does not allow the job."""
    try:
        check_sequence(job.model, job.workload)
        check_routing(job.model, job.workload)
    except PlannerError:
        return True
    return bool(job.framework.refuses(job.machine, job.workload, job.model))


def both(job: Scenario, layouts: Layouts, other: Scenario, changed: Layouts) -> Iterator[Estimates]:
    """Estimate the layouts that are legal in both jobs, before and after a change."""
    every = set(Layout.model_fields)
    is_legal: Mask = legal(job, layouts, every)[0] & legal(other, changed, every)[0]
    rows = np.flatnonzero(is_legal)
    yield estimate_layouts(job, layouts.take(rows))
    yield estimate_layouts(other, changed.take(rows))


def total(estimates: Estimates, names: tuple[str, ...]) -> Float:
    """Sum parts of the step time [s]."""
    parts = [estimates.time_parts_s[name] for name in names if name in estimates.time_parts_s]
    return np.asarray(np.sum(np.broadcast_arrays(*parts), axis=0))


@functools.cache
def twice_as_fast(name: str) -> tuple[tuple[Estimates, Estimates], ...]:
    """Estimates of a framework's jobs, on their devices and on devices of twice the peaks."""
    pairs = []
    for job, layouts in jobs(name):
        peaks = job.machine.device.peak_flop_per_s.items()
        doubled = (f"device.peak_flop_per_s.{key}={2 * peak.value:g}" for key, peak in peaks)
        faster = replace(job, machine=override_fields(job.machine, tuple(doubled)))
        before, after = both(job, layouts, faster, layouts)
        pairs.append((before, after))
    return tuple(pairs)


@by_framework
def test_exposed_traffic_grows_by_no_more_than_the_computation_that_vanished(name: str) -> None:
    for before, after in twice_as_fast(name):
        exposed_s = total(after, EXPOSED) - total(before, EXPOSED)
        vanished_s = total(before, COMPUTED) - total(after, COMPUTED)
        assert np.all(exposed_s - vanished_s <= DEALT_WAITS / 2 * before.step_time_s)


@by_framework
def test_twice_the_peaks_are_not_slower(name: str) -> None:
    for before, after in twice_as_fast(name):
        change = after.step_time_s / before.step_time_s - 1
        # no waits of a host or of a pipeline: nothing is dealt
        host_s = np.broadcast_to(before.time_parts_s["host_overhead"], change.shape)
        after_host_s = np.broadcast_to(after.time_parts_s["host_overhead"], change.shape)
        plain = (before.layouts.pp == 1) & (host_s + after_host_s == 0)
        offloads = ~before.layouts.keeps_states
        assert np.all(change[plain & ~offloads] <= ROUNDING)
        assert np.all(change <= DEALT_WAITS)


@by_framework
def test_longer_sequences_are_not_faster(name: str) -> None:
    for job, layouts in jobs(name):
        length = 2 * job.workload.sequence_length
        longer = replace(job, workload=job.workload.replaced(sequence_length=length))
        if not refused(longer):
            before, after = both(job, layouts, longer, layouts)
            assert np.all(after.step_time_s >= (1 - DEALT_WAITS) * before.step_time_s)


@by_framework
def test_recompute_is_not_faster(name: str) -> None:
    for job, layouts in jobs(name):
        none = replace(layouts, recompute=np.zeros_like(layouts.recompute))
        full = replace(none, recompute=np.full_like(none.recompute, RECOMPUTE.index("full")))
        before, after = both(job, none, job, full)
        assert np.all(after.step_time_s >= (1 - DEALT_WAITS) * before.step_time_s)


def test_the_head_stage_that_gathers_its_weights_in_pieces_sets_the_pace() -> None:
    """torchtitan's chunked loss: the last stage computes less and gathers more than the others."""
    layout = Layout(
        dp=16, tp=4, pp=8, sequence_parallel=True, zero_stage=2, micro_batch=1,
        grad_accumulation=4, schedule="gpipe", recompute="selective",
    )  # fmt: skip
    job = Scenario(
        load_model("llama-3-8b"),
        load_machine("mi300x-node"),
        Workload(global_batch=64, sequence_length=1024, precision="fp32"),
        load_framework("torchtitan"),
    )
    layouts = Layouts.stack([layout, layout.replaced(recompute="full")])
    estimates = estimate_layouts(job, layouts)
    selective, full = estimates.time_parts_s["parameter_gathering"]
    assert full == pytest.approx(selective, rel=0.01)
    assert estimates.step_time_s[1] > estimates.step_time_s[0]


@pytest.mark.parametrize("name", ["deepspeed", "deepspeed-2021", "megatron-deepspeed", "fsdp2"])
def test_sharding_weights_adds_no_memory_but_what_is_gathered(name: str) -> None:
    """ZeRO-3 frees weights and holds gathered ones: with one shard nothing is freed."""
    for job, layouts in jobs(name):
        two, three = (replace(layouts, zero_stage=np.full_like(layouts.dp, s)) for s in (2, 3))
        before, after = both(job, two, job, three)
        parts = after.memory_parts_bytes, before.memory_parts_bytes
        gathered, kept = (
            sum(part[k] for k in ("gathered_parameters", "communication_buffers", "working_set"))
            for part in parts
        )
        more = after.memory_bytes - before.memory_bytes
        reserve = 1 + job.framework.buffers.allocator_fraction.value
        sharded = before.layouts.num_shards > 1
        assert np.all((more <= reserve * np.maximum(gathered - kept, 0) + 1)[sharded])
