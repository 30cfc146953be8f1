"""Adapters: a frozen base is held as it was loaded, and has neither gradients nor buffers."""

from __future__ import annotations

from dataclasses import replace

import pytest
from hypothesis import given
from hypothesis import strategies as st

from planner.choose.legality import check
from planner.cost.memory.footprint import stage_memory
from planner.cost.memory.gradients import unreduced
from planner.cost.memory.host_memory import host_memory
from planner.cost.memory.weights import resident
from planner.cost.scenario import Scenario
from planner.cost.shards.stages import Stages
from planner.describe.catalogue import load_framework, names
from planner.describe.layout import Layout
from planner.errors import LayoutError
from tests.descriptions import scenario

GIB = 2**30
TARGETS = ("query", "value", "out", "gate", "up", "down")


def adapted(model: str, framework: str, **workload: object) -> Scenario:
    return scenario(model, framework, lora_rank=16, lora_targets=TARGETS, **workload)


@pytest.mark.parametrize("framework", ["fsdp2", "torchtitan"])
def test_torchtune_trains_adapters_of_70b_on_eight_a100(framework: str) -> None:
    # README of torchtune 0.6: 27.6 GiB a GPU, batch 2, packed to 2048 tokens, bf16. What torch
    # counts has no runtime context; its loss runs in pieces, as torchtitan's does
    job = adapted("llama-3.1-70b", framework, machine="selene", sequence_length=2048)
    # torchtune's own Llama, not that of transformers
    job = replace(job, framework=load_framework(framework).with_own_blocks())
    parts = stage_memory(job, Layout(dp=8, zero_stage=3, micro_batch=2, recompute="full"))[0]
    reserved = sum(parts.values()) - parts["runtime_context"]
    assert reserved / GIB == pytest.approx(27.6, rel=0.15)


@pytest.mark.parametrize(
    ("framework", "stage", "held"),
    [
        ("ddp", 0, 2.0),  # 16 bits; what trains would take 4 and a 16-bit copy
        ("deepspeed", 1, 2.0),
        ("deepspeed", 3, 2 / 8),
        ("megatron-lm", 1, 2.0),
        ("fsdp2", 0, 2 + 2.0),  # the weights and what they are gathered into
        ("fsdp2", 2, 2 + 2 / 8),
        ("fsdp2", 3, 2 / 8),
        ("accelerate", 3, 2 / 8),
    ],
)
def test_a_frozen_base_stays_in_16_bits(framework: str, stage: int, held: float) -> None:
    # accelerate 1.15, utils/fsdp_utils.py: only what requires gradients is turned to fp32
    job = scenario("gpt2-xl", framework, lora_rank=1, lora_targets=["query"])
    weights = resident(Stages.of_pipeline(job, Layout(dp=8, zero_stage=stage))).weights.item()
    assert weights / job.model.num_params == pytest.approx(held, rel=0.01)


@pytest.mark.parametrize(("dp", "copies"), [(1, 1), (4, 1 / 4)])
def test_four_bit_weights_are_held_once(dp: int, copies: float) -> None:
    # accelerate 1.15, utils/fsdp_utils.py: fully_shard leaves out weights of 4 bits in bytes;
    # embedding and head, in 16 bits, have shards beside what is gathered
    stored = {"base_format": "nf4", "lora_rank": 1, "lora_targets": ["query"], "machine": "selene"}
    layout = Layout(dp=dp, zero_stage=2 if dp > 1 else 0)
    weights, once = (
        resident(Stages.of_pipeline(scenario("llama-2-7b", name, **stored), layout)).weights.item()
        for name in ("accelerate", "deepspeed")
    )
    vocabulary = 2 * 2 * 32_000 * 4096
    assert weights - once == pytest.approx(copies * vocabulary, rel=0.02)


def test_a_frozen_base_stays_in_fp32_where_fp32_trains() -> None:
    job = scenario("gpt2-xl", "ddp", lora_rank=1, lora_targets=["query"], precision="fp32")
    weights = resident(Stages.of_pipeline(job, Layout(dp=8))).weights.item()
    assert weights / job.model.num_params == pytest.approx(4, rel=0.01)


def test_a_frozen_head_has_no_gradient_to_reduce() -> None:
    # 0.5e9 elements of the head of Llama 3 would be 2.1 GB in fp32; adapters of a layer are small
    job = adapted("llama-3-8b", "fsdp2")
    stages = Stages.of_pipeline(job, Layout(dp=8, zero_stage=3))
    found = unreduced(stages, resident(stages).gradients).base
    assert found.in_last_layer.item() < 0.02 * 4 * 128256 * 4096


def test_an_offloaded_base_goes_to_the_host_whole() -> None:
    # 2 bytes of every weight; states and gradients of adapters alone
    job = adapted("llama-3-8b", "fsdp2")
    stages = Stages.of_pipeline(job, Layout(dp=4, zero_stage=3, offload="all-cpu"))
    moved = host_memory(stages)["offloaded_states"].item()
    assert moved == pytest.approx(2 * job.model.num_params, rel=0.1)
    assert moved > 2 * job.model.num_params


@given(
    st.sampled_from(["llama-3-8b", "gpt2", "mixtral-8x7b"]),
    st.sampled_from(names("framework")),
    st.builds(
        Layout,
        dp=st.sampled_from([1, 2, 8]),
        tp=st.sampled_from([1, 2]),
        pp=st.sampled_from([1, 2]),
        zero_stage=st.integers(0, 3),
        grad_accumulation=st.sampled_from([1, 4]),
        schedule=st.just("1f1b"),
    ),
)
def test_adapters_never_take_more_than_the_whole_model(
    model: str, framework: str, layout: Layout
) -> None:
    layout = layout.replaced(schedule="1f1b" if layout.pp > 1 else "none")
    batch = {"global_batch": layout.global_batch}
    whole = scenario(model, framework, **batch)
    try:
        check(whole, layout)
    except LayoutError:
        return
    part = scenario(model, framework, lora_rank=1, lora_targets=["query"], **batch)
    for less, more in zip(stage_memory(part, layout), stage_memory(whole, layout), strict=True):
        assert sum(less.values()) < 1.001 * sum(more.values())
