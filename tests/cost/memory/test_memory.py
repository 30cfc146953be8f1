"""Memory: published figures, traced figures, and properties that must hold."""

from __future__ import annotations

import functools
from dataclasses import replace

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from planner.choose.legality import check
from planner.cost.estimate import estimate_layouts
from planner.cost.memory.activations import stage_activations
from planner.cost.memory.footprint import stage_memory
from planner.cost.memory.gradients import unreduced
from planner.cost.memory.host_memory import host_memory
from planner.cost.memory.peak import _reserved
from planner.cost.memory.weights import resident
from planner.cost.operators.blocks import blocks_of
from planner.cost.parts import DEVICE_PARTS
from planner.cost.scenario import Scenario
from planner.cost.shards.layouts import Layouts
from planner.cost.shards.optimizers import OPTIMIZERS, moment_bytes
from planner.cost.shards.stages import Stages
from planner.cost.shards.states import local_params
from planner.describe.catalogue import load_framework, load_machine, load_model, names
from planner.describe.layout import Layout
from planner.describe.model.block import Block
from planner.describe.workload import Workload
from planner.errors import LayoutError
from tests import descriptions

TRANSFORMERS = [n for n in names("model") if load_model(n).convolutional is None]


scenario = functools.partial(descriptions.scenario, machine="selene", sequence_length=2048)


def layer_bytes(q: Scenario, layout: Layout) -> float:
    """Activations that one layer keeps for one micro-batch [B]."""
    stages = Stages.of(q, Layouts.of(layout), 0)
    blocks = tuple(block for block in stages.blocks if block.kind == "layer")
    kept = stage_activations(replace(stages, blocks=blocks))
    return float(kept.saved) / sum(block.count for block in blocks)


# --- published -------------------------------------------------------------------------------


@pytest.mark.parametrize("stage", [0, 1, 2])
def test_device_states_are_those_of_the_zero_paper(stage: int) -> None:
    # deepspeed with 16-bit gradients: 2 + 2 + 12 bytes; buckets and activations are other parts
    q = scenario("ptdp-7.5b", "deepspeed", precision="fp16")
    # gradients are there from the second micro-batch on, whatever the moment of the peak
    parts = stage_memory(q, Layout(dp=64, zero_stage=stage, grad_accumulation=2))[0]
    states = parts["weights"] + parts["gradients"] + parts["optimizer_states"]
    # Rajbhandari et al. 2020, arXiv:1910.02054, figure 1
    sharded = (0, 12, 12 + 2)[stage]
    expected = q.model.num_params * (16 - sharded + sharded / 64)
    assert states == pytest.approx(expected, rel=2e-3)


@pytest.mark.parametrize(("stage", "gradients"), [(1, 4 + 2), (2, 4 / 16), (3, 4 / 16)])
def test_zero_2_in_bf16_sums_only_its_share(stage: int, gradients: float) -> None:
    # DeepSpeed 0.19.6, engine.py _do_optimizer_sanity_check: BF16_Optimizer at stage 1 alone;
    # AuroraGPT-70B notes, 42B with ZeRO-2 over 16: runs on tiles of 64 GiB
    q = scenario("ptdp-7.5b", "megatron-deepspeed", machine="aurora", precision="bf16")
    parts = stage_memory(q, Layout(dp=16, zero_stage=stage, grad_accumulation=2))[0]
    assert parts["gradients"] == pytest.approx(gradients * q.model.num_params, rel=2e-3)


