"""Collectives on ranks that are threads: their results, times and rates."""

from __future__ import annotations

from typing import Any

import pytest

pytest.importorskip("torch")

import torch
import torch.distributed as dist

from planner.validate.measure import collective_times as module
from planner.validate.ranks.rank import Rank, RankError
from tests.validate.threads import on_threads

# threads have no messages between two ranks, and no reduction to one
OPERATIONS = tuple(name for name in module.OPERATIONS if name not in ("reduce", "send_receive"))


@pytest.mark.parametrize("name", OPERATIONS)
def test_every_operation_gives_its_result(name: str) -> None:
    on_threads(lambda rank: module._check(name, rank, 4096), 3)


@pytest.mark.parametrize(
    ("name", "call", "wrong"),
    [
        ("broadcast", "broadcast", lambda tensor, *_, **__: tensor.mul_(2)),
        ("all_reduce", "all_reduce", lambda tensor, *_, **__: tensor.mul_(2)),
        ("scatter", "scatter", lambda tensor, *_, **__: None),
        ("all_to_all", "all_to_all_single", lambda out, *_, **__: None),
    ],
)
def test_a_wrong_result_is_named(
    name: str, call: str, wrong: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(dist, call, wrong)
    with pytest.raises(RankError, match=f"of 2 disagrees: {name} of 4096 bytes gave a wrong"):
        on_threads(lambda rank: module._check(name, rank, 4096))


def test_a_message_goes_there_and_back(monkeypatch: pytest.MonkeyPatch) -> None:
    """What rank 0 sends comes back; half of the time is one message."""
    sent: list[torch.Tensor] = []
    monkeypatch.setattr(dist, "send", lambda tensor, _: sent.append(tensor.clone()))
    monkeypatch.setattr(dist, "recv", lambda tensor, _: tensor.copy_(sent[-1]))
    for number in (0, 1):
        if number:
            sent[:] = [(torch.arange(1024) % 251).float()]
        module._check("send_receive", _rank(number), 4096)
    monkeypatch.setattr(dist, "recv", lambda tensor, _: tensor.zero_())
    for number in (0, 1):
        with pytest.raises(RankError, match=f"rank {number} of 2 disagrees: send_receive"):
            module._check("send_receive", _rank(number), 4096)


def test_a_reduction_is_the_sum_on_rank_0(monkeypatch: pytest.MonkeyPatch) -> None:
    def summed(tensor: torch.Tensor, _: int) -> None:
        tensor += tensor + 1

    monkeypatch.setattr(dist, "reduce", summed)
    module._check("reduce", _rank(0), 4096)
    monkeypatch.setattr(dist, "reduce", lambda *_: None)
    module._check("reduce", _rank(1), 4096)
    with pytest.raises(RankError, match="reduce of 4096 bytes gave a wrong"):
        module._check("reduce", _rank(0), 4096)


def _rank(number: int) -> Rank:
    return Rank(number, 2, number, "planner", "nowhere", 60.0)


def test_a_rank_measures_times_and_rates(monkeypatch: pytest.MonkeyPatch) -> None:
    """Every call takes 2 s on rank 0 and 1 s on rank 1: the slower one counts."""

    def seconds(rank: Rank, call: Any, repeats: int = 1) -> float:
        call()
        return 2.0 - rank.rank

    monkeypatch.setattr(Rank, "seconds", seconds)
    operations = ("all_gather", "gather")
    rows = on_threads(lambda rank: module.time_operations(rank, operations, (4096, 8192)))
    assert rows[0] == rows[1]
    first, _, last, _ = rows[0]
    assert [(row["name"], row["bytes"]) for row in rows[0]] == [
        (name, size) for name in operations for size in (4096, 8192)
    ]
    assert (first["ranks"], first["time_s"], first["median_s"]) == (2, 2.0, 2.0)
    # in a step the rank that arrives last does not wait
    assert (first["in_step_s"], first["scatter"]) == (1.0, 0.0)
    assert first["bus_bytes_per_s"] == pytest.approx(4096 / 2.0 * 0.5)
    assert "in_step_s" not in last


def test_rounds_take_their_share_of_the_budget(monkeypatch: pytest.MonkeyPatch) -> None:
    """0.04 s in 7 rounds of calls of 1 ms: five calls a round; a short call at most 200 times."""
    asked: list[int] = []
    call_s = 1e-3

    def seconds(_: Rank, call: Any, repeats: int = 1) -> float:
        asked.append(repeats)
        return call_s

    monkeypatch.setattr(Rank, "seconds", seconds)
    times = on_threads(lambda rank: module._isolated_s("all_reduce", rank, 4096), 1)
    assert times == [[call_s] * 7]
    assert asked == [1, *[5] * 7]
    asked.clear()
    call_s = 1e-9
    on_threads(lambda rank: module._isolated_s("all_reduce", rank, 4096), 1)
    assert asked == [1, *[200] * 7]


def test_fast_rounds_that_differ_are_refused_where_asked(monkeypatch: pytest.MonkeyPatch) -> None:
    apart = module.Repeated(1.0, 0.6)
    monkeypatch.setattr(module, "_in_step", lambda *_: apart)

    def timed(refuses: bool) -> list[Any]:
        return on_threads(
            lambda rank: module.time_operations(
                rank, ("broadcast",), (4096,), refuses_scatter=refuses
            )
        )

    assert timed(refuses=False)[0][0]["scatter"] == 0.6
    with pytest.raises(RankError, match="fastest times differ by 60 %"):
        timed(refuses=True)


RESULT = {
    "rows": [
        {"name": "all_reduce", "bytes": 4096, "ranks": 4, "time_s": 2.5e-5, "in_step_s": 3e-5,
         "bus_bytes_per_s": 2.4576e8},
        {"name": "unknown", "bytes": 1024, "ranks": 4, "time_s": 1e-5, "bus_bytes_per_s": 7.7e7},
    ],
    "nodes": 2,
    "load": {"why_not": "4 ranks share 2 cores"},
}  # fmt: skip


def test_texts_of_a_result() -> None:
    """For calibration only what estimates use."""
    assert module.collectives_csv(RESULT).splitlines() == [
        "collective,nodes,ranks,size_bytes,time_us",
        "all_reduce,2,4,4096,25.000",
    ]
    assert module.collectives_text(RESULT).splitlines() == [
        "operation            bytes    time us  in a step us  bus GB/s",
        "all_reduce            4096       25.0          30.0     0.246",
        "unknown               1024       10.0                   0.077",
        "not scored: 4 ranks share 2 cores",
    ]


@pytest.mark.parametrize(
    ("asked", "words"),
    [
        ({"operations": ("all_reduce", "none", "any")}, "unknown operation any, none; use some of"),
        ({"world": 1}, "world = 1: a collective needs 2 or more ranks"),
        ({"sizes": ()}, r"sizes \[\] must be 4 bytes or more"),
        ({"sizes": (4, 3)}, r"sizes \[4, 3\] must be 4 bytes or more each"),
    ],
)
def test_what_cannot_be_measured(asked: dict[str, Any], words: str) -> None:
    with pytest.raises(RankError, match=words):
        module.measure_collectives(asked.pop("world", 2), **asked)


def test_only_the_first_rank_of_a_launcher_gets_the_result(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    asked: list[Any] = []

    def launch(entry: str, world: int, payload: dict[str, Any], **_: Any) -> list[Any]:
        asked.append((entry, world, payload))
        return [RESULT]

    monkeypatch.setattr(module, "launch", launch)
    assert module.measure_collectives(3, operations=("gather",), sizes=(4,)) == RESULT
    assert asked == [
        ("planner.validate.measure.collective_times:run_rank", 3,
         {"operations": ["gather"], "sizes": [4]})
    ]  # fmt: skip
    for number, result in ((0, RESULT), (1, None)):
        monkeypatch.setattr(module, "external_rank", lambda _, n=number: _rank(n))
        assert module.measure_collectives(8) == result
        assert asked[-1][1] == 2
