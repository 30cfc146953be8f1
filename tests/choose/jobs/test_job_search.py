"""Job search: which frameworks a job is searched with."""

from __future__ import annotations

import pytest

from planner.choose.jobs.job_search import framework_notes, unwritable_layout_notes
from planner.choose.jobs.job_spec import JobSpec, frameworks_for
from planner.choose.planning import estimate
from planner.describe.catalogue import load_framework, load_machine, load_model
from planner.describe.layout import Layout
from planner.describe.workload import Workload
from planner.errors import LayoutError
from tests.descriptions import scenario, searched

JOB = Workload(global_batch=32, sequence_length=2048)


@pytest.mark.parametrize(
    ("model", "machine", "framework"),
    [
        # NVLink, InfiniBand and Hopper; Slingshot; Ampere; no links between devices
        ("mixtral-8x7b", "eos", "megatron-deepep"),
        ("mixtral-8x7b", "polaris", "megatron-lm"),
        ("mixtral-8x7b", "selene", "megatron-lm"),
        ("mixtral-8x7b", "vista", "megatron-lm"),
        # nothing is exchanged without experts
        ("llama-3-8b", "eos", "megatron-lm"),
    ],
)
def test_experts_are_searched_with_deepep_where_it_runs(
    model: str, machine: str, framework: str
) -> None:
    asked = load_model(model), load_machine(machine)
    found = searched(*asked, 4, JOB)
    megatron = {name for name in found if name.startswith("megatron")}
    assert megatron == {framework}
    said = " ".join(framework_notes(JobSpec(*asked, nodes=4, workload=JOB), found))
    assert "megatron" not in said


def test_a_framework_that_is_named_is_searched_wherever_it_runs() -> None:
    model, machine = load_model("mixtral-8x7b"), load_machine("vista")
    assert set(searched(model, machine, 4, JOB, ["megatron-deepep"])) == {"megatron-deepep"}


@pytest.mark.parametrize(
    ("layout", "said"),
    [
        (Layout(dp=2, tp=4, zero_stage=3, grad_accumulation=32), "tp = 4"),
        (Layout(dp=8, zero_stage=3, grad_accumulation=8), ""),
    ],
    ids=str,
)
def test_a_recommended_layout_that_no_file_says_is_named(layout: Layout, said: str) -> None:
    """torchtitan trains no adapters: around the model's own code FSDP2 shards, and nothing else."""
    asked = scenario("llama-3-8b", load_framework("fsdp2"), "dgx-h100", lora_rank=8)
    found = estimate(
        asked.model, asked.machine, layout, workload=asked.workload, framework=asked.framework
    )
    notes = " ".join(unwritable_layout_notes({"fsdp2": asked}, found))
    assert bool(notes) == bool(said)
    assert said in notes
    assert unwritable_layout_notes({"fsdp2": asked}, None) == []


@pytest.mark.parametrize("machine", ["polaris", "frontier", "workstation-4x4090"])
@pytest.mark.parametrize(
    ("framework", "message"),
    [
        ("megatron-lm+deepep", "switch deepep of megatron-lm does nothing on"),
        ("megatron-deepep", "megatron-deepep does not run on"),
    ],
)
def test_deepep_is_refused_before_hopper(machine: str, framework: str, message: str) -> None:
    place = load_machine(machine)
    with pytest.raises(LayoutError, match=message) as refused:
        frameworks_for([framework], place)
    assert place.device.name in str(refused.value) or "rocm" in str(refused.value)


def test_padded_experts_are_searched_without_deepep() -> None:
    """Megatron-LM's dispatcher of DeepEP refuses padding; the one of NCCL is there instead."""
    model, machine = load_model("mixtral-8x7b"), load_machine("eos")
    padded = JOB.replaced(expert_capacity=1.25, pad_experts=True)
    found = searched(model, machine, 4, padded)
    assert {name for name in found if name.startswith("megatron")} == {"megatron-lm"}
    assert found["megatron-lm"].footprints
    for named in ("megatron-deepep", "megatron-lm+deepep"):
        with pytest.raises(LayoutError, match="does not pad experts; leave pad_experts out"):
            frameworks_for([named], machine, padded)
    dropping = JOB.replaced(expert_capacity=1.25)
    assert "megatron-deepep" in searched(model, machine, 4, dropping)