@pytest.mark.parametrize(
    ("fields", "tp", "formula"),
    # Korthikanti et al. 2022, arXiv:2205.05198, table 2, per layer and in units of s b h:
    # dropout 0.1, eager attention, 16 bits
    [
        ({}, 1, lambda s, h, a, t: 34 + 5 * a * s / h),
        ({}, 8, lambda s, h, a, t: 10 + 24 / t + 5 * a * s / (h * t)),
        ({"sequence_parallel": True}, 8, lambda s, h, a, t: (34 + 5 * a * s / h) / t),
        ({"recompute": "selective"}, 8, lambda s, h, a, t: 10 + 24 / t),
        ({"recompute": "selective", "sequence_parallel": True}, 8, lambda s, h, a, t: 34 / t),
        ({"recompute": "full"}, 8, lambda s, h, a, t: 2),
        ({"recompute": "full", "sequence_parallel": True}, 8, lambda s, h, a, t: 2 / t),
    ],
)
@pytest.mark.parametrize("model", ["gpt3-175b", "mt-nlg-530b"])
def test_korthikanti_table_2(model: str, fields: dict, tp: int, formula) -> None:  # type: ignore[no-untyped-def, type-arg]
    q = scenario(model, "megatron-lm-2021", precision="fp16", attention="eager")
    assert q.model.dropout == 0.1
    s, h, a = 2048, q.model.hidden_size, q.model.num_heads
    layout = Layout(tp=tp, micro_batch=3, **fields)
    kept = layer_bytes(q, layout) / (s * 3 * h)
    assert kept == pytest.approx(formula(s, h, a, tp), rel=1e-6)


@pytest.mark.parametrize(
    ("framework", "per_sbh"),
    # torch 2.13, one Llama-3-8B layer traced in bf16 with flash attention: every storage that
    # autograd keeps; 8 + 4 + 4 g + 8 f/h + 4 a/h with fused norms, g = kv/heads. transformers
    # 5.23 (docs/reference/real_code.md): 784.53 MiB of 4096 tokens
    [("fsdp2", 41.03), ("deepspeed", 49.03), ("accelerate", 49.03)],
)
def test_traced_llama_layer(framework: str, per_sbh: float) -> None:
    q = scenario("llama-3-8b", framework)
    kept = layer_bytes(q, Layout(micro_batch=2)) / (2048 * 2 * 4096)
    assert kept == pytest.approx(per_sbh, rel=2e-3)


def test_traced_nanogpt_layer() -> None:
    # torch 2.13 under autocast, no dropout, flash attention: 36 + 4 heads/h bytes per s b h
    q = scenario("gpt2", "ddp", sequence_length=1024)
    kept = layer_bytes(q, Layout(micro_batch=4)) / (1024 * 4 * 768)
    assert kept == pytest.approx(36 + 4 * 12 / 768, rel=1e-3)


def test_bucket_of_zero_2_costs_a_small_model_more_than_it_saves() -> None:
    # DeepSpeed's reduce_bucket_size of 5e8 elements, against what sharding gradients saves on two
    # ranks; gpt2 has 1.24e8 parameters
    q = scenario("gpt2", "deepspeed", machine="polaris", sequence_length=1024, global_batch=2)
    plain, sharded = (
        stage_memory(q, Layout(dp=2, zero_stage=stage, grad_accumulation=2))[0] for stage in (1, 2)
    )
    saved = plain["gradients"] - sharded["gradients"]
    assert saved == pytest.approx(q.model.num_params, rel=0.01)  # 2 bytes, half of them
    assert sharded["communication_buffers"] > saved


def test_two_fp32_copies_are_loaded_on_a_vsc_5_node() -> None:
    # 7.24e9 parameters x 4 bytes x 2 ranks = 57.9 GB of host memory
    q = scenario("mistral-7b", "ddp", machine="vsc-5", precision="fp32", global_batch=2)
    parts = host_memory(Stages.of(q, Layouts.of(Layout(dp=2)), 0))
    assert float(parts["checkpoint_load"]) == pytest.approx(57.9e9, rel=2e-3)


def test_sharded_loading_reads_a_rank_s_shard() -> None:
    # 70.6e9 parameters of 2 bytes over 64 ranks; four ranks a node that read all of it would need
    # 564 GB of the 550 GB that a Polaris node has
    q = scenario("llama-3-70b", "fsdp2", machine="polaris")
    parts = host_memory(Stages.of(q, Layouts.of(Layout(dp=64, zero_stage=3)), 0))
    assert float(parts["checkpoint_load"]) == pytest.approx(4 * 2 * 70.55e9 / 64, rel=0.01)


