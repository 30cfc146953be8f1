"""The traced step on real ranks: what one fake process says equals what real ones do."""

from __future__ import annotations

import warnings
from typing import Any

import pytest

from planner.cost.scenario import Scenario
from planner.describe.catalogue import load_model
from planner.describe.layout import Layout
from planner.validate.ranks.launch import launch
from planner.validate.ranks.rank import Rank, joined
from planner.validate.trace import stage_trace
from planner.validate.trace.tracer import Tracer
from tests.descriptions import scenario

pytest.importorskip("torch")
pytestmark = [pytest.mark.alone, pytest.mark.filterwarnings("ignore")]

# activations outweigh weights, as in a real training
ROWS = 1024
SIZES: dict[str, Any] = {
    "num_layers": 4,
    "hidden_size": 64,
    "num_heads": 4,
    "head_dim": 16,
    "ffn_size": 128,
    "vocab_size": 256,
    "dropout": 0.0,
}
PIECES = "fsdp2+chunked-loss=4"
Case = tuple[str, Layout] | tuple[str, Layout, str]
"""A model, a layout, and what is not plain FSDP2."""
PIPED: dict[str, Any] = {"pp": 2, "schedule": "1f1b", "grad_accumulation": 4}
ON_TWO: list[Case] = [
    *(("gpt2", Layout(dp=2, zero_stage=stage, grad_accumulation=2)) for stage in range(4)),
    ("llama-3.2-1b", Layout(dp=2, zero_stage=3, recompute="full")),
    ("llama-3.2-1b", Layout(dp=2, zero_stage=3), PIECES),
    ("mixtral-8x7b", Layout(dp=2, zero_stage=2, grad_accumulation=2), PIECES),
    ("mixtral-8x7b", Layout(dp=2, zero_stage=3)),
    ("mixtral-8x7b", Layout(dp=2, ep=2, zero_stage=3)),
    ("llama-3.2-1b", Layout(tp=2)),
    ("gpt2", Layout(tp=2, sequence_parallel=True)),
    ("mixtral-8x7b", Layout(tp=2, sequence_parallel=True)),
    ("llama-3.2-1b", Layout(**PIPED)),
    ("gpt2", Layout(**{**PIPED, "schedule": "gpipe"})),
]
ON_FOUR: list[Case] = [
    ("llama-3.2-1b", Layout(dp=2, tp=2, sequence_parallel=True, zero_stage=3)),
    ("llama-3.2-1b", Layout(dp=4, dp_shard=2, zero_stage=3)),
    ("llama-3.2-1b", Layout(dp=4, zero_stage=3, reshard=2)),
    ("llama-3.2-1b", Layout(dp=4, dp_shard=2, zero_stage=2, micro_batch=2), PIECES),
    ("mixtral-8x7b", Layout(dp=4, ep=2, zero_stage=2)),
    ("mixtral-8x7b", Layout(dp=2, tp=2, ep=4, sequence_parallel=True, zero_stage=3)),
    ("llama-3.2-1b", Layout(dp=2, zero_stage=2, **PIPED)),
]


def _scenario(name: str, layout: Layout, framework: str = "fsdp2") -> Scenario:
    model = load_model(name)
    sizes = {**SIZES, "num_kv_heads": 4 if name == "gpt2" else 2}
    if name == "gpt2":
        sizes |= {"num_position_rows": ROWS, "max_sequence_length": ROWS}
    if model.experts is not None:
        sizes["experts"] = model.experts.replaced(ffn_size=128, num_experts=4)
    small = model.replaced(**sizes)
    batch = layout.global_batch
    return scenario(small, framework, "laptop", sequence_length=ROWS, global_batch=batch)


def measure_on_ranks(rank: Rank, payload: dict[str, Any], _: Any) -> list[dict[str, Any]]:
    """What this rank holds and sends in every case, which has a request per pipeline stage."""
    from planner.validate.trace.step import measure

    warnings.simplefilter("ignore")
    results = []
    with joined(rank):
        for number, requests in enumerate(payload["cases"], 1):
            rank.report(f"step {number} of {len(payload['cases'])}")
            request = requests[rank.rank * len(requests) // rank.world]
            results.append(measure(request, is_fake=False))
    return results


def _peak(found: dict[str, Any]) -> int:
    return max(sum(parts.values()) for parts in found["peaks"].values())


def stage_requests(asked: Scenario, layout: Layout) -> list[dict[str, Any]]:
    """Requests to trace all pipeline stages at full depth."""
    depths = [stage_trace._layers(asked, layout, stage)[2] for stage in range(layout.pp)]
    return [
        stage_trace._request(asked, layout, stage, depth, "fused")
        for stage, depth in enumerate(depths)
    ]


@pytest.mark.parametrize("cases", [ON_TWO, ON_FOUR], ids=["2 ranks", "4 ranks"])
def test_the_trace_equals_real_ranks(cases: list[Case]) -> None:
    world = cases[0][1].world
    asked = [stage_requests(_scenario(*case), case[1]) for case in cases]
    ranks = launch(f"{__name__}:measure_on_ranks", world, {"cases": asked}, limit_s=300)
    with Tracer() as tracer:
        for number, (name, layout, *switches) in enumerate(cases):
            for stage, request in enumerate(asked[number]):
                said = tracer.ask(request)
                real = ranks[stage * world // layout.pp][number]
                where = f"{name} {layout} {switches} stage {stage}"
                assert real["collectives"] == said["collectives"], where
                assert real["states"] == said["states"], where
                if layout.tp == 1:
                    # with tp gloo's threads still hold tensors of their last operations
                    bound = 0.015 if layout.pp > 1 else 0.0
                    assert _peak(real) == pytest.approx(_peak(said), rel=bound, abs=0), where
