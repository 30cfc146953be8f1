"""Ranks: what each launcher says of a process."""

from __future__ import annotations

import math

import pytest

from planner.validate.ranks.launch import launch
from planner.validate.ranks.rank import Rank, RankError, external_rank, joined


@pytest.mark.parametrize(
    ("environment", "expected"),
    [
        (
            {
                "RANK": "3",
                "WORLD_SIZE": "4",
                "LOCAL_RANK": "1",
                "MASTER_ADDR": "node1",
                "MASTER_PORT": "1234",
            },
            (3, 4, 1, "tcp://node1:1234"),
        ),
        (
            {
                "OMPI_COMM_WORLD_RANK": "1",
                "OMPI_COMM_WORLD_SIZE": "2",
                "OMPI_COMM_WORLD_LOCAL_RANK": "1",
            },
            (1, 2, 1, "tcp://127.0.0.1:29500"),
        ),
        ({"PMI_RANK": "0", "PMI_SIZE": "8"}, (0, 8, 0, "tcp://127.0.0.1:29500")),
        (
            {
                "SLURM_PROCID": "5",
                "SLURM_NTASKS": "8",
                "SLURM_LOCALID": "1",
                "SLURM_STEP_ID": "0",
                "SLURM_LAUNCH_NODE_IPADDR": "10.0.0.7",
            },
            (5, 8, 1, "tcp://10.0.0.7:29500"),
        ),
    ],
)
def test_ranks_of_launchers(
    environment: dict[str, str], expected: tuple[int, int, int, str]
) -> None:
    rank = external_rank(60, environment)
    assert rank is not None
    assert (rank.rank, rank.world, rank.local_rank, rank.rendezvous) == expected


def test_a_batch_script_is_no_rank() -> None:
    assert external_rank(60, {"SLURM_PROCID": "0", "SLURM_NTASKS": "8"}) is None
    assert external_rank(60, {}) is None


@pytest.mark.parametrize(
    ("environment", "words"),
    [
        ({"RANK": "x", "WORLD_SIZE": "4"}, "RANK='x' must be a whole number"),
        ({"RANK": "0", "WORLD_SIZE": "4", "LOCAL_RANK": ""}, "LOCAL_RANK='' must be"),
        ({"RANK": "4", "WORLD_SIZE": "4"}, "between 0 and"),
        ({"PMI_RANK": "0", "PMI_SIZE": "8", "PMI_LOCAL_SIZE": "4"}, "set MASTER_ADDR"),
        ({"PMI_RANK": "0", "PMI_SIZE": "8", "PMI_LOCAL_SIZE": "abc"}, "PMI_LOCAL_SIZE='abc' must"),
        *(
            (
                {"PMI_RANK": "0", "PMI_SIZE": "2", "MASTER_PORT": port},
                "must lie between 1 and 65535",
            )
            for port in ("-1", "0", "99999", "http", "9" * 5000)
        ),
    ],
)
def test_impossible_launchers(environment: dict[str, str], words: str) -> None:
    with pytest.raises(RankError, match=words):
        external_rank(60, environment)


@pytest.mark.parametrize("limit_s", [math.nan, math.inf, -math.inf, 0.1, 1e9])
def test_a_limit_is_one_that_ranks_can_keep(limit_s: float) -> None:
    with pytest.raises(RankError, match="at least 5 s and at most 1,000,000 s"):
        external_rank(limit_s, {"PMI_RANK": "0", "PMI_SIZE": "2"})
    with pytest.raises(RankError, match="limit = "):
        launch("nothing:nothing", 1, {}, limit_s=limit_s)


def group_that_is_left(rank: Rank, payload: object, send: object) -> bool:
    import weakref

    from torch import distributed as dist

    with joined(rank):
        group = weakref.ref(dist.group.WORLD)
    return group() is not None


@pytest.mark.alone
def test_a_group_outlives_what_was_trained_with_it() -> None:
    """Else a model of DDP is its last owner, whose destructor may wait for ever."""
    assert launch("tests.validate.ranks.test_rank:group_that_is_left", 1, {}, limit_s=300) == [True]
