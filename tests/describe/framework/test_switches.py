"""Switches: turned on by name, refused with one sentence, the same for every framework."""

from __future__ import annotations

import re
from pathlib import Path

import pytest

from planner.choose.jobs.job_spec import frameworks_for
from planner.choose.legality import check
from planner.choose.planning import estimate, plan
from planner.describe.catalogue import load_framework, load_machine, names
from planner.describe.framework.framework import Framework
from planner.describe.layout import Layout
from planner.describe.workload import PRECISIONS, Workload
from planner.errors import DescriptionError, LayoutError, PlannerError, UnknownNameError
from tests.descriptions import scenario

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
    # one that is like another may do by itself what it inherits a switch for
    if not plain.like:
        assert on.model_dump(exclude=traits) != plain.model_dump(exclude=traits)


def test_names_carry_switches_and_values() -> None:
    found = load_framework("deepspeed+bucket=5e7+no-overlap")
    assert found.buffers.reduce_bucket_elements == found.buffers.gather_bucket_elements == 5e7
    assert found.buffers.num_reduce_buckets == 1
    assert not found.communication.overlap_gradients
    assert found.with_switches("liger").name == "deepspeed+bucket=5e7+no-overlap+liger"


@pytest.mark.parametrize("value", ["2e+08", "2E+8", "+2e8", "+2.e+08", "2e8", "200000000"])
def test_values_may_be_written_with_a_plus(value: str) -> None:
    name = f"deepspeed+liger+bucket={value}+no-overlap"
    found = load_framework(name)
    assert found.name == name
    assert found.switched == ("liger", f"bucket={value}", "no-overlap")
    assert found.buffers.reduce_bucket_elements == 2e8
    assert load_framework(found.name) == found
    assert found.switches["bucket"].fill_arguments(f"bucket={value}") == (
        load_framework("deepspeed").switches["bucket"].fill_arguments("bucket=2e8")
    )


