"""Recommending: safe, near the fastest, and nothing simpler is; one layout of every idea."""

from __future__ import annotations

import itertools
from dataclasses import replace
from typing import Any

import numpy as np
import pytest

import planner
from planner.choose.planning import plan
from planner.choose.preferences import preferences
from planner.choose.search import Candidates
from planner.choose.search.expected_time import expected_time_s
from planner.choose.search.recommendation import (
    rank_layouts,
    recommend,
    setup_effort,
    stall_probability,
)
from planner.cost.estimate import Estimate
from planner.cost.scenario import Scenario
from planner.cost.scenario.prior import memory_class, memory_classes
from planner.cost.shards.layouts import Layouts
from planner.cost.uncertainty import exceeding_probability
from planner.describe.catalogue import load_framework, load_machine, load_model
from planner.describe.layout import Layout
from planner.describe.workload import Workload
from tests.descriptions import searched

RISK = preferences().risk
TOLERANCE = preferences().tolerance

# whole searches of several jobs
JOBS = {
    "dense": ("llama-3-8b", "polaris", 2, Workload(global_batch=16)),
    "short of memory": ("mistral-7b", "vsc-5", 2, Workload(global_batch=16, sequence_length=4096)),
    "long": ("llama-3-8b", "dgx-h100", 1, Workload(global_batch=8, sequence_length=32768)),
}


@pytest.fixture(scope="module", params=JOBS)
def found(request: pytest.FixtureRequest) -> list[Candidates]:
    model, machine, nodes, workload = JOBS[request.param]
    return [*searched(load_model(model), load_machine(machine), nodes, workload).values()]


@pytest.fixture(scope="module")
def everything(found: list[Candidates]) -> list[tuple[float, Estimate]]:
    """Every layout that fits, with its effort."""
    pairs = []
    for part in found:
        efforts = setup_effort(part.estimates.layouts) + part.scenario.framework.effort
        pairs += zip(efforts.tolist(), part.estimates, strict=True)
    return pairs


@pytest.mark.parametrize("tolerance", [0.0, TOLERANCE, 0.5])
def test_nothing_simpler_is_expected_to_be_as_fast(
    found: list[Candidates], everything: list[tuple[float, Estimate]], tolerance: float
) -> None:
    one = recommend(found, tolerance)
    assert one is not None
    times_s = np.concatenate([expected_time_s(x.scenario, x.estimates) for x in found])
    efforts = np.array([effort for effort, _ in everything])
    mine = next(row for row, (_, each) in enumerate(everything) if each == one)
    assert times_s[mine] <= (1 + tolerance) * np.min(times_s)
    as_simple = (efforts <= efforts[mine]) & (times_s < times_s[mine] * (1 - 1e-9))
    simpler = (efforts < efforts[mine]) & (times_s <= times_s[mine])
    assert not np.any(as_simple | simpler)


def test_what_is_expected_is_the_estimate_where_nothing_may_go_wrong(
    found: list[Candidates],
) -> None:
    for part in found:
        layouts, estimates = part.estimates.layouts, part.estimates
        usual = (layouts.pp * layouts.cp == 1) & layouts.keeps_states
        wired = layouts.tp <= part.scenario.machine.wired_devices
        calm = usual & wired & (estimates.out_of_memory_probability <= RISK)
        without = expected_time_s(part.scenario, estimates, without=("spread", "files"))
        assert np.allclose(without[calm], estimates.step_time_s[calm])
        # whatever may go wrong makes a layout slower
        assert np.all(expected_time_s(part.scenario, estimates) >= estimates.step_time_s)


def test_every_idea_has_its_fastest_layout(
    found: list[Candidates], everything: list[tuple[float, Estimate]]
) -> None:
    def idea(x: Estimate) -> tuple[object, ...]:
        layout = x.layout
        degrees = (layout.tp, layout.pp, layout.cp, layout.ep)
        return (x.framework, *degrees, layout.zero_stage, layout.dp_shard > 0, layout.offload)

    kept = rank_layouts(found, 1000)
    pairs = sorted((x for _, x in everything), key=lambda x: (idea(x), x.step_time_s))
    fastest = {key: next(group) for key, group in itertools.groupby(pairs, idea)}
    assert len({idea(x) for x in kept}) == len(kept)
    assert all(x.step_time_s == fastest[idea(x)].step_time_s for x in kept)
    assert [x.step_time_s for x in kept] == sorted(x.step_time_s for x in kept)
    lost = [fastest[key] for key in fastest.keys() - {idea(x) for x in kept}]
    for x in lost:
        assert x.layout.offload != "none"
        assert any(
            y.layout.offload == "none"
            and y.framework == x.framework
            and y.step_time_s <= x.step_time_s
            for y in kept
        ), x


@pytest.mark.parametrize("framework", ["nanotron", "megatron-lm"])
def test_more_room_is_never_more_dangerous(framework: str) -> None:
    rooms = [0.3, 0.8, 0.95, 1.0, 1.05, 1.2, 1.5, 3.0]
    described = load_framework(framework)
    job = Scenario(load_model("gpt2"), load_machine("polaris"), Workload(), described)
    layouts = Layouts.broadcast(dp=np.full(len(rooms), 4))
    risks = exceeding_probability(job, layouts, rooms).tolist()
    assert risks == sorted(risks, reverse=True)
    # never certain: the next run may lie beyond all
    last = 1 / (memory_classes()[memory_class(described)].num_runs + 1)
    assert risks[-1] == pytest.approx(last, rel=0.02)
    assert risks[0] == pytest.approx(1 - last, rel=0.02)


