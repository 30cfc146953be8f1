"""Rank process: its start and end, its messages to the supervisor, and the folder of a run."""

import contextlib
import faulthandler
import functools
import importlib
import os
import platform
import shutil
import signal
import sys
import tempfile
import threading
import traceback
from collections.abc import Callable
from enum import Enum
from multiprocessing import util
from pathlib import Path
from typing import Any

from planner.errors import PlannerError, shorten_path
from planner.validate.ranks.rank import LAUNCH, Rank, RankError


class MessageKind(Enum):
    """Kinds of messages from a rank."""

    PROGRESS = "current activity"
    PARTIAL = "intermediate result"
    DONE = "return value; the last message"
    ERROR = "own failure; the last message"
    PEER_GONE = "lost peer; the last message"


def stack_file(folder: Path, rank: int) -> Path:
    """File to which a rank writes its stack on SIGUSR1."""
    return folder / f"stack.{rank}"


def find_entry(entry: str) -> Callable[[Rank, dict[str, Any], Callable[[Any], None]], Any]:
    """Import the function that "module:function" names."""
    module, function = entry.split(":")
    call: Callable[..., Any] = getattr(importlib.import_module(module), function)
    return call


def rank_main(
    rank: int,
    world: int,
    entry: str,
    payload: dict[str, Any],
    folder: str,
    limit_s: float,
    pipe: Any,
    alive: Any,
) -> None:
    """Run a rank's function in its process and send the result."""
    lock = threading.Lock()

    def send(kind: MessageKind, value: Any) -> None:
        with lock, contextlib.suppress(OSError):
            pipe.send((kind, value))

    signal.signal(signal.SIGINT, signal.SIG_IGN)  # the supervisor decides
    threading.Thread(target=_die_with_parent, args=(alive, folder), daemon=True).start()
    try:
        write_pid(Path(folder), rank)
        stack = open(stack_file(Path(folder), rank), "w")  # noqa: SIM115 - lives as the rank does
    except FileNotFoundError:
        return  # the launcher was interrupted and has removed the folder
    if hasattr(faulthandler, "register"):
        faulthandler.register(signal.SIGUSR1, file=stack)
    rank_context = Rank(
        rank,
        world,
        rank,
        "planner",
        f"file://{folder}/rendezvous",
        limit_s,
        Path(folder),
        lambda text: send(MessageKind.PROGRESS, text),
    )
    try:
        send_partial = functools.partial(send, MessageKind.PARTIAL)
        result = find_entry(entry)(rank_context, payload, send_partial)
        send(MessageKind.DONE, result)
    except BaseException as error:
        send(_cause(error), _describe(error))
        # a normal exit would wait in C++ for a collective that peers still wait in
        os._exit(1)
    finally:
        sys.stdout.flush()
        sys.stderr.flush()


def _cause(error: BaseException) -> MessageKind:
    text = str(error).lower()
    lost = not isinstance(error, PlannerError) and any(
        sign in text for sign in LAUNCH["peer_signs"]
    )
    return MessageKind.PEER_GONE if lost else MessageKind.ERROR


def _describe(error: BaseException) -> str:
    text = str(error).strip().splitlines()[0][:300] if str(error).strip() else ""
    if isinstance(error, PlannerError):
        return text
    frames = traceback.extract_tb(error.__traceback__)
    place = f" ({Path(frames[-1].filename).name}:{frames[-1].lineno})" if frames else ""
    return f"{type(error).__name__}: {text}{place}"


def _die_with_parent(alive: Any, folder: str) -> None:
    """End all ranks when the supervisor's end of the pipe closes."""
    with contextlib.suppress(EOFError, OSError):
        alive.recv()
    end_peers(Path(folder))
    os._exit(1)


_PREFIX, _SOCKETS = "planner-validate-", "sockets"
_SOCKETS_PREFIX = "pymp-"  # multiprocessing's
_LONGEST_SOCKET, _SOCKET_NAME = 103, len("/listener-01234567")
"""Longest socket path on every system, and length of the name that multiprocessing adds [B]."""


def private_folder() -> Path:
    """Make a folder for a run, and remove those of killed runs. Raises RankError if it cannot."""
    own_prefix = f"{_PREFIX}{platform.node()}-"
    try:
        sockets = Path(util.get_temp_dir())
        _sweep(Path(tempfile.gettempdir()), own_prefix)
        folder = Path(tempfile.mkdtemp(prefix=f"{own_prefix}{os.getpid()}-"))
        (folder / _SOCKETS).symlink_to(sockets)
    except OSError as error:
        reason = error.strerror or "no folder is writable"
        raise RankError(
            f"cannot make a folder for the rendezvous of the ranks: {reason.lower()}; set TMPDIR "
            "to a writable folder with free space"
        ) from None
    if len(os.fsencode(sockets)) + _SOCKET_NAME > _LONGEST_SOCKET:
        shutil.rmtree(folder, ignore_errors=True)
        raise RankError(
            f"the folder for temporary files {shorten_path(sockets.parent)} is too long for "
            "sockets; set TMPDIR to a shorter path, such as /tmp"
        )
    return folder


def write_pid(folder: Path, rank: int) -> None:
    """Write the process id of a rank to the folder, so that other ranks can end it."""
    with contextlib.suppress(OSError):  # without the file, only a stopped rank would stay
        (folder / f"pid.{rank}").write_text(str(os.getpid()))


def end_peers(folder: Path) -> None:
    """End the other ranks, even stopped ones, and remove the folder of a killed launcher."""
    for pid_file in folder.glob("pid.*"):
        with contextlib.suppress(OSError, ValueError):
            pid = int(pid_file.read_text())
            if pid != os.getpid():
                os.kill(pid, signal.SIGKILL)
    _remove(folder)


def _remove(folder: Path) -> None:
    with contextlib.suppress(OSError):
        sockets = Path(os.readlink(folder / _SOCKETS))
        if sockets.name.startswith(_SOCKETS_PREFIX):
            shutil.rmtree(sockets, ignore_errors=True)
    shutil.rmtree(folder, ignore_errors=True)


def _sweep(place: Path, own_prefix: str) -> None:
    for stale in place.glob(f"{own_prefix}*"):
        owner = stale.name.removeprefix(own_prefix).partition("-")[0]
        if owner.isdigit() and not _alive(int(owner)) and stale.stat().st_uid == os.getuid():
            _remove(stale)


def _alive(pid: int) -> bool:
    try:
        os.kill(pid, 0)
    except ProcessLookupError:
        return False
    except OSError:
        return True  # a process of another user
    return True
