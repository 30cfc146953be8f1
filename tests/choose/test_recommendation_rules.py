"""Rules of a recommendation: offload only where it is needed, effort by the axes in use."""

from __future__ import annotations

from dataclasses import replace

import pytest

import planner
from planner.choose.preferences import preferences
from planner.choose.search.recommendation import _offloads_needlessly, setup_effort
from planner.cost.shards.layouts import Layouts
from planner.describe.catalogue import load_framework
from planner.describe.layout import Layout


@pytest.mark.parametrize(
    ("risk", "faster_risk", "is_needless"),
    [(0.0, 0.05, True), (0.0, 0.051, False), (0.2, 0.2, True), (0.2, 0.21, False)],
)
def test_offload_is_needless_where_a_faster_layout_is_as_safe(
    risk: float, faster_risk: float, is_needless: bool
) -> None:
    plain = planner.estimate("gpt2", "polaris", Layout(dp=4, zero_stage=2), framework="deepspeed")
    offloaded = plain.layout.replaced(offload="optimizer-cpu")
    slow = replace(plain, layout=offloaded, out_of_memory_probability=risk)
    assert preferences().risk == 0.05
    fast = replace(plain, out_of_memory_probability=faster_risk)
    assert _offloads_needlessly(slow, fast) == is_needless
    assert not _offloads_needlessly(fast, slow)


def test_more_effort_never_ranks_as_less() -> None:
    chain = [
        Layout(dp=16),
        Layout(dp=16, zero_stage=3),
        Layout(dp=8, tp=2, zero_stage=1),
        Layout(dp=4, tp=4, zero_stage=1),
        Layout(dp=2, tp=4, pp=2, zero_stage=1, grad_accumulation=4),
        Layout(dp=2, tp=4, cp=2, zero_stage=1, pp=1),
    ]
    efforts = setup_effort(Layouts.stack(chain)).tolist()
    assert efforts == sorted(efforts)
    order = ("ddp", "fsdp2", "deepspeed", "megatron-lm")
    assert [load_framework(n).effort for n in order] == sorted(
        load_framework(n).effort for n in order
    )
