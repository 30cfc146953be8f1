"""Step: axes share a node's interfaces, whatever hides behind what."""

from __future__ import annotations

import itertools

import numpy as np
import pytest

from planner.cost.arrays import Float
from planner.cost.estimate import estimate_layouts
from planner.cost.network.groups import Groups
from planner.cost.operators.blocks import blocks_of
from planner.cost.scenario import Scenario
from planner.cost.shards.layouts import Layouts
from planner.cost.shards.stages import Stages
from planner.cost.step.block_pass import block_passes
from planner.cost.step.communication.context_parallel import context_s
from planner.cost.step.communication.data_parallel import data_traffic
from planner.cost.step.communication.expert_parallel import expert_s
from planner.cost.step.communication.pipeline_p2p import send_stage_s
from planner.cost.step.communication.tensor_parallel import (
    StreamTraffic,
    repeated_tensor_s,
    tensor_s,
)
from planner.cost.step.overlap import exposed_traffic
from planner.describe.catalogue import load_machine
from planner.describe.layout import Layout
from tests.descriptions import scenario


def sent_between_nodes_s(q: Scenario, layouts: Layouts) -> Float:
    """How long a step keeps the interfaces of a node busy, one axis after the other [s]."""
    stages, groups = Stages.candidates(q, layouts), Groups.of(layouts, q.machine)
    m, full, sent = layouts.num_microbatches, layouts.recomputes_layers, np.zeros(len(layouts))
    for block, count in zip(stages.blocks, stages.counts, strict=True):
        ahead, back = tensor_s(q, block, layouts, groups)
        again = repeated_tensor_s(q, block, layouts, ahead)
        tensor = np.where(groups.tensor.nodes > 1, ahead + back + again, 0.0)
        ahead, back = context_s(q, block, layouts, groups)
        ring = np.where(groups.context.nodes > 1, ahead + back + np.where(full, ahead, 0.0), 0.0)
        expert = np.zeros(())
        if block.dispatch_top_k:
            ahead, back = expert_s(q, block, layouts, groups)
            expert = np.where(groups.expert.nodes > 1, ahead + back + np.where(full, ahead, 0), 0.0)
        # of every block the fewest that a stage holds
        sent = sent + m * np.min(count, axis=-1) * (tensor + ring + expert)
    handed = 2 * m * layouts.vpp * send_stage_s(q, layouts, groups)
    sent = sent + np.where(groups.pipeline.nodes > 1, handed, 0.0)
    least = stages.at(np.argmin(stages.params.unsharded, axis=-1)[..., None])
    traffic, framework = data_traffic(least, groups), q.framework
    data = layouts.gathers_per_step(framework) * traffic.before_forward_s + traffic.parameters_s
    data = data + layouts.backward_gathers_per_step(framework) * traffic.before_backward_s
    reduced = traffic.gradients_s + traffic.after_backward_s
    data = data + layouts.reductions_per_step(framework) * reduced
    return sent + np.where(groups.shard.nodes > 1, data, 0.0)


@pytest.mark.parametrize("tokens", [4096, 65536])
@pytest.mark.parametrize("framework", ["megatron-lm", "fsdp2"])
def test_no_interface_carries_more_than_a_step_has_time_for(framework: str, tokens: int) -> None:
    """Whatever hides behind what, axes that leave a node leave it one after the other."""
    slow = load_machine("polaris", ("node.nic_bytes_per_s=5GB/s",))
    q = scenario(framework=framework, machine=slow, sequence_length=tokens)
    layouts = Layouts.stack(
        Layout(dp=2, tp=tp, cp=cp, pp=pp, vpp=vpp, zero_stage=stage, grad_accumulation=4).replaced(
            schedule=schedule, recompute=recompute
        )
        for tp, cp, stage in itertools.product((1, 8), (1, 8), range(4))
        for pp, vpp, schedule in ((1, 1, "none"), (4, 1, "1f1b"), (4, 4, "interleaved-1f1b"))
        for recompute in ("none", "full")
    )
    found = estimate_layouts(q, layouts)
    steps_s = np.array([found[index].step_time_s for index in range(len(layouts))])
    assert np.all(steps_s >= sent_between_nodes_s(q, layouts) * (1 - 1e-9))


