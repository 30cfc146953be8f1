"""Traffic: bytes per axis against sums worked out by hand."""

from __future__ import annotations

from dataclasses import replace

import pytest

from planner import Layout, Workload
from planner.cost.operators.blocks import blocks_of
from planner.cost.scenario import Scenario
from planner.cost.shards.layouts import Layouts
from planner.cost.shards.stages import Stages
from planner.cost.step.block_pass import block_passes
from planner.cost.step.communication.bytes_per_axis import step_traffic
from planner.describe.catalogue import load_framework, load_machine, load_model

_POLARIS = load_machine("polaris")


def _scenario(model: str, framework: str, **workload: object) -> Scenario:
    return Scenario(
        load_model(model), _POLARIS, Workload.described(workload), load_framework(framework)
    )


def test_tensor_traffic_is_four_all_reduces_a_layer() -> None:
    scenario = _scenario("gpt3-175b", "megatron-lm", sequence_length=2048, global_batch=8)
    sent = step_traffic(scenario, Layout(tp=4, micro_batch=1, grad_accumulation=8))
    # 96 layers, two all-reduces forward and two backward of 2048 x 12288 bf16 values; one after
    # the embedding and one for the head's input gradient; 8 times; a ring of 4 sends 2 x 3/4
    expected = 8 * (96 * 4 + 2) * (2048 * 12288 * 2) * 2 * 3 / 4
    assert sent["tp"].device_bytes == pytest.approx(expected)
    assert sent["tp"].inside_bytes == sent["tp"].device_bytes
    assert sent["tp"].node_bytes == 0


def test_pipeline_traffic_is_the_stream_both_ways() -> None:
    scenario = _scenario("gpt3-175b", "megatron-lm", sequence_length=2048, global_batch=16)
    layout = Layout(tp=4, pp=8, grad_accumulation=16, schedule="1f1b")
    sent = step_traffic(scenario, layout)["pp"]
    # each tensor rank sends its quarter of the tokens, 16 micro-batches, there and back
    assert sent.device_bytes == pytest.approx(2 * 16 * 2048 * 12288 * 2 / 4)
    # all four ranks of a node stand on one stage: everything leaves
    assert (sent.inside_bytes, sent.node_bytes) == (0, pytest.approx(4 * sent.device_bytes))


def test_expert_traffic_spreads_evenly() -> None:
    scenario = _scenario("mixtral-8x7b", "megatron-lm", sequence_length=4096, global_batch=8)
    sent = step_traffic(scenario, Layout(dp=8, ep=8, zero_stage=1))["ep"]
    # 32 layers, dispatch and combine, forward and backward, two experts per token
    everything = 32 * 4 * (4096 * 4096 * 2 * 2)
    assert sent.device_bytes == pytest.approx(everything * 7 / 8, rel=1e-12)
    # of seven others, three sit on the same node
    assert sent.inside_bytes == pytest.approx(everything * 3 / 8)
    assert sent.node_bytes == pytest.approx(4 * everything * 4 / 8)


def test_recompute_dispatches_and_passes_on_once_more() -> None:
    """Full recompute: the forward transfers of experts, and of keys and values."""
    for model, axis, again in (("mixtral-8x7b", "ep", 6 / 4), ("llama-3-8b", "cp", None)):
        scenario = _scenario(model, "megatron-lm", sequence_length=8192, global_batch=8)
        spread = {"dp": 8, "ep": 8} if axis == "ep" else {"dp": 4, "cp": 2}
        layout = Layout(**spread, zero_stage=1)
        once = step_traffic(scenario, layout)[axis].device_bytes
        full = step_traffic(scenario, layout.replaced(recompute="full"))[axis].device_bytes
        assert once < full < 2 * once
        if again:
            assert full / once == pytest.approx(again, rel=1e-12)


@pytest.mark.parametrize(
    ("framework", "fields", "repeats"),
    [
        ("megatron-lm", {"recompute_modules": ("core_attn",)}, True),
        ("megatron-lm", {"recompute_modules": ("core_attn", "mlp")}, True),
        ("megatron-lm", {"recompute_modules": ("mlp",)}, False),
        ("megatron-lm", {}, True),
        # torchtitan keeps what attention gives
        ("fsdp2", {}, False),
    ],
)
@pytest.mark.parametrize("ulysses", [1, 4])
def test_attention_that_is_repeated_exchanges_for_it_again(
    framework: str, fields: dict[str, object], repeats: bool, ulysses: int
) -> None:
    """In bytes as in time: a forward pass of the ring or of the exchange for heads once more."""
    # short sequences, so that attention does not hide it all
    scenario = _scenario("llama-3-8b", framework, sequence_length=1024, global_batch=2)
    plain = Layout(dp=2, cp=4, ulysses=ulysses)
    chosen = plain.replaced(recompute="selective", **fields)
    full = plain.replaced(recompute="full")
    layouts = Layouts.stack([plain, chosen, full])
    awaited = block_passes(scenario, blocks_of(scenario), layouts)[1].context_s
    sent = [step_traffic(scenario, layout)["cp"].device_bytes for layout in (plain, chosen, full)]
    assert sent[0] < sent[2]
    assert awaited[0] < awaited[2]
    assert sent[1] == sent[2 if repeats else 0]
    assert awaited[1] == awaited[2 if repeats else 0]


