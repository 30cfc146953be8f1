"""One memory: where devices compute in the host's memory, nothing is counted twice or moved."""

from __future__ import annotations

import pytest

from planner.choose.legality import check
from planner.choose.search import search
from planner.cost.memory.footprint import footprints
from planner.cost.shards.layouts import Layouts
from planner.describe.layout import Layout
from planner.errors import LayoutError
from tests.descriptions import scenario

CPU = {"machine": "vsc-4", "precision": "fp32", "sequence_length": 1024, "global_batch": 8}


def test_a_cpu_node_s_memory_holds_what_its_devices_take() -> None:
    found = footprints(
        scenario("gpt2", "deepspeed", **CPU), Layouts.of(Layout(dp=2, micro_batch=4))
    )
    assert found.host_parts_bytes["device_memory"] == found.memory_bytes
    # the process is the context of such a device: it is there once
    assert found.host_parts_bytes["processes"] == 0
    assert found.host_memory_bytes == found.memory_bytes


def test_other_machines_have_two_memories() -> None:
    found = footprints(scenario("gpt2", "deepspeed", global_batch=8), Layouts.of(Layout(dp=8)))
    assert found.host_parts_bytes["device_memory"] == 0
    assert found.host_parts_bytes["processes"] > 0


def test_states_on_the_disk_share_the_node_with_the_devices() -> None:
    layout = Layout(dp=1, zero_stage=3, micro_batch=8, offload="optimizer-nvme")
    found = footprints(scenario("gpt2-xl", "deepspeed", **CPU), Layouts.of(layout))
    buffers = found.host_parts_bytes["pinned_buffers"] + found.host_parts_bytes["offloaded_states"]
    assert buffers > 0
    assert found.host_memory_bytes == pytest.approx(float(found.memory_bytes + buffers))


@pytest.mark.parametrize("offload", ["optimizer-cpu", "all-cpu"])
def test_nothing_is_offloaded_from_a_cpu_to_itself(offload: str) -> None:
    layout = Layout(dp=2, zero_stage=3, micro_batch=4, offload=offload)  # type: ignore[arg-type]
    with pytest.raises(LayoutError, match="vsc-4 compute in the host's memory; use offload none"):
        check(scenario("gpt2", "deepspeed", **CPU), layout)


def test_the_search_offers_no_offload_from_a_cpu() -> None:
    job = scenario("mistral-7b", "deepspeed", **CPU)
    taken = search(job, 2).footprints
    assert len(taken)
    assert not taken.layouts.states_on_host.any()
    assert (taken.host_memory_bytes[taken.fits] <= 96e9).all()
