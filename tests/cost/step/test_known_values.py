"""Known values of functions of `planner.cost.step`."""

from __future__ import annotations

import numpy as np

from planner.cost.network.collectives import all_reduce_s
from planner.cost.network.groups import Groups
from planner.cost.operators.blocks import blocks_of
from planner.cost.scenario import Scenario
from planner.cost.shards.layouts import Layouts
from planner.cost.shards.stages import Stages
from planner.cost.step.block_pass import block_passes, chunk_passes
from planner.cost.step.communication.block_traffic import block_traffic
from planner.cost.step.communication.bytes_per_axis import step_traffic
from planner.cost.step.communication.context_parallel import context_s, heads_s
from planner.cost.step.communication.data_parallel import DataTraffic, data_traffic, num_buckets
from planner.cost.step.communication.expert_parallel import (
    crossing_part,
    expert_s,
    exposed_experts_s,
    split_expert_s,
)
from planner.cost.step.communication.pipeline_p2p import (
    send_stage_s,
    stage_transfer,
    transfer_wait_s,
)
from planner.cost.step.communication.tensor_parallel import (
    repeated_tensor_s,
    stream_bytes,
    tensor_s,
)
from planner.cost.step.compute.block_time import block_time
from planner.cost.step.compute.gemm import DeviceRates, attention_efficiency, gemm_s, gemm_times
from planner.cost.step.kernel_launch import host_pass_s, host_wait_s, num_kernels
from planner.cost.step.optimizer import (
    device_optimizer_s,
    gradient_transfer_s,
    host_copy_s,
    host_update_bytes,
    offload_pass_s,
    offload_step_s,
    parameter_transfer_s,
    update_bytes,
)
from planner.cost.step.overlap import exposed_traffic
from planner.cost.step.step import smaller_step_s, stage_overheads, time_parts
from planner.describe.catalogue import load_framework, load_machine, load_model
from planner.describe.layout import Layout
from planner.describe.model.block import Gemm
from planner.describe.workload import Workload
from tests.descriptions import default_scenario as make_scenario


def test_block_passes() -> None:
    scenario = make_scenario()
    layouts = Layouts.of(Layout(tp=4))
    _, layer, _ = block_passes(scenario, blocks_of(scenario), layouts)
    reduce_s = all_reduce_s(Groups.of(layouts, scenario.machine).tensor, 2**24)
    # two exposed; two hidden but for a fifth
    assert round(float(layer.tensor_s / reduce_s), 3) == 2.4


def test_chunk_passes() -> None:
    scenario = make_scenario()
    stages = Stages.of_pipeline(scenario, Layout(pp=4))
    found = chunk_passes(stages, block_passes(scenario, stages.blocks, stages.layouts))
    # 8 layers of 4.9 ms; the head
    assert np.round(1e3 * found.forward_with_traffic_s)[0].tolist() == [39.0, 39.0, 39.0, 56.0]


def test_block_traffic() -> None:
    scenario = make_scenario()
    layouts, layer = Layouts.of(Layout(tp=4)), blocks_of(scenario)[1]
    compute, groups = block_time(scenario, layer, layouts), Groups.of(layouts, scenario.machine)
    tensor, _, _ = block_traffic(scenario, layer, layouts, groups, compute)
    # a fifth of it contends
    assert round(float(tensor.backward_s / tensor.sent_backward_s), 3) == 0.2


def test_step_traffic() -> None:
    job = make_scenario("gpt2-xl", "ddp")
    sent = step_traffic(job, Layout(dp=8))["dp"]
    # fp32 gradients
    assert round(sent.device_bytes / (2 * 7 / 8 * job.model.num_params), 2) == 4.0
    # one ring passes through
    assert sent.node_bytes == sent.device_bytes


def test_context_s() -> None:
    scenario = make_scenario()
    # 512 tokens a rank
    layouts, (_, layer, _) = Layouts.of(Layout(cp=4)), blocks_of(scenario)
    # seconds are bytes
    sent = context_s(scenario, layer, layouts, Groups.unit(layouts))
    # 3 * 512 tokens * 8 heads * 256 * 2 B
    assert [float(direction) / 2**20 for direction in sent] == [6.0, 12.0]