@pytest.mark.parametrize(("recompute", "gathers"), [("none", 2), ("full", 3)])
def test_torch_gathers_keys_and_values_and_passes_gradients_on(
    recompute: str, gathers: int
) -> None:
    """As traced: a gather in every pass, cp transfers of fp32 gradients in backward."""
    scenario = _scenario("llama-3-8b", "fsdp2", sequence_length=8192, global_batch=8)
    layout = Layout.described({"dp": 2, "cp": 4, "zero_stage": 3, "grad_accumulation": 4})
    sent = step_traffic(scenario, layout.replaced(recompute=recompute))["cp"].device_bytes
    held = 8192 // 4 * 8 * (128 + 128)  # elements of a rank's keys and values
    assert sent == pytest.approx(4 * 32 * (gathers * 3 * 2 * held + 4 * 4 * held))


def test_zero_3_moves_half_as_much_again_as_data_parallelism() -> None:
    """Rajbhandari et al. 2020, section 7: 2 psi for data parallelism, 3 psi for stage 3.

    And for DeepSpeed's stage 1, which all-reduces gradients of which a rank keeps its part.
    """
    scenario = _scenario("gpt2-xl", "deepspeed", sequence_length=1024, global_batch=64)
    sent = [
        step_traffic(scenario, Layout(dp=64, zero_stage=stage))["dp"].device_bytes
        for stage in (0, 1, 3)
    ]
    psi = 2 * scenario.model.num_params * 63 / 64
    assert [bytes_ / psi for bytes_ in sent] == pytest.approx([2, 3, 3], rel=0.01)


def test_gradients_reduced_after_every_micro_batch() -> None:
    scenario = _scenario("llama-3-8b", "nanotron", sequence_length=4096, global_batch=64)
    layout = {"dp": 2, "tp": 2, "pp": 2, "schedule": "1f1b", "grad_accumulation": 32}
    often, once = (
        step_traffic(scenario, Layout.described({**layout, "zero_stage": stage}))["dp"]
        for stage in (0, 1)
    )
    assert often.device_bytes > 20 * once.device_bytes


def test_fully_sharded_below_zero_3_gathers_before_every_forward_pass() -> None:
    """ZeRO-2 of FSDP2 frees what it gathered in backward; a pipeline keeps it over the step.

    With ZeRO-3 a pipeline's backward pass leaves the weights for the forward pass after it, so
    that four micro-batches gather five times, as a trace of torch's schedules does.
    """
    scenario = _scenario("llama-3-8b", "fsdp2", sequence_length=4096, global_batch=32)
    # (pipeline, ZeRO, gathered in bf16, reduced in fp32)
    for pp, stage, gathered, reduced in ((1, 2, 4, 4), (2, 2, 1, 1), (1, 3, 8, 4), (2, 3, 5, 1)):
        schedule = {"schedule": "1f1b"} if pp > 1 else {}
        layout = Layout.described(
            {"dp": 8, "pp": pp, "zero_stage": stage, "grad_accumulation": 4} | schedule
        )
        stages = Stages.candidates(scenario, Layouts.of(layout))
        most = float(stages.params.unsharded.max())
        sent = step_traffic(scenario, layout)["dp"].device_bytes
        assert sent == pytest.approx((2 * gathered + 4 * reduced) * 7 / 8 * most, rel=1e-9)


def test_weights_are_freed_where_gradients_are_summed_whole() -> None:
    """Accelerate without sync_each_batch: FSDP2 gathers for four passes, and reduces once."""
    scenario = _scenario("llama-3-8b", "accelerate", sequence_length=4096, global_batch=32)
    framework, layout = scenario.framework, Layout(dp=8, zero_stage=2, grad_accumulation=4)
    rules = framework.communication.model_copy(update={"reduces_once": True})
    summed = replace(scenario, framework=framework.model_copy(update={"communication": rules}))
    params = float(Stages.of_pipeline(scenario, layout).params.unsharded[0])
    sent = [step_traffic(q, layout)["dp"].device_bytes for q in (scenario, summed)]
    reduced = framework.states("bf16").reduce_bytes
    assert sent[0] == pytest.approx((4 * 2 + 4 * reduced) * 7 / 8 * params)
    assert sent[1] == pytest.approx((4 * 2 + reduced) * 7 / 8 * params)


def test_only_what_trains_is_gathered_after_the_step() -> None:
    """LoRA under DeepSpeed's ZeRO-1: the frozen weights never change."""
    scenario = _scenario("mistral-7b", "deepspeed", global_batch=32, lora_rank=16)
    stages = Stages.of_pipeline(scenario, Layout(dp=4))
    trained = float(stages.params.trainable[0])
    assert 0 < trained < 0.01 * scenario.model.num_params
    sent = step_traffic(scenario, Layout(dp=4, zero_stage=1))["dp"].device_bytes
    # gradients, all-reduced, and weights of 16 bits
    assert sent == pytest.approx((2 * 2 + 2) * 3 / 4 * trained)
