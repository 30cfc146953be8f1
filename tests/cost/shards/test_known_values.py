"""Known values of functions of `planner.cost.shards`."""

from __future__ import annotations

import numpy as np

from planner.cost.operators.blocks import blocks_of
from planner.cost.shards.candidate_stages import candidate_stages
from planner.cost.shards.layers_per_stage import (
    LayerSplit,
    chunk_counts,
    layer_split,
    layers_on_stage,
)
from planner.cost.shards.layout_codes import encode_layout, module_bits
from planner.cost.shards.layouts import Layouts
from planner.cost.shards.optimizers import moment_bytes
from planner.cost.shards.partial_recompute import (
    block_counts_around,
    chunk_block_counts,
    distinct_stage_layouts,
    enumerate_stages,
    model_block_counts,
    recompute_columns,
    split_for_partial_recompute,
    stage_block_counts,
)
from planner.cost.shards.states import (
    expert_share,
    largest_matrix,
    local_params,
    stage_params,
    without_frozen,
    without_tied,
)
from planner.cost.shards.tensor_split import expert_load, kept_share, split_over
from planner.describe.catalogue import load_framework
from planner.describe.layout import Layout
from planner.describe.workload import Workload
from tests.descriptions import default_scenario as make_scenario


def test_candidate_stages() -> None:
    scenario = make_scenario()
    deep = Layouts.of(Layout(pp=8, schedule="1f1b", grad_accumulation=16))
    assert candidate_stages(blocks_of(scenario), deep, scenario.framework).tolist() == [0, 7]


def test_layers_on_stage() -> None:
    assert [int(layers_on_stage(32, 4, i, LayerSplit(1, 1))[1]) for i in range(4)] == [8, 9, 8, 7]
    assert [
        int(layers_on_stage(16, 4, i, LayerSplit(0, 4.0, by_cost=True))[1]) for i in range(4)
    ] == [6, 5, 5, 0]


def test_chunk_counts() -> None:
    job, layouts = make_scenario(framework="fsdp2"), Layouts.of(Layout(pp=4, vpp=2))
    counts = chunk_counts(blocks_of(job), layouts, np.asarray(0), job.framework)
    # 32 layers and 2 ends
    assert [count.tolist() for count in counts] == [[1.0, 0.0], [4.0, 4.0], [0.0, 0.0]]


def test_layer_split() -> None:
    assert layer_split(126, Layout(pp=4, first_layers=31, last_layers=29)).layers_of_chunks == (
        31,
        33,
        33,
        29,
    )
    layout = Layout(pp=4, vpp=2, first_layers=2, schedule="interleaved-1f1b")
    assert layer_split(14, layout).layers_of_chunks == (1, 2, 2, 2, 1, 2, 2, 2)


def test_encode_layout() -> None:
    assert encode_layout(Layout(tp=4, recompute="full"))["recompute"] == 2


def test_module_bits() -> None:
    # the first and the third
    assert module_bits(("core_attn", "layernorm")) == 5


def test_moment_bytes() -> None:
    plain = load_framework("megatron-lm")
    narrow = plain.with_switches("precision-aware", "fp8-moments")
    assert [moment_bytes("adamw", framework.states("bf16")) for framework in (plain, narrow)] == [
        8.0,
        2.0,
    ]


def test_split_for_partial_recompute() -> None:
    scenario = make_scenario()
    blocks = split_for_partial_recompute(blocks_of(scenario))
    assert [(block.kind, block.kept_whole, block.count) for block in blocks][1:3] == [
        ("layer", False, 32),
        ("layer", True, 0),
    ]


def test_recompute_columns() -> None:
    some = Layouts.of(Layout(recompute="full", recompute_layers=2))
    assert [int(column) for column in recompute_columns(some)] == [2, 1]


def test_chunk_block_counts() -> None:
    scenario = make_scenario()
    llama = split_for_partial_recompute(blocks_of(scenario))
    two = Layouts.of(Layout(pp=4, recompute="full", recompute_layers=2))
    counts = chunk_block_counts(llama, two, np.asarray(0), scenario.framework)
    assert [float(count[0]) for count in counts] == [1.0, 2.0, 6.0, 0.0]


def test_stage_block_counts() -> None:
    scenario = make_scenario()
    two = Layouts.of(Layout(pp=2, vpp=2, recompute="full", recompute_layers=2))
    blocks = split_for_partial_recompute(blocks_of(scenario))
    assert [int(count) for count in stage_block_counts(blocks, two, 0, scenario.framework)] == [
        1,
        4,
        12,
        0,
    ]


