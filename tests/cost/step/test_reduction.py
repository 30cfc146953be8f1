"""Reduction of whole gradients: buckets of DDP, Horovod's cycles, DeepSpeed's without ZeRO."""

from __future__ import annotations

import pytest

import planner
from planner.cost.network.collectives import all_reduce_s, hierarchical_all_reduce_s
from planner.cost.network.groups import Groups
from planner.cost.network.topology import group_view
from planner.cost.scenario import Scenario
from planner.cost.shards.layouts import Layouts
from planner.cost.shards.stages import Stages
from planner.cost.step.communication.data_parallel import data_traffic
from planner.describe.catalogue import load_framework, load_machine, load_model

LAYOUT = planner.Layout(dp=64, micro_batch=32)
JOB = planner.Workload(sequence_length=512, global_batch=64 * 32)


def parts(framework: str, precision: str = "bf16", machine: str = "polaris") -> dict[str, float]:
    """Parts of a step of BERT-Large."""
    job = JOB.replaced(precision=precision)
    found = planner.estimate("bert-large", machine, LAYOUT, workload=job, framework=framework)
    return {**found.step_time_parts_s, "step": found.step_time_s}


def sent_s(framework: str) -> float:
    """One reduction of BERT-Large's gradients on 16 nodes of Polaris, hidden or not."""
    job = Scenario(
        load_model("bert-large"), load_machine("polaris"), JOB, load_framework(framework)
    )
    stages = Stages.of(job, Layouts.of(LAYOUT), 0)
    return data_traffic(stages, Groups.of(stages.layouts, job.machine)).gradients_s.item()


def test_ddp_sends_buckets_of_25_mib() -> None:
    """torch 2.13, nn/parallel/distributed.py: bucket_cap_mb = 25, the first of 1 MiB."""
    group = group_view(load_machine("polaris"), 64, 1)
    elements = load_model("bert-large").num_params
    whole_s = all_reduce_s(group, 4 * elements)
    buckets = 4 * elements / (25 * 2**20)
    assert buckets == pytest.approx(51, abs=1)
    # a matrix of 4 M elements closes a bucket late, so that there are fewer
    one_s = all_reduce_s(group, 25 * 2**20)
    assert float(whole_s) < sent_s("ddp") < buckets * float(one_s)
    assert sent_s("ddp+bucket=1e9") < sent_s("ddp")


def test_the_first_bucket_is_a_collective_more() -> None:
    """distributed.py: _DEFAULT_FIRST_BUCKET_BYTES; the bytes are those of the gradients."""
    ddp = load_framework("ddp")
    same = ddp.replaced(reduction=ddp.reduction.replaced(first_bucket_elements=0))
    found = []
    for framework in (ddp, same):
        job = Scenario(load_model("bert-large"), load_machine("polaris"), JOB, framework)
        stages = Stages.of(job, Layouts.of(LAYOUT), 0)
        for groups in (Groups.unit(stages.layouts), Groups.of(stages.layouts, job.machine)):
            found.append(data_traffic(stages, groups).gradients_s.item())
    assert found[0] == pytest.approx(found[2])
    assert found[1] > found[3]


def test_deepspeed_without_zero_hides_no_reduction() -> None:
    """DeepSpeed @edaa7221, engine.py: buffered_allreduce_fallback after the backward pass."""
    exposed = parts("deepspeed")["gradient_reduction"]
    assert exposed == pytest.approx(sent_s("deepspeed"))
    # in smaller buckets too
    assert parts("deepspeed+bucket=2e7")["gradient_reduction"] == pytest.approx(
        sent_s("deepspeed+bucket=2e7")
    )
    assert parts("ddp")["gradient_reduction"] < sent_s("ddp")


def test_half_a_cycle_of_horovod_is_waited_for() -> None:
    one, five = (parts(f"horovod+cycle={ms}ms")["gradient_reduction"] for ms in (1, 5))
    assert five - one == pytest.approx(0.5 * 4e-3)
    assert parts("horovod")["gradient_reduction"] == one
    job, layout = JOB.replaced(global_batch=8), planner.Layout(micro_batch=8)
    alone = planner.estimate("bert-large", "polaris", layout, workload=job, framework="horovod")
    assert alone.step_time_parts_s["gradient_reduction"] == 0


def test_compression_halves_what_is_sent() -> None:
    """hvd.Compression.fp16 and bf16_compress_hook send two bytes of four."""
    group = group_view(load_machine("polaris"), 64, 1)
    wide, narrow = sent_s("horovod"), sent_s("horovod+fp16-compression")
    assert 0.45 < narrow / wide < 0.7
    assert sent_s("ddp+bf16-reduction") < sent_s("ddp")
    assert float(all_reduce_s(group, 1e9)) > 1.8 * float(all_reduce_s(group, 5e8))


def test_phases_are_those_of_the_hierarchical_all_reduce() -> None:
    elements = load_model("bert-large").num_params
    group = group_view(load_machine("polaris"), 64, 1)
    found = sent_s("horovod+hierarchical+bucket=1e9")
    assert found == pytest.approx(float(hierarchical_all_reduce_s(group, 4 * elements)), rel=0.01)


@pytest.mark.parametrize("machine", ["polaris", "thetagpu"])
def test_frameworks_are_alike_where_they_compute_alike(machine: str) -> None:
    """In bf16, of 32 sequences a device: what they send differs, what they compute does not."""
    ddp, horovod, deepspeed = (
        parts(name, machine=machine)["step"] for name in ("ddp", "horovod", "deepspeed")
    )
    assert horovod == pytest.approx(ddp, rel=0.05)
    assert deepspeed == pytest.approx(ddp, rel=0.1)
