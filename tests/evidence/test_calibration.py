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
from planner.evidence.backtest import score
from planner.evidence.calibration import Calibration, calibrate, write_profile
from planner.evidence.runs.run_files import read_runs
from tests.evidence.tables import row, write

FITTED = Calibration("selene", 0.51234567, 3, ("a", "b", "c"), 0.1, 0.02, None)


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


def run_rows(*steps: float, **cells: object) -> list[dict[str, object]]:
    """Rows of one job, measured so many seconds."""
    return [row(row_id=f"r{n}", step_time_s=s, **cells) for n, s in enumerate(steps)]


@pytest.mark.slow
@pytest.mark.parametrize("steps", [(3.7,), (3.7, 3.9), (3.7, 3.8, 3.9)])
def test_few_runs_or_runs_of_one_layout_are_no_proof(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], steps: tuple[float, ...]
) -> None:
    runs = write(tmp_path / "runs.csv", run_rows(*steps))
    calibrate_command(tmp_path / "mine.toml", from_runs=runs, machine="selene")
    said = capsys.readouterr().out
    assert "too few to check the fit" in said
    assert "held out" not in said


@pytest.mark.slow
def test_held_out_is_what_no_fit_has_seen(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    # a small model as estimated, a large one at twice its estimate: a fit on one misses the other
    first = run_rows(3.7, 3.7)
    (scored,) = score(read_runs(write(tmp_path / "one.csv", first[:1]))).scores
    right = scored.estimate.step_time_s
    other = row(
        row_id="other", model="GPT 39B", params_b=39.1, n_heads=64, hidden=8192, n_layers=48
    )
    other |= {"n_gpus": 512, "tp": 8, "pp": 2, "global_batch": 1536}
    (scored,) = score(read_runs(write(tmp_path / "one.csv", [other]))).scores
    twice = 2 * scored.estimate.step_time_s
    rows = [*run_rows(right, right), {**other, "step_time_s": twice}]
    found = calibrate(write(tmp_path / "runs.csv", rows), "selene").held_out
    assert found is not None
    assert (found.apart, found.num_folds) == ("model", 2)
    assert found.error_before == pytest.approx(0.5 / 3, rel=1e-3)
    assert found.error_after > found.error_before
    assert found.worse
    calibrate_command(tmp_path / "mine.toml", from_runs=tmp_path / "runs.csv", machine="selene")
    assert "worse than none" in capsys.readouterr().out


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
        calibrate_command(tmp_path / output, from_runs=tmp_path / "runs.csv", machine="selene")
    assert [path.name for path in tmp_path.iterdir()] == ["folder.toml"]
