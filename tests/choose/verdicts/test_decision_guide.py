"""Guide: all eight cases of the decision guide, our answer beside it, and why they differ."""

from __future__ import annotations

import csv
from pathlib import Path

import numpy as np
import pytest

from planner.choose.plan import Plan
from planner.choose.planning import plan
from planner.choose.verdicts.decision_guide import GuideCase, apply_guide
from planner.cost.shards.layouts import Layouts
from planner.describe.layout import Layout
from planner.describe.workload import Workload
from tests.descriptions import scenario

FOLDER = Path(__file__).parent / "guide"
JOBS = list(csv.DictReader((FOLDER / "jobs.csv").read_text("utf-8").splitlines()))
"""All eight cases, as nine: devices of one node are wired fast or slowly."""


@pytest.mark.parametrize("job", JOBS, ids=lambda job: f"{job['advice']}-{job['model']}")
def test_answer_and_guide_agree_or_say_why(job: dict[str, str]) -> None:
    own = FOLDER / job["model"]
    model = str(own) if own.suffix == ".toml" else job["model"]
    workload = Workload(global_batch=int(job["batch"]), sequence_length=int(job["length"]))
    answer = plan(model, job["machine"], nodes=int(job["nodes"]), workload=workload)
    advice, why = GuideCase[job["advice"]], job["differ"]
    assert answer.recommended is not None
    assert len({case.value.text for case in GuideCase}) == len(GuideCase)
    (said,) = (note for note in answer.notes if note.startswith("The field's guide: "))
    assert said.endswith(f": {advice.value.text}.")
    differ = [note for note in answer.notes if note.startswith("They differ")]
    assert len(differ) == bool(why)
    assert all(why in note for note in differ)
    assert why or bool(advice.value.holds(Layouts.of(answer.recommended.layout)))
    confirm(advice, answer)


def confirm(advice: GuideCase, answer: Plan) -> None:
    """What the case presumes is what the verdicts found."""
    fits = {verdict.name: verdict.fits for verdict in answer.strategies}
    alone = advice in (GuideCase.SINGLE_DEVICE, GuideCase.DATA_PARALLEL)
    assert fits["single device"] == alone
    assert answer.recommended is not None
    if advice in (GuideCase.SINGLE_DEVICE_TILED, GuideCase.LAYER_TOO_LARGE):
        assert fits["ZeRO-3 in tiles"]
        # no pipeline holds such a layer
        assert not fits["PP"]
        assert answer.recommended.layout.tiles > 1
    if advice is GuideCase.SINGLE_DEVICE_OFFLOAD:
        assert fits["ZeRO + CPU offload"]


def test_frozen_weights_are_no_training_state() -> None:
    # 70.6e9 frozen weights in the framework's bytes, adapters of 0.2 %: nowhere near 16 bytes each
    job = scenario("llama-3.1-70b", "deepspeed", "dgx-h100", lora_rank=16)
    _, said = apply_guide([job], 1)
    full, _ = apply_guide([scenario("llama-3.1-70b", "deepspeed", "dgx-h100")], 1)
    states = float(said.split(" sequence, ")[1].split(" GiB of them")[0])
    assert 2 * 70.6e9 / 2**30 < states < 4.2 * 70.6e9 / 2**30
    assert full is GuideCase.NODE_FAST


def test_a_long_sequence_counts_in_the_layer() -> None:
    # at a million tokens one layer's activations alone are more than the device
    short, long = (
        apply_guide([scenario("llama-3-8b", "deepspeed", "dgx-h100", sequence_length=length)], 1)[0]
        for length in (8192, 2**20)
    )
    assert (short, long) == (GuideCase.NODE_FAST, GuideCase.LAYER_TOO_LARGE)


@pytest.mark.parametrize(
    ("case", "layout", "holds"),
    [
        (GuideCase.NETWORK_SLOW, Layout(dp=4, tp=2, zero_stage=1), True),
        (GuideCase.NETWORK_SLOW, Layout(dp=4, tp=2, zero_stage=2), False),
        (GuideCase.NETWORK_SLOW, Layout(dp=4, zero_stage=1, offload="optimizer-cpu"), False),
        (GuideCase.NETWORK_FAST, Layout(dp=4, zero_stage=3), True),
        (GuideCase.LAYER_TOO_LARGE, Layout(tp=2), True),
        (GuideCase.LAYER_TOO_LARGE, Layout(dp=2, zero_stage=3, tiles=4), True),
        (GuideCase.LAYER_TOO_LARGE, Layout(dp=2, zero_stage=3), False),
    ],
    ids=str,
)
def test_a_layout_follows_the_guide_or_not(case: GuideCase, layout: Layout, holds: bool) -> None:
    assert bool(np.all(case.value.holds(Layouts.of(layout)))) == holds
