"""Known values of functions of `planner.validate`."""

from __future__ import annotations

from planner import load_model
from planner.describe.layout import Layout
from planner.validate.ranks.rank import external_rank, is_launched
from planner.validate.sharding.attention import alibi_slopes
from planner.validate.sharding.recorders import Direction, Phase
from planner.validate.trace.expected_collectives import axis_of
from planner.validate.trace.limits import load_transformer
from planner.validate.train.expected import wire_bytes
from planner.validate.train.strategies import spread_of, strategies_on
from planner.validate.train.tasks import reduced


def test_is_launched() -> None:
    assert (is_launched({"PMI_RANK": "0", "PMI_SIZE": "2"}), is_launched({})) == (True, False)


def test_external_rank() -> None:
    rank = external_rank(
        60,
        {
            "OMPI_COMM_WORLD_RANK": "1",
            "OMPI_COMM_WORLD_SIZE": "4",
            "OMPI_COMM_WORLD_LOCAL_RANK": "1",
            "OMPI_COMM_WORLD_LOCAL_SIZE": "4",
        },
    )
    assert (rank.rank, rank.world, rank.rendezvous) == (1, 4, "tcp://127.0.0.1:29500")


def test_alibi_slopes() -> None:
    assert alibi_slopes(2, 2, 8) == [0.125, 0.0625]


def test_phase() -> None:
    assert str(Phase(Direction.BACKWARD, "layer -1")) == "backward layer -1"


def test_axis_of() -> None:
    assert axis_of(Layout(dp=8, ep=4), 2, 4) == "edp"


def test_load_transformer() -> None:
    assert load_transformer("gpt2").num_layers == 12


def test_wire_bytes() -> None:
    assert (wire_bytes("all_reduce", 1000, 4), wire_bytes("send", 1000, 2)) == (1500.0, 1000.0)


def test_spread_of() -> None:
    assert (spread_of("3d", 8).dp, spread_of("interleaved", 2).micro_batches) == (2, 4)


def test_strategies_on() -> None:
    assert strategies_on(1) == ("single",)


def test_reduced() -> None:
    small = reduced(load_model("llama-3-8b"), 128)
    assert (small.num_heads, small.num_kv_heads, small.hidden_size, small.ffn_size) == (
        16,
        4,
        256,
        896,
    )
