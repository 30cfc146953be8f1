"""Pages with commands and shortened outputs, and what is known of a machine: write them again.

python -m tests.console_pages

Pages of docs/machines and docs/howto/other-ways.md. A block of the language `console` is a command
and what it prints; a last line `...` cuts the output where the page cuts it. On the page of a
machine, the text below two headings is generated from its profile: the sources of its numbers, and
the numbers that nobody has confirmed.
"""

from __future__ import annotations

import contextlib
import re
import tempfile
import tomllib
from collections import Counter
from collections.abc import Iterator
from pathlib import Path
from typing import Any, get_args

from planner.describe.base import Kind
from tests import ROOT
from tests.tutorials import printed

__all__ = ["CONSOLE_PAGES", "known", "unconfirmed", "written"]

MACHINES = sorted((ROOT / "docs" / "machines").glob("*.md"))
CONSOLE_PAGES = [*MACHINES, *sorted((ROOT / "docs" / "howto").glob("other-ways.md"))]
_KNOWN, _OPEN = "What is known, and from where", "What nobody has confirmed"
_BLOCK = re.compile(r"^```console\n\$ (?P<command>[^\n]+)\n(?P<shown>.*?)^```$", re.M | re.DOTALL)
_DATE = re.compile(r"\b20\d\d(?:-\d\d){0,2}\b|\b[A-Z][a-z]+ 20\d\d\b")
_CUT = "..."


def written(path: Path) -> str:
    """Return a page with its outputs and its generated parts as they are now."""
    page = path.read_text(encoding="utf-8")
    if path in MACHINES:
        for heading, text in ((_KNOWN, known(path.stem)), (_OPEN, unconfirmed(path.stem))):
            pattern = rf"(?<=^## {heading}\n\n).*?(?=^## )"
            page, count = re.subn(pattern, f"{text}\n", page, count=1, flags=re.M | re.DOTALL)
            assert count == 1, f"no heading {heading!r}"
    with tempfile.TemporaryDirectory() as folder, contextlib.chdir(folder):
        return _BLOCK.sub(_rewritten, page)


def _rewritten(block: re.Match[str]) -> str:
    shown, lines = block["shown"].splitlines(), printed(block["command"]).splitlines()
    if shown[-1:] == [_CUT]:
        lines = [*lines[: len(shown) - 1], _CUT]
    return "\n".join(["```console", f"$ {block['command']}", *lines, "```"])


# --- what is known of a machine -------------------------------------------------------------------


def known(machine: str) -> str:
    """Write the table of a machine's sources: date, numbers by kind, and what the source is."""
    kinds: dict[str, Counter[str]] = {}
    profile = _profile(machine)
    for _, number in _numbers(profile):
        kinds.setdefault(_source(number), Counter())[number["kind"]] += 1
    texts = profile["sources"]
    heads = ("source", "date", *get_args(Kind), "what it is")
    lines = [_row(heads), _row(("---", "---", *["---:"] * len(get_args(Kind)), "---"))]
    for source, count in sorted(kinds.items(), key=lambda item: -item[1].total()):
        text = texts.get(source, _OWN.get(source, ""))
        date = _DATE.search(text)
        counts = (str(count[kind] or "") for kind in get_args(Kind))
        lines.append(_row((source, date[0] if date else "-", *counts, _plain(text))))
    total = Counter(number["kind"] for _, number in _numbers(profile))
    said = ", ".join(f"{total[kind]} {kind}" for kind in get_args(Kind))
    numbers = f"{total.total()} numbers: {said}."
    link = f"[Every number](../reference/machines/{machine}.md) has its own source."
    return "\n".join([f"{numbers} {link}", "", *lines, ""])


def unconfirmed(machine: str) -> str:
    """Write the table of a machine's assumed numbers."""
    lines = [_row(("quantity", "value", "rests on")), _row(("---", "---:", "---"))]
    for name, number in _numbers(_profile(machine)):
        if number["kind"] == "assumed":
            ends = number.get("fraction", [number.get("value")])
            value = " to ".join(f"{end:g}" for end in dict.fromkeys((ends[0], ends[-1])))
            lines.append(_row((f"`{name}`", value, _plain(number["source"]))))
    return "\n".join([*lines, ""])


_OWN = {
    "general knowledge": "data sheets and practice, not read on a page of the site",
    "own fit": "fitted to measured runs (2026-11); the number's page says which were held out",
    "as calibrated": "taken from another machine with the same device",
}


def _source(number: dict[str, Any]) -> str:
    if number["kind"] == "calibrated":
        return "own fit"
    key = str(number["source"]).partition(":")[0]
    return "as calibrated" if key.startswith("as calibrated") else key


def _profile(machine: str) -> dict[str, Any]:
    path = ROOT / "hardware_profiles" / f"{machine}.toml"
    return tomllib.loads(path.read_text(encoding="utf-8"))


def _numbers(table: dict[str, Any], path: str = "") -> Iterator[tuple[str, dict[str, Any]]]:
    """Yield every number or curve that has a kind and a source, by its path."""
    for key, value in table.items():
        name = f"{path}.{key}" if path else key
        items = value if isinstance(value, list) else [value]
        for place, item in enumerate(items):
            if not isinstance(item, dict):
                continue
            if {"kind", "source"} <= set(item):
                yield name, item
            else:
                part = item.get("name", place) if isinstance(value, list) else ""
                yield from _numbers(item, f"{name}.{part}" if part != "" else name)


def _row(cells: tuple[str, ...]) -> str:
    return f"| {' | '.join(cells)} |"


def _plain(text: str) -> str:
    """Escape what Markdown would read as markup."""
    for mark in ("|", "*", "_", "<", "[", "]"):
        text = text.replace(mark, f"&#{ord(mark)};")
    return text


if __name__ == "__main__":
    for console_page in CONSOLE_PAGES:
        console_page.write_text(written(console_page), encoding="utf-8")
