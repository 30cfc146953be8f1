"""Layouts: one and many are the same numbers."""

from __future__ import annotations

import json
from dataclasses import fields
from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from planner.cost.shards.layouts import Layouts
from planner.describe.layout import OFFLOAD, RECOMPUTE, SCHEDULES, Layout, divisors, with_schedule
from planner.errors import DescriptionError

degree = st.sampled_from([1, 2, 3, 4, 8])
layouts = st.builds(
    Layout,
    dp=degree,
    tp=degree,
    pp=degree,
    vpp=degree,
    cp=degree,
    ep=degree,
    zero_stage=st.integers(0, 3),
    micro_batch=degree,
    grad_accumulation=degree,
    sequence_parallel=st.booleans(),
    recompute=st.sampled_from(RECOMPUTE),
    schedule=st.sampled_from(SCHEDULES),
    offload=st.sampled_from(OFFLOAD),
    tiles=degree,
)


def test_world_and_global_batch() -> None:
    layout = Layout(dp=4, tp=2, pp=3, cp=5, ep=2, micro_batch=7, grad_accumulation=11)
    assert layout.world == 4 * 2 * 3 * 5  # ep subdivides dp * cp and adds no ranks
    assert layout.global_batch == 7 * 11 * 4


@given(st.lists(layouts, min_size=1, max_size=5))
def test_arrays_hold_the_layouts(some: list[Layout]) -> None:
    many = Layouts.stack(some)
    assert len(many) == len(some)
    assert [many[i] for i in range(len(some))] == some
    assert many.world.tolist() == [one.world for one in some]
    assert many.global_batch.tolist() == [one.global_batch for one in some]
    single = Layouts.of(some[0])
    assert np.shape(single.dp) == ()
    assert single[0] == some[0]


@given(st.lists(layouts, min_size=1, max_size=8))
def test_distinct_maps_back(some: list[Layout]) -> None:
    many = Layouts.stack(some)
    few, index = many.distinct("tp", "cp", "recompute")
    assert len(few) == len({(one.tp, one.cp, one.recompute) for one in some})
    for name in ("tp", "cp", "recompute"):
        assert np.array_equal(getattr(few, name)[index], getattr(many, name))


@given(layouts)
def test_json_round_trip(layout: Layout) -> None:
    assert Layout.described(json.loads(layout.model_dump_json())) == layout


def test_hybrid_sharding_is_kept_apart() -> None:
    plain, hybrid = Layout(dp=8), Layout(dp=8, dp_shard=4)
    many = Layouts.stack([plain, hybrid])
    assert many.dp_shard.tolist() == [8, 4]
    assert [many[0].dp_shard, many[1].dp_shard] == [0, 4]
    with pytest.raises(DescriptionError, match="must divide dp = 8; use one of 1, 2, 4, 8"):
        Layout.described({"dp": 8, "dp_shard": 3})


def test_broadcast_fills_defaults() -> None:
    many = Layouts.broadcast(tp=[1, 2, 4], dp=2)
    assert many.tp.tolist() == [1, 2, 4]
    assert many.dp_shard.tolist() == [2, 2, 2]
    for field in fields(many):
        assert getattr(many, field.name).dtype == np.int64
    assert many[2] == Layout(tp=4, dp=2)


def test_take() -> None:
    many = Layouts.stack([Layout(tp=2), Layout(pp=2), Layout()])
    assert [many[i] for i in range(3)] == [Layout(tp=2), Layout(pp=2), Layout()]
    assert many.take(np.array([1]))[0] == Layout(pp=2)


def test_expert_replicas() -> None:
    assert int(Layouts.of(Layout(dp=8, cp=2, ep=4)).expert_dp) == 4


@pytest.mark.parametrize("number", [1, 2, 12, 36, 97, 720_720])
def test_divisors(number: int) -> None:
    found = divisors(number)
    assert found == [d for d in range(1, number + 1) if number % d == 0]


@pytest.mark.parametrize(
    "wrong",
    [{"tp": 0}, {"tp": -1}, {"dp": 1.5}, {"zero_stage": 4}, {"schedule": "x"}, {"micro_batch": 0}],
)
def test_impossible_degrees(wrong: dict[str, object]) -> None:
    with pytest.raises(DescriptionError, match="is refused"):
        Layout.described(wrong)


