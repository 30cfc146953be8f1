"""Switching: the switch that makes a job fit is said and not chosen."""

from __future__ import annotations

import re
from dataclasses import replace

import numpy as np
import pytest

from planner.choose.planning import estimate, plan
from planner.choose.search import Candidates
from planner.choose.verdicts.fixes import switch_notes
from planner.cost.estimate import estimate_times
from planner.cost.memory.footprint import footprints
from planner.cost.shards.layouts import Layouts
from planner.describe.catalogue import load_machine
from planner.describe.layout import Layout
from planner.describe.workload import Workload
from tests.descriptions import scenario

JOB = Workload(sequence_length=1024, global_batch=16)
LIGER = Workload(sequence_length=8192, global_batch=64)


def test_what_fits_with_a_switch_alone_is_said_and_true() -> None:
    leanest = Layout(dp=4, grad_accumulation=4, recompute="full")
    needed = estimate("gpt2", "polaris", leanest, workload=JOB, framework="ddp")
    short = f"device.memory_bytes={0.985 * needed.memory_bytes['total']:.0f}B"
    machine = load_machine("polaris", (short,))
    answer = plan("gpt2", machine, nodes=1, workload=JOB, frameworks=["ddp"])
    assert not answer.fits
    (note,) = [note for note in answer.notes if note.startswith("It would fit with ddp+")]
    name = re.match(r"It would fit with (\S+)", note)
    assert name is not None
    again = plan("gpt2", machine, nodes=1, workload=JOB, frameworks=[name[1]])
    assert again.fits, note
    assert not [note for note in again.notes if note.startswith("It would fit")]


def test_a_switch_that_spares_full_recompute_is_said_where_it_is_faster() -> None:
    asked = {"nodes": 1, "workload": LIGER}
    answer = plan("llama-3-8b", "dgx-h100", frameworks=["deepspeed"], **asked)
    assert answer.recommended is not None
    assert answer.recommended.layout.recompute == "full"
    assert answer.recommended.framework == "deepspeed"
    (note,) = [note for note in answer.notes if note.startswith("Without full recompute, ")]
    name = note.split()[3]
    better = plan("llama-3-8b", "dgx-h100", frameworks=[name], **asked).recommended
    assert better is not None
    assert better.step_time_s < answer.recommended.step_time_s / 1.05


def test_nothing_is_said_where_memory_suffices() -> None:
    answer = plan("gpt2", "polaris", nodes=1, workload=JOB, frameworks=["ddp"])
    assert not [note for note in answer.notes if " ddp+" in note]


@pytest.mark.slow
def test_classic_strategies_are_looked_for_in_a_framework_with_switches() -> None:
    """Also on more nodes, where nothing fits."""
    answers = [
        plan("llama-2-13b", "polaris", nodes=1, workload=JOB, frameworks=[name])
        for name in ("megatron-lm", "megatron-lm+no-overlap-grad-reduce")
    ]
    plain, switched = ({v.name: v.nodes for v in answer.strategies} for answer in answers)
    assert not any(answer.fits for answer in answers)
    assert any(plain.values())
    assert plain == switched


@pytest.mark.parametrize(
    ("stage", "precision", "said"), [(1, "bf16", True), (0, "bf16", False), (1, "fp16", False)]
)
def test_advice_keeps_to_what_switches_are_for(stage: int, precision: str, said: bool) -> None:
    """Narrow moments of Megatron-LM, which alone save a fifth here, are for ZeRO-1 and bf16."""
    job = {"sequence_length": 128, "global_batch": 1, "precision": precision}
    layouts = Layouts.stack([Layout(zero_stage=stage)])
    needed = footprints(scenario("gpt2", **job), layouts).memory_bytes.item()
    machine = load_machine("polaris", (f"device.memory_bytes={0.8 * needed:.0f}B",))
    asked = scenario("gpt2", machine=machine, **job)
    short = footprints(asked, layouts)
    assert not short.fits.any()
    found = Candidates(
        asked, short, estimate_times(asked, short.take(np.flatnonzero(short.fits))), {}
    )
    notes = switch_notes({asked.framework.name: found}, None)
    assert any("-moments" in note for note in notes) == said, notes


@pytest.mark.parametrize(("part", "most"), [(0.8, 1), (0.7, 2)])
def test_no_more_switches_are_said_than_are_needed(part: float, most: int) -> None:
    """What needs another is said with it; of many that go together, none that could be left out."""
    job = {"sequence_length": 128, "global_batch": 1}
    layouts = Layouts.stack([Layout(zero_stage=1)])
    needed = footprints(scenario("gpt2", **job), layouts).memory_bytes.item()
    machine = load_machine("polaris", (f"device.memory_bytes={part * needed:.0f}B",))
    asked = scenario("gpt2", machine=machine, **job)
    short = footprints(asked, layouts)
    nothing = estimate_times(asked, short.take(np.flatnonzero(short.fits)))
    (note,) = switch_notes({asked.framework.name: Candidates(asked, short, nothing, {})}, None)
    name = re.match(r"It would fit with (\S+)", note)
    assert name is not None
    words = name[1].split("+")[1:]
    assert len(words) <= most + ("precision-aware" in words), note

    def fits(switches: list[str]) -> bool:
        framework = asked.framework.with_switches(*switches)
        return bool(footprints(replace(asked, framework=framework), layouts).fits.all())

    assert fits(words)
    for word in words:
        fewer = [other for other in words if other != word]
        if word != "precision-aware":
            assert not fits(fewer), (note, word)


def test_the_memory_order_of_pictures_is_said_and_never_chosen() -> None:
    job = Workload(sequence_length=1, global_batch=512)
    [note] = [
        n for n in plan("resnet-50", "polaris", nodes=2, workload=job).notes if "channels-last" in n
    ]
    assert note.startswith("With ")
    assert note.endswith(" per step.")
    vectors = job.replaced(precision="fp32")
    chosen = plan("resnet-50", "polaris", nodes=2, workload=vectors)
    assert not [note for note in chosen.notes if "channels-last" in note]
