"""Results on disk: whole or unchanged."""

from __future__ import annotations

import errno
import os
from pathlib import Path
from typing import Any

import pytest

from planner.describe.files import write_atomically
from planner.errors import WriteError


def test_results_are_whole_or_unchanged(tmp_path: Path, monkeypatch: Any) -> None:
    path = tmp_path / "r.json"
    write_atomically(path, "before")

    def full(_: int) -> None:
        raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))

    monkeypatch.setattr(os, "fsync", full)
    with pytest.raises(WriteError, match="No space left on device; free space"):
        write_atomically(path, "after")
    monkeypatch.undo()
    assert path.read_text() == "before"
    assert sorted(tmp_path.iterdir()) == [path]


def test_no_file_is_left_where_none_can_be_written(tmp_path: Path) -> None:
    with pytest.raises(WriteError, match="cannot write"):
        write_atomically(tmp_path / "absent" / "r.json", "{}")
    assert list(tmp_path.iterdir()) == []
