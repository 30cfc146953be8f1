"""Traces of steps with other formats of weights, gradients and moments, beside the estimate."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import pytest

from planner.describe.catalogue import load_model
from planner.describe.layout import Layout
from planner.errors import LayoutError
from planner.validate.trace.compare import Comparison, compare, report_text
from planner.validate.trace.stage_trace import trace
from planner.validate.trace.tracer import Tracer
from tests.descriptions import scenario

IN_BACKWARD = "fsdp2+optimizer-in-backward"
CASES: list[tuple[str, str, dict[str, Any]]] = [
    ("fsdp2+bf16-moments", "adamw", {"zero_stage": 3}),
    ("fsdp2", "adam-8bit", {"zero_stage": 3}),
    ("fsdp2+bf16-training", "adamw", {"zero_stage": 2, "grad_accumulation": 2}),
    ("fsdp2+bf16-training+bf16-reduce", "adamw", {"zero_stage": 0, "grad_accumulation": 2}),
    # 16-bit sums of gradients over the micro-batches
    ("fsdp2+bf16-reduce", "adamw", {"zero_stage": 1, "grad_accumulation": 2}),
    (IN_BACKWARD, "adamw", {"zero_stage": 3}),
    (IN_BACKWARD + "+bf16-training", "adam-8bit", {"zero_stage": 2}),
    # one device
    (IN_BACKWARD + "+bf16-training", "adamw", {"zero_stage": 3, "dp": 1}),
]


@pytest.fixture(scope="module")
def tracer() -> Iterator[Tracer]:
    """One worker for all cases."""
    with Tracer() as made:
        yield made


def traced(tracer: Tracer, name: str, optimizer: str, degrees: dict[str, Any]) -> Comparison:
    """Few layers and a small vocabulary, so that the peak is among the gradients."""
    model = load_model("llama-3-8b").replaced(num_layers=6, vocab_size=16000, dropout=0.0)
    layout = Layout(**{"dp": 8, **degrees})
    batch = layout.global_batch
    asked = scenario(model, name, sequence_length=512, global_batch=batch, optimizer=optimizer)
    return compare(asked, layout, trace(asked, layout, tracer=tracer))


@pytest.mark.slow
@pytest.mark.parametrize(("name", "optimizer", "degrees"), CASES)
def test_formats(tracer: Tracer, name: str, optimizer: str, degrees: dict[str, Any]) -> None:
    found = traced(tracer, name, optimizer, degrees)
    for part in found.parts[:3]:
        assert part.traced_bytes == part.estimated_bytes, report_text(found)
    assert abs(found.parts[-1].error) < 0.02, report_text(found)
    for item in found.collectives:
        assert (item.count, item.traced_bytes) == (item.estimated_count, item.estimated_bytes)
    # with an optimizer in backward none is left when it ends
    assert (found.trace.gradients_bytes == 0) == (IN_BACKWARD in name)


@pytest.mark.parametrize(
    ("name", "optimizer", "passes", "message"),
    [
        (IN_BACKWARD, "adamw", 2, "with an optimizer in backward, which needs 1"),
        ("fsdp2", "lion", 1, "optimizer lion is not traced; use adamw or adam-8bit"),
    ],
)
def test_refusals(name: str, optimizer: str, passes: int, message: str) -> None:
    layout = Layout(dp=8, zero_stage=3, grad_accumulation=passes)
    asked = scenario("gpt2", name, optimizer=optimizer, global_batch=8 * passes, dropout=0.0)
    with pytest.raises(LayoutError, match=message):
        trace(asked, layout)