@pytest.mark.parametrize(
    ("name", "kind", "message"),
    [
        ("fsdp2+compil", UnknownNameError, "unknown switch 'compil': did you mean compile"),
        ("nanotron+compile", UnknownNameError, "unknown switch 'compile': known are software"),
        ("fsdp2+async-tp", DescriptionError, "needs 'compile'; write compile+async-tp"),
        ("fsdp2+compile+compile", DescriptionError, "'compile' is named twice"),
        ("fsdp2+compile=1", DescriptionError, "takes no value; write compile alone"),
        ("deepspeed+bucket", DescriptionError, "takes a value; write bucket=VALUE"),
        ("deepspeed+bucket=", DescriptionError, "is not a number; write bucket=NUMBER"),
        ("deepspeed+bucket=-1", DescriptionError, "deepspeed+bucket=-1: buffers."),
        ("megatron-lm+", DescriptionError, "+ after megatron-lm names no switch; name one or"),
        ("fsdp2++compile", DescriptionError, "+ after fsdp2 names no switch; name one or"),
        ("deepspeed+bucket=1e300", DescriptionError, "reduce_bucket_elements = 1e+300 is refused"),
        ("fsdp2+chunked-loss=0", DescriptionError, "greater than or equal to 1"),
        (
            "megatron-lm+no-overlap-grad-reduce+no-overlap-param-gather",
            DescriptionError,
            "cannot be combined with",
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
    assert found.unwritable == ("ours",)


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


@pytest.mark.parametrize(("name", "switch"), EVERY)
def test_a_refusal_names_the_devices_of_a_switch(name: str, switch: str) -> None:
    on = load_framework(name).switches[switch]
    devices = [load_machine(machine).device for machine in ("polaris", "aurora", "lumi-g", "vsc-4")]
    for said in filter(None, map(on.refuses, devices)):
        words = f"; it is for {', '.join(on.devices)}" if on.devices else ""
        assert re.fullmatch(f"does nothing on [^;]+{re.escape(words)}", said)


TABLES = {"mixed", "bf16", "full"}
FP8 = {"fp8_cast_bytes", "fp8_weight_bytes", "fp8_gather"}


def counted_in(plain: Framework, name: str) -> set[str]:
    """Training precisions in which a switch changes what is counted."""
    changes, on = plain.switches[name].changes, turned(plain, name)
    told = {"whole_in_fp8"}  # of 8-bit training alone, whatever table states it
    formats = {
        p
        for p in PRECISIONS
        if on.states(p).model_dump(exclude=told) != plain.states(p).model_dump(exclude=told)
    }
    in_8_bits = {"fp8"} if changes.get("kernels", {}).keys() & FP8 else set()
    return formats | in_8_bits


@pytest.mark.parametrize(("name", "switch"), EVERY)
def test_switches_of_formats_are_for_the_precisions_that_they_change(
    name: str, switch: str
) -> None:
    plain = load_framework(name)
    described = plain.switches[switch]
    if described.changes.keys() & TABLES or counted_in(plain, switch):
        assert set(described.precisions) == counted_in(plain, switch)


def test_switches_are_refused_for_models_that_they_are_not_for() -> None:
    """transformer_config.py: Storing activation input in FP8 is supported only for SwiGLU."""
    named = "megatron-lm+fp8-activation-input"
    said = "switch fp8-activation-input of megatron-lm is for feed-forwards with gated silu, not"
    layout = Layout(dp=16, zero_stage=1, grad_accumulation=4)
    check(scenario("llama-3-8b", named), layout)
    for name, found in (("gpt2", "gelu"), ("gemma-2-27b", "gated gelu")):
        asked = scenario(name, named, dropout=0.0, sequence_length=1024)
        with pytest.raises(LayoutError, match=f"^{said} {found}; leave it out$"):
            check(asked, layout)
        with pytest.raises(LayoutError, match=said):
            frameworks_for([named], asked.machine, asked.workload, asked.model)


def test_switches_that_quantise_what_zero_3_sends_are_for_zero_3() -> None:
    quantising = [
        switch
        for name, word in EVERY
        for switch in [load_framework(name).switches[word]]
        if switch.changes.get("communication", {}).keys() & {"gather_bytes", "scatter_bytes"}
    ]
    assert len(quantising) >= 4
    assert {switch.zero_stages for switch in quantising} == {(3,)}


SHARDED = {"dp": 4, "tp": 4, "zero_stage": 1, "grad_accumulation": 16}
WHOLE = {**SHARDED, "zero_stage": 0}
WITH_SP = {**SHARDED, "sequence_parallel": True}
NARROW = (
    "precision-aware",
    "precision-aware+bf16-moments",
    "precision-aware+fp8-moments",
)


@pytest.mark.parametrize(
    ("framework", "layout", "job", "message"),
    [
        (
            "megatron-lm+bf16-gradients",
            SHARDED,
            {"precision": "fp16"},
            "switch bf16-gradients of megatron-lm is for precision bf16 or fp8, not fp16; leave it",
        ),
        (
            "megatron-lm+fp8-blockwise",
            SHARDED,
            {},
            "switch fp8-blockwise of megatron-lm is for precision fp8, not bf16; leave it out",
        ),
        (
            "deepspeed+bf16-states",
            {"dp": 16, "zero_stage": 2, "grad_accumulation": 4},
            {"precision": "fp16"},
            "switch bf16-states of deepspeed is for precision bf16 or fp8, not fp16; leave it out",
        ),
        *[
            (
                f"megatron-lm+{name}",
                SHARDED,
                {"optimizer": "sgd"},
                "switch precision-aware of megatron-lm is for optimizer adam or adamw, not sgd",
            )
            for name in NARROW
        ],
        *[
            (
                f"megatron-lm+{name}",
                WHOLE,
                {},
                f"stage 0 is not offered by megatron-lm+{name} in bf16; use zero_stage = 1",
            )
            for name in NARROW
        ],
        (
            "deepspeed+bf16-states+quantized-weights",
            {"dp": 16, "zero_stage": 2, "grad_accumulation": 4},
            {},
            "quantized-weights in bf16; use zero_stage = 3",
        ),
        (
            "deepspeed+quantized-weights",
            {"dp": 16, "zero_stage": 3, "grad_accumulation": 4},
            {"lora_rank": 8, "base_format": "nf4"},
            "quantized-weights of deepspeed is for base_format computed, not nf4; leave it out",
        ),
        (
            "megatron-lm+tp-comm-overlap",
            SHARDED,
            {},
            "tp = 4 without sequence_parallel: megatron-lm+tp-comm-overlap overlaps",
        ),
        (
            "megatron-lm+tp-comm-overlap",
            {**WITH_SP, "dp": 2, "tp": 8, "grad_accumulation": 32},
            {},
            "use both with tp = 2 to 4, or leave its switch out",
        ),
        (
            "megatron-lm+tp-comm-overlap",
            {**SHARDED, "dp": 16, "tp": 1, "grad_accumulation": 4},
            {},
            "tp = 1 without sequence_parallel",
        ),
    ],
)
def test_switches_are_refused_where_their_code_does_not_take_them(
    framework: str, layout: dict[str, object], job: dict[str, object], message: str
) -> None:
    with pytest.raises(LayoutError) as refused:
        check(scenario(framework=framework, **job), Layout.described(layout))
    assert message in str(refused.value)
    assert "\n" not in str(refused.value)


@pytest.mark.parametrize(
    ("framework", "layout", "job"),
    [
        ("megatron-lm+precision-aware+bf16-moments+bf16-gradients", SHARDED, {}),
        ("megatron-lm+tp-comm-overlap", WITH_SP, {}),
        (
            "deepspeed+quantized-weights+quantized-gradients+bf16-states",
            {"dp": 16, "zero_stage": 3, "grad_accumulation": 4},
            {},
        ),
    ],
)
def test_switches_pass_where_their_code_takes_them(
    framework: str, layout: dict[str, object], job: dict[str, object]
) -> None:
    check(scenario(framework=framework, **job), Layout.described(layout))


def test_the_search_keeps_to_the_conditions_of_switches() -> None:
    job = Workload(global_batch=8, sequence_length=1024)
    name = "megatron-lm+precision-aware+tp-comm-overlap"
    answer = plan("gpt2-medium", "polaris", nodes=1, workload=job, frameworks=[name])
    layouts = [one.layout for one in answer.ranked]
    assert layouts
    for layout in layouts:
        assert (layout.zero_stage, layout.sequence_parallel) == (1, True)
        assert layout.tp > 1
    with pytest.raises(LayoutError, match="is for precision bf16 or fp8, not fp16; leave it out"):
        plan(
            "gpt2-medium",
            "polaris",
            nodes=1,
            workload=job.replaced(precision="fp16"),
            frameworks=[name],
        )
