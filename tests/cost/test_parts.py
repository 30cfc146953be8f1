"""Parts: every part of an estimate has one record, and the records are what readers are told."""

from __future__ import annotations

import re
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


def test_a_forgotten_part_is_an_error() -> None:
    with pytest.raises(UnknownNameError, match=r"unknown part 'host_overhaed'.*host_overhead"):
        parts.part("host_overhaed")
