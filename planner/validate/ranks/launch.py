"""Launch: start ranks, name one that dies or hangs (torch does not), and leave nothing behind."""

import contextlib
import math
import multiprocessing
import multiprocessing.connection
import os
import shutil
import signal
import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from enum import IntEnum
from pathlib import Path
from typing import Any
from unittest import mock

from planner.validate.ranks.rank import LAUNCH, Rank, RankError, check_limit, watching
from planner.validate.ranks.rank_process import (
    MessageKind,
    find_entry,
    private_folder,
    rank_main,
    stack_file,
)

_THREADS = ("OMP_NUM_THREADS", "MKL_NUM_THREADS")
_GRACE_S = 10.0
"""Time after its limit within which a hanging rank ends the run [s]."""
_SETTLE_S = 5.0
"""Time to wait after a first failure for other ranks' reports: the cause may come second [s]."""

Progress = Callable[[int, str], None] | None
"""Called with a rank and its current activity."""
OnResult = Callable[[Any], None] | None
"""Called with each partial result."""


class Failure(IntEnum):
    """Reason why a rank has no result; the rank with the lowest value is named as the cause."""

    DIED = 1
    ERROR = 2
    SILENT = 3
    PEER_GONE = 4


_FAILURES = {MessageKind.ERROR: Failure.ERROR, MessageKind.PEER_GONE: Failure.PEER_GONE}


@dataclass(slots=True)
class RankState:
    """State of a rank as its supervisor sees it."""

    rank: int
    process: Any
    pipe: Any
    seen_s: float
    last: str = "starting"
    done: bool = False
    result: Any = None
    failure: Failure | None = None
    message: str = ""

    @property
    def ended(self) -> bool:
        """True if the rank has a result or failed."""
        return self.done or self.failure is not None


def launch(
    entry: str,
    world: int,
    payload: dict[str, Any],
    *,
    limit_s: float = 60.0,
    progress: Progress = None,
    on_result: OnResult = None,
    outer: Rank | None = None,
) -> list[Any]:
    """Run `entry` ("module:function") on `world` ranks, or here as `outer`; results by rank."""
    if outer is not None:
        with watching(outer) as watched_rank:
            return [find_entry(entry)(watched_rank, payload, on_result or (lambda _: None))]
    if world < 1:
        raise RankError(f"world = {world} must be at least 1; give the number of ranks")
    check_limit(limit_s)
    context = multiprocessing.get_context("forkserver")
    context.set_forkserver_preload(LAUNCH["preload"])
    folder = private_folder()
    watched: list[RankState] = []
    alive_read, alive_write = context.Pipe(duplex=False)
    try:
        # one thread per rank, also in libraries that read the environment once at import
        with mock.patch.dict(os.environ, dict.fromkeys(_THREADS, "1")), interrupts_blocked():
            for rank in range(world):
                receiver, sender = context.Pipe(duplex=False)
                process = context.Process(
                    target=rank_main,
                    args=(rank, world, entry, payload, str(folder), limit_s, sender, alive_read),
                    daemon=True,
                )
                process.start()
                sender.close()
                watched.append(RankState(rank, process, receiver, time.monotonic()))
        alive_read.close()
        _supervise(watched, folder, limit_s, progress, on_result)
        return [item.result for item in watched]
    finally:
        for item in watched:
            if item.process.is_alive():
                item.process.kill()
        for item in watched:
            item.process.join(5)
            item.pipe.close()
        alive_write.close()
        shutil.rmtree(folder, ignore_errors=True)


@contextlib.contextmanager
def interrupts_blocked() -> Iterator[None]:
    """Block SIGINT in this thread until the end, so that processes started here inherit it."""
    if not hasattr(signal, "pthread_sigmask"):
        yield
        return
    from multiprocessing import resource_tracker

    # a tracker that starts later would unblock the signal again
    resource_tracker.ensure_running()
    mask = signal.pthread_sigmask(signal.SIG_BLOCK, {signal.SIGINT})
    try:
        yield
    finally:
        signal.pthread_sigmask(signal.SIG_SETMASK, mask)