def test_experts_behind_another_micro_batch_leave_less_for_gradients() -> None:
    """DeepEP with merged passes, on a network on which both take about as long as computation."""
    slow = load_machine("selene", ("node.nic_bytes_per_s=12GB/s",))
    q = scenario("mixtral-8x7b", framework="megatron-deepep", machine=slow)
    layouts = Layouts.stack(
        Layout(dp=16, tp=8, ep=ep, micro_batch=rows, grad_accumulation=2, zero_stage=1)
        for ep, rows in itertools.product((2, 4, 8), (1, 4))
    )
    work = block_passes(q, blocks_of(q), layouts)[1]
    assert np.all(work.behind_forward_s + work.behind_backward_s > 0)
    found = estimate_layouts(q, layouts)
    steps_s = np.array([found[index].step_time_s for index in range(len(layouts))])
    assert np.all(steps_s >= sent_between_nodes_s(q, layouts) * (1 - 1e-9))


def test_gradients_find_what_the_ring_leaves_of_the_interfaces() -> None:
    """Keys and values that hide behind attention leave the node when gradients do, too."""
    q = scenario(machine="polaris", sequence_length=32768)
    layouts = Layouts.of(Layout(tp=4, cp=4, dp=2, zero_stage=1, grad_accumulation=2))
    stages, groups = Stages.of(q, layouts, 0), Groups.of(layouts, q.machine)
    passes = block_passes(q, stages.blocks, layouts)
    behind = [float(stages.total([p.behind_forward_s for p in passes]))]
    behind.append(float(stages.total([p.behind_backward_s for p in passes])))
    assert min(behind) > 0
    forward = float(stages.total([p.compute.forward_s for p in passes]))
    backward = float(stages.total([p.compute.backward_s for p in passes]))
    left = exposed_traffic(
        stages,
        data_traffic(stages, groups),
        np.asarray(forward - behind[0]),
        np.asarray(backward - behind[1]),
    )
    parts = estimate_layouts(q, layouts)[0].step_time_parts_s
    assert parts["gradient_reduction"] == pytest.approx(float(left.gradients_s))
    assert parts["parameter_update_gathering"] == pytest.approx(float(left.updates_s))


def column_backward(layout: Layout, *, kept: bool = False) -> tuple[float, float, float, float]:
    """What overlapping saves in a layer, what there is to hide, and the products that hide it."""
    q = scenario("llama-3-8b", machine="polaris")
    kernels = q.framework.kernels.replaced(saves_gathered=kept).model_dump()
    rules = q.framework.communication
    assert rules.overlap_tensor_backward
    awaited = rules.replaced(overlap_tensor_backward=False).model_dump()
    behind = q.framework.replaced(kernels=kernels)
    layouts, (_, layer, _) = Layouts.of(layout), blocks_of(q)
    groups = Groups.of(layouts, q.machine)
    hidden, plain = (
        block_passes(Scenario(q.model, q.machine, q.workload, each), (layer,), layouts)[0]
        for each in (behind, behind.replaced(communication=awaited))
    )
    assert hidden.forward_traffic_s == plain.forward_traffic_s
    saved = (plain.tensor_s - hidden.tensor_s).item() / (1 - rules.contention.value)
    job = Scenario(q.model, q.machine, q.workload, behind)
    gather, reduce = StreamTraffic.of(job, layouts, groups).column_backward_s(job, layer, layouts)
    products = hidden.compute.column_input_s.item(), hidden.compute.column_weight_s.item()
    return saved, gather.item(), reduce.item(), min(products)


def test_backward_of_column_parallel_products_covers_their_traffic() -> None:
    saved, gather, reduce, product = column_backward(Layout(tp=4, sequence_parallel=True))
    assert max(gather, reduce) < product
    assert saved == pytest.approx(gather + reduce)
    saved, gather, reduce, _ = column_backward(Layout(tp=4, sequence_parallel=True), kept=True)
    assert (saved, gather) == (pytest.approx(reduce), 0)
    saved, gather, reduce, _ = column_backward(Layout(tp=4))  # one all-reduce
    assert (saved, gather) == (pytest.approx(reduce), 0)


def test_products_hide_no_more_than_they_last() -> None:
    # over two nodes the traffic takes longer than the products beside it
    saved, gather, reduce, product = column_backward(Layout(tp=8, sequence_parallel=True))
    assert product < min(gather, reduce)
    assert 2 * product <= saved < gather + reduce
