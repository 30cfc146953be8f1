"""Kinds of context parallelism and further groups: written for every framework, and read back."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from planner.choose.user_layouts import complete_layout
from planner.describe.catalogue import load_framework, load_machine, load_model
from planner.describe.configurations.reading import read_configuration
from planner.describe.layout import Layout
from planner.errors import EmitError, PlannerError
from tests.emitters.emitted import Files, files_of

CASES = {
    # framework, layout, file that is read back, what stands in it
    "ulysses": (
        "megatron-lm",
        Layout(dp=2, cp=8, ulysses=8, zero_stage=1),
        "megatron.args",
        ("--cp-comm-type=a2a",),
    ),
    "two levels": (
        "megatron-lm",
        Layout(dp=2, cp=8, ulysses=4, zero_stage=1),
        "megatron.args",
        ("--cp-comm-type=a2a+p2p", "--hierarchical-context-parallel-sizes\n4\n2\n"),
    ),
    "two levels with a switch": (
        "megatron-lm+bf16-gradients",
        Layout(dp=4, cp=4, ulysses=2, zero_stage=1),
        "megatron.args",
        ("--hierarchical-context-parallel-sizes\n2\n2\n", "--grad-reduce-in-bf16"),
    ),
    "gathered": (
        "megatron-lm+gathered-context",
        Layout(dp=2, cp=8, zero_stage=1),
        "megatron.args",
        ("--cp-comm-type=all_gather",),
    ),
    "hpz": (
        "deepspeed",
        Layout(dp=16, zero_stage=3, reshard=8),
        "ds_config.json",
        ('"zero_hpz_partition_size": 8',),
    ),
    "quantised": (
        "deepspeed+quantized-weights+quantized-gradients",
        Layout(dp=16, zero_stage=3),
        "ds_config.json",
        ('"zero_quantized_weights": true', '"zero_quantized_gradients": true'),
    ),
}


def _files(framework: str, layout: Layout, model: str = "llama-3-8b") -> Files:
    return files_of(model, "dgx-h100", 2, layout, load_framework(framework))


@pytest.mark.parametrize("name", CASES)
def test_groups_are_written_and_read_back(name: str, tmp_path: Path) -> None:
    framework, layout, file, words = CASES[name]
    text = _files(framework, layout)[file]
    for word in words:
        assert word in text, text
    path = tmp_path / file
    path.write_text(text)
    read = read_configuration(path)
    found = complete_layout(
        load_model("llama-3-8b"),
        load_machine("dgx-h100"),
        read,
        nodes=2,
        workload={"sequence_length": 1024},
    )
    assert (found.layout.ulysses, found.layout.reshard) == (layout.ulysses, layout.reshard)
    assert found.layout.dp_shard == layout.dp_shard
    assert found.framework is not None
    asked = load_framework(framework)
    assert found.framework.kernels == asked.kernels
    assert found.framework.communication == asked.communication


def test_ulysses_of_megatron_deepspeed() -> None:
    """ALCF's fork: the ranks of a sequence are its one degree beside data."""
    layout = Layout(dp=6, cp=4, ulysses=4, zero_stage=3, reshard=12, recompute="full")
    files = files_of("llama-3-8b", "aurora", 2, layout, load_framework("megatron-deepspeed"))
    assert "--ds-sequence-parallel-size=4" in files["megatron.args"]
    zero = json.loads(files["ds_config.json"])["zero_optimization"]
    assert zero["zero_hpz_partition_size"] == 12
    assert "mics_shard_size" not in zero


@pytest.mark.parametrize("framework", ["deepspeed", "megatron-deepspeed"])
def test_deepspeed_has_no_hybrid_sharding(framework: str) -> None:
    """DeepSpeed 0.19.8 refuses mics_shard_size; hpZ shards weights again, and no states."""
    layout = Layout(dp=16, dp_shard=8, zero_stage=3, recompute="full")
    with pytest.raises(PlannerError, match=r"hybrid|group|replica"):
        _files(framework, layout)


def test_fully_shard_is_told_the_number() -> None:
    layout = Layout(dp=16, zero_stage=3, reshard=8)
    text = "".join(_files("fsdp2", layout, "gemma-2-27b").values())
    assert '"reshard_after_forward": 8' in text
    with pytest.raises(EmitError, match="reshard = 8"):
        # torchtitan gathers again over all ranks or not at all
        _files("fsdp2", layout)


@pytest.mark.parametrize(("machine", "device"), [("aurora", "xpu"), ("frontier", "cuda")])
def test_fully_shard_names_the_machine_s_devices(machine: str, device: str) -> None:
    program = files_of("gpt2", machine, 1, Layout(dp=2, zero_stage=2), "fsdp2")["sharding.py"]
    assert f'device: str = "{device}"' in program
