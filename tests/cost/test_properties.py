"""What every estimate must obey, over many layouts at once; what breaks a rule of thumb is physics.

Each test says in which cases the rule holds without exception, and what lies behind the others.
"""

from __future__ import annotations

import functools
from dataclasses import replace

import numpy as np
import pytest
from numpy.typing import NDArray

from planner.choose.legality import legal
from planner.choose.search import enumerate_layouts
from planner.cost.arrays import Float
from planner.cost.estimate import Estimates, estimate_layouts
from planner.cost.scenario import Scenario
from planner.cost.shards.layouts import Layouts
from planner.cost.step.compute.gemm import attention_efficiency
from planner.describe.layout import RECOMPUTE
from tests.descriptions import scenario

CASES = (
    ("llama-3-8b", "megatron-lm", "polaris", 4, "bf16"),
    ("gpt2-xl", "fsdp2", "summit", 2, "fp16"),
    ("mixtral-8x7b", "deepspeed", "dgx-h100", 2, "bf16"),
    ("llama-3-8b", "nanotron", "dgx-h100", 4, "bf16"),
    ("gpt2-xl", "megatron-deepspeed", "aurora", 1, "bf16"),
)
SAMPLE = 300
ROUNDING = 1e-9
LINKS = 0.01
"""With states offloaded gradients travel to other nodes and to the host behind the same pass; what
it leaves of each is summed, so that a longer pass can hide more than it takes, by so much."""
cases = pytest.mark.parametrize("case", CASES, ids=lambda case: f"{case[1]} on {case[2]}")
Case = tuple[str, str, str, int, str]


@functools.cache
def asked(case: Case, **workload: object) -> tuple[Scenario, Layouts, Estimates]:
    """A scenario, a sample of its legal layouts, and their estimates."""
    model, framework, machine, nodes, precision = case
    job = scenario(
        model, framework, machine, sequence_length=1024, global_batch=64, precision=precision
    )
    every, _ = enumerate_layouts(job, nodes * job.machine.node.num_devices)
    rows = np.unique(np.linspace(0, len(every) - 1, SAMPLE).astype(int))
    layouts = every.take(rows)
    return job, layouts, estimate_layouts(job, layouts)


def doubled_batch(job: Scenario) -> Scenario:
    """The same with twice the sequences in a step."""
    batch = 2 * job.workload.global_batch
    return replace(job, workload=job.workload.replaced(global_batch=batch))


def allowed(job: Scenario, layouts: Layouts) -> NDArray[np.bool_]:
    """Which layouts every rule allows."""
    every = {"tp", "pp", "cp", "ep", "dp", "vpp", "sequence_parallel", "zero_stage", "offload"}
    mask, _ = legal(job, layouts, every | {"schedule", "grad_accumulation", "recompute"})
    return np.asarray(mask)


def grown(before: Float, after: Float) -> Float:
    """After over before, minus one."""
    return after / before - 1


