"""Switches: turned on by name, refused with one sentence, the same for every framework."""

from __future__ import annotations

from pathlib import Path

import pytest

from planner.choose.planning import estimate
from planner.describe.catalogue import load_framework, load_machine, names
from planner.describe.framework.framework import Framework
from planner.describe.layout import Layout
from planner.describe.workload import Workload
from planner.errors import DescriptionError, LayoutError, PlannerError, UnknownNameError

EVERY = [(name, switch) for name in names("framework") for switch in load_framework(name).switches]


def turned(framework: Framework, name: str) -> Framework:
    """A framework with one switch on, and those that it needs."""
    switch = framework.switches[name]
    value = f"={'4' if name == 'chunked-loss' else switch.usual or 2}" if switch.takes else ""
    return framework.with_switches(*switch.needs, name + value)


@pytest.mark.parametrize(("name", "switch"), EVERY)
def test_every_switch_changes_its_framework(name: str, switch: str) -> None:
    plain = load_framework(name)
    on = turned(plain, switch)
    traits = {"name", "switched"}
    assert on.family == name
    assert load_framework(on.name) == on
    assert on.model_dump(exclude=traits) != plain.model_dump(exclude=traits)


def test_names_carry_switches_and_values() -> None:
    found = load_framework("deepspeed+bucket=5e7+no-overlap")
    assert found.buffers.reduce_bucket_elements == found.buffers.gather_bucket_elements == 5e7
    assert found.buffers.num_reduce_buckets == 1
    assert not found.communication.overlap_gradients
    assert found.with_switches("liger").name == "deepspeed+bucket=5e7+no-overlap+liger"


@pytest.mark.parametrize(
    ("name", "kind", "message"),
    [
        ("fsdp2+compil", UnknownNameError, "unknown switch 'compil': did you mean compile"),
        ("nanotron+compile", DescriptionError, "nanotron has no switches; write it without"),
        ("fsdp2+async-tp", DescriptionError, "goes only with 'compile'; write compile+async-tp"),
        ("fsdp2+compile+compile", DescriptionError, "'compile' is named twice"),
        ("fsdp2+compile=1", DescriptionError, "takes no value; write compile alone"),
        ("deepspeed+bucket", DescriptionError, "takes a value; write bucket=VALUE"),
        ("deepspeed+bucket=", DescriptionError, "is no number; write bucket=NUMBER"),
        ("deepspeed+bucket=-1", DescriptionError, "deepspeed+bucket=-1: buffers."),
        ("fsdp2+chunked-loss=0", DescriptionError, "greater than or equal to 1"),
        (
            "megatron-lm+no-overlap-grad-reduce+no-overlap-param-gather",
            DescriptionError,
            "does not go with",
        ),
    ],
)
def test_wrong_switches_are_one_sentence(name: str, kind: type[PlannerError], message: str) -> None:
    with pytest.raises(PlannerError) as refused:
        load_framework(name)
    assert isinstance(refused.value, kind), refused.value
    assert message in str(refused.value)
    assert "\n" not in str(refused.value)


OWN = """
title = "our fork"
like = "fsdp2"
source = "our own"
[switches.{name}]
does = "something of ours"
source = "our own notes"
{rest}
"""


def own(folder: Path, rest: str, name: str = "ours") -> Path:
    path = folder / "my+own.toml"
    path.write_text(OWN.format(name=name, rest=rest), encoding="utf-8")
    return path


def test_own_files_inherit_switches_and_add_some(tmp_path: Path) -> None:
    path = own(tmp_path, "changes = { communication = { overlap_gradients = false } }")
    found = load_framework(f"{path}+compile+ours")
    assert found.switched == ("compile", "ours")
    assert found.name == "my+own+compile+ours"
    assert found.kernels.fused_norm
    assert not found.communication.overlap_gradients
    assert found.untold == ("ours",)


@pytest.mark.parametrize(
    ("rest", "message"),
    [
        ("changes = { kernelz = { fused_norm = true } }", "kernelz"),
        ("changes = { kernels = { fused_nrm = true } }", "fused_nrm"),
        ('takes = "buffers.reduce_bucket"', "buffers.reduce_bucket"),
        ('needs = ["compil"]', "compil"),
        ('arguments = "--x"', "arguments"),
    ],
)
def test_wrong_own_switches_are_said_before_they_are_turned(
    tmp_path: Path, rest: str, message: str
) -> None:
    path = own(tmp_path, rest)
    with pytest.raises(PlannerError) as refused:
        load_framework(str(path))
    said = str(refused.value)
    assert message in said
    assert "ours" in said
    assert "\n" not in said


def test_switches_are_refused_on_devices_that_they_are_not_for() -> None:
    layout = Layout(dp=4, zero_stage=1)
    job = Workload(global_batch=4, sequence_length=1024)
    with pytest.raises(LayoutError, match="flash-attention-3 of megatron-lm does nothing on"):
        estimate("gpt2", "polaris", layout, workload=job, framework="megatron-lm+flash-attention-3")
    hopper = load_machine("dgx-h100").device
    assert not load_framework("megatron-lm").switches["flash-attention-3"].refuses(hopper)