def test_heads_s() -> None:
    scenario = make_scenario()
    layouts, (_, layer, _) = Layouts.of(Layout(cp=4, ulysses=4)), blocks_of(scenario)
    # seconds are bytes
    sent, _ = heads_s(scenario, layer, layouts, Groups.unit(layouts))
    # 3/4 of 512 tokens * (32 + 8 + 8 + 32) heads * 256 B
    assert float(sent) / 2**20 == 7.5


def test_data_traffic() -> None:
    scenario = make_scenario("gpt2-xl", "ddp")
    stages = Stages.of(scenario, Layouts.of(Layout(dp=8)), 0)
    # seconds are bytes
    sent = data_traffic(stages, Groups.unit(stages.layouts)).gradients_s
    # fp32 gradients
    assert round(float(sent) / (2 * 7 / 8 * scenario.model.num_params), 2) == 4.0


def test_num_buckets() -> None:
    scenario = make_scenario("llama-3-8b", "nanotron")
    # a layer: 6.3, 4.2, 29.4 and 14.7 M
    stages = Stages.of_pipeline(scenario, Layout(tp=4))
    # torch: 66, two per layer and the ends
    assert round(float(num_buckets(stages, 12.5 * 2**20)[0])) == 68


def test_expert_s() -> None:
    scenario = make_scenario("mixtral-8x7b")
    layouts, (_, layer, _) = Layouts.of(Layout(dp=8, ep=8)), blocks_of(scenario)
    # seconds are bytes
    sent, _ = expert_s(scenario, layer, layouts, Groups.unit(layouts))
    # 2 * 7/8 * top 2 of a 16 MiB stream
    assert float(sent) / 2**20 == 56.0


def test_split_expert_s() -> None:
    scenario = make_scenario("mixtral-8x7b")
    layer = blocks_of(scenario)[1]
    layouts = Layouts.broadcast(tp=4, dp=2, ep=2, etp=[4, 1], sequence_parallel=True)
    once, _ = split_expert_s(scenario, layer, layouts, Groups.unit(layouts))
    # 2 * 3/4 * top 2 of a 16 MiB stream; nothing
    assert (once / 2**20).round().tolist() == [48.0, 0.0]


def test_crossing_part() -> None:
    # 4 of 8 nodes, 7/8 of them others
    assert float(crossing_part(load_model("deepseek-v3"), 8)) == 0.4375
    # 3.6 of 4 for 8 copies
    assert round(float(crossing_part(load_model("qwen3-235b-a22b"), 4)), 3) == 0.337


def test_exposed_experts_s() -> None:
    scenario = make_scenario()
    plain = load_framework("megatron-lm")
    both = plain.communication.replaced(overlap_experts=True).model_dump()
    merging, mixtral = plain.replaced(communication=both), load_model("mixtral-8x7b")
    job = Scenario(mixtral, scenario.machine, Workload(), merging)
    layout, second = Layout(dp=8, ep=8, grad_accumulation=4), np.asarray(1.0)
    # contention alone
    assert float(exposed_experts_s(job, Layouts.of(layout), second, 3 * second)) == 0.2


def test_send_stage_s() -> None:
    scenario = make_scenario()
    layouts = Layouts.of(Layout(tp=4, pp=2))
    # a fourth of 16 MiB
    assert float(send_stage_s(scenario, layouts, Groups.unit(layouts))) / 2**20 == 4.0


def test_transfer_wait_s() -> None:
    scenario = make_scenario("llama-3-8b", machine="h100-cluster")
    # 64 nodes of 8
    assert float(transfer_wait_s(scenario, Layouts.of(Layout(dp=64, pp=8)))) == 0.25


