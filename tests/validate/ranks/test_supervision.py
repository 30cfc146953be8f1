"""What a supervisor hears of its ranks, and what a rank says of itself."""

from __future__ import annotations

import faulthandler
import os
import re
import signal
import threading
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from planner.errors import LayoutError
from planner.validate.ranks import launch as launching
from planner.validate.ranks import rank as ranks
from planner.validate.ranks import rank_process as process
from planner.validate.ranks.launch import Failure, RankState
from planner.validate.ranks.rank import Rank, RankError
from planner.validate.ranks.rank_process import MessageKind


@pytest.mark.parametrize(
    ("code", "words"),
    [
        (3, "exited with code 3 without a result"),
        (None, "exited with code None without a result"),
        (-signal.SIGTERM, "was ended by SIGTERM"),
        (-signal.SIGKILL, "was ended by SIGKILL; the kernel does this when memory runs out"),
        (-200, "was ended by signal 200"),
    ],
)
def test_how_a_rank_died(code: int | None, words: str) -> None:
    assert launching._how_it_died(code) == words


class _Pipe:
    """A pipe with messages that wait, and then perhaps its end."""

    def __init__(self, *messages: Any, ends: bool = False) -> None:
        self.messages, self.ends = list(messages), ends

    def poll(self) -> bool:
        return bool(self.messages) or self.ends

    def recv(self) -> Any:
        if not self.messages:
            raise EOFError
        return self.messages.pop(0)


class _Process:
    pid, exitcode = None, -9

    def __init__(self, alive: bool = True) -> None:
        self.alive = alive

    def is_alive(self) -> bool:
        return self.alive


def _heard(*messages: Any, ends: bool = False, alive: bool = True) -> tuple[RankState, list[Any]]:
    said: list[Any] = []
    state = RankState(1, _Process(alive), _Pipe(*messages, ends=ends), 0.0)
    launching._read(state, lambda rank, text: said.append((rank, text)), said.append)
    return state, said


def test_messages_of_a_rank_are_passed_on() -> None:
    before = time.monotonic()
    state, said = _heard(
        (MessageKind.PROGRESS, "adding"), (MessageKind.PARTIAL, 3), (MessageKind.DONE, 7)
    )
    assert said == [(1, "adding"), 3]
    assert (state.done, state.result, state.last, state.failure) == (True, 7, "adding", None)
    assert state.seen_s >= before
    assert state.ended


@pytest.mark.parametrize(
    ("kind", "failure"),
    [(MessageKind.ERROR, Failure.ERROR), (MessageKind.PEER_GONE, Failure.PEER_GONE)],
)
def test_a_failure_is_kept_with_its_words(kind: MessageKind, failure: Failure) -> None:
    # the process may have ended since: what it said counts
    state, _ = _heard((kind, "why"), ends=True, alive=False)
    assert (state.failure, state.message, state.ended, state.done) == (failure, "why", True, False)


def test_a_rank_that_ends_without_a_word_has_died() -> None:
    state, _ = _heard(ends=True, alive=False)
    assert state.failure is Failure.DIED
    assert state.message.startswith("was ended by SIGKILL")
    waiting, _ = _heard()
    assert not waiting.ended


def _supervised(
    monkeypatch: pytest.MonkeyPatch, heard: Callable[[list[RankState], float], None], limit_s: float
) -> float:
    """Supervise two ranks by a clock of whole seconds; the time at which it ended."""
    now = 0.0
    monkeypatch.setattr(launching.time, "monotonic", lambda: now)

    def wait(watched: list[RankState], *_: Any) -> None:
        nonlocal now
        now += 1.0
        heard(watched, now)

    monkeypatch.setattr(launching, "_wait", wait)
    states = [RankState(rank, _Process(), None, 0.0) for rank in (0, 1)]
    try:
        launching._supervise(states, Path(), limit_s, None, None)
    except RankError as error:
        raise RankError(f"{now:g} s: {error}") from error
    return now


def test_ranks_are_waited_for_until_all_are_done(monkeypatch: pytest.MonkeyPatch) -> None:
    def heard(watched: list[RankState], now: float) -> None:
        for state in watched:
            state.done = state.done or now > 3 + state.rank
            state.seen_s = now

    assert _supervised(monkeypatch, heard, 10.0) == 5.0


def test_a_rank_that_dies_is_named_at_once(monkeypatch: pytest.MonkeyPatch) -> None:
    def heard(watched: list[RankState], now: float) -> None:
        watched[0].seen_s = now
        if now == 2:
            watched[1].failure, watched[1].message = Failure.DIED, "exited"

    with pytest.raises(RankError, match="2 s: rank 1 of 2 exited, while starting"):
        _supervised(monkeypatch, heard, 100.0)


