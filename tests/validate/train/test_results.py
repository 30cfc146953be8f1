"""Results on disk: whole or unchanged, and never mixed."""

from __future__ import annotations

import errno
import json
import os
from pathlib import Path
from typing import Any

import pytest

from planner.describe.files import write_atomically
from planner.errors import WriteError
from planner.validate.train.run import ResultsError, ResultsFile


def test_results_are_whole_or_unchanged(tmp_path: Path, monkeypatch: Any) -> None:
    path = tmp_path / "r.json"
    results = ResultsFile(path, {"world": 2})
    results.add({"key": "a", "value": 1})

    def full(_: int) -> None:
        raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))

    monkeypatch.setattr(os, "fsync", full)
    with pytest.raises(WriteError, match="No space left on device; free space"):
        results.add({"key": "b", "value": 2})
    monkeypatch.undo()
    assert [case["key"] for case in json.loads(path.read_text())["cases"]] == ["a"]
    assert sorted(tmp_path.iterdir()) == [path]


def test_results_of_other_settings_are_not_mixed(tmp_path: Path) -> None:
    path = tmp_path / "r.json"
    ResultsFile(path, {"world": 2})
    assert not ResultsFile(path, {"world": 2}).cases
    with pytest.raises(ResultsError, match="world: 2 in the file"):
        ResultsFile(path, {"world": 4})
    path.write_text('{"cases": 3}')
    with pytest.raises(ResultsError, match="holds no results"):
        ResultsFile(path, {"world": 2})


def test_no_file_is_left_where_none_can_be_written(tmp_path: Path) -> None:
    with pytest.raises(WriteError, match="cannot write"):
        write_atomically(tmp_path / "absent" / "r.json", "{}")
    assert list(tmp_path.iterdir()) == []
