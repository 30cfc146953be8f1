"""Known values of functions of `planner.cost.memory`."""

from __future__ import annotations

from dataclasses import replace

import numpy as np

from planner.cost.memory.activations import (
    chunk_kept_bytes,
    kept_bytes,
    moved_bytes,
    stage_activations,
)
from planner.cost.memory.deferred_weight_gradients import deferred_gradients
from planner.cost.memory.footprint import footprints, footprints_of, stage_memory
from planner.cost.memory.gradients import unreduced
from planner.cost.memory.host_memory import disk_bytes, host_memory, host_memory_phases
from planner.cost.memory.in_flight import passes_in_flight
from planner.cost.memory.layer_activations import always_saved, layer_activations, saved_bytes
from planner.cost.memory.peak import communicators, device_memory
from planner.cost.memory.phases import MOMENTS, PeakInputs, resident_bytes
from planner.cost.memory.weights import (
    eight_bit_copies,
    frozen,
    gathered,
    resident,
    resident_weights,
    second_shard_bytes,
)
from planner.cost.operators.blocks import blocks_of
from planner.cost.shards.layouts import Layouts
from planner.cost.shards.stages import Stages
from planner.describe.catalogue import load_model
from planner.describe.layout import Layout
from planner.describe.model.block import Saved
from tests.descriptions import default_scenario as make_scenario


def test_stage_activations() -> None:
    scenario = make_scenario("gpt3-175b", "megatron-lm-2021", attention="eager")
    layer = stage_activations(Stages.of_pipeline(scenario, Layout())).layer
    # 34 + 5 a s / h, a = 96
    assert layer.saved.item() / (2048 * scenario.model.hidden_size) == 114.0


def test_kept_bytes() -> None:
    scenario = make_scenario()
    layer, again = blocks_of(scenario)[1], Layouts.of(Layout(recompute="full"))
    # its input: 4096 of two bytes
    assert float(kept_bytes(scenario, layer, again)) / 2048 == 8192.0


def test_chunk_kept_bytes() -> None:
    scenario = make_scenario()
    layout = Layout(pp=2, vpp=2, recompute="full", schedule="interleaved-1f1b")
    saved = chunk_kept_bytes(Stages.of_pipeline(scenario, layout))
    # inputs of 8 layers; ids too
    assert (saved / 2**24).tolist() == [[8.0009765625, 8.0], [8.0, 8.0]]


def test_moved_bytes() -> None:
    scenario = make_scenario()
    layout = Layout(recompute="full", offload_activations=True)
    # 32 layer inputs
    assert moved_bytes(Stages.of_pipeline(scenario, layout)).item() / 2048 == 262144.0


def test_deferred_gradients() -> None:
    scenario = make_scenario("llama-3-8b", "fsdp2")
    layout = Layout(pp=2, vpp=2, schedule="zero-bubble-v", grad_accumulation=8, zero_stage=2)
    stages = Stages.of_pipeline(scenario, layout)
    layer = 2 * sum(weight.num_params for weight in stages.blocks[1].weights)
    # 17 layers of 16 bits
    assert (deferred_gradients(stages).pending[1] / layer).item() == 17.0


DEFERRING = Layout(pp=2, schedule="zero-bubble", grad_accumulation=8, zero_stage=2)


def test_deferred_gradients_add_to_every_moment_with_passes_in_flight() -> None:
    stages = Stages.of_pipeline(make_scenario("llama-3-8b", "fsdp2"), DEFERRING)
    inputs = PeakInputs.of(stages)
    ahead = inputs.deferred_gradients.ahead
    assert (ahead > 0).any()
    none = replace(inputs, deferred_gradients=replace(inputs.deferred_gradients, ahead=0 * ahead))
    for name, tensors in MOMENTS.items():
        rise = tensors(inputs).gradients - tensors(none).gradients
        in_flight = name not in ("cool-down", "reduction", "optimizer")
        assert np.allclose(rise, ahead * in_flight), name


def test_a_stage_that_waits_for_weight_gradients_keeps_its_weights_in_cool_down() -> None:
    turning = DEFERRING.replaced(schedule="zero-bubble-v", vpp=2)
    both = Layouts.stack([turning, DEFERRING, turning.replaced(schedule="interleaved")])
    stages = Stages.of(make_scenario("llama-3-8b", "fsdp2"), both, 1)
    inputs = PeakInputs.of(stages)
    assert (inputs.deferred_gradients.waiting > 0).ravel().tolist() == [True, False, False]
    weights = np.asarray(MOMENTS["cool-down"](inputs).weights)
    assert (weights > 0).ravel().tolist() == [True, False, False]


def test_footprints() -> None:
    scenario = make_scenario("gpt2-xl", global_batch=64)
    found = footprints(scenario, Layouts.broadcast(dp=[8, 8], grad_accumulation=8))
    # fp32 copy
    assert (found.memory_parts_bytes["optimizer_states"] / scenario.model.num_params).tolist() == [
        12.0,
        12.0,
    ]


def test_footprints_of() -> None:
    scenario = make_scenario("gpt2-xl", "ddp")
    found = footprints_of(Stages.candidates(scenario, Layouts.broadcast(dp=[4])))
    # moments in fp32
    assert (found.memory_parts_bytes["optimizer_states"] / scenario.model.num_params).tolist() == [
        8.0
    ]


def test_stage_memory() -> None:
    scenario = make_scenario()
    stages = stage_memory(scenario, Layout(pp=4))
    # 8 layers of 0.436 GB, ends
    assert [round(parts["weights"] / 1e9, 2) for parts in stages] == [4.54, 3.49, 3.49, 4.54]


