"""Weights that stay sharded over fewer ranks, and what is quantised on its way."""

from __future__ import annotations

import numpy as np
import pytest

from planner.cost.estimate import estimate_layouts
from planner.cost.memory.weights import gathered, resident
from planner.cost.network.collectives import all_to_all_s, phased_all_to_all_s
from planner.cost.network.groups import Groups
from planner.cost.network.topology import group_view
from planner.cost.scenario import Scenario
from planner.cost.shards.layouts import Layouts
from planner.cost.shards.stages import Stages
from planner.cost.step.communication.bytes_per_axis import step_traffic
from planner.cost.step.communication.data_parallel import data_traffic
from planner.describe.catalogue import load_framework, load_machine
from planner.describe.layout import Layout
from tests.descriptions import scenario

FAR = Layout(dp=96, zero_stage=3, recompute="full", grad_accumulation=4)
NEAR = FAR.replaced(reshard=12)


def _scenario(framework: str = "deepspeed") -> Scenario:
    asked = {"sequence_length": 4096, "global_batch": 384}
    return scenario("llama-3-8b", load_framework(framework), "aurora", **asked)


def test_a_second_copy_stays_with_deepspeed_and_goes_with_torch() -> None:
    """ZeRO++, arXiv:2306.10209, section 3.2: 2 psi / 12 besides, all the step; fully_shard keeps it
    from a layer's forward pass to its backward pass, and none of the head's."""
    for framework, stays in (("deepspeed", True), ("fsdp2", False)):
        q = _scenario(framework)
        far, near = (Stages.of_pipeline(q, layout) for layout in (FAR, NEAR))
        psi, head = q.model.num_params, q.model.vocab_size * q.model.hidden_size
        besides = (resident(near).weights - resident(far).weights).item()
        assert besides == pytest.approx(2 * psi / 12 if stays else 0, rel=1e-6)
        window = gathered(near, np.zeros(())).in_forward - gathered(far, np.zeros(())).in_forward
        layer = 218_112_000
        between = 0 if stays else 2 * (psi - head - layer) / 12
        assert window.item() == pytest.approx(between, rel=0.01)  # rows are padded


def test_backward_gathers_stay_on_the_node() -> None:
    """Of four passes DeepSpeed gathers the first from all ranks, and seven times inside a node;
    torch gathers for every forward pass from all."""
    psi = _scenario().model.num_params
    for framework, far_gathers in (("deepspeed", 1), ("fsdp2", 4)):
        q = _scenario(framework)
        whole, split = (step_traffic(q, layout)["dp"] for layout in (FAR, NEAR))
        # what no longer leaves the node
        saved = (8 - far_gathers) * 2 * psi * 95 / 96
        assert whole.node_bytes - split.node_bytes == pytest.approx(saved, rel=1e-3)
        near = (8 - far_gathers) * 2 * psi * 11 / 12
        assert whole.device_bytes - split.device_bytes == pytest.approx(saved - near, rel=1e-3)
        times = estimate_layouts(q, Layouts.stack([FAR, NEAR])).step_time_s
        assert times[1] < times[0]


def test_quantised_traffic() -> None:
    """qwZ halves what is gathered, qgZ sends a 4-bit gradient through the node and an n-th part of
    it between nodes; what is not sent costs time on the device."""
    plain, weights, gradients = (
        _scenario(f"deepspeed{switch}")
        for switch in ("", "+quantized-weights", "+quantized-gradients")
    )
    layouts = Layouts.of(FAR)
    units, psi = Groups.unit(layouts), plain.model.num_params
    sent, narrow, short = (
        data_traffic(Stages.of(q, layouts, 0), units) for q in (plain, weights, gradients)
    )
    assert float(narrow.before_forward_s / sent.before_forward_s) == pytest.approx(0.5, rel=1e-3)
    assert float(narrow.after_backward_s) == float(sent.after_backward_s)
    # 16-bit gradients
    assert float(short.after_backward_s / sent.after_backward_s) == pytest.approx(1 / 4, rel=1e-6)
    fraction = plain.framework.communication.gather_fraction.value
    assert float(sent.after_backward_s) * fraction == pytest.approx(2 * psi * 95 / 96, rel=1e-3)
    times = [float(estimate_layouts(q, layouts).step_time_s) for q in (plain, weights, gradients)]
    assert min(times[1:]) < times[0]
    # on one node nothing is left to save, and quantising is not free
    here = Layouts.of(Layout(dp=12, zero_stage=3, recompute="full", grad_accumulation=32))
    alone = [float(estimate_layouts(q, here).step_time_s) for q in (plain, gradients)]
    assert alone[1] >= alone[0]


def test_sums_inside_a_node_leave_less_for_the_network() -> None:
    """64 ranks of 8 nodes: what leaves a node is an eighth of what an all-to-all sends."""
    group = group_view(load_machine("dgx-h100"), 64, 1)
    size = 2.0**33
    flat, phased = (float(found(group, size)) for found in (all_to_all_s, phased_all_to_all_s))
    assert phased < flat / 3
