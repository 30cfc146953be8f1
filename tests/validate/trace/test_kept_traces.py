"""Memory and traffic beside traces of torch's own sharding that were kept: no torch is needed.

`make traces` writes `kept.jsonl` anew. What a comparison asks is what
`docs/reference/validation.md` reports.
"""

from __future__ import annotations

import functools
import importlib
import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from planner.validate.trace.compare import Comparison

# a thousand kept traces
pytestmark = pytest.mark.slow
ROOT = Path(__file__).parents[3]
KEPT = Path(__file__).with_name("kept.jsonl")
ROUNDED = 1e-6
"""Differences are kept with six digits."""


FAMILIES = ("GPT", "Llama", "MoE")

Kept = tuple[str, dict[str, float], Comparison]


@functools.cache
def matrix() -> Any:
    """The program that made the traces."""
    with pytest.MonkeyPatch.context() as patch:
        patch.syspath_prepend(str(ROOT / "benchmarks"))
        return importlib.import_module("trace_matrix")


def every_case() -> Iterator[Any]:
    """All layouts that are traced."""
    yield from matrix().cases()
    yield from matrix().others()


@functools.cache
def rows() -> list[dict[str, Any]]:
    """What was kept."""
    return [*map(json.loads, KEPT.read_text("utf-8").splitlines())]


@functools.cache
def kept(family: str) -> list[Kept]:
    """A family's cases: name, how far each part was off when it was kept, how it compares now."""
    known = {case.key: case for case in every_case() if case.family == family}
    return [
        (row["key"], row["differences"], matrix().compared(known[row["key"]], row["trace"]))
        for row in rows()
        if row["key"] in known
    ]


def test_the_sample_holds_every_way_to_shard() -> None:
    known = {case.key: case.layout for case in every_case()}
    layouts = [known[row["key"]] for row in rows()]
    assert len(layouts) == matrix().FIXED
    for name, values in {
        "zero_stage": {0, 1, 2, 3},
        "tp": {1, 2, 8},
        "pp": {1, 4},
        "sequence_parallel": {False, True},
        "recompute": {"none", "selective", "full"},
    }.items():
        assert {getattr(layout, name) for layout in layouts} == values


@pytest.mark.slow
@pytest.mark.parametrize("family", FAMILIES)
def test_what_is_resident_equals_the_trace_to_the_byte(family: str) -> None:
    for key, _, comparison in kept(family):
        for part in comparison.parts[:3]:
            assert part.estimated_bytes == part.traced_bytes, (key, part)


@pytest.mark.parametrize("family", FAMILIES)
def test_what_is_sent_equals_the_trace_to_the_byte(family: str) -> None:
    for key, _, comparison in kept(family):
        for item in comparison.collectives:
            assert item.estimated_count == item.count, (key, item)
            assert item.estimated_bytes == item.traced_bytes, (key, item)


@pytest.mark.parametrize("family", FAMILIES)
def test_what_passes_comes_no_further_from_the_trace(family: str) -> None:
    """Activations, logits, peaks: where one moves away on purpose, `make traces` keeps it anew."""
    for key, before, comparison in kept(family):
        for part in comparison.parts[3:]:
            assert abs(part.error) <= abs(before[part.name]) + ROUNDED, (key, part, before)


@pytest.mark.parametrize("family", FAMILIES)
def test_what_passes_is_as_near_as_the_page_says(family: str) -> None:
    most = {"activations": 0.01, "logits_and_loss": 0.001, "peak": 0.06}
    for key, _, comparison in kept(family):
        for part in comparison.parts[3:]:
            assert abs(part.error) < most[part.name], (key, part)