def test_mistral_weights_in_fp32() -> None:
    q = scenario("mistral-7b", "ddp", precision="fp32")
    assert stage_memory(q, Layout(dp=64))[0]["weights"] == pytest.approx(28.97e9, rel=2e-3)


def test_optimizer_bytes() -> None:
    # Adam: two fp32 moments; 8-bit Adam: arXiv:2110.02861, one fp32 scale per 256 values
    plain = scenario("gpt2", "deepspeed").framework.states("bf16")
    assert moment_bytes("adamw", plain) == 8
    assert moment_bytes("adam-8bit", plain) == 2 + 8 / 256
    sizes = {
        name: sum(
            stage_memory(scenario("gpt2", "deepspeed", optimizer=name), Layout(dp=64))[0][part]
            for part in ("weights", "optimizer_states")
        )
        for name in OPTIMIZERS
    }
    num_params = 124_439_808
    assert sizes["adamw"] - sizes["sgd"] == pytest.approx(8 * num_params)
    assert sizes["sgd-momentum"] - sizes["sgd"] == pytest.approx(4 * num_params)
    assert 0 < sizes["adafactor"] - sizes["sgd"] < 0.02 * num_params
    assert sizes["sgd-momentum"] < sizes["muon"] < sizes["adamw"]
    assert sizes["lion"] == sizes["sgd-momentum"]
    # paged moments have room on the host
    assert sizes["paged-adam-8bit"] == sizes["paged-adamw"] == sizes["sgd"]


def test_adapters_keep_states_for_themselves_only() -> None:
    # Hu et al. 2021, arXiv:2106.09685: rank r on q and v adds 2 r (in + out) parameters a layer
    q = scenario("gpt2", "deepspeed", lora_rank=8, lora_targets=["query", "value"])
    stages = Stages.of(q, Layouts.of(Layout(dp=64)), 0)
    assert float(stages.params.trainable) == 12 * 2 * 8 * (768 + 768)


def test_a_loss_on_a_copy_holds_the_logits_twice() -> None:
    # huggingface/nanotron _ShardedCrossEntropy: fp32 logits, their exponentials, 16-bit gradient
    losses = {
        loss: estimate_layouts(
            scenario(
                "llama-3-8b",
                framework.replaced(kernels=framework.kernels.replaced(loss=loss).model_dump()),
                sequence_length=4096,
            ),
            Layouts.of(Layout(dp=2, tp=8, sequence_parallel=True, micro_batch=8)),
        )[0].memory_bytes["logits_and_loss"]
        for framework in [load_framework("nanotron")]
        for loss in ("vocab-parallel", "vocab-parallel-copy")
    }
    logits = 8 * 4096 * 128256 / 8
    assert losses["vocab-parallel-copy"] - losses["vocab-parallel"] == pytest.approx(4 * logits)
    assert losses["vocab-parallel-copy"] == pytest.approx((4 + 4 + 2) * logits, rel=0.02)


@pytest.mark.parametrize(
    ("layout", "groups"),
    [
        (Layout(), 0),
        (Layout(dp=8), 1),
        (Layout(dp=8, ep=4), 2),
        (Layout(tp=8, pp=2), 3),  # tp, a pair of stages, all ranks
        (Layout(dp=4, tp=8, pp=12), 5),  # dp, tp, a pair with either neighbour, all ranks
    ],
)
def test_every_communicator_has_buffers(layout: Layout, groups: int) -> None:
    # BigScience on 8 A100 a node: nvidia-smi shows 3 GiB that no tensor takes (tr11 chronicles)
    q = scenario("mixtral-8x7b", "megatron-lm", machine="jean-zay-a100")
    device = q.machine.device
    context = estimate_layouts(q, Layouts.of(layout))[0].memory_bytes["runtime_context"]
    assert context == device.context_bytes.value + groups * device.communicator_bytes.value
    assert device.communicator_bytes.value == 688 * 2**20


# --- properties ------------------------------------------------------------------------------

