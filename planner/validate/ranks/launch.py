"""Launch: start ranks on this machine, watch them, and leave nothing behind.

A rank that dies ends the run within `DEATH_S`, one that hangs within its time limit and
`GRACE_S`; the error names the rank and what it did last. Ranks meet through a file in a private
folder, so no port is open before gloo connects its pairs on the loopback interface. Should this
process itself be killed, every rank notices its pipe closing, removes the folder and exits.
"""

from __future__ import annotations

import contextlib
import faulthandler
import importlib
import multiprocessing
import multiprocessing.connection
import os
import platform
import shutil
import signal
import sys
import tempfile
import threading
import time
import traceback
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from planner.errors import PlannerError
from planner.validate.ranks.rank import Rank, RankError

__all__ = ["DEATH_S", "GRACE_S", "launch"]

DEATH_S = 10.0
"""A rank that died ends the run within this time [s]."""
GRACE_S = 10.0
"""Beyond its time limit, a rank that hangs ends the run within this time [s]."""
_SETTLE_S = 2.0
"""After a first failure, time for the others to report theirs: the cause may come second."""
_PEER_SIGNS = (
    "closed by peer",
    "reset by peer",
    "timed out",
    "timeout",
    "broken pipe",
    "connection",
    "socket",
    "aborted",
)
_FOLDER = "planner-validate-"
_PRELOAD = [
    "torch",
    "torch._dynamo",
    "torch.distributed.fsdp",
    "torch.distributed.pipelining",
    "torch.distributed.tensor.parallel",
    "torch.distributed.optim",
]

Message = tuple[str, Any]
Progress = Callable[[int, str], None]


@dataclass(slots=True)
class _Watched:
    """What the supervisor knows of a rank."""

    rank: int
    process: Any
    pipe: Any
    seen_s: float
    last: str = "starting"
    done: bool = False
    result: Any = None
    failure: tuple[str, str] | None = None
    """Kind (died, error, peer) and text."""
    lines: list[str] = field(default_factory=list)


def launch(
    entry: str,
    world: int,
    payload: dict[str, Any],
    *,
    limit_s: float = 60.0,
    progress: Progress | None = None,
    on_result: Callable[[Any], None] | None = None,
) -> list[Any]:
    """Run `entry` ("module:function") as `world` ranks; its return values in rank order.

    The function gets (rank: Rank, payload, send) and may `send` partial results. A rank without
    progress for `limit_s` is taken to hang. Raises RankError with the rank that is to blame.
    """
    if world < 1:
        raise RankError(f"world = {world} must be at least 1; give the number of ranks")
    context = multiprocessing.get_context("forkserver")
    context.set_forkserver_preload(_PRELOAD)
    folder = _private_folder()
    watched: list[_Watched] = []
    alive_read, alive_write = context.Pipe(duplex=False)
    try:
        with _quiet_threads():
            for rank in range(world):
                here, there = context.Pipe(duplex=False)
                process = context.Process(
                    target=_rank_main,
                    args=(rank, world, entry, payload, str(folder), limit_s, there, alive_read),
                    daemon=True,
                )
                process.start()
                there.close()
                watched.append(_Watched(rank, process, here, time.monotonic()))
        alive_read.close()
        _supervise(watched, folder, limit_s, progress, on_result)
        return [item.result for item in watched]
    finally:
        _end(watched)
        alive_write.close()
        shutil.rmtree(folder, ignore_errors=True)


def _private_folder() -> Path:
    """A new folder; those of runs that were killed with all their ranks at once are removed."""
    mine = f"{_FOLDER}{platform.node()}-"
    for stale in Path(tempfile.gettempdir()).glob(f"{mine}*"):
        owner = stale.name.removeprefix(mine).partition("-")[0]
        if owner.isdigit() and not _alive(int(owner)):
            shutil.rmtree(stale, ignore_errors=True)
    try:
        return Path(tempfile.mkdtemp(prefix=f"{mine}{os.getpid()}-"))
    except OSError as error:
        raise RankError(
            f"cannot make a folder for the ranks to meet: {error.strerror}; set TMPDIR to a "
            "place with space"
        ) from None


