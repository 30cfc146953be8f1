"""Estimate: what stages hold is worked out once, and everything else reads it."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable
from dataclasses import fields
from typing import Any

import numpy as np
import pytest

import planner
from planner.choose.search import enumerate_layouts, rank_fastest
from planner.cost import arrays
from planner.cost.estimate import estimate_layouts
from planner.cost.memory.footprint import stage_memory
from planner.cost.shards import stages
from planner.cost.shards.layouts import Layouts
from planner.cost.shards.stages import Stages
from planner.cost.step.step import time_parts
from planner.describe.layout import Layout
from planner.describe.workload import Workload
from tests.descriptions import scenario


def test_stages_are_worked_out_once_per_estimate(monkeypatch: pytest.MonkeyPatch) -> None:
    calls: Counter[str] = Counter()

    def counted(name: str) -> Callable[..., Any]:
        original = getattr(stages, name)

        def call(*arguments: Any, **named: Any) -> Any:
            calls[name] += 1
            return original(*arguments, **named)

        return call

    for name in ("candidate_stages", "stage_block_counts", "stage_params"):
        monkeypatch.setattr(stages, name, counted(name))
    # offload to disk and a pipeline: host, disk, memory and step all ask
    layouts = Layouts.stack(
        [
            Layout(dp=8, zero_stage=3, offload="all-nvme"),
            Layout(dp=2, pp=4, schedule="1f1b", grad_accumulation=8),
        ]
    )
    estimate_layouts(scenario(framework="deepspeed"), layouts)
    assert calls == {"candidate_stages": 1, "stage_block_counts": 1, "stage_params": 1}


def test_every_field_of_a_layout_is_a_column() -> None:
    """A field without a column would be accepted and change nothing."""
    assert {field.name for field in fields(Layouts)} == set(Layout.model_fields)
    with pytest.raises(AssertionError, match="tpp"):
        Layouts.broadcast(tpp=4)


def test_columns_broadcast_and_others_have_the_defaults_of_a_layout() -> None:
    found = Layouts.broadcast(dp=[[4], [8]], zero_stage=[1, 2, 3], dp_shard=[0, 2, 4])
    rows = [
        Layout(dp=dp, zero_stage=stage, dp_shard=group if group != dp else 0)
        for dp in (4, 8)
        for stage, group in ((1, 0), (2, 2), (3, 4))
    ]
    assert found.dp.shape == found.head_slots.shape == found.dp_shard.shape == (2, 3)
    assert list(found) == [found[i] for i in range(6)] == rows
    assert list(Layouts.broadcast()) == [Layout()]
    # rows share the memory of a default
    with pytest.raises(ValueError, match="read-only"):
        found.tp[0] = 2


@pytest.mark.parametrize("passes", [2, 4, 8])
@pytest.mark.parametrize(
    "fields",
    [
        {"schedule": "1f1b"},
        {"schedule": "1f1b", "recompute": "full"},
        {"schedule": "gpipe"},
        {"schedule": "interleaved-1f1b", "vpp": 2},
        {"schedule": "interleaved-1f1b", "vpp": 4, "zero_stage": 1},
    ],
)
def test_the_worst_stage_is_one_of_all_stages(fields: dict[str, Any], passes: int) -> None:
    layout = Layout(dp=2, pp=4, grad_accumulation=passes, **fields)
    asked = scenario(framework="megatron-lm")
    found = estimate_layouts(asked, Layouts.of(layout))[0]
    totals = [sum(parts.values()) for parts in stage_memory(asked, layout)]
    assert len(totals) == 4
    assert found.memory_bytes["total"] == pytest.approx(max(totals), rel=1e-12)
    assert totals[found.worst_stage] == pytest.approx(max(totals), rel=1e-12)


def test_parts_add_up_to_what_is_said() -> None:
    found = estimate_layouts(scenario(), Layouts.stack([Layout(dp=4), Layout(dp=4, tp=4)]))
    for index in range(len(found)):
        one = found[index]
        assert one.step_time_s == sum(one.step_time_parts_s.values())
        parts = {k: v for k, v in one.memory_bytes.items() if k != "total"}
        assert one.memory_bytes["total"] == sum(parts.values())


@pytest.mark.slow
def test_layouts_are_worked_out_in_pieces_to_the_same_bits(monkeypatch: pytest.MonkeyPatch) -> None:
    asked = scenario(framework="megatron-lm")
    layouts, _ = enumerate_layouts(asked, 64)
    whole = estimate_layouts(asked, layouts)
    assert len(layouts) > 200
    monkeypatch.setattr(arrays, "_BATCH_ROWS", 77)
    pieces = estimate_layouts(asked, layouts)
    assert list(rank_fastest(pieces)) == list(rank_fastest(whole))
    for name in ("time_parts_s", "memory_parts_bytes", "host_parts_bytes"):
        found, expected = getattr(pieces, name), getattr(whole, name)
        assert all(np.array_equal(found[part], expected[part]) for part in expected)
    assert np.array_equal(pieces.peak_moment, whole.peak_moment)
    assert np.array_equal(pieces.layouts.tp, whole.layouts.tp)


_DEALT = {
    # 61 layers, 3 of them dense: uneven chunks of two kinds
    "deepseek-v3": [
        Layout(pp=8, schedule="1f1b", grad_accumulation=16),
        Layout(pp=8, vpp=4, schedule="interleaved-1f1b", embedding_slots=1, head_slots=1,
               grad_accumulation=16),
        Layout(pp=16, vpp=4, schedule="interleaved-1f1b", grad_accumulation=32),
        Layout(pp=8, vpp=4, schedule="interleaved-1f1b", recompute="full", recompute_layers=1,
               grad_accumulation=16),
        Layout(pp=4, vpp=5, schedule="interleaved-1f1b", recompute="selective",
               recompute_modules=("mla_up_proj",), grad_accumulation=16),
    ],
    "llama-3.1-405b": [
        Layout(pp=16, vpp=8, schedule="interleaved-1f1b", embedding_slots=1, head_slots=1,
               grad_accumulation=16),
        Layout(pp=9, vpp=4, schedule="interleaved-1f1b", recompute="full", recompute_layers=2,
               grad_accumulation=18),
        Layout(pp=4, schedule="1f1b", first_layers=20, last_layers=41, grad_accumulation=8),
    ],
}  # fmt: skip


@pytest.mark.parametrize("model", _DEALT)
def test_a_layout_is_estimated_alike_whatever_stands_beside_it(model: str) -> None:
    """Alone, among others, and from all of its stages."""
    layouts = _DEALT[model]
    asked = scenario(model, framework="megatron-lm", sequence_length=4096)
    together = estimate_layouts(asked, Layouts.stack(layouts))
    for index, layout in enumerate(layouts):
        one = Layouts.of(layout)
        alone = estimate_layouts(asked, one)
        assert float(alone.step_time_s) == pytest.approx(together.step_time_s[index], rel=1e-12)
        assert float(alone.memory_bytes) == pytest.approx(together.memory_bytes[index], rel=1e-12)
        worst = max(sum(parts.values()) for parts in stage_memory(asked, layout))
        assert float(alone.memory_bytes) == pytest.approx(worst, rel=1e-12)
        every = time_parts(Stages.of(asked, one.take((..., None)), np.arange(layout.pp)))
        assert float(alone.step_time_s) == pytest.approx(float(sum(every.values())), rel=1e-12)


def test_the_columns_of_bounds_hold_the_bounds() -> None:
    found = planner.estimate(
        "gpt2",
        "polaris",
        Layout(dp=4, micro_batch=2),
        workload=Workload(sequence_length=512, global_batch=8),
        framework="ddp",
    )
    row = found.record()
    assert row["step_time_low_s"] < row["step_time_s"] < row["step_time_high_s"]
    assert row["memory_low_bytes"] < row["memory_high_bytes"]
