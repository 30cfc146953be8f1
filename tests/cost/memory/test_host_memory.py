"""Host memory: what loading takes where a node cannot hold whole checkpoints."""

from __future__ import annotations

import pytest

import planner
from planner.describe.catalogue import load_machine
from planner.describe.layout import Layout
from planner.describe.workload import Workload

_JOB = Workload(sequence_length=1024, global_batch=512, precision="fp16")


def host(offload: str, room: str = "1.5TiB") -> dict[str, float]:
    """Parts of a trillion parameters on 32 nodes of 16 cards."""
    machine = load_machine("dgx-2", (f"node.host_memory_bytes={room}",))
    layout = Layout(dp=512, zero_stage=3, offload=offload, recompute="full")
    found = planner.estimate("ptdp-1t", machine, layout, workload=_JOB, framework="deepspeed")
    return found.host_memory_bytes


def test_a_trillion_parameters_are_made_in_shards() -> None:
    # arXiv:2104.07857 trains them on these nodes; two bytes of each are more than one holds
    params = planner.load_model("ptdp-1t").num_params
    assert 2 * params > 1.5 * 2**40
    parts = host("optimizer-cpu")
    assert parts["total"] < 1.5 * 2**40
    # a node has as much of them as its ranks
    loaded = host("none")["checkpoint_load"]
    assert loaded == pytest.approx(2 * params / 32, rel=0.01)
    # weights on the disk go there as they are made
    assert host("all-nvme")["checkpoint_load"] == 0


def test_one_whole_checkpoint_is_loaded_where_it_can_be() -> None:
    params = planner.load_model("ptdp-1t").num_params
    assert host("none", "3TiB")["checkpoint_load"] == pytest.approx(2 * params, rel=0.01)
