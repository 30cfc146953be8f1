"""Alternatives: neighbours of a job are near, even, and ranked by useful throughput."""

from __future__ import annotations

import itertools
import json
import math
import random
from collections.abc import Sequence
from pathlib import Path

import numpy as np
import pytest

import planner
from planner.choose.jobs import alternatives, job_search
from planner.choose.jobs.alternatives import Alternative
from planner.choose.jobs.job_search import JobCandidates, Within, search_jobs
from planner.choose.jobs.job_spec import JobSpec
from planner.choose.jobs.neighbours import (
    nearby_batches,
    nearest_batches,
    uneven,
    with_even_length,
)
from planner.choose.legality import check
from planner.choose.plan import Plan
from planner.choose.planning import plan, plan_job
from planner.choose.preferences import preferences
from planner.choose.search import SearchScope, search, search_together
from planner.choose.verdicts.answer_lines import answer_lines, headline, other_ways
from planner.describe.workload import Workload
from planner.units import format_seconds

NEAR = preferences().offers.batch_change.value


def job(nodes: int, batch: int, length: int = 4096, model: str = "llama-3-8b", **more) -> JobSpec:
    workload = Workload(global_batch=batch, sequence_length=length)
    machine = more.pop("machine", "polaris")
    return JobSpec(model, machine, nodes=nodes, workload=workload, **more)


def advice_of(*fields, **more) -> Alternative:
    advice = plan_job(job(*fields, **more)).advice
    assert advice is not None
    return advice


@pytest.fixture(scope="module")
def fifteen_nodes() -> Plan:
    # 60 devices do not share 1,024 sequences but in pipelines of 15 stages
    return plan_job(job(15, 1024))


# --- neighbours -----------------------------------------------------------------------------------


@pytest.mark.parametrize("ranks", [1, 3, 12, 28, 100, 1984, 12_000])
@pytest.mark.parametrize("batch", [1, 60, 256, 1024])
def test_the_nearest_multiples(batch: int, ranks: int) -> None:
    sizes = nearest_batches(batch, ranks)
    assert all(size % ranks == 0 and abs(size - batch) < ranks for size in sizes)
    assert (sizes == []) == (batch % ranks == 0)