def _alive(pid: int) -> bool:
    try:
        os.kill(pid, 0)
    except ProcessLookupError:
        return False
    except OSError:
        return True  # another user's
    return True


@contextlib.contextmanager
def _quiet_threads() -> Iterator[None]:
    """One thread per rank, also in libraries that read the environment once at import."""
    before = {name: os.environ.get(name) for name in ("OMP_NUM_THREADS", "MKL_NUM_THREADS")}
    os.environ.update({name: "1" for name in before})
    try:
        yield
    finally:
        for name, value in before.items():
            if value is None:
                del os.environ[name]
            else:
                os.environ[name] = value


def _end(watched: list[_Watched]) -> None:
    for item in watched:
        if item.process.is_alive():
            item.process.kill()
    for item in watched:
        item.process.join(5)
        item.pipe.close()


# --- supervision -----------------------------------------------------------------------------


def _supervise(
    watched: list[_Watched],
    folder: Path,
    limit_s: float,
    progress: Progress | None,
    on_result: Callable[[Any], None] | None,
) -> None:
    first_failure: float | None = None
    while not all(item.done for item in watched):
        _wait(watched, progress, on_result)
        now = time.monotonic()
        failed = [item for item in watched if item.failure]
        if failed and first_failure is None:
            first_failure = now
        if failed and first_failure is not None:
            # a rank that only lost its peers speaks first; the cause follows at once
            certain = any(item.failure and item.failure[0] == "died" for item in failed)
            everyone = all(item.failure or item.done for item in watched)
            if certain or everyone or now - first_failure > _SETTLE_S:
                raise RankError(_blame(watched, folder, limit_s))
        late = [i for i in watched if not i.done and now - i.seen_s > limit_s + GRACE_S / 2]
        if late:
            raise RankError(_blame(watched, folder, limit_s))


def _wait(
    watched: list[_Watched], progress: Progress | None, on_result: Callable[[Any], None] | None
) -> None:
    open_items = [item for item in watched if not item.done and item.failure is None]
    handles = [item.pipe for item in open_items] + [i.process.sentinel for i in open_items]
    if not handles:
        time.sleep(0.05)
        return
    ready = set(multiprocessing.connection.wait(handles, timeout=0.5))
    for item in open_items:
        if item.pipe in ready or item.process.sentinel in ready:
            _read(item, progress, on_result)


def _read(
    item: _Watched, progress: Progress | None, on_result: Callable[[Any], None] | None
) -> None:
    try:
        while item.pipe.poll():
            kind, value = item.pipe.recv()
            item.seen_s = time.monotonic()
            if kind == "progress":
                item.last = value
                if progress:
                    progress(item.rank, value)
            elif kind == "partial" and on_result:
                on_result(value)
            elif kind == "done":
                item.done, item.result = True, value
            elif kind in ("error", "peer"):
                item.failure = (kind, value)
    except (EOFError, OSError):
        pass
    if not item.done and item.failure is None and not item.process.is_alive():
        item.failure = ("died", _how_it_died(item.process.exitcode))


def _how_it_died(code: int | None) -> str:
    if code is not None and code < 0:
        try:
            name = signal.Signals(-code).name
        except ValueError:
            name = f"signal {-code}"
        hint = "; the kernel does this when memory runs out" if name == "SIGKILL" else ""
        return f"was ended by {name}{hint}"
    return f"exited with code {code} without a result"