LAYOUTS = st.builds(
    Layout,
    dp=st.sampled_from([1, 2, 4, 8]),
    tp=st.sampled_from([1, 2, 4, 8]),
    pp=st.sampled_from([1, 2, 4]),
    cp=st.sampled_from([1, 2]),
    zero_stage=st.integers(0, 3),
    recompute=st.sampled_from(["none", "selective", "full"]),
    sequence_parallel=st.booleans(),
    micro_batch=st.sampled_from([1, 2, 4]),
    grad_accumulation=st.sampled_from([1, 2, 8]),
    schedule=st.sampled_from(["none", "gpipe", "1f1b", "zero-bubble", "zero-bubble-v"]),
).map(lambda layout: layout.replaced(vpp=2) if layout.v_shaped else layout)
FRAMEWORKS = st.sampled_from(["megatron-lm", "fsdp2", "deepspeed", "nanotron"])
MODELS = st.sampled_from(["llama-3-8b", "gpt2", "mixtral-8x7b", "deepseek-v3"])


@pytest.mark.slow
@given(MODELS, FRAMEWORKS, LAYOUTS)
def test_parts_add_up_and_are_never_negative(model: str, framework: str, layout: Layout) -> None:
    q = scenario(model, framework)
    estimate = estimate_layouts(q, Layouts.of(layout))[0]
    parts = {k: v for k, v in estimate.memory_bytes.items() if k != "total"}
    assert tuple(parts) == DEVICE_PARTS
    assert all(0 <= value < np.inf for value in parts.values())
    assert estimate.memory_bytes["total"] == pytest.approx(sum(parts.values()))
    host = {k: v for k, v in estimate.host_memory_bytes.items() if k != "total"}
    assert all(0 <= value < np.inf for value in host.values())
    assert estimate.host_memory_bytes["total"] == pytest.approx(sum(host.values()))


@pytest.mark.slow
@given(MODELS, FRAMEWORKS, LAYOUTS)
def test_estimate_reports_the_worst_of_all_stages(
    model: str, framework: str, layout: Layout
) -> None:
    q = scenario(model, framework)
    totals = [sum(stage.values()) for stage in stage_memory(q, layout)]
    estimate = estimate_layouts(q, Layouts.of(layout))[0]
    assert estimate.memory_bytes["total"] == pytest.approx(max(totals), rel=1e-12)
    assert totals[estimate.worst_stage] == pytest.approx(max(totals), rel=1e-12)


@pytest.mark.slow
@pytest.mark.parametrize("model", ["deepseek-v3", "llama-3-8b", "gemma-2-27b", "qwen3-30b-a3b"])
@pytest.mark.parametrize("framework", ["megatron-lm", "fsdp2", "nanotron"])
def test_candidate_stages_suffice_in_deep_pipelines(model: str, framework: str) -> None:
    q = scenario(model, framework, global_batch=128)
    layers, deep = q.model.num_layers, []
    for pp in (p for p in (3, 4, 7, 16, 28, 32, 61) if p <= layers):
        for schedule in ("1f1b", "gpipe", "zero-bubble", "zero-bubble-v"):
            if schedule == "zero-bubble-v" and (framework != "fsdp2" or 2 * pp > layers):
                continue
            for micro in (1, 16):
                layout = Layout(
                    pp=pp,
                    vpp=2 if schedule == "zero-bubble-v" else 1,
                    micro_batch=micro,
                    grad_accumulation=128 // micro,
                    schedule=schedule,  # type: ignore[arg-type]
                )
                deep.append(layout)
    totals = estimate_layouts(q, Layouts.stack(deep)).memory_bytes
    for layout, total in zip(deep, totals, strict=True):
        worst = max(sum(stage.values()) for stage in stage_memory(q, layout))
        assert float(total) == pytest.approx(worst, rel=1e-12)


