"""Switches in files: what is turned on stands in them, and is read back from them."""

from __future__ import annotations

from pathlib import Path

import pytest

from planner.choose.user_layouts import complete_layout
from planner.describe.catalogue import load_framework, load_machine, load_model, names
from planner.describe.configurations.reading import read_configuration
from planner.describe.framework.framework import Framework
from planner.describe.layout import Layout
from planner.errors import EmitError
from tests.describe.framework.test_switches import EVERY, turned
from tests.emitters.emitted import Files, files_of

HOPPER = ("deepep", "flash-attention-3", "fp8-tensorwise", "fp8-blockwise", "fp8-gather")
MACHINES = {**dict.fromkeys(HOPPER, "dgx-h100"), "mxfp8": "dgx-b200"}
OF_EXPERTS = ("deepep", "overlap-experts")
"""Switches of which the files follow from the layout."""
GRAPHED = ("graphed-router", "graphed-attention")
WRITTEN = [
    (name, switch)
    for name, switch in EVERY
    if load_framework(name).configuration != "none"
    and load_framework(name).switches[switch].arguments is not None
    and name not in ("torchtitan", "horovod", "megatron-deepep")  # as others
]


def model_for(name: str, switch: str) -> str:
    """Model that a switch is tried with; a dense one is refused with some."""
    if switch in (*OF_EXPERTS, *GRAPHED):
        return "mixtral-8x7b"
    return "llama-3.2-1b" if name == "fsdp2" else "gpt2"


def files(name: str, switch: str) -> Files:
    """Files of one node of a plain layout with a switch on."""
    framework = turned(load_framework(name), switch)
    devices = 8 if switch in MACHINES else 4
    known = framework.switches[switch].precisions
    precision = "bf16" if "bf16" in known else known[0]
    stages = [s for s in framework.zero_stages_for(precision) if s < 3 or "bucket" not in switch]
    layout = Layout(dp=devices, zero_stage=max(stages))
    if framework.communication.overlap_tensor_in_node:
        layout = layout.replaced(dp=devices // 2, tp=2, sequence_parallel=True)
    machine = MACHINES.get(switch, "polaris")
    return files_of(model_for(name, switch), machine, 1, layout, framework, precision=precision)


@pytest.mark.parametrize(("name", "switch"), WRITTEN)
def test_files_say_what_is_on(name: str, switch: str) -> None:
    """Every line and variable of a switch stands in a file beside the README."""
    framework = turned(load_framework(name), switch)
    found = files(name, switch)
    readme = found.pop("README.md")
    assert all(f"- `{word}`: " in readme for word in framework.switched)
    text = "\n".join(found.values())
    for line in framework.switch_arguments:
        key = line.partition(": ")[2] or line
        key = key.partition(" ")[0].rpartition(".")[2]
        assert key in text, line
    assert "Turn on switch" not in readme
    for variable, value in framework.environment.items():
        assert variable in found["job.sh"]
        assert value in found["job.sh"]


def test_every_written_switch_is_tried() -> None:
    frameworks = {name for name, _ in WRITTEN}
    assert frameworks >= {"accelerate", "ddp", "deepspeed", "ezpz", "fsdp2", "megatron-lm"}
    assert frameworks <= set(names("framework"))


def test_a_switch_without_words_is_refused() -> None:
    with pytest.raises(
        EmitError, match=r"the files of megatron-lm\+loss-fusion-te cannot express switch"
    ):
        files("megatron-lm", "loss-fusion-te")


def test_what_no_file_takes_is_left_to_the_program() -> None:
    layout = Layout(dp=4)
    found = files_of("llama-3.2-1b", "polaris", 1, layout, "ddp+compile")
    assert "Turn on switch `compile` (torch.compile makes one kernel" in found["README.md"]


def test_files_say_each_thing_once() -> None:
    found = files("ddp", "compile")["nanogpt.args"].splitlines()
    assert "--compile=True" in found
    assert "--compile=False" not in found
    wordplay = files("ezpz", "compile")["wordplay.args"].splitlines()
    assert "train.compile=true" in wordplay
    assert "train.compile=false" not in wordplay
    plan = files("fsdp2", "async-tp")["torchtitan_plan.py"]
    assert "CompileConfig(enable=True, enable_async_tensor_parallel=True)" in plan
    assert plan.count("compile") == 1


OF_OFFLOAD = ("pageable", "unbound")
"""Switches of offloaded layouts; `unbound` is an option of launchers, which no file states."""

_NO_CONFIGURATION = (
    "README.md", "data.args", "job.sh", "layout.json", "rank.sh", "submit.sh", "torchtitan.toml",
)  # fmt: skip


@pytest.mark.parametrize(
    ("name", "switch"),
    [
        (name, switch)
        for name, switch in WRITTEN
        if not load_framework(name).switches[switch].environment
        and switch not in ("flash-attention-3", *OF_OFFLOAD, *OF_EXPERTS)
    ],
)
def test_switches_are_read_back(name: str, switch: str, tmp_path: Path) -> None:
    """From the framework's own files, without layout.json."""
    framework = turned(load_framework(name), switch)
    written = files(name, switch)
    for file in _NO_CONFIGURATION:
        written.pop(file, None)
    for file, text in written.items():
        (tmp_path / file).write_text(text, encoding="utf-8")
    found = read_configuration(*(str(tmp_path / file) for file in written))
    job = complete_layout(
        load_model(model_for(name, switch)),
        load_machine(MACHINES.get(switch, "polaris")),
        found,
        nodes=1,
    )
    assert job.framework is not None
    assert _on(framework) <= _on(job.framework), job.notes


@pytest.mark.parametrize("name", ["deepspeed", "deepspeed+pageable"])
def test_pageable_memory_is_written_and_read_back(name: str, tmp_path: Path) -> None:
    layout = Layout(dp=4, zero_stage=3, offload="all-cpu")
    config = files_of("llama-3-8b", "polaris", 1, layout, name)["ds_config.json"]
    assert config.count("pin_memory") == 2
    (tmp_path / "ds_config.json").write_text(config, encoding="utf-8")
    found = read_configuration(str(tmp_path / "ds_config.json"))
    job = complete_layout(load_model("llama-3-8b"), load_machine("polaris"), found, nodes=1)
    assert job.framework is not None
    assert job.framework.offloading.pinned is ("pageable" not in name)


@pytest.mark.parametrize(("name", "binds"), [("deepspeed", True), ("deepspeed+unbound", False)])
def test_torchrun_gives_ranks_that_update_on_the_host_their_own_cores(
    name: str, binds: bool
) -> None:
    # torch 2.13 distributed/run.py: OMP_NUM_THREADS = 1 for several processes unless it is set
    for offload in ("none", "optimizer-cpu"):
        layout = Layout(dp=2, zero_stage=3, offload=offload)
        script = files_of("gpt2", "vsc-5", 1, layout, name)["job.sh"]
        on = binds and offload != "none"
        assert ("--numa-binding=exclusive" in script) is on
        assert ("export OMP_NUM_THREADS=64" in script) is on  # 128 cores, two ranks


def _on(framework: Framework) -> set[str]:
    return {word.partition("=")[0] for word in framework.switched}
