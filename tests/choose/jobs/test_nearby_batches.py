"""Batches: what is offered is near, shared evenly, legal, and faster or as fast and simpler."""

from __future__ import annotations

import pytest

import planner
from planner.choose.jobs.job_search import nearest_batches
from planner.choose.plan import Plan
from planner.choose.planning import plan
from planner.choose.preferences import preferences
from planner.choose.recommendation import setup_effort
from planner.choose.search import is_deep_pipeline
from planner.cost.shards.layouts import Layouts
from planner.describe.catalogue import load_model
from planner.describe.workload import Workload
from planner.show import words
from planner.show.words import other_batches

TOLERANCE = preferences().tolerance
NEAR = preferences().offers.batch_change.value

# whole plans of several batches
pytestmark = pytest.mark.slow


@pytest.fixture(scope="module")
def three_nodes() -> Plan:
    job = Workload(sequence_length=1024, global_batch=512)
    return plan("gpt2", "polaris", nodes=3, workload=job)


@pytest.mark.parametrize("ranks", [1, 3, 12, 28, 100, 1984, 12_000])
@pytest.mark.parametrize("batch", [1, 60, 256, 1024])
def test_the_nearest_multiples(batch: int, ranks: int) -> None:
    found = nearest_batches(batch, ranks)
    assert all(size % ranks == 0 and abs(size - batch) < ranks for size in found)
    assert (found == []) == (batch % ranks == 0)


def test_twelve_devices_do_not_share_512_sequences(three_nodes: Plan) -> None:
    sizes = [offer.global_batch for offer in three_nodes.batches]
    assert sizes == [504, 516]
    assert three_nodes.recommended is not None
    assert three_nodes.asked_batch == three_nodes.workload.global_batch == 512
    assert words.other_batch_notice(three_nodes) == ""
    assert three_nodes.recommended.layout.pp > 1
    for offer in three_nodes.batches:
        assert offer.estimate.fits
        assert offer.estimate.layout.global_batch == offer.global_batch
        assert offer.estimate.layout.dp == 12
        assert offer.speedup is not None
        # a step of data parallelism keeps all twelve devices busy; stages of four layers do not
        rates = (offer.estimate.tokens_per_s, three_nodes.recommended.tokens_per_s)
        assert offer.speedup == pytest.approx(rates[0] / rates[1])
        assert offer.speedup > 1.5
    said = other_batches(three_nodes)
    assert "with 504, dp12 " in said
    assert "; with 516, dp12 " in said
    assert Plan.from_json(three_nodes.to_json()) == three_nodes


@pytest.mark.slow
def test_nodes_that_share_the_batch_are_enough() -> None:
    # 250 and 275 are multiples of 25 nodes; multiples of their 100 devices are farther away
    answer = plan(
        "llama-3-8b", "polaris", nodes=25, workload=Workload(global_batch=256, sequence_length=8192)
    )
    assert [offer.global_batch for offer in answer.batches] == [250, 275]
    assert answer.recommended is not None
    for offer in answer.batches:
        simpler, ours = setup_effort(
            Layouts.stack([offer.estimate.layout, answer.recommended.layout])
        )
        assert offer.speedup is not None
        assert simpler < ours or offer.speedup >= 1 + TOLERANCE
        assert offer.speedup >= 1 / (1 + TOLERANCE)


def test_no_layout_at_all_is_helped_by_another_batch() -> None:
    # DDP alone: 52 replicas, and 3 sequences
    answer = plan(
        "gpt2",
        "polaris",
        nodes=13,
        workload=Workload(global_batch=3, sequence_length=1024),
        frameworks=["ddp"],
    )
    assert not answer.fits
    assert [(offer.global_batch, offer.speedup) for offer in answer.batches] == [(52, None)]
    said = "3 sequences do not divide evenly: with 52, dp52 "
    assert other_batches(answer).startswith(said)


def large(global_batch: int) -> Plan:
    job = Workload(global_batch=global_batch, sequence_length=8192)
    return plan(
        "llama-3.1-405b", "grand-teton", nodes=1000, workload=job, frameworks=["megatron-lm"]
    )


@pytest.mark.slow
def test_a_pipeline_that_is_needed_is_left_alone() -> None:
    # 8,000 devices do not share 10,240 sequences; no cut of the layers alone runs 405B as fast
    answer = large(10240)
    assert answer.recommended is not None
    assert answer.recommended.layout.pp > 1
    assert answer.batches == ()


def test_a_near_batch_comes_before_a_pipeline_that_nobody_runs() -> None:
    # 68 devices share 512 sequences only in pipelines of 17 stages or more
    answer = plan(
        "llama-3-8b",
        "polaris",
        nodes=17,
        workload=Workload(global_batch=512, sequence_length=2048),
        frameworks=["fsdp2"],
    )
    assert answer.recommended is not None
    assert answer.recommended.layout.pp == 1
    assert answer.asked_batch == 512
    batch = answer.workload.global_batch
    assert abs(batch - 512) <= NEAR * 512
    assert answer.recommended.layout.global_batch == batch
    offered = {offer.global_batch: offer.speedup for offer in answer.batches}
    assert offered[batch] is not None
    assert f"This is for {batch} sequences a step" in words.plan_sentence(answer)
    # 405B is trained in that many
    assert not is_deep_pipeline(load_model("llama-3.1-405b"), 17)


@pytest.mark.slow
def test_fewer_sequences_than_devices_may_be_cut_any_way() -> None:
    # 1,000 nodes share 2,000 sequences, not 2,048: fewer stages, each with its part of the batch
    answer = large(2048)
    assert answer.recommended is not None
    (offer,) = answer.batches
    assert offer.global_batch == 2000
    assert 1 < offer.estimate.layout.pp < answer.recommended.layout.pp
    assert offer.speedup is not None
    assert offer.speedup > 1.5


def test_a_batch_that_divides_is_left_alone() -> None:
    answer = plan(
        "gpt2", "polaris", nodes=3, workload=Workload(sequence_length=1024, global_batch=480)
    )
    assert answer.batches == ()


@pytest.mark.slow
def test_what_is_offered_can_be_written() -> None:
    # six devices do not share 512 sequences; only Megatron-LM cuts layers, and it builds no encoder
    job = Workload(global_batch=512, sequence_length=512)
    answer = plan("bert-large", "vsc-5-a40", nodes=3, workload=job)
    assert [offer.global_batch for offer in answer.batches] == [510, 516]
    assert "megatron-lm" not in {offer.estimate.framework for offer in answer.batches}
    # the nearest is answered, and said to be another than the one asked for
    assert answer.recommended is not None
    assert answer.recommended.layout.global_batch == answer.workload.global_batch == 510
    assert answer.asked_batch == 512
    assert words.other_batches(answer).startswith("512 sequences do not divide evenly: with 516, ")
    assert words.plan_sentence(answer).count("This is for 510 sequences a step") == 1
    assert Plan.from_json(answer.to_json()) == answer
    assert planner.emit(answer)
