"""Folder: where the ranks of one run meet, and what is left of a run that is killed.

A launcher that is killed removes nothing. Its ranks notice, end each other and remove the folder
and that of the sockets; what a run leaves that is killed with all its ranks, the next one removes.
"""

from __future__ import annotations

import contextlib
import os
import platform
import shutil
import signal
import tempfile
from multiprocessing import util
from pathlib import Path

from planner.errors import shorten_path
from planner.validate.ranks.rank import RankError

__all__ = ["abandon", "enter", "private_folder"]

_PREFIX, _SOCKETS = "planner-validate-", "sockets"
_SOCKETS_PREFIX = "pymp-"  # multiprocessing's
_LONGEST_SOCKET, _SOCKET_NAME = 103, len("/listener-01234567")
"""Bytes of a socket's path on every system, and of what multiprocessing adds to its folder."""


def private_folder() -> Path:
    """A new folder; those of runs that were killed with all their ranks at once are removed.

    Raises RankError where there is no usable place for temporary files.
    """
    mine = f"{_PREFIX}{platform.node()}-"
    try:
        sockets = Path(util.get_temp_dir())
        _sweep(Path(tempfile.gettempdir()), mine)
        folder = Path(tempfile.mkdtemp(prefix=f"{mine}{os.getpid()}-"))
        (folder / _SOCKETS).symlink_to(sockets)
    except OSError as error:
        reason = error.strerror or "no place is usable"
        raise RankError(
            f"cannot make a folder for the ranks to meet: {reason.lower()}; set TMPDIR to a "
            "place with space that you may write"
        ) from None
    if len(os.fsencode(sockets)) + _SOCKET_NAME > _LONGEST_SOCKET:
        shutil.rmtree(folder, ignore_errors=True)
        raise RankError(
            f"the folder for temporary files {shorten_path(sockets.parent)} is too long for "
            "sockets; set TMPDIR to a shorter path, such as /tmp"
        )
    return folder


def enter(folder: Path, rank: int) -> None:
    """Note the process of a rank, so that the others can end it."""
    with contextlib.suppress(OSError):  # without it a stopped rank would stay
        (folder / f"pid.{rank}").write_text(str(os.getpid()))


def abandon(folder: Path) -> None:
    """End the other ranks, also stopped ones, and remove everything: the launcher was killed."""
    for noted in folder.glob("pid.*"):
        with contextlib.suppress(OSError, ValueError):
            pid = int(noted.read_text())
            if pid != os.getpid():
                os.kill(pid, signal.SIGKILL)
    _remove(folder)


def _remove(folder: Path) -> None:
    """A folder whose launcher is gone, and that of its sockets."""
    with contextlib.suppress(OSError):
        sockets = Path(os.readlink(folder / _SOCKETS))
        if sockets.name.startswith(_SOCKETS_PREFIX):
            shutil.rmtree(sockets, ignore_errors=True)
    shutil.rmtree(folder, ignore_errors=True)


def _sweep(place: Path, mine: str) -> None:
    for stale in place.glob(f"{mine}*"):
        owner = stale.name.removeprefix(mine).partition("-")[0]
        if owner.isdigit() and not _alive(int(owner)) and stale.stat().st_uid == os.getuid():
            _remove(stale)


def _alive(pid: int) -> bool:
    try:
        os.kill(pid, 0)
    except ProcessLookupError:
        return False
    except OSError:
        return True  # another user's
    return True