@cases
def test_larger_micro_batches_need_more_memory(case: Case) -> None:
    """Twice the micro-batch in half the passes.

    Physics where fewer passes are left than are in flight: no pass then follows the peak of
    activations, so no sums of gradients stand beside them.
    """
    job, layouts, found = asked(case)
    halves = replace(
        layouts,
        micro_batch=2 * layouts.micro_batch,
        grad_accumulation=np.maximum(layouts.grad_accumulation // 2, 1),
    )
    follow = (layouts.grad_accumulation % 2 == 0) & (halves.grad_accumulation > layouts.pp)
    change = grown(found.memory_bytes, estimate_layouts(job, halves).memory_bytes)
    assert np.all(change[follow & allowed(job, halves)] >= -ROUNDING)


@cases
def test_more_replicas_with_more_work_are_not_faster(case: Case) -> None:
    """Weak scaling: twice the replicas and twice the batch.

    Physics where states are sharded or offloaded: every rank then updates and moves fewer. Where
    devices are wired in pairs, a larger group has more of a node's wires; where a switch adds up,
    it does so for all of a node and not for a few (8 H200 reduce in 10 % less time than 4).
    """
    job, layouts, found = asked(case)
    shard = np.where(layouts.dp_shard == layouts.dp, 2 * layouts.dp, layouts.dp_shard)
    twice = replace(layouts, dp=2 * layouts.dp, dp_shard=shard)
    whole = ~layouts.shards_states & layouts.keeps_states
    if job.machine.node.fabric.kind != "switch":
        ranks = layouts.num_replicas * layouts.tp
        whole &= (ranks % job.machine.node.num_devices == 0) | (layouts.num_replicas == 1)
    if job.machine.node.fabric.switch_reduction is not None:
        whole &= layouts.dp * layouts.tp * layouts.cp >= job.machine.node.num_devices
    change = grown(found.step_time_s, estimate_layouts(doubled_batch(job), twice).step_time_s)
    assert np.all(change[whole] >= -ROUNDING)


@cases
def test_twice_the_passes_take_at_most_twice_as_long(case: Case) -> None:
    """Physics with one pass: it stores its gradients, every further pass adds to them."""
    job, layouts, found = asked(case)
    twice = replace(layouts, grad_accumulation=2 * layouts.grad_accumulation)
    change = grown(found.step_time_s, estimate_layouts(doubled_batch(job), twice).step_time_s)
    several = layouts.grad_accumulation > 1
    assert np.all(change > ROUNDING)
    assert np.all(change[several] <= 1 + ROUNDING)


@cases
def test_sharding_weights_too_takes_memory_only_for_what_stays_gathered(case: Case) -> None:
    """ZeRO-2 to ZeRO-3. Physics where a framework keeps gathered elements beside the shards."""
    job, layouts, found = asked(case)
    three = replace(layouts, zero_stage=np.full_like(layouts.zero_stage, 3))
    mask = (layouts.zero_stage == 2) & allowed(job, three)
    after = estimate_layouts(job, three)
    more = after.memory_bytes - found.memory_bytes
    stays = job.framework.buffers.live_elements * job.workload.compute_bytes
    assert np.all(more[mask] <= 1.06 * stays + ROUNDING)


@cases
def test_adapters_are_faster_than_full_training(case: Case) -> None:
    """LoRA. But where the host sets the pace: adapters launch kernels, too; and where weight
    gradients ran behind longer traffic, their own products are all that changes; and where weight
    gradients fill a pipeline's bubbles, there is little left to fill them with."""
    job, layouts, found = asked(case)
    adapted = replace(job, workload=job.workload.replaced(lora_rank=8))
    after = estimate_layouts(adapted, layouts)
    change = grown(found.step_time_s, after.step_time_s)
    waits = after.time_parts_s["host_overhead"] > 0
    covers = found.time_parts_s["tensor_parallel"] <= found.time_parts_s["backward"]
    alone = 0.02 if job.model.hidden_size < 2048 else ROUNDING
    fills = layouts.uses_schedule("zero-bubble") | layouts.uses_schedule("zero-bubble-v")
    assert np.all(change[~waits & ~fills & covers] <= alone)
    assert np.all(change[~waits & ~fills] <= 0.02)
    assert np.all(change[fills] <= 0.1)
    assert np.all(change[waits] <= 1)


@cases
def test_half_the_bytes_are_faster(case: Case) -> None:
    """From fp32 to 16 bits; what the host paces hides as much traffic as before."""
    job, layouts, found = asked(case)
    full = replace(job, workload=job.workload.replaced(precision="fp32"))
    change = grown(found.step_time_s, estimate_layouts(full, layouts).step_time_s)
    assert np.all(change >= -ROUNDING)


@cases
def test_longer_sequences_take_longer(case: Case) -> None:
    job, layouts, found = asked(case)
    longer = replace(job, workload=job.workload.replaced(sequence_length=1536))
    after = estimate_layouts(longer, layouts)
    change = grown(found.step_time_s, after.step_time_s)
    # a step that the host paces takes the same time: its sum of parts is not exact
    waits = after.time_parts_s["host_overhead"] > 0.5 * after.step_time_s
    assert np.all(change >= np.where(waits, -1e-4, -ROUNDING))


@cases
def test_recomputing_takes_time(case: Case) -> None:
    """Where something else sets the pace (offload, gathers) it costs nothing, or hides more.

    The pace is that of the stage with the longest passes: another one has other traffic.
    """
    job, layouts, found = asked(case)
    none = replace(layouts, recompute=np.zeros_like(layouts.recompute))
    again = layouts.recompute == RECOMPUTE.index("full")
    change = grown(estimate_layouts(job, none).step_time_s, found.step_time_s)
    alone = again & (layouts.pp == 1) & (not job.framework.host.awaits_collectives)
    assert np.all(change[alone & (layouts.offload == 0)] > 0)
    assert np.all(change[alone] > -LINKS)
    assert np.all(change[again] >= -0.015)


@cases
@pytest.mark.parametrize(
    "figure", ["memory_bytes_per_s", "gemm_efficiency", "attention_efficiency", "launch_s"]
)
def test_a_faster_device_is_not_slower(case: Case, figure: str) -> None:
    """But for the stage that sets the pace: where another one does, its traffic counts."""
    job, layouts, found = asked(case)
    device = job.machine.device.model_dump()
    if device[figure] is None:  # the kernel of the framework decides
        value = attention_efficiency(job.framework, job.machine.device)
        device[figure] = {"value": value, "kind": "measured", "source": "kernel releases"}
    device[figure]["value"] *= 0.8 if figure == "launch_s" else 1.15
    faster = replace(job, machine=job.machine.replaced(device=device))
    change = grown(found.step_time_s, estimate_layouts(faster, layouts).step_time_s)
    most = np.where(layouts.offload == 0, 0.001, LINKS)
    assert np.all((change <= most)[layouts.pp == 1])
    assert np.all(change <= 0.03)
