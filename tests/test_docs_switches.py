"""Documented switches: every switch that pages name after a framework exists."""

from __future__ import annotations

import re

import pytest

from planner.describe.catalogue import load_framework, names
from tests import ROOT

PAGES = ["README.md", *sorted(str(p.relative_to(ROOT)) for p in (ROOT / "docs").rglob("*.md"))]
_NAMED = re.compile(
    rf"\b((?:{'|'.join(names('framework'))})"
    r"(?:\+[a-z0-9-]+(?:=(?:\d{4}-\d{2}|[0-9e.]+(?:[mun]?s)?))?)+)"
)


@pytest.mark.parametrize("page", PAGES)
def test_switches_that_a_page_names_exist(page: str) -> None:
    for found in _NAMED.findall((ROOT / page).read_text(encoding="utf-8")):
        assert load_framework(found).switched, found


def test_pages_name_some() -> None:
    text = (ROOT / "docs" / "howto" / "settings.md").read_text(encoding="utf-8")
    assert len(_NAMED.findall(text)) >= 3
