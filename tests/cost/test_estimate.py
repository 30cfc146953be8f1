"""Estimate: what stages hold is worked out once, and everything else reads it."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable
from dataclasses import fields
from typing import Any

import numpy as np
import pytest

from planner.choose.search import candidates, order
from planner.cost import arrays
from planner.cost.estimate import estimate_layouts
from planner.cost.memory.footprint import stage_memory
from planner.cost.shards import stages
from planner.cost.shards.layouts import Layouts
from planner.describe.layout import Layout
from tests.descriptions import question


def test_stages_are_worked_out_once_per_estimate(monkeypatch: pytest.MonkeyPatch) -> None:
    calls: Counter[str] = Counter()

    def counted(name: str) -> Callable[..., Any]:
        original = getattr(stages, name)

        def call(*arguments: Any, **named: Any) -> Any:
            calls[name] += 1
            return original(*arguments, **named)

        return call

    for name in ("candidate_stages", "stage_parts", "stage_params"):
        monkeypatch.setattr(stages, name, counted(name))
    # offload to disk and a pipeline: host, disk, memory and step all ask
    layouts = Layouts.stack(
        [
            Layout(dp=8, zero_stage=3, offload="all-nvme"),
            Layout(dp=2, pp=4, schedule="1f1b", grad_accumulation=8),
        ]
    )
    estimate_layouts(question(framework="deepspeed"), layouts)
    assert calls == {"candidate_stages": 1, "stage_parts": 1, "stage_params": 1}


def test_every_field_of_a_layout_is_a_column() -> None:
    """A field without a column would be accepted and change nothing."""
    assert {field.name for field in fields(Layouts)} == set(Layout.model_fields)
    with pytest.raises(AssertionError, match="tpp"):
        Layouts.broadcast(tpp=4)


def test_the_worst_stage_is_one_of_all_stages() -> None:
    layout = Layout(dp=2, pp=4, schedule="1f1b", grad_accumulation=8)
    asked = question(framework="megatron-lm")
    found = estimate_layouts(asked, Layouts.of(layout))[0]
    totals = [sum(parts.values()) for parts in stage_memory(asked, layout)]
    assert found.memory_bytes["total"] == pytest.approx(max(totals), rel=1e-12)
    assert found.worst_stage == int(np.argmax(totals))


def test_parts_add_up_to_what_is_said() -> None:
    found = estimate_layouts(question(), Layouts.stack([Layout(dp=4), Layout(dp=4, tp=4)]))
    for index in range(len(found)):
        one = found[index]
        assert one.step_time_s == sum(one.step_time_parts_s.values())
        parts = {k: v for k, v in one.memory_bytes.items() if k != "total"}
        assert one.memory_bytes["total"] == sum(parts.values())


@pytest.mark.slow
def test_layouts_are_worked_out_in_pieces_to_the_same_bits(monkeypatch: pytest.MonkeyPatch) -> None:
    asked = question(framework="megatron-lm")
    layouts, _ = candidates(asked, 64)
    whole = estimate_layouts(asked, layouts)
    assert len(layouts) > 200
    monkeypatch.setattr(arrays, "_TOGETHER", 77)
    pieces = estimate_layouts(asked, layouts)
    assert list(order(pieces)) == list(order(whole))
    for name in ("time_parts_s", "memory_parts_bytes", "host_parts_bytes"):
        found, expected = getattr(pieces, name), getattr(whole, name)
        assert all(np.array_equal(found[part], expected[part]) for part in expected)
    assert np.array_equal(pieces.peak_moment, whole.peak_moment)
    assert np.array_equal(pieces.layouts.tp, whole.layouts.tp)