def test_the_cause_may_come_after_what_it_caused(monkeypatch: pytest.MonkeyPatch) -> None:
    """The first report is of a lost peer; that rank's own error comes within five seconds."""

    def heard(watched: list[RankState], now: float, cause: float) -> None:
        if now == 1:
            watched[0].failure = Failure.PEER_GONE
        if now == cause:
            watched[1].failure, watched[1].message = Failure.ERROR, "a fault"

    with pytest.raises(RankError, match="4 s: rank 1 of 2, while starting: a fault"):
        _supervised(monkeypatch, lambda watched, now: heard(watched, now, 4), 100.0)
    with pytest.raises(RankError, match="7 s: rank 1 of 2 hangs"):
        _supervised(monkeypatch, lambda watched, now: heard(watched, now, 9), 100.0)


def test_silence_ends_five_seconds_after_its_limit(monkeypatch: pytest.MonkeyPatch) -> None:
    def heard(watched: list[RankState], now: float) -> None:
        watched[0].seen_s = now

    words = r"26 s: rank 1 of 2 hangs: no progress for 26 s \(limit 20 s\), last starting"
    with pytest.raises(RankError, match=words):
        _supervised(monkeypatch, heard, 20.0)


def test_where_a_rank_hangs_is_read_from_its_stack(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    asked: list[Any] = []
    monkeypatch.setattr(os, "kill", lambda *told: asked.append(told))
    monkeypatch.setattr(launching.time, "sleep", lambda _: None)
    state = RankState(2, type("Running", (), {"pid": 4321})(), None, 0.0)
    assert launching._stack(state, tmp_path) == ""
    place = process.stack_file(tmp_path, 2)
    place.write_text(
        'Thread 0x01 (most recent call first):\n  File "/a/other.py", line 1 in wait\n\n'
        'Current thread 0x02 (most recent call first):\n  File "/a/run.py", line 7 in inner\n'
        '  File "/a/run.py", line 9 in outer\n'
    )
    assert launching._stack(state, tmp_path) == ', in File "/a/run.py", line 7 in inner'
    assert asked == [(4321, signal.SIGUSR1)] * 2
    assert launching._stack(RankState(0, _Process(), None, 0.0), tmp_path) == ""


def test_interrupts_wait_until_ranks_have_started() -> None:
    before = signal.pthread_sigmask(signal.SIG_BLOCK, ())
    with launching.interrupts_blocked():
        assert signal.SIGINT in signal.pthread_sigmask(signal.SIG_BLOCK, ())
    assert signal.pthread_sigmask(signal.SIG_BLOCK, ()) == before


def test_a_rank_of_a_launcher_works_here() -> None:
    sent: list[Any] = []
    rank = Rank(1, 2, 1, "torchrun", "tcp://a:1", 60.0)
    entry = f"{__name__}:work"
    assert launching.launch(entry, 2, {"plus": 2}, on_result=sent.append, outer=rank) == [3]
    assert sent == ["begun"]
    assert launching.launch(entry, 2, {"plus": 5}, outer=rank) == [6]
    with pytest.raises(RankError, match="world = 0 must be at least 1; give the number of ranks"):
        launching.launch(entry, 0, {})
    with pytest.raises(RankError, match="limit = 1 s must be at least 5 s"):
        launching.launch(entry, 1, {}, limit_s=1)


def work(rank: Rank, payload: dict[str, Any], send: Callable[[Any], None]) -> Any:
    """What ranks do in these tests."""
    if "fault" in payload:
        raise payload["fault"]
    rank.report("adding")
    send("begun")
    return rank.rank + payload["plus"]


class _Left(Exception):
    pass


@pytest.mark.parametrize(
    ("payload", "last"),
    [
        ({"plus": 1}, (MessageKind.DONE, 2)),
        ({"fault": LayoutError("tp = 3 is odd")}, (MessageKind.ERROR, "tp = 3 is odd")),
        # a planner's own error is no lost peer, whatever its words
        ({"fault": RankError("a timeout")}, (MessageKind.ERROR, "a timeout")),
        ({"fault": RuntimeError("Connection closed by peer\nmore")}, (MessageKind.PEER_GONE, None)),
        ({"fault": ValueError("")}, (MessageKind.ERROR, None)),
    ],
)
def test_a_rank_process_says_what_it_does(
    payload: dict[str, Any], last: Any, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    sent: list[Any] = []
    pipe = type("Pipe", (), {"send": lambda _, message: sent.append(message)})()
    never = type("Never", (), {"recv": lambda _: threading.Event().wait()})()

    def leave(code: int) -> None:
        raise _Left(code)

    stacks: list[Any] = []
    monkeypatch.setattr(signal, "signal", lambda *_: None)
    monkeypatch.setattr(faulthandler, "register", lambda _, file: stacks.append(file))
    monkeypatch.setattr(process.os, "_exit", leave)
    asked = (1, 2, f"{__name__}:work", payload, str(tmp_path), 60.0, pipe, never)
    if "fault" in payload:
        with pytest.raises(_Left, match="1"):
            process.rank_main(*asked)
    else:
        process.rank_main(*asked)
        assert sent[:2] == [(MessageKind.PROGRESS, "adding"), (MessageKind.PARTIAL, "begun")]
    stacks[0].close()  # a rank leaves it open as long as it lives
    kind, words = sent[-1]
    assert kind is last[0]
    assert words == last[1] if last[1] is not None else f"{Path(__file__).name}:" in words
    assert int((tmp_path / "pid.1").read_text()) == os.getpid()
    assert stacks[0].name == str(process.stack_file(tmp_path, 1))


def test_errors_of_a_rank_are_one_line_with_their_place() -> None:
    with pytest.raises(ZeroDivisionError) as caught:
        1 // 0  # noqa: B018
    line = caught.traceback[-1].lineno + 1
    told = process._describe(caught.value)
    assert told.startswith("ZeroDivisionError: ")
    assert told.endswith(f" ({Path(__file__).name}:{line})")
    assert process._describe(OSError("")) == "OSError: "
    assert len(process._describe(OSError("x" * 999))) == 309


@pytest.mark.parametrize(
    ("rendezvous", "error", "words"),
    [
        (
            "tcp://node1:29500", "EADDRINUSE: taken",
            "port 29500 is in use on this node; set MASTER_PORT to a free one",
        ),
        ("tcp://node1:7", "Address already in use", "port 7 is in use on this node"),
        (
            "tcp://node1:29500", "wait timed out\nand more",
            "rank 1 of 2 could not join the others at tcp://node1:29500 within 60 s: wait timed "
            "out; check that all ranks started",
        ),
        ("file:///x", "", "could not join the others at file:///x within 60 s: RuntimeError;"),
    ],
)  # fmt: skip
def test_why_ranks_do_not_meet(rendezvous: str, error: str, words: str) -> None:
    rank = Rank(1, 2, 1, "torchrun", rendezvous, 60.0)
    assert words in ranks._why_not(rank, RuntimeError(error))


def test_a_watched_rank_reports_and_names_lost_peers(capsys: pytest.CaptureFixture[str]) -> None:
    for number, shown in ((0, "building\n"), (1, "")):
        rank = Rank(number, 2, number, "srun", "tcp://a:1", 60.0)
        words = f"rank {number} of 2 failed or lost its peers while building: gone"
        with pytest.raises(RankError, match=words), ranks.watching(rank) as watched:
            _lose(watched)
        assert capsys.readouterr().err == shown
    with pytest.raises(LayoutError, match="own"), ranks.watching(rank):
        raise LayoutError("own")


def _lose(rank: Rank) -> None:
    rank.report("building")
    raise RuntimeError("gone\nfor good")


def test_a_silent_rank_says_where_it_is_and_ends(
    capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    ended = threading.Event()
    monkeypatch.setattr(ranks.os, "_exit", lambda code: ended.set() if code == 1 else None)
    rank = Rank(1, 2, 1, "srun", "tcp://a:1", 0.5)  # the line comes two seconds before
    with ranks.watching(rank):
        assert ended.wait(60)
    said = capsys.readouterr().err
    where = r"last starting, in \w+\.py:\d+ \(\w+\)"
    assert re.match(
        rf"planner: rank 1 of 2 has made no progress for \d+ s \(limit 0 s\), {where}", said
    ), said


def test_a_rank_that_is_at_work_is_left_alone(
    capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    ended: list[int] = []
    monkeypatch.setattr(ranks.os, "_exit", ended.append)
    with ranks.watching(Rank(1, 2, 1, "srun", "tcp://a:1", 60.0)):
        time.sleep(0.6)  # two looks of the watch
    assert ended == []
    assert capsys.readouterr().err == ""


def test_one_rank_is_a_group(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    torch = pytest.importorskip("torch")
    threads = torch.get_num_threads()
    monkeypatch.delenv("GLOO_SOCKET_IFNAME", raising=False)
    rank = Rank(0, 1, 0, "planner", f"file://{tmp_path}/meet", 60.0, tmp_path)
    try:
        with ranks.joined(rank):
            assert ranks.gather_objects({"a": 1}) == [{"a": 1}]
            assert torch.get_num_threads() == 1
        assert not torch.distributed.is_initialized()
        with (
            pytest.raises(RankError, match="rank 1 of 1 could not join"),
            ranks.joined(Rank(1, 1, 0, "planner", f"file://{tmp_path}/meet", 60.0, tmp_path)),
        ):
            pass
    finally:
        torch.set_num_threads(threads)
        os.environ.pop("GLOO_SOCKET_IFNAME", None)