def test_a_ddp_job_is_ddps() -> None:
    job = Workload(global_batch=480, sequence_length=1024)
    answer = plan("gpt2", "dgx-h100", nodes=1, workload=job)
    assert answer.recommended is not None
    assert answer.best is not None
    assert answer.recommended.framework == "ddp"
    assert answer.recommended.step_time_s <= (1 + TOLERANCE) * answer.best.step_time_s


def test_offload_on_a_single_card_is_found() -> None:
    """The textbook case of ZeRO-Offload: one device, one replica."""
    card = load_machine("workstation-1x4090", ("node.host_memory_bytes=256GB",))
    answer = plan("llama-3.1-8b", card, nodes=1, workload=Workload(global_batch=4))
    assert answer.recommended is not None
    assert answer.recommended.layout.offload != "none"


@pytest.mark.slow
def test_tensor_parallelism_stays_where_devices_are_wired() -> None:
    # two nodes of eight: by the estimate tp 16 is faster, and nobody runs it
    answer = plan(
        "nemotron-4-340b",
        "dgx-h100",
        nodes=16,
        workload=Workload(global_batch=32, sequence_length=4096),
        frameworks=["megatron-lm"],
    )
    assert answer.best is not None
    assert answer.recommended is not None
    assert (answer.best.layout.tp, answer.recommended.layout.tp) == (16, 8)
    assert "--squared-relu" in planner.emit(answer)["megatron.args"].splitlines()
    # a rack of NVL72 is one such place
    assert load_machine("dgx-gb200").wired_devices == 72
    assert load_machine("dgx-h100").wired_devices == 8


@pytest.mark.slow
def test_what_is_unusual_is_recommended_where_the_rest_takes_far_longer() -> None:
    # 175B on 768 cards of 16 GB and 64 sequences: 16 stages do not hold it, offload takes six times
    job = Workload(global_batch=64, sequence_length=2048, precision="fp16")
    answer = plan("gpt3-175b", "summit", nodes=128, workload=job)
    assert answer.best is not None
    assert answer.recommended is not None
    assert answer.recommended.layout.pp > 16
    assert answer.recommended.step_time_s < 2 * answer.best.step_time_s


@pytest.mark.slow
def test_an_answer_without_files_is_better_than_none() -> None:
    """Few sequences, many devices: no files lay that out, and Megatron-LM has no plain ReLU."""
    model = load_model("gpt3-175b").replaced(activation="relu")
    answer = plan(model, "dgx-h100", nodes=16, workload=Workload(global_batch=16))
    assert answer.recommended is not None
    assert answer.recommended.framework == "fsdp2"
    assert any("No files can be written for the recommended" in note for note in answer.notes)
    assert any(note.startswith("Not searched: megatron-lm") for note in answer.notes)


@pytest.mark.parametrize("workload", [{"lora_rank": 16}, {"frozen": ("embedding",)}])
def test_adapters_are_for_programs_of_ones_own(workload: dict[str, Any]) -> None:
    job = Workload(global_batch=16, sequence_length=2048, **workload)
    answer = plan("llama-3.1-8b", "dgx-h100", nodes=1, workload=job)
    assert answer.recommended is not None
    assert "megatron-lm" not in {x.framework for x in answer.ranked}
    reason = "Not searched: megatron-lm: its code trains no adapters and freezes no parts."
    assert reason in answer.notes
    assert "README.md" in planner.emit(answer)


def test_what_stalls_counts_by_its_mean_and_is_said() -> None:
    # of fifteen 1B runs of nanotron without a pipeline on 64 nodes nine took up to 14 times their
    # estimate
    job = Workload(sequence_length=4096, global_batch=256)
    found = plan("llama-3-8b", "h100-cluster", nodes=64, workload=job, frameworks=["nanotron"])
    assert found.best is not None
    assert found.recommended is not None
    assert found.recommended.layout.pp == 1
    nanotron = load_framework("nanotron")
    [stall] = [each for each in nanotron.stalls if not each.piped]
    mean = 1 + stall.share.value * (stall.slowdown.value - 1)
    assert mean == pytest.approx(3.7)
    assert found.recommended.step_time_s < found.best.step_time_s * mean
    warnings = [note for note in found.notes if "60 % of measured runs" in note]
    assert str(found.recommended.layout) in [note.partition(":")[0] for note in warnings]


def test_stalls_are_said_where_they_were_measured() -> None:
    nanotron = load_framework("nanotron")
    scenario = Scenario(load_model("llama-3-8b"), load_machine("dgx-h100"), Workload(), nanotron)
    few, all_nodes, beyond, piped = (
        Layout(dp=56, tp=8),
        Layout(dp=64, tp=8, zero_stage=1),
        Layout(dp=16, tp=16, zero_stage=1),
        Layout(dp=32, tp=8, pp=2),
    )
    shares = stall_probability(scenario, Layouts.stack([few, all_nodes, beyond, piped]))
    assert shares.tolist() == [0.0, 0.6, 0.0, 0.0]
    assert not stall_probability(
        replace(scenario, framework=load_framework("megatron-lm")), Layouts.of(Layout(dp=512))
    )