def test_stage_transfer() -> None:
    scenario = make_scenario()
    layouts = Layouts.of(Layout(tp=4, pp=2))
    groups = Groups.of(layouts, scenario.machine)
    transfer = stage_transfer(scenario, layouts, groups, np.asarray(0.1))
    # 160 us + 4 MiB at 9 GB/s
    assert round(1e6 * float(transfer.arrives_s)) == 626


def test_stream_bytes() -> None:
    scenario = make_scenario()
    # 2048 tokens, 4096 wide
    assert float(stream_bytes(scenario, Layouts.of(Layout()))) / 2**20 == 16.0


def test_tensor_s() -> None:
    scenario = make_scenario()
    # a stream of 16 MiB
    layouts, (_, layer, _) = Layouts.of(Layout(tp=4)), blocks_of(scenario)
    # seconds are bytes
    sent = tensor_s(scenario, layer, layouts, Groups.unit(layouts))
    # 2 * 2 * 3/4 * 16 MiB
    assert [round(float(direction) / 2**20) for direction in sent] == [48, 48]


def test_repeated_tensor_s() -> None:
    scenario = make_scenario("llama-3-8b", "fsdp2")
    layouts, (_, layer, _) = Layouts.of(Layout(tp=4, recompute="full")), blocks_of(scenario)
    # to the layer's end
    assert float(repeated_tensor_s(scenario, layer, layouts, np.asarray(48.0))) == 48.0


def test_block_time() -> None:
    scenario = make_scenario()
    _, layer, _ = blocks_of(scenario)
    time = block_time(scenario, layer, Layouts.of(Layout()))
    # its products alone, at 222 TFLOP/s
    assert round(2 * 2048 * layer.num_params / 222e12, 4) == 0.004
    assert (round(float(time.forward_s), 4), round(float(time.backward_s), 4)) == (0.0048, 0.0097)


def test_attention_efficiency() -> None:
    newest, older = (load_framework(f"fsdp2{end}") for end in ("", "+software=2025-12"))
    device = load_machine("dgx-gb200").device
    assert attention_efficiency(newest, device) > attention_efficiency(older, device)


def test_gemm_s() -> None:
    t = gemm_s(8192, 8192, 8192, flop_per_s=271e12, bytes_per_s=1.4e12, num_units=108)
    assert 0.90 < 2 * 8192**3 / float(t) / 271e12 <= 1


def test_gemm_times() -> None:
    scenario = make_scenario()
    gemm = Gemm("mlp.up", n=8192, k=2048)
    layouts, rates = Layouts.of(Layout()), DeviceRates.of(scenario)
    (times,) = gemm_times(scenario, (gemm,), np.asarray(8192.0), layouts, rates)
    # 2 m n k / 222 TFLOP/s = 1.24 ms
    assert [round(1e3 * float(time), 2) for time in times] == [1.3, 1.32, 1.3]


def test_num_kernels() -> None:
    scenario = make_scenario()
    # 4 products, attention, 7 memory-bound ones
    assert num_kernels(blocks_of(scenario)[1], "flash") == 12


def test_host_pass_s() -> None:
    scenario = make_scenario("gpt2", "ddp")
    layouts, (_, layer, _) = Layouts.of(Layout()), blocks_of(scenario)
    time = host_pass_s(scenario, layer, layouts, Groups.of(layouts, scenario.machine))
    kernels, ratio = num_kernels(layer, "flash"), scenario.framework.host.dispatch_ratio.value
    assert (
        round(float(time) / (3 * kernels * ratio * scenario.machine.device.launch_s.value), 6)
        == 1.0
    )


def test_host_wait_s() -> None:
    scenario = make_scenario("gpt2", "ddp")
    layouts, (_, layer, _) = Layouts.of(Layout()), blocks_of(scenario)
    groups = Groups.of(layouts, scenario.machine)
    # a second's work
    assert float(host_wait_s(scenario, layer, layouts, groups, np.asarray(1.0))) == 0.0


def test_update_bytes() -> None:
    # 4 + 2 (4 + 8) + 2
    assert update_bytes(Stages.of_pipeline(make_scenario("gpt2"), Layout())) == 30.0


