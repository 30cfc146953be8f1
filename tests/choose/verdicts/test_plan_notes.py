"""Advice: sentences beside an answer follow from its figures."""

from __future__ import annotations

import pytest

import planner
from planner.choose.plan import Plan
from planner.choose.planning import plan
from planner.choose.verdicts.answer_lines import answer_lines
from planner.choose.verdicts.plan_notes import learning_rate_note, utilisation_notes
from planner.cost.estimate import estimate_layouts
from planner.cost.shards.layouts import Layouts
from planner.describe.catalogue import load_machine
from planner.describe.layout import Layout
from planner.describe.workload import Workload
from planner.units import format_seconds
from tests.descriptions import scenario


def noted(answer: Plan, start: str) -> str:
    found = [note for note in answer.notes if note.startswith(start)]
    assert len(found) <= 1
    return found[0] if found else ""


@pytest.fixture(scope="module")
def long_fp8() -> Plan:
    job = Workload(global_batch=8, sequence_length=32768, precision="fp8")
    return plan("llama-3-8b", "dgx-h100", nodes=1, workload=job)


def test_fp8_is_set_against_its_own_peak(long_fp8: Plan) -> None:
    best = long_fp8.recommended
    assert best is not None
    machine = load_machine("dgx-h100")
    ours = best.mfu * machine.peak("bf16") / machine.peak("fp8")
    (said,) = (note for note in long_fp8.notes if "peak" in note)
    assert f"MFU {100 * best.mfu:.1f} % is of the bf16 peak (989 TFLOP/s)" in said
    assert f"it is {100 * ours:.1f} %" in said


def test_attention_is_named_where_it_lifts_the_figure(long_fp8: Plan) -> None:
    best = long_fp8.recommended
    assert best is not None
    said = noted(long_fp8, "MFU counts attention")
    # 12 h s per layer and token, of that and 6 per parameter of the products; the mask leaves half
    attention = 12 * 4096 * 32768 * 32
    share = attention / (attention + 6 * (8030261248 - 128256 * 4096))
    assert f"{100 * share:.0f} % of the operations" in said
    assert f"it is {100 * best.mfu * (1 - share / 2):.1f} %" in said


def test_short_sequences_in_bf16_need_no_word() -> None:
    job = Workload(global_batch=32, sequence_length=1024)
    answer = plan("gpt2", "polaris", nodes=1, workload=job)
    assert not [note for note in answer.notes if "MFU" in note]


@pytest.mark.parametrize(("optimizer", "said"), [("paged-adam-8bit", 1), ("adam-8bit", 0)])
def test_moving_pages_is_said_to_be_left_out(optimizer: str, said: int) -> None:
    asked = scenario("llama-3-8b", "ddp", optimizer=optimizer)
    answer = estimate_layouts(asked, Layouts.of(Layout(dp=8, grad_accumulation=8)))[0]
    found = [note for note in utilisation_notes(asked, answer) if "moving their pages" in note]
    assert len(found) == said
    assert all(note.startswith(f"The moments of {optimizer} count in host") for note in found)


def test_no_reason_is_made_up() -> None:
    # plain data parallelism and sharded states are as fast here: nothing was freed for anything
    job = Workload(global_batch=512, sequence_length=1024)
    answer = plan("gpt2", "polaris", nodes=1, workload=job)
    assert noted(answer, "They differ") == ""
    assert not [note for note in answer.notes if "frees memory" in note]


@pytest.mark.parametrize(
    ("job", "share"),
    [
        ({"expert_capacity": 0.5}, "50 %"),
        ({"expert_capacity": 1.25, "expert_imbalance": 1.5}, "3.12 %"),
        ({"expert_capacity": 1.25}, ""),
    ],
)
def test_the_share_of_dropped_tokens_is_said(job: dict[str, float], share: str) -> None:
    asked = scenario("mixtral-8x7b", "megatron-lm", "dgx-h100", global_batch=256, **job)
    layout = Layout(dp=8, ep=8, zero_stage=1, grad_accumulation=32)
    answer = estimate_layouts(asked, Layouts.of(layout))[0]
    said = [note for note in utilisation_notes(asked, answer) if "dropped" in note]
    assert len(said) == bool(share)
    assert all(f"at least {share} of the tokens" in note for note in said)


def test_a_rate_of_256_is_scaled_by_both_rules() -> None:
    """Goyal et al. 2017: 0.1 for 256 is 3.2 for 8,192; the square root of 32 is 5.66."""
    note = learning_rate_note(Workload(sequence_length=128, global_batch=8192))
    assert "linear rule x32 (SGD), square-root rule x5.66 (Adam)" in note


def test_a_plan_names_its_network_and_the_step_on_others() -> None:
    """Polaris: the site's own documents unset the plugin, without which NCCL takes TCP."""
    job = Workload(sequence_length=4096, global_batch=256)
    plan = planner.plan(
        "llama-2-7b", "polaris", nodes=8, workload=job, frameworks="megatron-deepspeed"
    )
    best = plan.recommended
    assert best is not None
    sockets = planner.load_machine("polaris", ("network=sockets",))
    slow = planner.estimate(
        "llama-2-7b", sockets, best.layout, workload=job, framework=best.framework
    )
    assert slow.step_time_s > 1.5 * best.step_time_s
    [step] = [line.text for line in answer_lines(plan) if line.label == "Step"]
    assert step.endswith(f"on plugin-staged; {format_seconds(slow.step_time_s)} on sockets")
    # inside a node, and on a machine with one network, there is nothing to choose
    for machine, nodes in (("polaris", 1), ("perlmutter", 8)):
        other = planner.plan("llama-3.2-1b", machine, nodes=nodes, workload=job)
        assert other.network_note == ""
