"""Parts: every part of an estimate has one record, and the records are what readers are told."""

from __future__ import annotations

import re
from collections.abc import Callable
from pathlib import Path

import pytest

import planner
from planner.cost import parts
from planner.cost.parts import DEVICE_PARTS, HOST_PARTS, TIME_PARTS, part
from planner.describe.layout import Layout
from planner.errors import UnknownNameError

NOMENCLATURE = Path(__file__).parents[2] / "docs" / "explanation" / "nomenclature.md"


def test_an_estimate_has_the_parts_that_are_written_down() -> None:
    estimate = planner.estimate("llama-3-8b", "polaris", Layout(dp=4, zero_stage=3))
    assert tuple(estimate.memory_bytes) == (*DEVICE_PARTS, "total")
    assert tuple(estimate.host_memory_bytes) == (*HOST_PARTS, "total")
    assert tuple(estimate.step_time_parts_s) == TIME_PARTS


def test_names_of_parts_are_unique() -> None:
    names = (*DEVICE_PARTS, *HOST_PARTS, *TIME_PARTS)
    assert len(set(names)) == len(names)


@pytest.mark.parametrize(
    ("title", "names"),
    [
        ("Parts of memory per device", DEVICE_PARTS),
        ("Parts of host memory per node", HOST_PARTS),
        ("Parts of the step time", TIME_PARTS),
    ],
)
def test_the_nomenclature_says_the_same(title: str, names: tuple[str, ...]) -> None:
    section = NOMENCLATURE.read_text(encoding="utf-8").split(f"## {title}\n")[1].split("\n## ")[0]
    rows = re.findall(r"^\| `(\w+)` \| (.+) \|$", section, re.MULTILINE)
    assert rows == [(name, part(name).meaning) for name in names]


def test_what_a_measurement_does_not_see() -> None:
    # torch counts what tensors take and what its allocator holds; the driver sees all of it
    assert parts.unseen_parts("allocated") == ("runtime_context", "allocator_reserve")
    assert parts.unseen_parts("reserved") == ("runtime_context",)
    assert parts.unseen_parts("device") == ()


@pytest.mark.parametrize("read", [parts.part, parts.time_spread])
def test_a_forgotten_part_is_an_error(read: Callable[[str], object]) -> None:
    with pytest.raises(UnknownNameError, match=r"unknown part 'host_overhaed'.*host_overhead"):
        read("host_overhaed")


def test_computation_is_known_best_and_nothing_by_more_than_itself() -> None:
    spreads = {name: parts.time_spread(name) for name in parts.TIME_PARTS}
    best = {name for name, spread in spreads.items() if spread == min(spreads.values())}
    assert best == {"forward", "backward"}
    assert all(0 < spread < 1 for spread in spreads.values())


def test_waiting_for_the_host_is_no_unknown_part() -> None:
    # it is what computation leaves of the host's time: a small difference of two large ones
    assert parts.time_spread("host_overhead") == parts.time_spread("gradient_reduction")
    assert parts.part("host_overhead").hue != "grey"