@given(
    st.sampled_from(TRANSFORMERS),
    FRAMEWORKS,
    st.sampled_from([1, 2, 3, 5, 8, 64]),
    st.sampled_from([1, 2, 4]),
)
def test_shards_sum_to_at_least_the_whole(model: str, framework: str, dp: int, tp: int) -> None:
    q = scenario(model, framework)
    layouts = Layouts.of(Layout(dp=dp, tp=tp, zero_stage=3))
    for block in blocks_of(q):
        local = local_params(q, block, layouts)
        whole = sum(weight.num_params for weight in block.weights)
        assert float(local.sharded) * dp * tp >= whole * (1 - 1e-12)
        assert float(local.sharded) * dp >= float(local.unsharded) * (1 - 1e-12)
        assert float(local.unsharded) * tp >= whole * (1 - 1e-12)
        if dp == tp == 1:
            assert float(local.sharded) == float(local.unsharded) == whole


@given(st.sampled_from(TRANSFORMERS), st.sampled_from([1, 2, 4, 8]))
def test_stages_hold_every_parameter(model: str, pp: int) -> None:
    q = scenario(model, "megatron-lm")
    layouts = Layouts.of(Layout(pp=pp))
    stages = Stages.of(q, layouts, np.arange(pp))
    total = float(np.sum(stages.params.unsharded))
    copies = sum(b.tied_elsewhere for b in blocks_of(q)) if pp > 1 else 0
    assert total == pytest.approx(q.model.num_params + copies, rel=1e-12)