def test_device_optimizer_s() -> None:
    scenario = make_scenario("gpt2-xl")
    seconds = (4 + 2 * 12 + 2 + 4) * scenario.model.num_params / (0.85 * 1.555e12)
    assert (
        round(device_optimizer_s(Stages.of_pipeline(scenario, Layout())).item() / seconds, 3) == 1.0
    )


def test_host_update_bytes() -> None:
    scenario = make_scenario("gpt2", "deepspeed")
    # 28 and 14 around it
    assert host_update_bytes(Stages.of_pipeline(scenario, Layout())) == 42.0


def test_host_copy_s() -> None:
    stages = Stages.of_pipeline(make_scenario("gpt2-xl", "deepspeed"), Layout())
    assert round(host_copy_s(stages, np.asarray(25e9)).item(), 6) == 1.0


def test_offload_step_s() -> None:
    scenario = make_scenario("gpt2-xl", "deepspeed")
    layout = Layout(dp=4, zero_stage=2, offload="optimizer-cpu")
    seconds = scenario.model.num_params * (2 / 4 / 25e9 + 42 / (0.43 * 204.8e9))
    assert round(offload_step_s(Stages.of_pipeline(scenario, layout)).item() / seconds, 3) == 1.0


def test_gradient_transfer_s() -> None:
    scenario = make_scenario("gpt2-xl", "deepspeed")
    layout = Layout(dp=4, zero_stage=3, grad_accumulation=8, offload="optimizer-cpu")
    sent = gradient_transfer_s(Stages.of_pipeline(scenario, layout)).item()
    # bytes: 8 (2 down + 2 up) + 4
    assert round(8 * sent * 25e9 * 4 / scenario.model.num_params) == 36


def test_parameter_transfer_s() -> None:
    layout = Layout(dp=4, zero_stage=3, offload="all-cpu")
    stages = Stages.of_pipeline(make_scenario("gpt2-xl", "fsdp2"), layout)
    # a fourth, in fp32
    assert round(parameter_transfer_s(stages).item(), 4) == 0.0623


def test_offload_pass_s() -> None:
    layout, second = Layout(dp=4, zero_stage=3, offload="all-cpu"), np.asarray(1.0)
    scenarios = [make_scenario("gpt2-xl", name) for name in ("deepspeed", "fsdp2")]
    jobs = [Stages.of_pipeline(scenario, layout) for scenario in scenarios]
    left = [offload_pass_s(each, second, second) / parameter_transfer_s(each) for each in jobs]
    # awaited weights, twice; fp32 gradients
    assert [round(part.item(), 2) for part in left] == [2.0, 1.0]


def test_exposed_traffic() -> None:
    scenario = make_scenario("gpt2-xl", "deepspeed")
    stages, none = Stages.of_pipeline(scenario, Layout(dp=4, zero_stage=1)), np.zeros(())
    traffic = DataTraffic(np.asarray(0.5), *[none] * 6)
    left = exposed_traffic(stages, traffic, np.asarray(1.0), np.asarray(2.0))
    # 0.5 (1 of 3.1 buckets + 0.2)
    assert round(left.gradients_s.item(), 2) == 0.26


def test_time_parts() -> None:
    scenario = make_scenario()
    layouts = Layouts.of(Layout(pp=4, grad_accumulation=256, schedule="1f1b"))
    # 256 x 56 ms
    assert round(float(time_parts(Stages.candidates(scenario, layouts))["forward"]), 1) == 14.4


def test_stage_overheads() -> None:
    scenario = make_scenario()
    stages = Stages.of_pipeline(scenario, Layout(pp=4, schedule="1f1b"))
    overheads = stage_overheads(stages, block_passes(scenario, stages.blocks, stages.layouts))
    # embedding and head at the ends
    assert np.round(1e3 * overheads.optimizer_s).tolist() == [58.0, 45.0, 45.0, 58.0]


def test_smaller_step_s() -> None:
    assert smaller_step_s({"forward": 1.0, "backward": 2.0, "optimizer": 0.5}, 0.25) == 1.25
