"""Traces of partial recompute and of activations that leave the device, against the estimate."""

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
from tests import descriptions

pytest.importorskip("torch")

FEW_WORDS = 1024
"""A vocabulary beside which layers hold the peak, and not the loss."""
PIPED = {"dp": 2, "pp": 2, "grad_accumulation": 4, "zero_stage": 2}
CASES: dict[str, dict[str, Any]] = {
    "first layers": {"recompute": "full", "recompute_layers": 4},
    "every third": {"recompute": "full", "recompute_every": 3},
    "of each stage": {
        **PIPED,
        "schedule": "1f1b",
        "recompute": "full",
        "recompute_layers": 2,
    },
    "of each chunk": {
        **PIPED,
        "vpp": 2,
        "schedule": "interleaved-1f1b",
        "recompute": "full",
        "recompute_layers": 1,
    },
    "feed-forward": {"recompute": "selective", "recompute_modules": ("mlp",)},
}


@pytest.fixture(scope="module")
def tracer() -> Iterator[Tracer]:
    """One worker for all cases."""
    with Tracer() as made:
        yield made


def compared(tracer: Tracer, layout: Layout, layers: int = 8, **changes: object) -> Comparison:
    model = load_model("llama-3.2-1b").replaced(num_layers=layers, **changes)
    batch = layout.global_batch
    asked = descriptions.scenario(
        model, framework="fsdp2", machine="laptop", sequence_length=2048, global_batch=batch
    )
    return compare(asked, layout, trace(asked, layout, tracer=tracer))


def check(comparison: Comparison) -> dict[str, Any]:
    """What is resident and sent to the byte, the peak within 2 %."""
    parts = {part.name: part for part in comparison.parts}
    for name in ("weights", "gradients", "optimizer_states"):
        assert parts[name].traced_bytes == parts[name].estimated_bytes, report_text(comparison)
    for item in comparison.collectives:
        assert item.count == item.estimated_count, report_text(comparison)
        assert item.traced_bytes == item.estimated_bytes, report_text(comparison)
    assert abs(parts["peak"].error) < 0.02, report_text(comparison)
    return parts


@pytest.mark.slow
@pytest.mark.parametrize("name", CASES)
def test_partial_recompute_is_as_traced(tracer: Tracer, name: str) -> None:
    layout = Layout(**{"dp": 8, "zero_stage": 3, **CASES[name]})
    found = check(compared(tracer, layout, vocab_size=FEW_WORDS))
    assert abs(found["activations"].error) < 0.01


@pytest.mark.slow
@pytest.mark.parametrize("recompute", ["none", "full"])
def test_what_stays_of_activations_that_leave_the_device(tracer: Tracer, recompute: str) -> None:
    layout = Layout(dp=8, zero_stage=3, recompute=recompute, offload_activations=True)
    found = check(compared(tracer, layout, layers=4))
    numbers_of_tokens = 8 * 2048
    assert found["activations"].traced_bytes == 0
    assert found["activations"].estimated_bytes == numbers_of_tokens


def test_what_is_not_traced_is_said(tracer: Tracer) -> None:
    layout = Layout(dp=8, recompute="selective", recompute_modules=("layernorm",))
    with pytest.raises(LayoutError, match="recompute of layernorm is not traced; use mlp or moe"):
        compared(tracer, layout)
    with pytest.raises(LayoutError, match="not traced with tp, pp or cp"):
        compared(tracer, Layout(dp=4, tp=2, offload_activations=True))
