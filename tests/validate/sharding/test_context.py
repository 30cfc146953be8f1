"""Ulysses on real ranks: the attention of one process, in as many bytes as are counted."""

from __future__ import annotations

import pytest

from planner.cost.network.groups import Groups
from planner.cost.operators.blocks import blocks_of
from planner.cost.shards.layouts import Layouts
from planner.cost.step.communication.context_parallel import heads_s
from planner.describe.catalogue import load_model
from planner.describe.layout import Layout
from planner.validate.ranks.launch import launch
from tests.descriptions import scenario

pytest.importorskip("torch")
pytestmark = [pytest.mark.alone, pytest.mark.filterwarnings("ignore")]


def test_real_ranks_send_what_is_counted() -> None:
    """Two ranks, 8 heads and 4 of keys and values, in fp64: four all-to-alls either way."""
    tokens, heads, keys, width, world = 64, 8, 4, 16, 2
    payload = {"tokens": tokens, "heads": heads, "keys": keys, "width": width}
    ranks = launch("tests.validate.sharding.ulysses:on_ranks", world, payload, limit_s=300)
    model = load_model("llama-3.2-1b").replaced(
        num_heads=heads, num_kv_heads=keys, head_dim=width, hidden_size=heads * width
    )
    q = scenario(model, sequence_length=tokens, global_batch=1)
    layouts = Layouts.of(Layout(cp=world, ulysses=world))
    counted = sum(heads_s(q, blocks_of(q)[1], layouts, Groups.unit(layouts)))
    for rank in ranks:
        assert rank["error"] < 1e-12
        ((name, count, size),) = rank["sent"]
        assert (name, count) == ("all_to_all", 8)
        # whole buffers of eight bytes an element; a half of two stays
        leaves = size * (world - 1) / world
        assert leaves == pytest.approx(float(counted) * 8 / q.workload.compute_bytes, rel=1e-12)
