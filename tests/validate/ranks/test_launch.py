"""Launching: what is left of killed runs, and which rank is to blame."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

from planner.validate.ranks.supervise import Failure, Watched, _blame


def test_folders_of_killed_runs_are_swept(tmp_path: Path, monkeypatch: Any) -> None:
    import platform
    import tempfile

    from planner.validate.ranks.launch import _private_folder

    monkeypatch.setattr(tempfile, "tempdir", str(tmp_path))
    ended = subprocess.Popen([sys.executable, "-c", ""])
    ended.wait()
    stale = tmp_path / f"planner-validate-{platform.node()}-{ended.pid}-x"
    other = tmp_path / f"planner-validate-elsewhere-{ended.pid}-x"
    stale.mkdir()
    other.mkdir()
    made = _private_folder()
    assert sorted(tmp_path.iterdir()) == sorted([made, other])


@pytest.mark.parametrize(
    ("failures", "words"),
    [
        ({1: Failure.PEER_GONE, 2: Failure.ERROR}, "rank 2 of 4, while at work: it said so"),
        ({1: Failure.ERROR, 3: Failure.DIED}, "rank 3 of 4 it said so, while at work"),
        # one that says nothing keeps the others waiting until they give up
        ({1: Failure.PEER_GONE, 3: Failure.PEER_GONE}, "rank 2 of 4 hangs: no progress for"),
        (dict.fromkeys((1, 2, 3), Failure.PEER_GONE), "rank 1 of 4 lost the others while at work"),
        ({1: Failure.ERROR, 2: Failure.ERROR}, "rank 1 of 4, while"),
    ],
)
def test_the_rank_that_is_the_cause_is_named(failures: dict[int, Failure], words: str) -> None:
    class Process:
        pid = None

    watched = [Watched(0, Process(), None, 0.0, done=True)]
    for rank in (1, 2, 3):
        watched.append(Watched(rank, Process(), None, 9.0, last="at work", said="it said so"))
        watched[rank].failure = failures.get(rank)
    watched[2].seen_s = 1.0  # the longest silent
    assert _blame(watched, Path(), 5.0).startswith(words)