def test_rows_are_gathered_with_their_padding() -> None:
    """FSDP2 gathers ceil(rows / ranks) rows of every rank: 1000 ranks make 129000 of 128256."""
    q = scenario("llama-3-8b", "fsdp2")
    embedding = blocks_of(q)[0]
    (table,) = embedding.weights
    local = local_params(q, embedding, Layouts.of(Layout(dp=1000, zero_stage=1)))
    rows = -(-table.rows // 1000) * 1000
    assert float(local.all_gathered) == rows * table.columns > float(local.unsharded)
    plain = local_params(q, embedding, Layouts.of(Layout(dp=1000)))
    assert float(plain.all_gathered) == float(plain.unsharded) == table.num_params


def test_a_shared_table_split_unevenly_is_counted_once() -> None:
    """GPT-2's 50257 rows over 8 ranks: 6283 on each, once."""
    q = scenario("gpt2", "fsdp2")
    stages = Stages.of(q, Layouts.of(Layout(tp=8)), 0)
    layers = [b for b in blocks_of(q) if b.kind == "layer"]
    rest = sum(
        b.count * float(local_params(q, b, Layouts.of(Layout(tp=8))).unsharded) for b in layers
    )
    assert float(stages.params.unsharded) - rest == (6283 + 1024) * 768 + 2 * 768


@pytest.mark.parametrize(("ep", "share"), [(1, 8), (2, 2)])
def test_tp_divides_experts_that_are_not_spread(ep: int, share: int) -> None:
    """torchtitan: with ep = 1 tp splits every expert, else only ep spreads them."""
    q = scenario("mixtral-8x7b", "fsdp2")
    experts = q.model.experts
    assert experts is not None
    layer = blocks_of(q)[1]
    routed = replace(layer, weights=tuple(w for w in layer.weights if w.expert))
    layouts = Layouts.of(Layout(dp=2, tp=8, ep=ep, sequence_parallel=True))
    local = local_params(q, routed, layouts)
    assert float(local.unsharded) == routed.num_params / share


def test_a_stage_has_buffers_for_all_micro_batches() -> None:
    """Second of four stages, 8 micro-batches, 3 in flight: 5 inputs, 8 gradients, 3 outputs."""
    q = scenario("llama-3-8b", "fsdp2")
    layout = Layout(pp=4, grad_accumulation=8, schedule="1f1b")
    stream = 2048 * 4096 * 2
    for stage, waiting, after in ((0, 8 + 4, 8), (1, 5 + 8 + 3, 16), (3, 7, 8)):
        kept = stage_activations(Stages.of(q, Layouts.of(layout), stage))
        assert float(kept.buffers.at_peak) == waiting * stream
        assert float(kept.buffers.receive) == after * stream
    other = scenario("llama-3-8b", "megatron-lm")
    kept = stage_activations(Stages.of(other, Layouts.of(layout), 1))
    assert float(kept.buffers.at_peak) == 0


@pytest.mark.parametrize(
    ("zero", "pp", "passes", "once"),
    [
        (0, 1, 4, True),
        (1, 1, 4, True),
        (2, 1, 4, False),
        (3, 1, 4, False),
        (2, 4, 8, True),
        (1, 1, 1, False),
    ],
)
def test_when_gradients_are_summed_whole(zero: int, pp: int, passes: int, once: bool) -> None:
    """Below ZeRO-2, and in a pipeline of torch, sums over the passes are whole until the end."""
    q = scenario("llama-3-8b", "fsdp2")
    layout = Layout(
        dp=8,
        pp=pp,
        zero_stage=zero,
        grad_accumulation=passes,
        schedule="1f1b" if pp > 1 else "none",
    )
    layouts = Layouts.of(layout)
    assert bool(layouts.sums_gradients(q.framework)) is once
    stages = Stages.of(q, layouts, 0)
    kept = stage_activations(stages)
    stay = resident(stages)
    found = unreduced(stages, stay.gradients).with_activations(stages, kept)
    if once:
        assert float(found.before) == 4 * float(stages.params.unsharded)
    else:
        assert float(found.before) == (float(stay.gradients) if passes > 1 else 0)


def test_no_gradients_exist_before_the_first_backward_pass() -> None:
    """GPipe has all its activations before any gradient; 1F1B has sums by then."""
    q = scenario("llama-3-8b", "fsdp2")
    found = {}
    for schedule in ("gpipe", "1f1b"):
        layout = Layout(dp=8, pp=4, grad_accumulation=8, schedule=schedule, zero_stage=2)
        layouts = Layouts.of(layout)
        stages = Stages.of(q, layouts, 1)
        kept = stage_activations(stages)
        stay = resident(stages)
        found[schedule] = unreduced(stages, stay.gradients).with_activations(stages, kept)
    whole = float(found["1f1b"].before)
    assert whole == float(found["1f1b"].at_end) == float(found["gpipe"].at_end) > 0
    assert float(found["gpipe"].before) == 0


def test_hybrid_sharding_shards_experts_over_its_group() -> None:
    q = scenario("mixtral-8x7b", "fsdp2")
    layer = blocks_of(q)[1]
    layouts = Layouts.of(Layout(dp=64, dp_shard=8, zero_stage=3))
    local = local_params(q, layer, layouts)
    assert float(local.sharded) == float(local.unsharded) / 8


@given(MODELS, FRAMEWORKS, st.integers(0, 3))
def test_more_replicas_never_keep_more_states(model: str, framework: str, zero: int) -> None:
    q = scenario(model, framework)
    rows = [Layout(dp=dp, zero_stage=zero) for dp in (1, 2, 3, 4, 8, 64, 1000)]
    layouts = Layouts.stack(rows)
    stages = Stages.of(q, layouts, 0)
    stay = resident(stages)
    # weights sharded by rows are gathered with their padding, which grows with the ranks
    params = stages.params
    padding = (params.all_gathered - params.unsharded) * stages.states.weight_bytes
    weights = stay.weights - np.where(layouts.zero_stage < 3, padding, 0.0)
    for states in (weights, stay.optimizer_states):
        assert np.all(np.diff(states) <= 0)


@given(MODELS, FRAMEWORKS, LAYOUTS)
def test_larger_micro_batches_never_keep_less(model: str, framework: str, layout: Layout) -> None:
    q = scenario(model, framework)
    layouts = Layouts.stack([layout.replaced(micro_batch=n) for n in (1, 2, 3, 4, 8)])
    kept = stage_activations(Stages.of(q, layouts, 0))
    for part in (kept.saved, kept.layer.working, kept.head.at_loss):
        assert np.all(np.diff(part) >= 0)
    assert np.all(np.diff(estimate_layouts(q, layouts).memory_bytes) >= 0)


@given(MODELS, FRAMEWORKS, LAYOUTS)
def test_recompute_keeps_less(model: str, framework: str, layout: Layout) -> None:
    q = scenario(model, framework, attention="eager")
    none, selective, full = (
        layer_bytes(q, layout.replaced(recompute=mode)) for mode in ("none", "selective", "full")
    )
    assert none >= selective >= full > 0


@pytest.mark.slow
@pytest.mark.parametrize("framework", ["megatron-lm", "fsdp2", "deepspeed", "ddp", "nanotron"])
def test_one_layout_equals_a_row_of_many(framework: str) -> None:
    q = scenario("llama-3-8b", framework)
    rows = [
        Layout(
            dp=dp,
            tp=tp,
            pp=pp,
            zero_stage=zero,
            schedule="1f1b" if pp > 1 else "none",
            micro_batch=2,
            grad_accumulation=64 // dp // 2,
            recompute=recompute,
        )
        for dp in (1, 4)
        for tp in (1, 4)
        for pp in (1, 4)
        for zero in (0, 1, 2, 3)
        for recompute in ("none", "selective", "full")
    ]
    legal = []
    for row in rows:
        try:
            check(q, row)
        except LayoutError:
            continue
        legal.append(row)
    assert len(legal) >= 2
    many = estimate_layouts(q, Layouts.stack(legal))
    # every fifth: all values of every column occur
    for index in range(0, len(legal), 5):
        for one in (Layouts.of(legal[index]), Layouts.stack([legal[index]])):
            assert estimate_layouts(q, one)[0] == many[index]


def test_offload_moves_bytes_from_the_device_to_the_host() -> None:
    q = scenario("llama-3-8b", "deepspeed", machine="polaris", global_batch=4)
    here = Layout(dp=4, zero_stage=3)
    kept = estimate_layouts(q, Layouts.of(here))[0]
    moved = estimate_layouts(q, Layouts.of(here.replaced(offload="optimizer-cpu")))[0]
    gone = estimate_layouts(q, Layouts.of(here.replaced(offload="all-cpu")))[0]
    disk = estimate_layouts(q, Layouts.of(here.replaced(offload="all-nvme")))[0]
    assert moved.memory_bytes["optimizer_states"] == 0 < kept.memory_bytes["optimizer_states"]
    assert gone.memory_bytes["total"] < moved.memory_bytes["total"] < kept.memory_bytes["total"]
    # 12 bytes of states a parameter, all ranks of the node together
    assert moved.host_memory_bytes["offloaded_states"] >= 12 * q.model.num_params
    assert disk.host_memory_bytes["offloaded_states"] < 0.1 * 12 * q.model.num_params


@pytest.mark.parametrize("model", TRANSFORMERS)
def test_every_model_has_memory(model: str) -> None:
    sequence = min(load_model(model).max_sequence_length or 512, 512)
    q = scenario(model, "deepspeed", sequence_length=sequence)
    blocks: tuple[Block, ...] = blocks_of(q)
    assert sum(b.count * b.num_params for b in blocks) == q.model.num_params
    estimate = estimate_layouts(q, Layouts.of(Layout(dp=64, zero_stage=3)))[0]
    assert estimate.memory_bytes["activations"] + estimate.memory_bytes["gradients"] > 0


def test_what_the_allocator_keeps_fills_the_device_at_most() -> None:
    framework = load_framework("megatron-deepspeed")
    buffers = framework.buffers.replaced(keeps_temporaries=False).model_dump()
    plain = framework.replaced(buffers=buffers)
    model, machine = load_model("bloom-176b"), load_machine("jean-zay-a100")
    layouts = Layouts.stack(
        Layout(
            dp=8,
            tp=4,
            pp=12,
            zero_stage=1,
            micro_batch=size,
            grad_accumulation=256 // size,
            recompute="full",
            schedule="1f1b",
        )
        for size in (1, 2, 4, 8, 16)
    )
    workload = Workload(sequence_length=2048, global_batch=2048, precision="fp16")
    kept = estimate_layouts(Scenario(model, machine, workload, framework), layouts)
    without = estimate_layouts(Scenario(model, machine, workload, plain), layouts)
    assert list(kept.fits) == list(without.fits)
    assert set(kept.fits) == {True, False}
    # gradients that a rank updates, flat in 16 bits and in fp32: 6 to its 12 bytes per parameter
    states = kept[0].memory_bytes["optimizer_states"]
    more = [kept[i].memory_bytes["total"] - without[i].memory_bytes["total"] for i in range(5)]
    assert more[0] >= states / 2 * 0.99
    room = [machine.device.memory_bytes.value - without[i].memory_bytes["total"] for i in range(5)]
    for added, free in zip(more, room, strict=True):
        assert added == pytest.approx(min(more[0], max(free, 0.0)), rel=1e-6, abs=1.0)


def test_temporaries_stay_beside_activations_wherever_the_peak_is() -> None:
    """One sequence more is one more layer's input per layer, before the peak moves from the
    optimizer's step to the loss as after: h = 1600, 48 layers, 1024 tokens, 2 bytes."""
    layouts = Layouts.stack(
        Layout(zero_stage=1, micro_batch=size, grad_accumulation=24 // size, recompute="full")
        for size in (1, 2, 3, 4, 6, 8, 12, 24)
    )
    asked = Scenario(
        load_model("gpt2-xl"),
        load_machine("dgx-h200"),
        Workload(sequence_length=1024, global_batch=24, precision="fp16"),
        load_framework("megatron-deepspeed"),
    )
    found = estimate_layouts(asked, layouts)
    totals = [found[i].memory_bytes["total"] for i in range(len(layouts))]
    assert {found[i].peak_moment for i in range(len(layouts))} == {"optimizer", "loss"}
    added = np.diff(totals) / np.diff([1, 2, 3, 4, 6, 8, 12, 24])
    assert np.all(added >= 2 * 48 * 1600 * 1024)


def test_bf16_needs_no_second_fp32_copy_of_gradients() -> None:
    # DeepSpeed's bf16 optimizer holds fp32 gradients from the start: 2 + 2 + 4 + 12 bytes
    framework = load_framework("megatron-deepspeed")
    model = load_model("gpt2-xl")
    layout = Layout(dp=4, grad_accumulation=2)
    scenario = Scenario(
        model,
        load_machine("polaris"),
        Workload(sequence_length=1024, global_batch=8, precision="bf16"),
        framework,
    )
    parts = estimate_layouts(scenario, Layouts.stack([layout]))[0].memory_bytes
    assert parts["optimizer_temporaries"] == 0
    held = sum(parts[name] for name in ("weights", "gradients", "optimizer_states"))
    assert held == pytest.approx(20 * model.num_params, rel=0.01)


def test_buffers_between_stages_are_those_of_pipelines() -> None:
    q = scenario("llama-3-8b", "fsdp2")
    layouts = Layouts.broadcast(dp=8, zero_stage=3, grad_accumulation=8, pp=[1, 2], schedule=[0, 2])
    buffers = stage_activations(Stages.of(q, layouts, 0)).buffers
    stream = 2048 * 4096 * 2
    # gradients of eight micro-batches' streams come back from the next stage; nothing comes in
    assert buffers.receive.tolist() == [0, 8 * stream]


# --- allocator -------------------------------------------------------------------------------


def test_kept_temporaries_fill_the_device_and_no_more() -> None:
    plain = scenario("gpt2", "fsdp2")
    buffers = plain.framework.buffers.replaced(keeps_temporaries=True)
    q = replace(plain, framework=plain.framework.replaced(buffers=buffers))
    limit = q.machine.device.memory_bytes.value
    allocated, context = 0.5 * limit, 0.1 * limit
    fraction = buffers.allocator_fraction.value * allocated

    def reserve(before_update: float) -> float:
        stages = Stages.of(q, Layouts.of(Layout()), 0)
        return float(_reserved(stages, *map(np.asarray, (allocated, before_update, context))))

    assert reserve(0.4 * limit) == pytest.approx(fraction)
    assert reserve(0.55 * limit) == pytest.approx(fraction + 0.05 * limit)
    assert allocated + context + reserve(3 * limit) == pytest.approx(limit)