def _blame(watched: list[_Watched], folder: Path, limit_s: float) -> str:
    """The rank that is the cause: died, then failed by itself, then silent, then cut off."""
    world = len(watched)
    by_kind: dict[str, list[_Watched]] = {"died": [], "error": [], "peer": []}
    for item in watched:
        if item.failure:
            by_kind[item.failure[0]].append(item)
    silent = [item for item in watched if not item.failure and not item.done]
    if by_kind["died"]:
        item = by_kind["died"][0]
        return f"rank {item.rank} of {world} {item.failure[1]}, while {item.last}"  # type: ignore[index]
    if by_kind["error"]:
        item = by_kind["error"][0]
        return f"rank {item.rank} of {world}, while {item.last}: {item.failure[1]}"  # type: ignore[index]
    if silent:
        item = min(silent, key=lambda i: i.seen_s)
        waited = time.monotonic() - item.seen_s
        return (
            f"rank {item.rank} of {world} hangs: no progress for {waited:.0f} s (limit "
            f"{limit_s:.0f} s), last {item.last}{_stack(item, folder)}"
        )
    item = by_kind["peer"][0]
    return f"rank {item.rank} of {world} lost the others while {item.last}: {item.failure[1]}"  # type: ignore[index]


def _stack(item: _Watched, folder: Path) -> str:
    """Where a hanging rank stands, from faulthandler; empty where it cannot answer."""
    if not hasattr(signal, "SIGUSR1") or item.process.pid is None:
        return ""
    with contextlib.suppress(OSError):
        os.kill(item.process.pid, signal.SIGUSR1)
        time.sleep(0.5)
        text = (folder / f"stack.{item.rank}").read_text(errors="replace")
        own = text.partition("Current thread")[2]
        frames = [line.strip() for line in own.splitlines() if line.strip().startswith("File")]
        return f", in {frames[0]}" if frames else ""
    return ""


# --- in the rank -----------------------------------------------------------------------------


def _rank_main(
    rank: int,
    world: int,
    entry: str,
    payload: dict[str, Any],
    folder: str,
    limit_s: float,
    pipe: Any,
    alive: Any,
) -> None:
    """First and last function of a rank's process."""
    lock = threading.Lock()

    def send(kind: str, value: Any) -> None:
        with lock, contextlib.suppress(OSError):
            pipe.send((kind, value))

    signal.signal(signal.SIGINT, signal.SIG_IGN)  # the supervisor decides
    threading.Thread(target=_die_with_parent, args=(alive, folder), daemon=True).start()
    stack = open(Path(folder) / f"stack.{rank}", "w")  # noqa: SIM115 - lives as long as the rank
    if hasattr(faulthandler, "register"):
        faulthandler.register(signal.SIGUSR1, file=stack)
    here = Rank(
        rank,
        world,
        rank,
        "planner",
        f"file://{folder}/rendezvous",
        limit_s,
        Path(folder),
        lambda text: send("progress", text),
    )
    try:
        module, function = entry.split(":")
        result = getattr(importlib.import_module(module), function)(
            here, payload, lambda value: send("partial", value)
        )
        send("done", result)
    except BaseException as error:
        send(_kind(error), _describe(error))
        # peers may wait in a collective that C++ would wait for at exit
        os._exit(1)
    finally:
        sys.stdout.flush()
        sys.stderr.flush()


def _kind(error: BaseException) -> str:
    if isinstance(error, PlannerError):
        return "error"
    text = str(error).lower()
    return "peer" if any(sign in text for sign in _PEER_SIGNS) else "error"


def _describe(error: BaseException) -> str:
    text = str(error).strip().splitlines()[0][:300] if str(error).strip() else ""
    if isinstance(error, PlannerError):
        return text
    frames = traceback.extract_tb(error.__traceback__)
    place = f" ({Path(frames[-1].filename).name}:{frames[-1].lineno})" if frames else ""
    return f"{type(error).__name__}: {text}{place}"


def _die_with_parent(alive: Any, folder: str) -> None:
    """Wait for the supervisor's end of the pipe to close."""
    with contextlib.suppress(EOFError, OSError):
        alive.recv()
    shutil.rmtree(folder, ignore_errors=True)
    os._exit(1)
