"""Formats of gradients and moments, as users' files state them."""

from __future__ import annotations

import json

import pytest

from planner.choose.user_layouts import complete_layout
from planner.describe.catalogue import load_machine, load_model
from planner.describe.configurations.reading import read_configuration_text

MEGATRON = """
torchrun --nproc-per-node 4 pretrain_gpt.py --num-layers 32 --hidden-size 4096 --seq-length 4096
 --num-attention-heads 32 --micro-batch-size 1 --global-batch-size 64 --bf16
 --use-distributed-optimizer
"""
TITAN = """
[training]
local_batch_size = 1
seq_len = 4096
dtype = "bfloat16"
[parallelism]
data_parallel_shard_degree = 4
[optimizer]
early_step_in_backward = true
"""


@pytest.mark.parametrize(
    ("options", "switches"),
    [
        ("", ()),
        ("--grad-reduce-in-bf16", ("bf16-gradients",)),
        # recipes of DeepSeek-V3: Megatron-Bridge @067f987d, perf_recipes/deepseek/common.py
        (
            "--use-precision-aware-optimizer --main-grads-dtype bf16 --exp-avg-dtype bf16 "
            "--exp-avg-sq-dtype bf16",
            ("bf16-gradients", "precision-aware", "bf16-moments"),
        ),
        (
            "--fp8-format hybrid --fp8-recipe blockwise --fp8-param-gather",
            ("fp8-blockwise", "fp8-gather"),
        ),
    ],
)
def test_options_of_megatron(options: str, switches: tuple[str, ...]) -> None:
    found = read_configuration_text(f"{MEGATRON.rstrip()} {options}", "job.sh")
    assert set(found.switches) == set(switches)
    assert not [note for note in found.notes if "dtype" in note or "gather" in note]


def test_moments_that_no_switch_has_are_named() -> None:
    options = "--use-precision-aware-optimizer --exp-avg-dtype fp8 --exp-avg-sq-dtype fp16"
    found = read_configuration_text(f"{MEGATRON.rstrip()} {options}", "job.sh")
    assert found.switches == ("precision-aware",)
    assert any("fp8 with --exp-avg-sq-dtype fp16 is ignored" in note for note in found.notes)


def test_torchtitans_formats() -> None:
    found = read_configuration_text(TITAN, "train.toml")
    assert set(found.switches) == {"bf16-training", "optimizer-in-backward"}
    rowwise = TITAN + '[float8]\nrecipe_name = "rowwise"\n'
    assert "fp8-rowwise" in read_configuration_text(rowwise, "train.toml").switches


@pytest.mark.parametrize(
    ("stage", "more", "switches", "sent"),
    [
        (1, {"data_types": {"grad_accum_dtype": "fp32"}}, {"fp32-gradients"}, 4),
        # gradients travel in the type of the weights, unless the file says otherwise
        (2, {"data_types": {"grad_accum_dtype": "fp32"}}, {"fp32-gradients"}, 2),
        (
            3,
            {"bf16": {"bf16_master_weights_and_grads": True, "bf16_optimizer_states": True}},
            {"bf16-states"},
            2,
        ),
    ],
)
def test_formats_of_deepspeed(
    stage: int, more: dict[str, dict[str, object]], switches: set[str], sent: int
) -> None:
    bf16 = {"enabled": True, **more.pop("bf16", {})}
    config = {"train_batch_size": 8, "train_micro_batch_size_per_gpu": 1, "bf16": bf16, **more}
    text = json.dumps({**config, "zero_optimization": {"stage": stage, "overlap_comm": True}})
    found = read_configuration_text(text, "ds_config.json")
    asked = load_model("gpt2"), load_machine("polaris"), found
    framework = complete_layout(*asked, nodes=2).framework
    assert framework is not None
    on = {word.partition("=")[0] for word in framework.switched}
    assert on & {"fp32-gradients", "bf16-states"} == switches
    assert framework.states("bf16").reduce_bytes == sent


@pytest.mark.parametrize(
    ("word", "optimizer"),
    [("paged_adamw_8bit", "paged-adam-8bit"), ("paged_adamw_32bit", "paged-adamw")],
)
def test_the_trainers_paged_optimizers(word: str, optimizer: str) -> None:
    text = json.dumps({"per_device_train_batch_size": 1, "optim": word, "bf16": True})
    assert read_configuration_text(text, "a.json").workload["optimizer"] == optimizer
