"""Known values of functions of `planner.describe`."""

from __future__ import annotations

from planner.describe.catalogue import load_machine
from planner.describe.configurations.readers.torchtitan import fsdp2_stage
from planner.describe.framework.kernel_releases import architecture_of, product_fraction
from planner.describe.layout import Layout
from planner.describe.model.model import Model
from planner.describe.workload.documents import reduce_lengths, split_documents
from planner.describe.workload.workload import Workload


def test_fsdp2_stage() -> None:
    assert [fsdp2_stage(s, r, gathers_again=True) for s, r in ((8, 1), (1, 8), (1, 1))] == [3, 0, 3]


def test_architecture_of() -> None:
    assert architecture_of(load_machine("polaris").device) == "ampere"


def test_product_fraction() -> None:
    assert product_fraction(load_machine("mi300x-node").device, "2024-06") == 0.79


def test_chunks_chunk() -> None:
    assert [Layout(pp=4, vpp=2, schedule="zero-bubble-v").chunk(i, 1) for i in range(4)] == [
        7,
        6,
        5,
        4,
    ]


def test_chunks_stage_of() -> None:
    assert [Layout(pp=4, vpp=2, schedule="zero-bubble-v").stage_of(i) for i in (3, 4, 7)] == [
        3,
        3,
        0,
    ]


def test_model_num_params() -> None:
    assert (
        Model(
            name="m",
            family="llama",
            num_layers=2,
            hidden_size=8,
            num_heads=2,
            num_kv_heads=1,
            head_dim=4,
            ffn_size=16,
            vocab_size=32,
            norm="rmsnorm",
            gated_mlp=True,
            activation="silu",
        ).num_params
        == 1704
    )


def test_split_documents() -> None:
    assert split_documents((100, 2500), 1024) == ((100, 1), (452, 1), (1024, 2))


def test_reduce_lengths() -> None:
    assert (reduce_lengths([3, 1, 2]), len(reduce_lengths(range(1, 100_000)))) == ((1, 2, 3), 256)


def test_workload_tokens_per_step() -> None:
    assert Workload(sequence_length=4096, global_batch=64).tokens_per_step == 262144
    short = {"document_lengths": (100, 300), "packing": "padded"}
    assert Workload(sequence_length=4096, global_batch=64, **short).tokens_per_step == 12800


def test_workload_all_tokens() -> None:
    assert Workload(sequence_length=1024, samples=52_000, epochs=3).all_tokens == 159744000.0
    assert Workload(samples=1000, epochs=2, document_lengths=(500,)).all_tokens == 1000000.0


def test_workload_ramp_steps() -> None:
    assert Workload(sequence_length=1000, ramp="2M:16,5M:32", tokens=4e6).ramp_steps == (
        (16, 125),
        (32, 63),
    )