@pytest.mark.parametrize(("ranks", "batch", "least"), [(60, 1024, 15), (64, 1024, 1), (7, 3, 7)])
def test_the_least_ranks_that_must_share_a_sequence(ranks: int, batch: int, least: int) -> None:
    assert uneven(ranks, batch) == least
    # with so many ranks to a sequence, every group of them gets equally many
    assert batch % (ranks // least) == 0


def test_nearby_batches_are_at_most_a_quarter_away() -> None:
    sizes = nearby_batches(job(15, 1024))
    assert sizes
    assert all(abs(size - 1024) <= NEAR * 1024 for size in sizes)
    # nodes or devices share them
    assert all(size % 15 == 0 for size in sizes)


# --- the best way to do a job ---------------------------------------------------------------------


def test_a_batch_that_divides_is_left_alone() -> None:
    answer = plan_job(job(16, 1024))
    assert [each.kind for each in answer.alternatives] == ["as-asked"]
    assert answer.advice is not None
    assert (answer.advice.gain, headline(answer)) == (0.0, "")
    assert answer.advice.tokens_per_s == answer.advice.estimate.tokens_per_s


def test_a_pipeline_of_all_nodes_gives_way_to_a_nearby_batch(fifteen_nodes: Plan) -> None:
    advice, asked = fifteen_nodes.advice, fifteen_nodes.as_asked
    assert advice is not None
    assert asked is not None
    assert asked.estimate.layout.pp == 15
    assert (advice.kind, advice.nodes, advice.estimate.layout.pp) == ("batch", 15, 1)
    assert advice.gain == pytest.approx(advice.tokens_per_s / asked.tokens_per_s - 1)
    assert advice.gain > 0.4
    # the plan is of the headline
    assert fifteen_nodes.recommended == advice.estimate
    assert fifteen_nodes.workload.global_batch == advice.global_batch
    percent = f"{100 * advice.gain:.0f} % more tokens a second"
    said = headline(fifteen_nodes)
    assert f"Use a batch of {advice.global_batch:,} instead of 1,024: {percent}" in said
    assert f"Exactly as asked: {format_seconds(asked.estimate.step_time_s)} a step." in said


def test_exact_keeps_to_the_letter(fifteen_nodes: Plan) -> None:
    answer = plan_job(job(15, 1024, exact=True))
    assert answer.as_asked == fifteen_nodes.as_asked
    assert answer.alternatives == (answer.as_asked,)
    assert answer.workload.global_batch == 1024


def test_json_of_the_advice(fifteen_nodes: Plan) -> None:
    data = json.loads(fifteen_nodes.to_json())
    advice = data["advice"]
    plain = ("kind", "nodes", "global_batch", "sequence_length", "tokens_per_s", "gain", "sentence")
    assert {name: advice[name] for name in plain} == {
        name: getattr(fifteen_nodes.advice, name) for name in plain
    }
    assert advice["layout"]["tp"] == fifteen_nodes.recommended.layout.tp
    assert advice["step_time_s"] == fifteen_nodes.recommended.step_time_s
    assert advice["framework"] == fifteen_nodes.recommended.framework
    assert advice == data["alternatives"][0]
    assert {each["kind"] for each in data["alternatives"]} >= {"as-asked", "batch", "nodes"}
    assert Plan.from_json(fifteen_nodes.to_json()) == fifteen_nodes


def test_images_are_not_cut() -> None:
    """A vision transformer has 257 tokens: 16 x 16 pieces and its class."""
    images = job(1, 64, 257, "vit-h-14", machine="polaris")
    assert with_even_length(images) is images


def test_padding_is_not_useful() -> None:
    answer = plan_job(job(16, 256, 8170, "llama-3.1-70b", machine="dgx-h100"))
    advice = answer.advice
    assert advice is not None
    assert (advice.kind, advice.sequence_length) == ("sequence", 8192)
    assert advice.sentence.startswith("Pad sequences to 8,192 tokens: ")
    useful = advice.estimate.tokens_per_s * 8170 / 8192
    assert advice.tokens_per_s == pytest.approx(useful)


def test_one_device_where_two_are_slower() -> None:
    answer = plan(
        "gpt2",
        "workstation-2x4090",
        nodes=1,
        workload=Workload(global_batch=1, sequence_length=1024),
    )
    assert answer.advice is not None
    assert (answer.advice.kind, answer.advice.devices) == ("nodes", 1)
    assert answer.recommended is not None
    assert answer.recommended.layout.world == 1
    assert headline(answer).startswith("Use 1 of the 2 devices: ")


def test_a_batch_that_no_framework_shares_is_helped() -> None:
    # DDP alone: 52 replicas, and 3 sequences
    answer = plan_job(job(13, 3, 1024, "gpt2", frameworks=["ddp"]))
    assert not answer.fits
    assert answer.advice is None
    first = answer.alternatives[0]
    assert (first.kind, first.global_batch, first.gain) == ("batch", 52, None)
    assert "use a batch of 52 instead of 3" in other_ways(answer)


def test_alternatives_have_files() -> None:
    # six devices do not share 512 sequences; only Megatron-LM cuts layers, and it builds no encoder
    answer = plan_job(job(3, 512, 512, "bert-large", machine="vsc-5-a40"))
    assert answer.advice is not None
    assert (answer.advice.kind, answer.advice.global_batch) == ("batch", 510)
    assert answer.advice.estimate.framework != "megatron-lm"
    assert planner.emit(answer)


# --- no cliffs ------------------------------------------------------------------------------------

STEP = 0.97
"""Least useful throughput of a job, over that of one a little smaller."""
NODES = [
    pytest.param("llama-3-8b", "polaris", 1024, range(13, 18), id="8B on Polaris"),
    pytest.param("llama-3.1-70b", "polaris", 512, range(8, 12), id="70B on Polaris"),
    pytest.param("auroragpt-7b", "aurora", 3072, range(30, 34), id="7B on Aurora"),
    pytest.param("mistral-7b", "vsc-5", 64, range(1, 9), id="7B on VSC-5"),
]


@pytest.mark.slow
@pytest.mark.parametrize(("model", "machine", "batch", "counts"), NODES)
def test_never_worse_than_fewer_nodes(model: str, machine: str, batch: int, counts: range) -> None:
    rates = [advice_of(nodes, batch, model=model, machine=machine).tokens_per_s for nodes in counts]
    for before, after in itertools.pairwise(rates):
        assert after >= STEP * before


@pytest.mark.slow
def test_never_worse_than_a_nearby_batch() -> None:
    batches = (1007, 1008, 1016, 1021, 1024, 1025)
    rates = [advice_of(16, batch).tokens_per_s for batch in batches]
    for before, after in itertools.pairwise(rates):
        assert math.isclose(after, before, rel_tol=1 - STEP)


@pytest.mark.slow
def test_never_worse_than_a_padded_sequence() -> None:
    lengths = (8129, 8191, 8192, 8193)
    rates = [
        advice_of(16, 256, length, model="llama-3.1-70b", machine="dgx-h100").tokens_per_s
        for length in lengths
    ]
    for before, after in itertools.pairwise(rates):
        assert math.isclose(after, before, rel_tol=1 - STEP)


@pytest.mark.slow
def test_random_jobs_are_seldom_worse_than_smaller_ones() -> None:
    """One node, sequence or token more; jobs of at least one sequence for every device."""
    draw, falls, num_pairs = random.Random(1), [], 12
    machines = {"polaris": 4, "aurora": 12, "vsc-5": 2, "dgx-h100": 8, "lumi-g": 8}
    for _ in range(num_pairs):
        model = draw.choice(["llama-3-8b", "mistral-7b", "gpt2-xl", "llama-2-13b"])
        machine, nodes = draw.choice([*machines]), draw.randint(1, 24)
        devices = machines[machine] * (nodes + 1)
        batch = draw.randint(devices, 4 * devices)
        length = 960 if model == "gpt2-xl" else draw.randint(1000, 4000)
        more = draw.choice([(1, 0, 0), (0, 1, 0), (0, 0, 1)])
        before, after = (
            advice_of(nodes + n, batch + b, length + s, model=model, machine=machine).tokens_per_s
            for n, b, s in ((0, 0, 0), more)
        )
        falls.append(1 - after / before)
    assert max(falls) <= 1 - STEP


# --- what has no files ----------------------------------------------------------------------------


@pytest.mark.slow
def test_a_faster_framework_without_files_is_named() -> None:
    # Megatron-LM cuts layers of gemma-2 with tp and pp, and its code does not build them
    answer = plan_job(job(4, 128, model="gemma-2-27b", machine="dgx-h100"))
    assert answer.recommended is not None
    assert answer.recommended.framework != "megatron-lm"
    assert answer.files_note.startswith("megatron-lm would take")
    assert "no files can be written for it: its code builds no model" in answer.files_note
    assert ("Faster", answer.files_note) in answer_lines(answer)
    assert Plan.from_json(answer.to_json()).files_note == answer.files_note
    # a job that names its frameworks is not told of others
    named = plan_job(job(4, 128, model="gemma-2-27b", machine="dgx-h100", frameworks=["fsdp2"]))
    assert named.files_note == ""
    # what has files has no such note
    assert plan_job(job(16, 1024)).files_note == ""


@pytest.mark.slow
def test_a_remembered_neighbour_changes_no_plan(monkeypatch: pytest.MonkeyPatch) -> None:
    alternatives._remembered.cache_clear()
    fresh = [plan_job(job(nodes, 64)).to_json() for nodes in (5, 9)]
    calls = []

    def counted(
        jobs: Sequence[JobSpec], scope: SearchScope, within: Within | None = None
    ) -> list[JobCandidates]:
        calls.extend((searched.nodes, searched.workload.global_batch) for searched in jobs)
        return search_jobs(jobs, scope, within)

    for module in (alternatives, job_search):  # `search_job` searches by the other module
        monkeypatch.setattr(module, "search_jobs", counted)
    assert [plan_job(job(nodes, 64)).to_json() for nodes in (5, 9)] == fresh
    # the job itself and the one that leads, no other neighbour
    assert len(calls) <= 4
    assert {(5, 64), (9, 64)} <= set(calls)
    # another tolerance is another job
    calls.clear()
    plan_job(job(5, 64, tolerance=0.2))
    assert len(calls) > 2


@pytest.mark.slow
def test_preferences_of_the_user_are_not_answered_from_memory(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    plan_job(job(5, 64))
    file = tmp_path / "preferences.toml"
    file.write_text("[recommendation]\ntolerance = 0.5\n", encoding="utf-8")
    monkeypatch.setenv("PLANNER_PREFERENCES", str(file))
    changed = plan_job(job(5, 64)).to_json()
    alternatives._remembered.cache_clear()
    assert plan_job(job(5, 64)).to_json() == changed


@pytest.mark.slow
def test_jobs_of_several_batches_and_node_counts_are_searched_as_alone() -> None:
    for framework in ("fsdp2", "megatron-lm", "deepspeed"):
        scenarios = [
            (job(nodes, batch, frameworks=framework), 4 * nodes)
            for nodes, batch in ((5, 60), (5, 64), (4, 64), (4, 48), (7, 9))
        ]
        alike = [
            (each.scenario(each.frameworks[0]), world, SearchScope(top_time_s=float(number)))
            for number, (each, world) in enumerate(scenarios)
        ]
        together = search_together(alike)
        for (scenario, world, _), shared in zip(alike, together, strict=True):
            alone = search(scenario, world)
            assert shared.dropped == alone.dropped
            assert shared.scenario == alone.scenario
            assert shared.estimates.tokens_per_step == alone.estimates.tokens_per_step
            for name in ("memory_bytes", "host_memory_bytes", "excess"):
                one, other = (getattr(part.footprints, name) for part in (shared, alone))
                np.testing.assert_allclose(one, other, rtol=1e-12)
            for name in ("step_time_s", "mfu"):
                one, other = (getattr(part.estimates, name) for part in (shared, alone))
                np.testing.assert_allclose(one, other, rtol=1e-12)
            for layout in list(map(shared.estimates.layouts.__getitem__, range(0, len(one), 37))):
                check(scenario, layout)
