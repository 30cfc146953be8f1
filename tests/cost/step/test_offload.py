"""Offload: transfers over the host link, updates on the CPU, states on the disk."""

from __future__ import annotations

import functools

import numpy as np
import pytest

from planner.cost.estimate import estimate_layouts
from planner.cost.shards.layouts import Layouts
from planner.cost.shards.stages import Stages
from planner.cost.step.offload import offload_step_s, parameter_transfer_s
from planner.cost.step.optimizer import device_optimizer_s
from planner.describe.catalogue import load_machine
from planner.describe.layout import OFFLOAD, Layout
from planner.describe.question import Question
from tests import descriptions

MODES = [Layout(dp=4, zero_stage=3, offload=mode) for mode in OFFLOAD]  # type: ignore[arg-type]


question = functools.partial(
    descriptions.question, framework="deepspeed", sequence_length=2048, global_batch=4
)


def first_stages(q: Question, layouts: Layouts) -> Stages:
    return Stages.of(q, layouts, 0)


def test_the_update_runs_on_the_device_or_on_the_host() -> None:
    q, layouts = question(), Layouts.stack(MODES)
    stages = first_stages(q, layouts)
    device = device_optimizer_s(stages)
    host = offload_step_s(stages)
    assert (device > 0).tolist() == [True, False, False, False, False]
    assert (host > 0).tolist() == [False, True, True, True, True]
    assert host[1] > 10 * device[0]  # 205 GB/s shared by four ranks against 1555 GB/s each


def test_cpu_update_is_bound_by_the_host_s_memory() -> None:
    # at least fp32 weights and both moments of all parameters of the node, read and written
    q, layouts = question(), Layouts.stack(MODES[1:2])
    time = offload_step_s(first_stages(q, layouts))
    moved = 2 * 12 * q.model.num_params
    assert float(time[0]) > moved / q.machine.node.host_memory_bytes_per_s.value


def test_disk_reads_and_writes_every_state_once() -> None:
    # Rajbhandari et al. 2021, arXiv:2104.07857: 12 bytes a parameter each way, 6.6 GB/s a node
    q, layouts = question(), Layouts.stack(MODES[2:3])
    time = offload_step_s(first_stages(q, layouts))
    assert float(time[0]) == pytest.approx(2 * 12 * q.model.num_params / 6.6e9, rel=0.1)


def test_parameters_travel_only_where_they_live_off_the_device() -> None:
    q, layouts = question(), Layouts.stack(MODES)
    time = parameter_transfer_s(first_stages(q, layouts))
    assert (time > 0).tolist() == [False, False, False, True, True]
    # a quarter of 8.03e9 parameters of 2 bytes over 25 GB/s per device
    assert float(time[3]) == pytest.approx(2 * q.model.num_params / 4 / 25e9, rel=1e-3)
    assert time[4] >= time[3]


@pytest.mark.parametrize(
    ("field", "mode"),
    [
        ("node.host_link_bytes_per_s", 1),
        ("node.host_memory_bytes_per_s", 1),
        ("node.local_disk.read_bytes_per_s", 2),
        ("node.host_link_bytes_per_s", 3),
    ],
)
def test_slower_hardware_is_never_faster(field: str, mode: int) -> None:
    layouts = Layouts.of(MODES[mode])
    here = estimate_layouts(question(), layouts)
    slow = estimate_layouts(question(machine=load_machine("polaris", (f"{field}=1GB/s",))), layouts)
    assert slow.time_parts_s["offload"] > here.time_parts_s["offload"]
    assert slow.step_time_s > here.step_time_s


def test_a_node_without_disk_takes_for_ever() -> None:
    q, layouts = question(machine=load_machine("aurora")), Layouts.stack(MODES[2:3])
    assert q.machine.node.local_disk is None
    time = offload_step_s(first_stages(q, layouts))
    assert np.isinf(time).all()
