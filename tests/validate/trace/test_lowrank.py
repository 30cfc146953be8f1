"""Traces of frozen bases, in 16 and in 4 bits, with adapters beside them."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import pytest

from planner.cost.operators.adapters import stored_bytes
from planner.describe.catalogue import load_model
from planner.describe.layout import Layout
from planner.errors import LayoutError
from planner.validate.trace.compare import compare, report_text
from planner.validate.trace.stage_trace import trace
from planner.validate.trace.tracer import Tracer
from tests.descriptions import scenario

torch = pytest.importorskip("torch")

EVERY = ("all-linear",)


@pytest.fixture(scope="module")
def tracer() -> Iterator[Tracer]:
    """One worker for all cases: importing torch takes longer than a trace."""
    with Tracer() as made:
        yield made


CASES = [
    # the peak is in the last layer: few words, so that no logits hide it
    ({"recompute": "full"}, {}),
    ({}, {"lora_targets": EVERY}),
    ({"recompute": "full"}, {"lora_targets": EVERY, "base_format": "nf4"}),
    ({"recompute": "full"}, {"lora_targets": EVERY, "base_format": "nf4", "dora": True}),
    ({"recompute": "full", "zero_stage": 2}, {"lora_targets": EVERY, "dora": True}),
]


@pytest.mark.slow
@pytest.mark.parametrize(("degrees", "workload"), CASES)
def test_estimate_of_adapters_matches_trace(
    tracer: Tracer, degrees: dict[str, Any], workload: dict[str, Any]
) -> None:
    """States and collectives to the byte, activations and the peak within 2 %."""
    model = load_model("llama-2-7b").replaced(vocab_size=512, num_layers=4, ffn_size=8192)
    asked = scenario(
        model, "fsdp2", "laptop", sequence_length=1024, dropout=0.0, lora_rank=16, **workload
    )
    layout = Layout(**{"dp": 8, "zero_stage": 3, "micro_batch": 2, **degrees})
    found = compare(asked, layout, trace(asked, layout, tracer=tracer))
    parts = {part.name: part for part in found.parts}
    for name in ("weights", "gradients", "optimizer_states"):
        assert parts[name].traced_bytes == parts[name].estimated_bytes, report_text(found)
    assert abs(parts["activations"].error) < 0.02, report_text(found)
    assert abs(parts["peak"].error) < 0.02, report_text(found)
    assert found.trace.peak_phase.endswith("layer -1")
    for item in found.collectives:
        assert item.count == item.estimated_count, report_text(found)
        assert item.traced_bytes == item.estimated_bytes, report_text(found)


def _pack(weight: torch.Tensor) -> torch.Tensor:
    """A matrix as it is kept in 4 bits."""
    blocks = weight.float().unflatten(-1, (-1, 64))
    scales = blocks.abs().amax(-1, keepdim=True).clamp_min(1e-12)
    codes = ((blocks / scales * 7).round() + 8).to(torch.uint8).flatten(-2)
    halves = codes[..., ::2] * 16 + codes[..., 1::2]
    packed_bytes = torch.cat((halves, scales.squeeze(-1).contiguous().view(torch.uint8)), -1)
    return packed_bytes.view(torch.bfloat16)


def test_what_is_packed_takes_the_stored_bytes_and_comes_back() -> None:
    from planner.validate.sharding.lowrank import unpack

    torch.manual_seed(0)
    weight = torch.randn(8, 256)
    packed = _pack(weight)
    assert packed.numel() * packed.element_size() == weight.numel() * stored_bytes("nf4", 256)
    # steps of a seventh of the largest of 64 normal numbers
    assert float((unpack(packed, 256).float() - weight).abs().max()) < 4 / 7 / 2 + 0.02


@pytest.mark.parametrize(
    ("model", "degrees", "workload", "message"),
    [
        ("llama-3-8b", {"tp": 2}, {"lora_rank": 8}, "use only dp"),
        ("mixtral-8x7b", {}, {"lora_rank": 8}, "use a dense model"),
        ("gpt2", {}, {"frozen": ("embedding",)}, "one tensor"),
        ("llama-3-8b", {}, {"lora_rank": 8, "lora_dropout": 0.1}, "lora_dropout = 0.1"),
        ("llama-3-8b", {}, {"lora_rank": 8, "base_format": "int8"}, "base_format = int8"),
    ],
)
def test_other_adapters_are_refused(
    model: str, degrees: dict[str, Any], workload: dict[str, Any], message: str
) -> None:
    asked = scenario(model, "fsdp2", "laptop", dropout=0.0, **workload)
    with pytest.raises(LayoutError, match=message):
        trace(asked, Layout(**degrees))
