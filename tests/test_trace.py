"""Traces of torch's own sharding against the estimate, and against full-depth traces."""

from __future__ import annotations

import subprocess
import sys

import pytest

from planner.catalogue import load_framework, load_machine, load_model
from planner.errors import LayoutError
from planner.estimation import Question
from planner.layout import Layout
from planner.validate.command import compare_trace, report_text, run
from planner.validate.compare import Comparison
from planner.validate.expected import expected_collectives
from planner.validate.trace import TraceError, trace
from planner.workload import Workload

pytest.importorskip("torch")

RESIDENT = ("weights", "gradients", "optimizer_states")


def _compared(model: str, sequence: int, world: int, **degrees: object) -> Comparison:
    workload = Workload(sequence_length=sequence, dropout=0.0)
    return compare_trace(model, world=world, workload=workload, **degrees)


def _check(comparison: Comparison) -> None:
    """States and collectives agree exactly, activations within 1 %, the peak within 2 %."""
    parts = {part.name: part for part in comparison.parts}
    for name in RESIDENT:
        assert abs(parts[name].error) < 1e-4, report_text(comparison)
    assert abs(parts["activations"].error) < 0.01, report_text(comparison)
    assert abs(parts["peak"].error) < 0.02, report_text(comparison)
    for item in comparison.collectives:
        assert item.count == item.estimated_count, report_text(comparison)
        assert abs(item.error) < 1e-3, report_text(comparison)


QUICK = [
    ("llama-3-8b", 8192, 64, {"zero_stage": 3}),
    (
        "llama-3-8b",
        8192,
        64,
        {"tp": 4, "sequence_parallel": True, "zero_stage": 3, "recompute": "full"},
    ),
    ("gpt2", 1024, 8, {"zero_stage": 2}),
]


@pytest.mark.parametrize(("model", "sequence", "world", "degrees"), QUICK)
def test_estimate_matches_trace(
    model: str, sequence: int, world: int, degrees: dict[str, object]
) -> None:
    _check(_compared(model, sequence, world, **degrees))


def test_two_depths_equal_the_full_depth() -> None:
    question = Question(
        load_model("gpt2"),
        load_machine("laptop"),
        Workload(sequence_length=512),
        load_framework("fsdp2"),
    )
    layout = Layout(dp=4, tp=2, sequence_parallel=True, zero_stage=3)
    extended = trace(question, layout)
    whole = trace(question, layout, full_depth=True)
    assert extended.depths == (4, 6)
    assert whole.depths == (12,)
    assert extended.peak_bytes == whole.peak_bytes
    assert extended.peak_phase == whole.peak_phase
    assert extended.collectives == whole.collectives
    assert extended.parameters_bytes == whole.parameters_bytes
    assert extended.start_of_backward_bytes == whole.start_of_backward_bytes


def test_every_parameter_of_the_model_is_traced() -> None:
    """One rank without sharding holds 4 bytes of every catalogued parameter."""
    question = Question(
        load_model("gpt2"),
        load_machine("laptop"),
        Workload(sequence_length=128),
        load_framework("fsdp2"),
    )
    found = trace(question, Layout(dp=2, zero_stage=0))
    assert found.parameters_bytes == 4 * question.model.num_params


def test_report_is_json() -> None:
    text = run("gpt2", world=4, zero_stage=3, as_json=True, workload=Workload(sequence_length=128))
    import json

    data = json.loads(text)
    assert {"name", "traced_bytes", "estimated_bytes"} <= set(data["parts"][0])
    names = {"name", "group", "count", "traced_bytes", "estimated_bytes"}
    assert names <= set(data["collectives"][0])


@pytest.mark.parametrize(
    ("degrees", "message"),
    [
        ({"cp": 2}, "cp = 2 is not traced"),
        ({"zero_stage": 1}, "zero_stage = 1"),
        ({"tp": 3}, "world = 8 must be a multiple"),
    ],
)
def test_refusals_say_what_to_do(degrees: dict[str, object], message: str) -> None:
    with pytest.raises(LayoutError, match=message):
        compare_trace("gpt2", world=8, **degrees)


def test_unbuilt_models_are_refused() -> None:
    with pytest.raises(TraceError, match="latent attention"):
        compare_trace("deepseek-v3", world=8, zero_stage=3)


def test_collectives_of_ddp_are_one_reduction_per_group() -> None:
    question = Question(
        load_model("llama-3-8b"), load_machine("dgx-h100"), Workload(), load_framework("fsdp2")
    )
    (only,) = expected_collectives(question, Layout(dp=8, zero_stage=0))
    assert (only.name, only.count) == ("all_reduce", 34)
    assert only.bytes == 4 * question.model.num_params


def test_import_loads_no_torch() -> None:
    code = "import planner.validate.command, sys; sys.exit('torch' in sys.modules)"
    assert subprocess.run([sys.executable, "-c", code], check=False).returncode == 0


SLOW = [
    (model, sequence, 64, {"tp": tp, "sequence_parallel": sp, "zero_stage": zero, "recompute": r})
    for model, sequence in (("llama-3-8b", 4096), ("qwen3-8b", 4096), ("ptdp-18b", 2048))
    for tp, sp in ((1, False), (8, True))
    for zero in (2, 3)
    for r in ("none", "selective", "full")
]


@pytest.mark.slow
@pytest.mark.parametrize(("model", "sequence", "world", "degrees"), SLOW)
def test_matrix(model: str, sequence: int, world: int, degrees: dict[str, object]) -> None:
    _check(_compared(model, sequence, world, **degrees))
