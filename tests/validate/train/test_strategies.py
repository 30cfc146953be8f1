"""Strategies: their degrees, and the bytes that follow from their definition."""

from __future__ import annotations

import pytest

from planner.validate.train.strategies import STRATEGIES, spread_of, strategies_on


def test_every_strategy_has_a_world() -> None:
    assert strategies_on(2) == strategies_on(4)
    assert {*strategies_on(1), *strategies_on(2), *strategies_on(8)} == set(STRATEGIES)
    assert set(strategies_on(8)) - set(strategies_on(2)) == {"3d"}


@pytest.mark.parametrize(
    ("strategy", "world", "degrees"),
    [
        ("single", 1, (1, 1, 1)),
        ("ddp", 4, (4, 1, 1)),
        ("zero3", 2, (2, 1, 1)),
        ("sp", 4, (1, 4, 1)),
        ("interleaved", 2, (1, 1, 2)),
        ("3d", 8, (2, 2, 2)),
    ],
)
def test_degrees(strategy: str, world: int, degrees: tuple[int, int, int]) -> None:
    spread = spread_of(strategy, world)
    assert (spread.dp, spread.tp, spread.pp) == degrees
    assert spread.world == world


def test_expected_bytes_by_hand() -> None:
    pytest.importorskip("torch")
    from planner.validate.train.expected import expected_bytes, expected_state_bytes
    from planner.validate.train.tasks import Task

    task = Task()  # batch 8, sequence 128, width 256, 4 layers, vocabulary 512
    layer = (4 * 256 * 256) + 2 * 4 * 256 * 256 + 5 * 256 + 4 * 256
    whole = 4 * (4 * layer + (512 + 128) * 256 + 2 * 256 + 512 * 256)
    assert 4 * task.model.num_params == whole
    assert expected_bytes(task, spread_of("ddp", 4), 0) == {("all_reduce", "dp"): whole}
    assert expected_bytes(task, spread_of("zero3", 4), 0) == {
        ("all_gather", "dp"): 2 * whole,
        ("reduce_scatter", "dp"): whole,
    }
    stream = 8 * 128 * 256 * 4
    # two regions of a layer, forward and backward; the embedding, the head, and full logits
    assert expected_bytes(task, spread_of("tp", 2), 0) == {
        ("all_reduce", "tp"): (4 * 4 + 2) * stream,
        ("all_gather", "tp"): 8 * 128 * 512 * 4,
    }
    # a message per micro-batch and direction: the middle of a pipeline has two neighbours
    assert expected_bytes(task, spread_of("1f1b", 4), 1)["send", "pp"] == 2 * stream
    zero1 = [expected_state_bytes(task, spread_of("zero1", 3), 0, rank) for rank in range(3)]
    owned = [each["optimizer_states"] for each in zero1 if each is not None]
    assert sum(owned) == 2 * whole
    # largest first to the emptiest rank: no two differ by more than the largest matrix
    assert 0 < max(owned) - min(owned) <= 8 * 4 * 256 * 256
    assert expected_state_bytes(task, spread_of("zero2", 4), 0) == {
        "parameters": whole // 4,
        "optimizer_states": whole // 2,
    }
