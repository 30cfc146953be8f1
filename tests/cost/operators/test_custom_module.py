"""Traced modules: their numbers become blocks in the way in which a framework computes."""

from __future__ import annotations

import pytest

import planner
from planner import Layout, Workload, load_framework, load_machine
from planner.cost.operators.blocks import blocks
from planner.cost.operators.operations import model_flop
from planner.cost.scenario import Scenario
from planner.cost.shards.layouts import Layouts
from planner.cost.step.compute.block_time import block_time
from planner.describe.model.block import Attention, Block, Gemm
from planner.describe.model.model import Model
from planner.describe.model.traced_file import (
    InPrecisions,
    Traced,
    TracedBlock,
    TracedOperation,
    TracedWeight,
)
from planner.errors import LayoutError

NET = Traced(
    blocks=(
        TracedBlock(name="first", role="first", weights=(TracedWeight(rows=5, columns=8),)),
        TracedBlock(
            name="layers.0",
            role="repeated",
            count=3,
            width=3200,
            weights=(TracedWeight(rows=64, columns=32), TracedWeight(rows=64, count=2)),
            operations=(
                TracedOperation(kind="product", rows=100, n=64, k=32, count=2),
                TracedOperation(kind="batched", rows=100, n=50, k=16, copies=4),
                TracedOperation(kind="attention", rows=100, n=50, k=16, values=16, copies=4),
            ),
            forward=InPrecisions(fp32=4e6, autocast=3e6, cast=2e6),
            backward=InPrecisions(fp32=8e6, autocast=6e6, cast=4e6),
            kernels=InPrecisions(fp32=5.0, autocast=7.0, cast=6.0),
            saved=InPrecisions(fp32=400.0, autocast=300.0, cast=200.0),
            working=InPrecisions(fp32=40.0, autocast=30.0, cast=20.0),
        ),
        TracedBlock(
            name="last",
            role="last",
            weights=(
                TracedWeight(rows=10, columns=64),
                TracedWeight(rows=5, columns=8, shared=True),
            ),
        ),
    ),
    results=InPrecisions(fp32=44.0, autocast=33.0, cast=22.0),
)
"""Three equal layers between an embedding and a head that shares its table."""


def traced_model() -> Model:
    """The model of those blocks."""
    return Model(name="net", family="traced", kind="traced", num_layers=3, traced=NET)


@pytest.mark.parametrize(
    ("framework", "precision", "kept", "kernels", "held"),
    [
        ("ddp", "fp32", 400.0, 5, [44.0]),
        # the stream in fp32: autocast
        ("ddp", "bf16", 300.0, 7, [33.0]),
        # weights and activations of 16 bits, and a loop that lets results go
        ("fsdp2", "bf16", 200.0, 6, []),
        ("fsdp2", "fp32", 400.0, 5, []),
    ],
)
def test_bytes_are_those_of_the_way_to_compute(
    framework: str, precision: str, kept: float, kernels: int, held: list[float]
) -> None:
    job = Workload.described({"sequence_length": 1, "precision": precision})
    _, layer, last = blocks(traced_model(), job, load_framework(framework))
    assert [item.bytes_per_token for item in layer.saved] == [kept]
    assert [item.num_kernels for item in layer.pointwise] == [kernels]
    assert [one.bytes_per_token for one in last.saved if one.name == "results"] == held


def test_operations_of_a_step() -> None:
    """Forward once, backward twice; a sample is a token."""
    job = Workload(sequence_length=1, global_batch=32)
    found = blocks(traced_model(), job, load_framework("ddp"))
    assert float(model_flop(found, job)) == 3 * 32 * NET.flop


def _time(gemm: Gemm, batch: int) -> float:
    scenario = Scenario(
        traced_model(),
        load_machine("polaris"),
        Workload(sequence_length=1),
        load_framework("ddp"),
    )
    block = Block("alone", "layer", 1, (), gemms=(gemm,))
    return float(block_time(scenario, block, Layouts.of(Layout(micro_batch=batch))).forward_s)


def test_products_that_share_nothing_read_an_operand_each() -> None:
    shared, apart = Gemm("a", 512, 512, rows=64), Gemm("b", 512, 512, rows=64, copies=1)
    assert _time(apart, 256) > _time(shared, 256)
    # as many products as tokens and copies
    assert _time(Gemm("c", 512, 512, rows=64, copies=4), 64) == _time(apart, 256)


def test_attention_of_a_sample_is_that_of_a_sequence() -> None:
    heads = Attention(8, 8, 64, 64, causal=True)
    sample = Attention(8, 8, 64, 64, causal=True, queries=1024.0, keys=1024.0)
    flop = [
        float(model_flop((Block("a", "layer", 1, (), attentions=(one,)),), job))
        for one, job in (
            (heads, Workload(sequence_length=1024, global_batch=4)),
            (sample, Workload(sequence_length=1, global_batch=4)),
        )
    ]
    assert flop[0] == flop[1] == 3 * 4 * 2 * 1024 * 1024 * 128 * 8


@pytest.mark.parametrize(
    ("layout", "said"),
    [
        (Layout(dp=4, tp=2), "tp = 2: net is not a transformer"),
        (Layout(dp=4, pp=2, schedule="1f1b"), "pp = 2: net is not a transformer"),
        (Layout(dp=8, recompute="selective"), "recompute = selective: net is a traced module"),
    ],
)
def test_what_is_not_known_of_a_module_is_refused(layout: Layout, said: str) -> None:
    with pytest.raises(LayoutError, match=said):
        planner.estimate(traced_model(), "polaris", layout, framework="fsdp2")


def test_a_sample_is_no_sequence() -> None:
    with pytest.raises(LayoutError, match="sequence length 2048: net trains on samples"):
        planner.plan(traced_model(), "polaris", nodes=1, workload=Workload())
    job = Workload(sequence_length=1, lora_rank=8)
    with pytest.raises(LayoutError, match="adapters and frozen parts of net"):
        planner.estimate(traced_model(), "polaris", Layout(dp=8), workload=job)


def test_it_is_planned_by_data_parallelism_alone() -> None:
    answer = planner.plan(traced_model(), "polaris", nodes=2)
    assert answer.fits
    assert answer.workload.sequence_length == 1
    assert {one.layout.tp * one.layout.pp * one.layout.cp for one in answer.ranked} == {1}
    assert {one.framework for one in answer.ranked} >= {"ddp", "fsdp2", "deepspeed"}