def test_text_names_what_is_used() -> None:
    text = str(
        Layout(
            dp=4,
            dp_shard=2,
            tp=2,
            sequence_parallel=True,
            pp=2,
            vpp=2,
            zero_stage=1,
            micro_batch=3,
            grad_accumulation=5,
            recompute="full",
            schedule="gpipe",
            offload="optimizer-cpu",
            tiles=2,
        )
    )
    assert (
        text == "dp4(shard 2) tp2 pp2 vpp2 sp zero1 mb3x5 full recompute gpipe "
        "offload optimizer-cpu 2 tiles"
    )


@pytest.mark.parametrize(
    ("fields", "text"),
    [
        ({"pp": 4, "split": "7, 8*2 ,7"}, "dp1 pp4 zero0 mb1x1 split7,8*2,7"),
        ({"pp": 4, "split": "7,8,8,7"}, "dp1 pp4 zero0 mb1x1 split7,8*2,7"),
        ({"pp": 4, "embedding_slots": 1, "head_slots": 0}, "dp1 pp4 zero0 mb1x1 embedding1 head0"),
        ({"pp": 4, "first_layers": 7, "last_layers": 5}, "dp1 pp4 zero0 mb1x1 first7 last5"),
    ],
)
def test_how_stages_are_dealt_is_said_and_kept(fields: dict[str, Any], text: str) -> None:
    layout = Layout(**fields)
    assert str(layout) == text
    assert Layouts.stack([Layout(), layout])[1] == layout
    assert Layout.model_validate_json(layout.model_dump_json()) == layout


@pytest.mark.parametrize(
    ("fields", "message"),
    [
        ({"pp": 4, "split": "8*3"}, r"8\*3 has 3 chunks, but pp \* vpp = 4; give one number for"),
        ({"pp": 2, "split": "8;8"}, r"'8;8' is not a list of layers; write .* such as 7,8\*14,7"),
        ({"pp": 2, "split": "8*0,8"}, r"is not a list of layers"),
        ({"pp": 2, "split": "1*99999,2*99999"}, r"is not a list of layers"),
        ({"pp": 2, "split": "8,8", "first_layers": 8}, r"as well as split .* set only one of them"),
        ({"pp": 2, "head_slots": 1, "last_layers": 8}, r"head_slots as well as first_layers"),
    ],
)
def test_stages_are_dealt_in_one_way(fields: dict[str, Any], message: str) -> None:
    with pytest.raises(DescriptionError, match=message):
        Layout.described(fields)


@pytest.mark.parametrize(
    ("name", "stage"),
    [
        ("FULL_SHARD", 3),
        ("SHARD_GRAD_OP", 2),
        ("NO_SHARD", 0),
        ("zero-3", 3),
        ("ZeRO1", 1),
        ("2", 2),
    ],
)
def test_names_of_sharding_are_stages(name: str, stage: int) -> None:
    assert Layout.described({"zero_stage": name}).zero_stage == stage


@pytest.mark.parametrize(("name", "stage"), [("HYBRID_SHARD", 3), ("_HYBRID_SHARD_ZERO2", 2)])
def test_hybrid_sharding_needs_a_group(name: str, stage: int) -> None:
    with pytest.raises(DescriptionError, match=f"use zero_stage = {stage} and dp_shard"):
        Layout.described({"zero_stage": name})


@pytest.mark.parametrize(
    ("name", "schedule"),
    [("interleaved", "interleaved-1f1b"), ("1F1B", "1f1b"), ("zero_bubble", "zero-bubble")],
)
def test_names_of_schedules(name: str, schedule: str) -> None:
    assert Layout.described({"pp": 2, "vpp": 2, "schedule": name}).schedule == schedule


def test_interleaved_has_two_chunks_where_none_are_stated() -> None:
    for name in ("interleaved", "interleaved-1f1b"):
        fields = with_schedule({"pp": 4, "schedule": name})
        layout = Layout.described(fields)
        assert (layout.schedule, layout.vpp) == ("interleaved-1f1b", 2)
    assert with_schedule({"pp": 4, "schedule": "interleaved", "vpp": 3})["vpp"] == 3
