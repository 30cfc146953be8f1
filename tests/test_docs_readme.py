"""README: short, its example is what the program prints, its figures are those of accuracy.md."""

from __future__ import annotations

import re

import pytest

from tests.markdown import read
from tests.release import EXAMPLE
from tests.test_docs_pages import sentences
from tests.tutorials import README, written

_MOST_LINES, _MOST_WORDS = 120, 30


def test_the_readme_is_short() -> None:
    page = README.read_text(encoding="utf-8")
    assert len(page.splitlines()) <= _MOST_LINES
    assert [s for s in sentences(page) if len(s.split()) > _MOST_WORDS] == []


def test_the_example_is_what_the_program_prints() -> None:
    page = README.read_text(encoding="utf-8")
    assert f"```console\n$ {EXAMPLE}\n" in page
    assert written(page) == page, "python -m tests.tutorials writes the output again"


def test_figures_of_accuracy_are_those_of_the_reference() -> None:
    section = read("README.md").split("## How sure is it?\n")[1].split("\n## ")[0]
    stated = set(re.findall(r"-?\d+(?:\.\d+)?(?: %)?", section)) - {"90 %"}
    reference = read("accuracy.md") + read("learning.md")
    assert stated
    assert {figure for figure in stated if figure not in reference} == set()


@pytest.mark.slow
@pytest.mark.parametrize("page", ["README.md", "python.md"])
def test_python_runs(page: str, capsys: pytest.CaptureFixture[str]) -> None:
    if page == "python.md":
        pytest.importorskip("pandas")
        pytest.importorskip("plotly")
    block = re.findall(r"^```python\n(.*?)^```$", read(page), re.MULTILINE | re.DOTALL)[0]
    exec(compile(block, page, "exec"), {})
    assert "zero" in capsys.readouterr().out
