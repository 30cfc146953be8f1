"""Peaks of third-party code beside the estimate, as docs/reference/real_code.md has them."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest

from planner.cost.memory.gradients import unreduced
from planner.cost.memory.peak import device_memory
from planner.cost.memory.weights import resident
from planner.cost.scenario import Scenario
from planner.cost.shards.layouts import Layouts
from planner.cost.shards.stages import Stages
from planner.describe.catalogue import load_framework, load_machine, load_model
from planner.describe.layout import Layout
from planner.describe.model.huggingface.config import from_config
from planner.describe.workload import Workload

GIB = 2**30
TENSOR = Layout(tp=8, zero_stage=3, sequence_parallel=True, recompute="full")


def scenario(model: str, framework: str, layers: int, sequence: int, eager: bool) -> Scenario:
    """A model of the catalogue with some of its layers."""
    found = load_model(model)
    window = min(found.num_window_layers, layers // 2)
    return Scenario(
        found.replaced(num_layers=layers or found.num_layers, num_window_layers=window),
        load_machine("dgx-h100"),
        Workload(sequence_length=sequence, attention="eager" if eager else "flash", dropout=0.0),
        load_framework(framework),
    )


def peak(asked: Scenario, layout: Layout) -> float:
    """The estimate without the device's context and the allocator's reserve [B]."""
    parts, _ = device_memory(Stages.of_pipeline(asked, layout))
    left_out = ("runtime_context", "allocator_reserve")
    return float(np.max(sum(size for name, size in parts.items() if name not in left_out)))


# torch 2.13; transformers 5.23 under Accelerate 1.15, nanoGPT 3adf61e, torchtitan 0.2.2 and 0.3.0
@pytest.mark.parametrize(
    ("framework", "model", "layers", "sequence", "layout", "gib"),
    [
        ("accelerate", "llama-3-8b", 0, 4096, Layout(dp=8, zero_stage=3), 43.69),
        ("accelerate", "qwen3-8b", 8, 4096, Layout(dp=8, zero_stage=3), 19.87),
        ("accelerate", "gpt2-xl", 4, 1024, Layout(dp=8, zero_stage=3, micro_batch=8), 8.594),
        ("accelerate", "gemma-2-27b", 4, 4096, Layout(dp=16, zero_stage=3), 43.94),
        ("accelerate", "olmo-2-7b", 8, 4096, Layout(dp=16, zero_stage=3), 16.19),
        ("accelerate", "phi-3-mini", 8, 4096, Layout(dp=8, zero_stage=3), 8.35),
        ("accelerate", "gpt-neox-20b", 8, 2048, Layout(dp=16, zero_stage=3, micro_batch=2), 22.15),
        ("fsdp2", "llama-3-8b", 0, 8192, Layout(dp=8, zero_stage=3), 65.10),
        ("fsdp2", "llama-3-70b", 8, 8192, TENSOR.replaced(dp=32, micro_batch=4), 9.531),
        ("fsdp2", "llama-3.1-405b", 8, 8192, TENSOR.replaced(dp=64, micro_batch=2), 7.857),
        ("torchtitan", "llama-3-70b", 8, 8192, TENSOR.replaced(dp=256, tp=1), 11.983),
        ("torchtitan", "llama-3-70b", 8, 8192, TENSOR.replaced(dp=32, micro_batch=4), 5.514),
        ("ddp", "gpt2", 0, 1024, Layout(micro_batch=12, grad_accumulation=2), 13.995),
        ("ddp", "gpt2-xl", 0, 1024, Layout(micro_batch=4, grad_accumulation=2), 39.395),
        ("torchtitan", "llama-3-8b", 0, 8192, Layout(dp=8, zero_stage=3), 58.02),
        ("torchtitan", "llama-3-8b", 0, 8192, Layout(dp=8, zero_stage=3, recompute="full"), 18.86),
    ],
)
def test_peaks_of_third_party_code(
    framework: str, model: str, layers: int, sequence: int, layout: Layout, gib: float
) -> None:
    asked = scenario(model, framework, layers, sequence, model == "gemma-2-27b")
    assert peak(asked, layout) / GIB == pytest.approx(gib, rel=0.025)


# DeepSpeed 0.19.8 on two ranks, a Llama of 51.6 M parameters, after backward [bytes/parameter]
@pytest.mark.parametrize(
    ("framework", "stage", "gradients", "bucket"),
    [
        ("deepspeed", 2, 1.0, None),
        ("deepspeed", 3, 1.0, 1e9),
        ("megatron-deepspeed", 1, 6.0, None),
        ("megatron-deepspeed", 2, 2.0, None),
        ("megatron-deepspeed", 3, 2.0, 2e9),
    ],
)
def test_gradients_of_a_deepspeed_engine(
    framework: str, stage: int, gradients: float, bucket: float | None
) -> None:
    asked = scenario("gpt2", framework, 0, 1024, False)
    stages = Stages.of_pipeline(asked, Layout(dp=2, zero_stage=stage))
    stay = resident(stages).gradients
    params = stages.params.unsharded
    assert np.max(stay / params) == pytest.approx(gradients)
    if bucket is not None:
        found = unreduced(stages, stay).base.buckets
        assert np.max(found) == bucket


def test_a_config_says_how_transformers_writes_the_model() -> None:
    sizes = {"n_embd": 8, "n_layer": 2, "n_head": 2, "n_positions": 16, "vocab_size": 32}
    plain = {"model_type": "gpt2", **sizes, "activation_function": "gelu"}
    assert from_config({"model_type": "gpt2", **sizes}, "tiny").written.activation == "gelu_new"
    assert from_config(plain, "tiny").written.activation == ""


@pytest.mark.parametrize("framework", ["ddp", "ezpz"])
def test_one_rank_is_not_wrapped_in_ddp(framework: str) -> None:
    # nanoGPT's train.py asks for RANK, wordplay's for WORLD_SIZE > 1
    asked = scenario("gpt2", framework, 0, 1024, False)
    alone, two = (resident(Stages.of_pipeline(asked, Layout(dp=dp))).gradients for dp in (1, 2))
    assert np.max(alone) == pytest.approx(4 * asked.model.num_params)
    assert np.max(two) == pytest.approx(8 * asked.model.num_params)


# Qwen 2.5 7B, 8 layers, 4096 tokens, two passes of Accelerate 1.15 with and without its no_sync
@pytest.mark.parametrize(
    ("layout", "once", "gib"),
    [
        (Layout(dp=8, zero_stage=3, grad_accumulation=2, recompute="full"), False, 14.970),
        (Layout(dp=8, zero_stage=3, grad_accumulation=2, recompute="full"), True, 19.097),
        (Layout(dp=8, zero_stage=2, grad_accumulation=2), False, 26.117),
        (Layout(dp=8, zero_stage=2, grad_accumulation=2), True, 30.245),
    ],
)
def test_whole_gradients_that_accelerate_sums(layout: Layout, once: bool, gib: float) -> None:
    asked = scenario("qwen2.5-7b", "accelerate", 8, 4096, False)
    rules = asked.framework.communication.replaced(reduces_once=once)
    framework = asked.framework.replaced(communication=rules.model_dump())
    asked = replace(asked, framework=framework)
    assert peak(asked, layout) / GIB == pytest.approx(gib, rel=0.001)
    sent = Layouts.of(layout).reductions_per_step(framework)
    assert int(sent) == (1 if once else 2)
