"""Obstacles: why a strategy has no layout is what the rules say of the job, not a fixed text."""

from __future__ import annotations

import numpy as np
import pytest

from planner.choose.search import enumerate_layouts
from planner.choose.verdicts.strategies import CLASSIC, explain_infeasibility
from planner.cost.scenario import Scenario
from tests.descriptions import scenario

BY_NAME = {strategy.name: strategy for strategy in CLASSIC}


def asked(
    *frameworks: str, model: str = "llama-3-8b", machine: str = "polaris", **workload: object
) -> dict[str, Scenario]:
    return {name: scenario(model, name, machine, **workload) for name in frameworks}


@pytest.mark.parametrize(
    ("strategy", "scenarios", "world", "chosen", "said"),
    [
        # the batch: no multiple, and fewer sequences than devices
        ("DDP", asked("ddp", global_batch=512), 12, False, "512 is not a multiple of dp = 12"),
        ("DDP", asked("ddp"), 12_000, False, "64 is less than dp = 12000"),
        # the framework: not asked for, not on this runtime, no words for the job
        ("ZeRO-2", asked("ddp"), 64, True, "ZeRO stage 2 is not offered by ddp"),
        ("ZeRO-2", asked("ddp"), 64, True, "the chosen frameworks leave out deepspeed"),
        (
            "TP",
            asked("ddp", machine="aurora", global_batch=48),
            24,
            True,
            "no megatron-lm on xpu devices",
        ),
        (
            "ZeRO-1",
            asked("ddp", precision="fp8", machine="dgx-h100"),
            8,
            False,
            "no files can be written for deepspeed: its files cannot set precision fp8",
        ),
        # the machine: one device, one node, no disk
        ("ZeRO-1", asked("deepspeed"), 1, False, "needs several devices; the job has 1 device"),
        ("hybrid FSDP", asked("fsdp2"), 4, False, "several nodes"),
        ("ZeRO + NVMe offload", asked("deepspeed", machine="aurora"), 32, False, "no node-local"),
        # the model: 12 heads and 12 layers
        ("TP", asked("megatron-lm", model="gpt2"), 5, False, "tp = 5 does not divide num_heads"),
        (
            "PP",
            asked("megatron-lm", model="gpt2"),
            13,
            False,
            "pp * vpp = 13 exceeds the 12 layers",
        ),
        ("TP + PP", asked("megatron-lm"), 7, False, "a product of two degrees"),
    ],
)
def test_what_is_in_the_way(
    strategy: str, scenarios: dict[str, Scenario], world: int, chosen: bool, said: str
) -> None:
    found = explain_infeasibility(BY_NAME[strategy], scenarios, world, chosen)
    assert said in found
    # a remedy that changes the strategy is none
    assert "use one of" not in found


def test_a_framework_that_would_not_help_is_not_named() -> None:
    # DeepSpeed has no layout for this batch either
    found = explain_infeasibility(
        BY_NAME["ZeRO-1"], asked("fsdp2", global_batch=512), 12, chosen=True
    )
    assert "the chosen frameworks leave out" not in found


@pytest.mark.parametrize("framework", ["ddp", "deepspeed", "fsdp2", "megatron-lm"])
@pytest.mark.parametrize("batch", [60, 64])
def test_an_obstacle_is_said_exactly_where_the_search_has_nothing(
    framework: str, batch: int
) -> None:
    asked = scenario("gpt2", framework, sequence_length=1024, global_batch=batch)
    for world in (1, 4, 5, 8, 12, 16):
        layouts, _ = enumerate_layouts(asked, world)
        for strategy in CLASSIC:
            if strategy.single or strategy.of_sharded is not None:
                continue
            there = bool(np.any(strategy.holds(layouts)))
            said = explain_infeasibility(strategy, {framework: asked}, world, chosen=True)
            # without a broken rule there is nothing to say of the layouts
            assert there == ("the search skips them" in said), (strategy.name, world, said)
