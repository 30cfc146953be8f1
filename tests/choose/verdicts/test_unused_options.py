"""Idle: what is asked for and does nothing is said, and what does something is not."""

from __future__ import annotations

from typing import Any

import pytest

from planner.choose.legality import check
from planner.choose.verdicts.plan_notes import unused_option_notes
from planner.cost.estimate import estimate_layouts
from planner.cost.shards.layouts import Layouts
from planner.describe.catalogue import load_framework, names
from planner.describe.layout import Layout
from planner.errors import LayoutError
from tests.descriptions import scenario

EXPERTS = {"dp": 32, "ep": 8, "zero_stage": 1, "grad_accumulation": 8}
PIPED = {"dp": 16, "pp": 2, "ep": 8, "zero_stage": 1, "grad_accumulation": 16, "schedule": "1f1b"}
CHUNKS = {**PIPED, "vpp": 2, "schedule": "interleaved-1f1b"}
OVERLAP = "megatron-lm+overlap-experts"


@pytest.mark.parametrize(
    ("framework", "layout", "job", "said"),
    [
        (OVERLAP, EXPERTS, {}, ""),
        (OVERLAP, CHUNKS, {}, ""),
        (OVERLAP, PIPED, {}, "overlap-experts does nothing in this layout"),
        (OVERLAP, {**EXPERTS, "recompute": "full"}, {}, "overlap-experts does nothing"),
        (OVERLAP, {**EXPERTS, "ep": 1}, {}, "switch overlap-experts does nothing"),
        ("megatron-lm+deepep", {**EXPERTS, "ep": 1}, {}, "switch deepep does nothing"),
        ("megatron-lm+deepep", EXPERTS, {}, ""),
        ("megatron-lm", {**EXPERTS, "ep": 1}, {"expert_imbalance": 2}, "expert_imbalance = 2 does"),
        ("megatron-lm", EXPERTS, {"expert_imbalance": 2}, ""),
        ("megatron-lm", {**EXPERTS, "recompute": "full", "recompute_layers": 32}, {}, ""),
        (
            "megatron-lm",
            {**PIPED, "recompute": "full", "recompute_layers": 17},
            {},
            "recompute_layers = 17 is full recompute: no chunk has more than 16 layers",
        ),
        (
            "megatron-lm",
            {**EXPERTS, "recompute": "full", "recompute_layers": 33},
            {},
            "no chunk has more than 32 layers",
        ),
        ("megatron-lm", EXPERTS, {"ramp": "1B:64", "tokens": 2e9}, ""),
        ("megatron-lm", EXPERTS, {"ramp": "1B:64"}, "no tokens are stated"),
        ("megatron-lm", EXPERTS, {"ramp": "10B:64", "tokens": 2e9}, "global batch of 256"),
    ],
)
def test_what_does_nothing_is_said(
    framework: str, layout: dict[str, Any], job: dict[str, Any], said: str
) -> None:
    asked = scenario("mixtral-8x7b", framework, "dgx-h100", global_batch=256, **job)
    one = Layout.described(layout)
    check(asked, one)
    found = unused_option_notes(asked, one)
    assert len(found) == bool(said), found
    assert all(said in line and "\n" not in line for line in found)


@pytest.mark.parametrize(("step", "is_said"), [(1, False), (2, True)])
def test_a_step_of_two_reaches_no_chunk_of_one_layer(step: int, is_said: bool) -> None:
    asked = scenario("llama-3-8b", "torchtitan", "dgx-h100", global_batch=64)
    layout = {"pp": 32, "split": "1*32", "schedule": "1f1b", "recompute": "full"}
    found = unused_option_notes(asked, Layout.described({**layout, "recompute_every": step}))
    assert any("recompute_every = 2 recomputes no layer" in line for line in found) is is_said


def test_layers_that_are_never_reached_are_not_repeated() -> None:
    asked = scenario("llama-3-8b", "torchtitan", "dgx-h100", global_batch=64)
    every, none = (
        Layout.described({"dp": 8, "zero_stage": 2, "grad_accumulation": 8, **recompute})
        for recompute in ({"recompute": "full", "recompute_every": 33}, {})
    )
    (said,) = unused_option_notes(asked, every)
    assert "recompute_every = 33 recomputes no layer" in said
    times = [estimate_layouts(asked, Layouts.of(one)).step_time_s for one in (every, none)]
    assert times[0] == times[1]


TRAITS = {"experts_once_per_node", "overlap_experts", "dispatch_bytes"}
OF_EXPERTS = [
    (framework, name)
    for framework in names("framework")
    for name, switch in load_framework(framework).switches.items()
    if switch.changes.get("communication", {}).keys() & TRAITS
]


@pytest.mark.parametrize(("framework", "name"), OF_EXPERTS)
def test_switches_of_experts_are_refused_without_any(framework: str, name: str) -> None:
    word = f"{framework}+{name}"
    assert load_framework(framework).switches[name].of_experts
    with pytest.raises(LayoutError, match=f"switch {name} .* llama-3-8b has none; leave it out"):
        check(scenario("llama-3-8b", word, "dgx-h100"), Layout(dp=8, zero_stage=1))
