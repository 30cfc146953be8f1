"""Tutorials: every command prints what the page shows, and no number of the prose stands alone."""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.tutorials import TUTORIALS, loose_numbers, written


@pytest.mark.slow
@pytest.mark.parametrize("path", TUTORIALS, ids=lambda path: path.stem)
def test_a_tutorial_shows_what_its_commands_print(path: Path) -> None:
    page = path.read_text(encoding="utf-8")
    assert written(page) == page, "python -m tests.tutorials writes the outputs again"


@pytest.mark.parametrize("path", TUTORIALS, ids=lambda path: path.stem)
def test_numbers_of_the_prose_are_shown(path: Path) -> None:
    assert loose_numbers(path.read_text(encoding="utf-8")) == set()


def test_there_are_five() -> None:
    names = {path.stem for path in TUTORIALS}
    assert names == {"polaris", "aurora", "vsc-5", "out-of-memory", "your-run"}


@pytest.mark.parametrize("path", TUTORIALS, ids=lambda path: path.stem)
def test_a_tutorial_ends_in_files_or_in_a_plan(path: Path) -> None:
    page = path.read_text(encoding="utf-8")
    last = [line for line in page.splitlines() if line.startswith("$ planner ")][-1]
    assert last.startswith(("$ planner emit", "$ planner plan"))


def test_commands_read_the_files_of_the_page_and_write_others() -> None:
    page = (
        "Of 4 devices, see [the page](12.md).\n\n"
        '```json title="layout.json"\n{"dp": 4}\n```\n\n'
        "```console\n$ planner models > list.txt\nold\n```\n\n"
        "```console\n$ cat layout.json\nold\n```\n"
    )
    new = written(page)
    assert "$ planner models > list.txt\n```" in new
    assert '$ cat layout.json\n{"dp": 4}\n```' in new
    assert loose_numbers(page.replace("4 devices", "7 devices")) == {"7"}
    assert loose_numbers(page) == set()
