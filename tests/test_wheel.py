"""Wheel: it is typed, contains every module and description, and installs one package."""

from __future__ import annotations

import hashlib
from pathlib import Path

import pytest
from hatchling.builders.wheel import WheelBuilder

from tests import ROOT

BUILDER = WheelBuilder(str(ROOT))


def files() -> set[str]:
    """Return the paths in the wheel of all files that it takes from the repository."""
    own = {file.distribution_path for file in BUILDER.recurse_included_files()}
    added = {file.distribution_path for file in BUILDER.recurse_forced_files(forced())}
    return own | added


def forced() -> dict[str, str]:
    return BUILDER.config.get_force_include()


def test_the_wheel_says_that_it_is_typed() -> None:
    assert "planner/py.typed" in files()


def test_the_wheel_holds_every_module_and_description() -> None:
    found = files()
    for path in (ROOT / "planner").rglob("*"):
        if path.suffix in (".py", ".toml", ".csv", ".j2"):
            assert path.relative_to(ROOT).as_posix() in found
    for name in ("models", "hardware_profiles"):
        for path in (ROOT / name).glob("*.toml"):
            assert f"planner/_catalogue/{name}/{path.name}" in found
    for path in (ROOT / "docs" / "lecture").iterdir():
        if path.suffix in (".py", ".json"):
            assert f"planner/_catalogue/lecture/{path.name}" in found


def test_two_builds_of_one_commit_have_one_hash(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("SOURCE_DATE_EPOCH", "1700000000")
    wheels = [
        next(iter(WheelBuilder(str(ROOT)).build(directory=str(tmp_path / part))))
        for part in ("a", "b")
    ]
    first, second = (hashlib.sha256(Path(wheel).read_bytes()).hexdigest() for wheel in wheels)
    assert first == second
    monkeypatch.setenv("SOURCE_DATE_EPOCH", "1600000000")
    other = next(iter(WheelBuilder(str(ROOT)).build(directory=str(tmp_path / "c"))))
    assert hashlib.sha256(Path(other).read_bytes()).hexdigest() != first


def test_the_wheel_installs_one_package() -> None:
    assert {path.split("/")[0] for path in files()} == {"planner"}
