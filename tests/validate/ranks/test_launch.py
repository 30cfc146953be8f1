"""Launching: what is left of killed runs, and which rank is to blame."""

from __future__ import annotations

import errno
import os
import platform
import signal
import subprocess
import sys
import tempfile
from multiprocessing import util
from pathlib import Path
from typing import Any

import pytest

from planner.validate.ranks.launch import Failure, RankState, _blame
from planner.validate.ranks.rank import RankError
from planner.validate.ranks.rank_process import _remove, end_peers, private_folder, write_pid


@pytest.fixture
def place(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A folder for temporary files, and one for sockets beside it."""
    monkeypatch.setattr(tempfile, "tempdir", str(tmp_path))
    sockets = tmp_path / "pymp-mine"
    sockets.mkdir()
    monkeypatch.setattr(util, "get_temp_dir", lambda: str(sockets))
    return tmp_path


def test_folders_of_killed_runs_are_swept(place: Path) -> None:
    ended = subprocess.Popen([sys.executable, "-c", ""])
    ended.wait()
    stale = place / f"planner-validate-{platform.node()}-{ended.pid}-x"
    other = place / f"planner-validate-elsewhere-{ended.pid}-x"
    sockets, precious = place / "pymp-gone", place / "precious"
    for path in (stale, other, sockets, precious):
        path.mkdir()
    (stale / "sockets").symlink_to(sockets)
    (other / "sockets").symlink_to(precious)
    made = private_folder()
    assert sorted(place.iterdir()) == sorted([made, other, precious, place / "pymp-mine"])
    _remove(other)  # what is no folder of sockets stays
    assert precious.exists()


def test_the_ranks_of_a_killed_launcher_end_each_other(place: Path) -> None:
    folder = private_folder()
    peer = subprocess.Popen([sys.executable, "-c", "import time; time.sleep(600)"])
    os.kill(peer.pid, signal.SIGSTOP)  # one that is stopped cannot leave by itself
    (folder / "pid.0").write_text(str(peer.pid))
    (folder / "pid.1").write_text("")  # one that had not begun
    write_pid(folder, 2)
    end_peers(folder)
    assert peer.wait(300) == -signal.SIGKILL
    assert list(place.iterdir()) == []


def test_a_place_that_is_too_long_for_sockets(place: Path, monkeypatch: Any) -> None:
    monkeypatch.setattr(util, "get_temp_dir", lambda: "/tmp/" + 100 * "x")
    with pytest.raises(RankError, match="too long for sockets; set TMPDIR to a shorter"):
        private_folder()
    assert [path.name for path in place.iterdir()] == ["pymp-mine"]


def test_no_place_at_all(monkeypatch: Any) -> None:
    def nowhere() -> str:
        raise FileNotFoundError(errno.ENOENT, "No usable temporary directory found in ['/a']")

    monkeypatch.setattr(util, "get_temp_dir", nowhere)
    with pytest.raises(RankError, match=r"no usable temporary directory.*set TMPDIR"):
        private_folder()


@pytest.mark.parametrize(
    ("failures", "words"),
    [
        ({1: Failure.PEER_GONE, 2: Failure.ERROR}, "rank 2 of 4, while at work: it said so"),
        ({1: Failure.ERROR, 3: Failure.DIED}, "rank 3 of 4 it said so, while at work"),
        # one that says nothing keeps the others waiting until they give up
        ({1: Failure.PEER_GONE, 3: Failure.PEER_GONE}, "rank 2 of 4 hangs: no progress for"),
        (
            dict.fromkeys((1, 2, 3), Failure.PEER_GONE),
            "rank 1 of 4 lost the other ranks while at work",
        ),
        ({1: Failure.ERROR, 2: Failure.ERROR}, "rank 1 of 4, while"),
    ],
)
def test_the_rank_that_is_the_cause_is_named(failures: dict[int, Failure], words: str) -> None:
    class Process:
        pid = None

    watched = [RankState(0, Process(), None, 0.0, done=True)]
    for rank in (1, 2, 3):
        watched.append(RankState(rank, Process(), None, 9.0, last="at work", message="it said so"))
        watched[rank].failure = failures.get(rank)
    watched[2].seen_s = 1.0  # the longest silent
    assert _blame(watched, Path(), 5.0).startswith(words)
