"""Versions: floors, classifiers and targets of `pyproject.toml` agree, with one another and with
the suites that CONTRIBUTING.md lists."""

from __future__ import annotations

import re
import tomllib

import pytest

from tests import ROOT
from tests.floors import PROJECT, floors, main
from tests.markdown import table

PYPROJECT = tomllib.loads((ROOT / "pyproject.toml").read_text(encoding="utf-8"))
SUITES = table("CONTRIBUTING.md", "Versions")
RELEASES = table("CONTRIBUTING.md", "Versions", 1)


def test_every_requirement_has_one_floor() -> None:
    extras = PROJECT["optional-dependencies"].values()
    lines = [*PROJECT["dependencies"], *(line for extra in extras for line in extra)]
    names = {re.split(r"[^\w-]", line)[0].lower() for line in lines} - {PROJECT["name"]}
    assert set(floors()) == names
    for name, releases in floors().items():
        assert len(releases) == 1, name


def test_constraints_name_every_floor_but_that_of_torch(capsys: pytest.CaptureFixture[str]) -> None:
    main()
    lines = dict(line.split("==") for line in capsys.readouterr().out.splitlines())
    assert {name: {release} for name, release in lines.items()} == {
        name: releases for name, releases in floors().items() if name != "torch"
    }


def test_classifiers_are_the_pythons_whose_suites_passed() -> None:
    stated = {
        name.removeprefix("Programming Language :: Python :: ")
        for name in PROJECT["classifiers"]
        if re.search(r":: 3\.\d+$", name)
    }
    assert stated == {row["Python"] for row in SUITES if row["tests"].endswith("suite")}


def test_the_oldest_python_is_the_one_that_tools_check_for() -> None:
    major, minor = min(tuple(map(int, row["Python"].split("."))) for row in SUITES)
    assert PROJECT["requires-python"] == f">={major}.{minor}"
    assert PYPROJECT["tool"]["ruff"]["target-version"] == f"py{major}{minor}"


def test_every_row_of_the_suites_passed() -> None:
    for row in SUITES:
        assert row["releases"] in ("oldest", "constraints.txt", "newest"), row
        assert row["failed"] == "0", row


def test_releases_are_all_that_a_user_installs() -> None:
    extras = ("app", "evidence", "sweep", "dask", "hub")
    lines = [line for name in extras for line in PROJECT["optional-dependencies"][name]]
    names = {re.split(r"[^\w-]", line)[0] for line in [*PROJECT["dependencies"], *lines]}
    assert {row["package"] for row in RELEASES} == names - {PROJECT["name"]}


@pytest.mark.parametrize("row", RELEASES, ids=lambda row: row["package"])
def test_oldest_release_is_the_floor(row: dict[str, str]) -> None:
    floor = next(iter(floors()[row["package"].lower()]))
    oldest = [int(part) for part in row["oldest"].split(".")]
    parts = [int(part) for part in floor.split(".")]
    assert oldest[: len(parts)] == parts
    assert not any(oldest[len(parts) :])
    assert [int(part) for part in row["newest"].split(".")] >= parts
