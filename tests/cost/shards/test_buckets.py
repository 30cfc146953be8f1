"""Buckets: into how many collectives gradients are cut, beside torch's own order."""

from __future__ import annotations

import pytest

from planner.cost.shards.stages import Stages
from planner.cost.step.communication.data_parallel import num_buckets
from planner.describe.layout import Layout
from tests.descriptions import scenario

MIB = 2**20


def filled(sizes: list[float], limit: float) -> int:
    """Buckets of torch's compute_bucket_assignment_by_size: tensors from the last to the first, a
    bucket closes with the one that fills it."""
    closed, held = 0, 0.0
    for size in reversed(sizes):
        held += size
        if held >= limit:
            closed, held = closed + 1, 0.0
    return closed + (held > 0)


def llama(hidden: int, ffn: int, kv: int, layers: int, tp: int) -> list[float]:
    """Matrices of a Llama in the order of its modules [elements]."""
    layer = [(hidden + 2 * kv) * hidden, hidden * hidden, 2 * ffn * hidden, ffn * hidden]
    table = 128256 * hidden
    return [size / tp for size in [table, *layer * layers, table]]


@pytest.mark.parametrize("tp", [1, 2, 4])
def test_buckets_close_with_the_matrices_that_fill_them(tp: int) -> None:
    # 25 MiB of 16-bit gradients; by the average size alone there would be 612, 306 and 153
    job = scenario("llama-3-8b", framework="nanotron")
    expected = filled(llama(4096, 14336, 1024, 32, tp), 12.5 * MIB)
    found = num_buckets(Stages.of_pipeline(job, Layout(tp=tp)), 12.5 * MIB)
    assert expected in (130, 98, 66)
    assert found.item() == pytest.approx(expected, rel=0.31)


def test_small_matrices_share_buckets_that_end_half_a_matrix_late() -> None:
    # equal matrices of x elements: buckets of bucket + x / 2, as drawn from any point on
    job = scenario("gpt2", framework="ddp")
    stages = Stages.of_pipeline(job, Layout())
    found = num_buckets(stages, 1e9)
    assert found.item() == 1
    one, two = (num_buckets(stages, size).item() for size in (20e6, 10e6))
    assert one < two < 2 * one + 1


def test_no_bucket_is_smaller_than_one_matrix() -> None:
    job = scenario("llama-3-8b", framework="nanotron")
    matrices = 4 * 32 + 2
    assert num_buckets(Stages.of_pipeline(job, Layout()), 1.0).item() <= matrices


def test_a_framework_without_buckets_sends_one_buffer() -> None:
    assert num_buckets(Stages.of_pipeline(scenario("gpt2"), Layout(pp=2)), 0).tolist() == [1, 1]
