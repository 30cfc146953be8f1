"""Calibration: one figure of a profile fitted to runs, and the profile written."""

from __future__ import annotations

import difflib
import errno
import os
from pathlib import Path

import pytest

from planner.cli.evidence import calibrate_command
from planner.describe.catalogue import folder, load_machine
from planner.errors import CatalogueError, WriteError
from planner.evidence.calibration import Calibration, calibrate, write_profile
from tests.evidence.tables import row, write

FITTED = Calibration("selene", 0.51234567, 3, ("a", "b", "c"), 0.1, 0.02, 0.03)


def test_only_the_fitted_figure_changes(tmp_path: Path) -> None:
    output = tmp_path / "mine.toml"
    write_profile(FITTED, "selene", output, 'of "us", C:\\runs.csv')
    before = (folder("machine") / "selene.toml").read_text(encoding="utf-8")
    after = output.read_text(encoding="utf-8")
    changes = [
        line
        for line in difflib.ndiff(before.splitlines(), after.splitlines())
        if line[0] in "+-" and line[1:].strip()
    ]
    assert [line.split("=")[0].strip() for line in changes] == [
        "- sustained_fraction",
        "+ sustained_fraction",
    ]
    machine, original = load_machine(str(output)), load_machine("selene")
    fraction = machine.device.sustained_fraction
    assert (fraction.value, fraction.kind) == (0.5123, "calibrated")
    assert fraction.source.endswith('3 runs of of "us", C:\\runs.csv')
    same = original.device.replaced(sustained_fraction=fraction.model_dump())
    assert machine == original.replaced(name="mine", device=same.model_dump())


def test_a_profile_is_not_overwritten_and_must_state_the_figure(tmp_path: Path) -> None:
    with pytest.raises(CatalogueError, match="is the profile itself"):
        write_profile(FITTED, "selene", folder("machine") / "selene.toml", "runs.csv")
    own = tmp_path / "own.toml"
    own.write_text('title = "no device"\n')
    with pytest.raises(CatalogueError, match=r"no device\.sustained_fraction"):
        write_profile(FITTED, str(own), tmp_path / "out.toml", "runs.csv")


@pytest.mark.slow
def test_guessed_jobs_do_not_calibrate_a_machine(tmp_path: Path) -> None:
    stated = [row(row_id=f"r{n}", step_time_s=3.7 * (1 + n / 50)) for n in range(3)]
    guess = row(row_id="guess", n_layers="", step_time_s=37.0)
    found = calibrate(write(tmp_path / "runs.csv", [*stated, guess]), "selene")
    assert found.row_ids == ("r0", "r1", "r2")
    with pytest.raises(CatalogueError, match="and a stated job"):
        calibrate(write(tmp_path / "guess.csv", [guess]), "selene")


@pytest.mark.parametrize(
    "name", ['we"ird.toml', "new\nline.toml", "back\\slash.toml", "\udce9.toml"]
)
def test_odd_file_names_make_a_profile_that_loads(tmp_path: Path, name: str) -> None:
    write_profile(FITTED, "selene", tmp_path / name, "runs.csv")
    loaded = load_machine(str(tmp_path / name))
    assert loaded.device.sustained_fraction.value == 0.5123


def test_a_full_disk_keeps_the_profile_that_was_there(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def full(_: int) -> None:
        raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))

    output = tmp_path / "mine.toml"
    output.write_text("good")
    monkeypatch.setattr(os, "fsync", full)
    with pytest.raises(WriteError, match="No space left"):
        write_profile(FITTED, "selene", output, "runs.csv")
    assert [path.read_text() for path in tmp_path.iterdir()] == ["good"]


@pytest.mark.parametrize(
    ("output", "words"),
    [
        (".", r"must end in \.toml"),
        ("folder.toml", "is a directory"),
        ("absent/mine.toml", "cannot write .*No such file"),
        (250 * "x" + ".toml", "at most 200 characters"),
    ],
)
def test_a_place_that_cannot_be_written_shows_before_the_work(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, output: str, words: str
) -> None:
    def work(*_: object) -> None:
        raise AssertionError("work was begun")

    monkeypatch.setattr("planner.evidence.calibration.calibrate", work)
    (tmp_path / "folder.toml").mkdir()
    with pytest.raises(WriteError, match=words):
        calibrate_command(tmp_path / output, tmp_path / "runs.csv", "selene")
    assert [path.name for path in tmp_path.iterdir()] == ["folder.toml"]