def test_distinct_stage_layouts() -> None:
    scenario = make_scenario()
    some = Layouts.stack([Layout(pp=4, dp=2), Layout(pp=2), Layout(pp=4)])
    few, stages, which = distinct_stage_layouts(blocks_of(scenario), some, 1)
    assert (few.pp.tolist(), stages.tolist(), which.tolist()) == ([4, 2], [1, 1], [0, 1, 0])


def test_model_block_counts() -> None:
    scenario = make_scenario()
    llama = split_for_partial_recompute(blocks_of(scenario))
    two = Layouts.of(Layout(pp=4, recompute="full", recompute_layers=2))
    assert [float(count) for count in model_block_counts(llama, two, scenario.framework)] == [
        1.0,
        8.0,
        24.0,
        1.0,
    ]


def test_block_counts_around() -> None:
    scenario = make_scenario()
    layouts, stage = Layouts.of(Layout(pp=4)), np.asarray(1)
    last, *around = block_counts_around(blocks_of(scenario), layouts, stage, scenario.framework)
    # of 32 layers
    assert (int(last), [[float(count) for count in side] for side in around]) == (
        2,
        [[1.0, 16.0, 0.0], [0.0, 8.0, 1.0]],
    )


def test_enumerate_stages() -> None:
    row, stage = enumerate_stages(Layouts.broadcast(pp=[2, 3]))
    assert (row.tolist(), stage.tolist()) == ([0, 0, 1, 1, 1], [0, 1, 0, 1, 2])


def test_largest_matrix() -> None:
    scenario = make_scenario(framework="ddp", lora_rank=8, base_format="nf4")
    layer, layouts = blocks_of(scenario)[1], Layouts.of(Layout())
    assert largest_matrix(scenario, layer, layouts, "stored").item() == 4096 * 14336


def test_local_params() -> None:
    scenario = make_scenario()
    # norms are whole
    layer, norms = blocks_of(scenario)[1], 2 * scenario.model.hidden_size
    local = local_params(scenario, layer, Layouts.of(Layout(tp=4)))
    assert float(local.unsharded) == (layer.num_params - norms) / 4 + norms == 54534144


def test_stage_params() -> None:
    gpt2 = make_scenario("gpt2")
    whole = [np.asarray(float(block.count)) for block in blocks_of(gpt2)]
    assert (
        float(stage_params(gpt2, blocks_of(gpt2), Layouts.of(Layout()), whole).unsharded)
        == 124439808.0
    )


def test_without_tied() -> None:
    *_, head = blocks_of(make_scenario("gpt2", "ddp"))
    # its norm; the embedding's table
    assert [weight.num_params for weight in head.weights] == [1536, 38597376]
    assert [weight.num_params for weight in without_tied(head).weights] == [1536]


def test_without_frozen() -> None:
    layer = blocks_of(make_scenario("gpt2", "ddp", lora_rank=8, lora_targets=("query",)))[1]
    # 8 x 768, 768 x 8
    assert [weight.num_params for weight in without_frozen(layer).weights] == [6144, 6144]


def test_expert_share() -> None:
    layers = blocks_of(make_scenario("mixtral-8x7b"))
    assert round(float(expert_share(layers, Layouts.of(Layout()))), 3) == 0.966
    # gate, up and down of 8 experts
    assert round(32 * 8 * 3 * 4096 * 14336 / 46_702_792_704, 3) == 0.966


def test_split_over() -> None:
    spread = Layouts.of(Layout(tp=4, sequence_parallel=True))
    assert [float(split_over(word, spread)) for word in ("sharded", "residual", "replicated")] == [
        4.0,
        4.0,
        1.0,
    ]


def test_expert_load() -> None:
    alone, spread = Layouts.of(Layout(dp=8)), Layouts.of(Layout(dp=8, ep=8))
    uneven = Workload(expert_imbalance=1.5)
    assert (float(expert_load(uneven, alone)), float(expert_load(uneven, spread))) == (1.0, 1.5)
    # others are dropped
    assert float(expert_load(uneven.replaced(expert_capacity=1.25), spread)) == 1.25


def test_kept_share() -> None:
    spread, even = Layouts.of(Layout(dp=8, ep=8)), Workload(expert_capacity=0.5)
    assert float(kept_share(even, spread)) == 0.5
    uneven = Workload(expert_imbalance=1.5, expert_capacity=1.25)
    # the fullest of 8 ranks drops
    assert float(kept_share(uneven, spread)) == 1 - 0.25 / 8
