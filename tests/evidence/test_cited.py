"""Cited figures: the page equals the program, and every figure holds or has a reason."""

from __future__ import annotations

import importlib
from types import ModuleType
from typing import Any

import pytest

from tests import ROOT
from tests.markdown import read

PAGES = {"cited": "cited.md", "features": "features.md"}
MISSED = {"weights", "Mikami", "Yamazaki", "ring / SHARP", "LoRA", "QLoRA", "ZeRO-3"}
"""First words of figures outside their tolerance; a further one deserves a look."""


@pytest.fixture(params=PAGES)
def module(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> ModuleType:
    """A benchmark, which is no part of the package."""
    monkeypatch.syspath_prepend(str(ROOT / "benchmarks"))
    return importlib.import_module(request.param)


def test_the_page_is_what_the_program_says(module: ModuleType) -> None:
    name = module.__name__
    assert module.page() == read(PAGES[name]), f"python benchmarks/{name}.py writes the page again"


def test_a_figure_holds_or_has_a_reason(module: ModuleType) -> None:
    missed = [figure for figure in module.figures() if not figure.holds]
    assert [figure.what for figure in missed if figure.reason in ("", "not known")] == []
    assert {figure.what.partition(",")[0] for figure in missed} <= MISSED


@pytest.mark.parametrize(
    ("within", "holds"),
    [(0.1, True), (0.01, False), ((90.0, 101.0), True), ((101.0, 120.0), False)],
)
def test_a_tolerance_is_relative_or_an_interval(
    monkeypatch: pytest.MonkeyPatch, within: Any, holds: bool
) -> None:
    monkeypatch.syspath_prepend(str(ROOT / "benchmarks"))
    cited = importlib.import_module("cited")
    figure = cited.Figure("s", "what", "s", 100.0, 105.0, "source", within)
    assert figure.holds == holds
    assert ("| holds |" in figure.line()) == holds
    assert ("**missed**: not known" in figure.line()) == (not holds)
