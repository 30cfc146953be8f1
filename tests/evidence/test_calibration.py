"""Calibration: one figure of a profile fitted to runs, and the profile written."""

from __future__ import annotations

import difflib
from pathlib import Path

import pytest

from planner.describe.catalogue import folder, load_machine
from planner.errors import CatalogueError
from planner.evidence.calibration import Calibration, calibrate, write_profile
from tests.evidence.tables import row, write

FITTED = Calibration("selene", 0.51234567, 3, ("a", "b", "c"), 0.1, 0.02, 0.03)


def test_only_the_fitted_figure_and_the_name_change(tmp_path: Path) -> None:
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
        "+ name",
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