def _supervise(
    watched: list[RankState], folder: Path, limit_s: float, progress: Progress, on_result: OnResult
) -> None:
    """Wait until every rank has a result. Raises RankError that names the rank at fault."""
    first_failure_s = math.inf
    while not all(item.done for item in watched):
        _wait(watched, progress, on_result)
        now_s = time.monotonic()
        failures = [item.failure for item in watched if item.failure is not None]
        if failures:
            first_failure_s = min(first_failure_s, now_s)
        # a rank that only lost its peers may report first; the cause follows soon
        clear = Failure.DIED in failures or all(item.ended for item in watched)
        settled = failures and (clear or now_s - first_failure_s > _SETTLE_S)
        silent_s = max((now_s - item.seen_s for item in watched if not item.done), default=0.0)
        if settled or silent_s > limit_s + _GRACE_S / 2:
            raise RankError(_blame(watched, folder, limit_s))


def _wait(watched: list[RankState], progress: Progress, on_result: OnResult) -> None:
    running = [item for item in watched if not item.ended]
    if not running:
        return
    handles = [handle for item in running for handle in (item.pipe, item.process.sentinel)]
    ready = set(multiprocessing.connection.wait(handles, timeout=0.5))
    for item in running:
        if item.pipe in ready or item.process.sentinel in ready:
            _read(item, progress, on_result)


def _read(item: RankState, progress: Progress, on_result: OnResult) -> None:
    try:
        while item.pipe.poll():
            kind, value = item.pipe.recv()
            item.seen_s = time.monotonic()
            if kind is MessageKind.PROGRESS:
                item.last = value
                if progress:
                    progress(item.rank, value)
            elif kind is MessageKind.PARTIAL and on_result:
                on_result(value)
            elif kind is MessageKind.DONE:
                item.done, item.result = True, value
            elif kind in _FAILURES:
                item.failure, item.message = _FAILURES[kind], value
    except (EOFError, OSError):
        pass
    if not item.ended and not item.process.is_alive():
        item.failure, item.message = Failure.DIED, _how_it_died(item.process.exitcode)


def _how_it_died(code: int | None) -> str:
    if code is not None and code < 0:
        try:
            name = signal.Signals(-code).name
        except ValueError:
            name = f"signal {-code}"
        hint = "; the kernel does this when memory runs out" if name == "SIGKILL" else ""
        return f"was ended by {name}{hint}"
    return f"exited with code {code} without a result"


def _blame(watched: list[RankState], folder: Path, limit_s: float) -> str:
    """Describe the rank that caused the failure; among silent ranks, the longest silent one."""
    causes = [(item.failure or Failure.SILENT, item.seen_s, item) for item in watched]
    failure, seen_s, item = min(
        (cause for cause in causes if not cause[2].done),
        key=lambda cause: (cause[0], cause[1] if cause[0] is Failure.SILENT else cause[2].rank),
    )
    who = f"rank {item.rank} of {len(watched)}"
    match failure:
        case Failure.DIED:
            return f"{who} {item.message}, while {item.last}"
        case Failure.ERROR:
            return f"{who}, while {item.last}: {item.message}"
        case Failure.SILENT:
            return (
                f"{who} hangs: no progress for {time.monotonic() - seen_s:.0f} s (limit "
                f"{limit_s:.0f} s), last {item.last}{_stack(item, folder)}"
            )
        case Failure.PEER_GONE:
            return f"{who} lost the other ranks while {item.last}: {item.message}"


def _stack(item: RankState, folder: Path) -> str:
    """Innermost frame of a hanging rank, from faulthandler; empty if it does not answer."""
    if not hasattr(signal, "SIGUSR1") or item.process.pid is None:
        return ""
    with contextlib.suppress(OSError):
        os.kill(item.process.pid, signal.SIGUSR1)
        time.sleep(0.5)
        text = stack_file(folder, item.rank).read_text(errors="replace")
        current_thread = text.partition("Current thread")[2]
        frames = [
            line.strip() for line in current_thread.splitlines() if line.strip().startswith("File")
        ]
        return f", in {frames[0]}" if frames else ""
    return ""
