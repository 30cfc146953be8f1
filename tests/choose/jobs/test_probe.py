"""Probe: small runs that a debug queue takes and that narrow a job's interval."""

from __future__ import annotations

import math

import pytest

from planner.choose.jobs.probe import LIMIT_S, _small_layouts
from planner.describe.layout import Layout
from planner.describe.workload import Workload
from planner.errors import PlannerError
from planner.job import Job

LLAMA = Job(
    "llama-3-8b",
    "polaris",
    nodes=16,
    workload=Workload(sequence_length=4096, global_batch=256),
    frameworks="fsdp2",
)


def test_runs_are_small_and_safe_and_end_in_ten_minutes() -> None:
    probe = LLAMA.probe()
    assert 1 <= len(probe.runs) <= 4
    assert sum(run.seconds for run in probe.runs) <= LIMIT_S
    assert max(run.job.nodes for run in probe.runs) <= 2
    assert len({(run.job.model, run.estimate.layout) for run in probe.runs}) == len(probe.runs)
    for run in probe.runs:
        layout = run.estimate.layout
        assert run.job.model.num_layers < 32
        assert run.job.model.hidden_size == LLAMA.model.hidden_size
        assert layout.world == run.job.num_devices == 4 * run.job.nodes
        assert layout.global_batch == run.job.workload.global_batch
        assert run.estimate.framework == probe.target.framework
        assert run.estimate.fits


@pytest.mark.slow
def test_a_network_is_probed_on_two_nodes_and_a_single_node_on_one() -> None:
    assert {run.job.nodes for run in LLAMA.probe().runs} == {1, 2}
    assert {run.job.nodes for run in LLAMA.replaced(nodes=1).probe().runs} == {1}


def test_the_expected_interval_is_narrower_and_costs_little() -> None:
    probe = LLAMA.probe()
    (low, high), (lower, upper) = probe.interval_s, probe.target.interval_step_time_s
    assert math.log(high / low) < 0.85 * math.log(upper / lower)
    assert probe.node_hours < 0.5
    assert probe.lines()[0].endswith(f"for {probe.node_hours:.2g} node-hours")


@pytest.mark.slow
def test_a_probe_holds_as_many_experts_a_rank_as_the_job() -> None:
    workload = Workload(sequence_length=4096, global_batch=256)
    job = Job("mixtral-8x7b", "alps", nodes=16, workload=workload, frameworks="megatron-lm")
    probe = job.probe()
    assert job.model.experts is not None
    held = job.model.experts.num_experts / probe.target.layout.ep
    for run in probe.runs:
        assert run.job.model.experts is not None
        assert run.job.model.experts.num_experts / run.estimate.layout.ep == held


def test_small_layouts_keep_what_their_degrees_allow() -> None:
    large = Layout(
        dp=16, dp_shard=4, tp=8, pp=4, vpp=2, cp=2, ulysses=2, schedule="interleaved-1f1b",
        sequence_parallel=True, zero_stage=1, grad_accumulation=64, first_layers=3,
    )  # fmt: skip
    found = {
        (x["tp"], x["pp"], x["cp"], x["grad_accumulation"]): x for x in _small_layouts(large, 8)
    }
    degrees = {key[:3] for key in found}
    assert degrees == {
        (tp, pp, cp) for tp in (1, 2, 8) for pp in (1, 2, 4) for cp in (1, 2) if tp * pp * cp <= 8
    }
    assert {key[3] for key in found if key[1] == 2} == {2, 8}
    for (tp, pp, cp, _), fields in found.items():
        assert fields["dp"] * tp * pp * cp == 8
        assert (fields["vpp"], fields["schedule"]) == (
            (2, "interleaved-1f1b") if pp > 1 else (1, "none")
        )
        assert (fields["sequence_parallel"], fields["ulysses"]) == (tp > 1, cp)
        assert fields["dp_shard"] == min(4, fields["dp"])
        assert (fields["first_layers"], fields["split"], fields["ep"]) == (0, "", 1)


def test_no_small_run_is_an_error_with_a_remedy() -> None:
    job = LLAMA.replaced(machine=LLAMA.machine.replaced(scheduler=_only_large()))
    with pytest.raises(PlannerError, match="measure the job itself"):
        job.probe()


def _only_large() -> dict[str, object]:
    queues = [{"name": "large", "min_nodes": 10, "max_nodes": 99, "max_hours": 1}]
    return {**LLAMA.machine.scheduler.model_dump(), "queues": queues}
