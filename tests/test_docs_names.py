"""Names in documents: files, functions, sections, commands and rooms exist."""

from __future__ import annotations

import importlib
import re
from pathlib import Path

import pytest

from planner.cli.program import COMMANDS
from tests import ROOT
from tests.markdown import PAGES, read, table
from tests.rooms import rooms, written

_PATH = re.compile(r"`((?:planner|tests|docs|benchmarks|models|hardware_profiles)/[\w./*-]*)`")
_NAMES = re.compile(r"`(planner/[\w/]+)\.py`: ((?:`\w+`(?:,\s+)?)+)")
_LINK = re.compile(r"\]\(([\w./-]*)(?:#([\w-]+))?\)")
_BUILT = re.compile(
    r"docs/(gallery\.md|reference/(models\.md|(api|commands|frameworks|machines)/))"
)
"""Pages that the program writes for the site."""


def anchors(page: Path) -> set[str]:
    """Return the anchors that a link into a page can use."""
    titles = re.findall(r"^#+ (.+)$", page.read_text(encoding="utf-8"), re.MULTILINE)
    return {re.sub(r"[^\w -]", "", title.lower()).replace(" ", "-") for title in titles}


@pytest.mark.parametrize("page", PAGES)
def test_files_exist(page: str) -> None:
    # NAME is a placeholder for any name
    named = (path.replace("NAME", "*") for path in _PATH.findall(read(page)))
    assert [path for path in named if not list(ROOT.glob(path))] == []


@pytest.mark.parametrize("page", PAGES)
def test_functions_are_where_it_says(page: str) -> None:
    for path, names in _NAMES.findall(read(page)):
        module = importlib.import_module(path.replace("/", "."))
        for name in re.findall(r"`(\w+)`", names):
            assert hasattr(module, name), f"{path}.py has no {name}"


@pytest.mark.parametrize("page", PAGES)
def test_links_lead_somewhere(page: str) -> None:
    for path, anchor in _LINK.findall(read(page)):
        target = (PAGES[page].parent / path).resolve() if path else PAGES[page]
        if _BUILT.match(str(target.relative_to(ROOT))):
            continue  # written when the site is built, whose strict build follows the link
        assert target.exists(), path
        assert not anchor or anchor in anchors(target), f"{path}#{anchor}"


def test_commands_of_the_readme() -> None:
    cells = " ".join(row["command"] for row in table("README.md", "Commands"))
    named = {said.split()[0] for said in re.findall(r"`([^`]+)`", cells)}
    assert named == set(COMMANDS)


def test_targets_of_make() -> None:
    targets = set(re.findall(r"^([a-z]+):", (ROOT / "Makefile").read_text(), re.MULTILINE))
    for page in ("README.md", "CONTRIBUTING.md"):
        assert set(re.findall(r"(?:`|^    )make ([a-z]+)", read(page), re.MULTILINE)) <= targets
    help_text = (ROOT / "Makefile").read_text().split("PYTHON", 1)[0]
    assert set(re.findall(r"^# make ([a-z]+)", help_text, re.MULTILINE)) == targets - {"clean"}


def test_rooms_are_those_of_the_packages() -> None:
    assert written() == rooms(), "python -m tests.rooms writes the table again"
