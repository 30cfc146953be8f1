"""Pages of the documentation: length, sentences, formulas, and a place in the site's navigation."""

from __future__ import annotations

import re
from pathlib import Path

import pytest

from tests import ROOT

DOCS = ROOT / "docs"
_GUIDES = ("howto", "tutorials", "machines")
GUIDES = sorted(path for folder in _GUIDES for path in (DOCS / folder).glob("*.md"))
METHOD = sorted((DOCS / "explanation").glob("*.md"))
_BLOCKS = re.compile(r"^```.*?^```$|^\$\$.*?^\$\$$|^(?:    |\|)[^\n]*$", re.MULTILINE | re.DOTALL)
_MOST_WORDS, _MOST_LINES = 30, 300


def sentences(page: str) -> list[str]:
    """Return the sentences of the prose; a colon ends one."""
    parts = re.split(r"\n\s*\n|\n(?=- |\d\. |#+ )", _BLOCKS.sub("", page))
    joined = (" ".join(part.split()) for part in parts)
    return [s for part in joined for s in re.split(r"(?<=[.!?:])\s+(?=[A-Z`*(\[])", part)]


@pytest.mark.parametrize("path", GUIDES, ids=lambda path: f"{path.parent.name}-{path.stem}")
def test_sentences_of_guides_are_short(path: Path) -> None:
    found = sentences(path.read_text(encoding="utf-8"))
    assert [s for s in found if len(s.split()) > _MOST_WORDS] == []


@pytest.mark.parametrize("path", METHOD, ids=lambda path: path.stem)
def test_pages_of_the_method_are_short(path: Path) -> None:
    assert len(path.read_text(encoding="utf-8").splitlines()) < _MOST_LINES


@pytest.mark.parametrize("path", METHOD, ids=lambda path: path.stem)
def test_formulas_are_closed(path: Path) -> None:
    text = path.read_text(encoding="utf-8")
    assert text.count("$$") % 2 == 0
    assert text.replace("$$", "").count("$") % 2 == 0
    assert text.count(r"\begin{") == text.count(r"\end{")
    assert text.count(r"\left") - text.count(r"\leftarrow") == text.count(r"\right")


def test_every_page_has_a_place_in_the_navigation() -> None:
    navigation = (ROOT / "mkdocs.yml").read_text(encoding="utf-8").split("\nnav:\n")[1]
    pages = {path.relative_to(DOCS).as_posix() for path in DOCS.rglob("*.md")}
    assert pages <= set(re.findall(r": ([\w./-]+\.md)$", navigation, re.MULTILINE))


def test_a_sentence_ends_at_a_colon() -> None:
    assert sentences("One: Two three.\n\n    code here\n\n- Four.") == [
        "One:",
        "Two three.",
        "- Four.",
    ]