def test_unreduced() -> None:
    scenario = make_scenario("gpt2-xl", "deepspeed")
    stages = Stages.of_pipeline(scenario, Layout(dp=4, zero_stage=3))
    # 5e8 elements
    assert unreduced(stages, np.zeros(())).base.buckets.item() == 1000000000.0


def test_host_memory() -> None:
    scenario = make_scenario("gpt2-xl", "deepspeed")
    stages = Stages.of_pipeline(scenario, Layout(dp=4, zero_stage=3, offload="optimizer-cpu"))
    # 12 + 4 + 2
    assert host_memory(stages)["offloaded_states"].item() / scenario.model.num_params == 18.0


def test_host_memory_phases() -> None:
    scenario = make_scenario("gpt2-xl", "deepspeed")
    load, _ = host_memory_phases(Stages.of_pipeline(scenario, Layout(dp=4, zero_stage=3)))
    # 4 ranks, 16 bits
    assert load["checkpoint_load"].item() / scenario.model.num_params == 8.0


def test_disk_bytes() -> None:
    scenario = make_scenario("gpt2-xl", "deepspeed")
    stages = Stages.of_pipeline(scenario, Layout(dp=4, zero_stage=3, offload="all-nvme"))
    # states 16, weights 2
    assert disk_bytes(stages).item() / scenario.model.num_params == 18.0


def test_passes_in_flight() -> None:
    scenario = make_scenario(load_model("llama-3-8b").replaced(num_layers=14), "fsdp2")
    layout = Layout(pp=4, vpp=2, schedule="interleaved-1f1b", grad_accumulation=8)
    passes = passes_in_flight(Stages.of_pipeline(scenario, layout))
    # first: 7 * 1 + 4 * 2
    assert (passes.micro_batches.tolist(), passes.blocks[1].tolist()) == (
        [5.5, 4.5, 3.5, 2.5],
        [15.0, 18.0, 14.0, 10.0],
    )


def test_saved_bytes() -> None:
    scenario = make_scenario()
    # sequences of 2048 tokens
    queries = Saved("queries", 2 * 4096, "sharded")
    assert float(saved_bytes(scenario, (queries,), Layouts.of(Layout(tp=4)))) / 2**20 == 4.0


def test_always_saved() -> None:
    scenario = make_scenario()
    assert not (any(item.selective_only for item in always_saved(blocks_of(scenario)[1])))


def test_layer_activations() -> None:
    scenario = make_scenario()
    layer, layouts = blocks_of(scenario)[1], Layouts.of(Layout(recompute="full"))
    # its input
    assert float(layer_activations(scenario, layer, layouts).saved) / 2**20 == 16.0


def test_device_memory() -> None:
    scenario = make_scenario("gpt2-xl")
    parts, moment = device_memory(Stages.of_pipeline(scenario, Layout()))
    assert (
        parts["optimizer_states"].item() / scenario.model.num_params,
        tuple(MOMENTS)[moment.item()],
    ) == (12.0, "loss")


def test_communicators() -> None:
    # 2 axes, 2 pairs, all ranks
    assert float(communicators(Layouts.of(Layout(dp=4, tp=4, pp=12)))) == 5.0
    # 1 axis, its experts
    assert float(communicators(Layouts.of(Layout(dp=4, ep=2)))) == 2.0
    assert float(communicators(Layouts.of(Layout()))) == 0.0


def test_resident_bytes() -> None:
    stages = Stages.of_pipeline(make_scenario("gpt2-xl"), Layout())
    each = resident_bytes(stages).item() / stages.params.unsharded.item()
    # 2 + 4 + 12, and gradients not summed yet
    assert round(each, 1) == 18.1


def test_resident() -> None:
    scenario = make_scenario("gpt2-xl", "deepspeed")
    stay = resident(Stages.of_pipeline(scenario, Layout()))
    parts = (stay.weights, stay.gradients, stay.optimizer_states)
    assert [part.item() / scenario.model.num_params for part in parts] == [2.0, 2.0, 12.0]


def test_frozen() -> None:
    scenario = make_scenario("gpt2-xl", "ddp", lora_rank=8)
    stages = Stages.of_pipeline(scenario, Layout(dp=4))
    # DDP: 4 bytes if trained
    assert frozen(stages).item() / scenario.model.num_params == 2.0


def test_eight_bit_copies() -> None:
    stages = Stages.of_pipeline(make_scenario(machine="dgx-h100", precision="fp8"), Layout())
    # a layer of Llama 3 8B
    assert eight_bit_copies(stages).item() / 2 / 32 == 218112000.0


def test_second_shard_bytes() -> None:
    scenario = make_scenario("llama-3-8b", "deepspeed")
    stages = Stages.of_pipeline(scenario, Layout(dp=64, zero_stage=3, reshard=4))
    assert (
        second_shard_bytes(stages, 2.0 * stages.params.unsharded).item() / scenario.model.num_params
        == 0.5
    )


def test_resident_weights() -> None:
    stages = Stages.of_pipeline(make_scenario(framework="fsdp2"), Layout(dp=8, zero_stage=2))
    there = resident_weights(stages, resident(stages).weights)
    # table and norm
    assert (there.all - there.without_head).item() == 2 * (128256 * 4096 + 4096)


def test_gathered() -> None:
    stages = Stages.of_pipeline(make_scenario(framework="fsdp2"), Layout(dp=8, zero_stage=3))
    # 16 bits of a layer and of the next
    window = gathered(stages, np.zeros(())).window
    assert window.item() / (2 * 218_112_000) == 2.0
