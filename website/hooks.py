"""Hooks of the documentation site: pages made from the program, and formulas as MathML."""

from __future__ import annotations

import html
import re
from collections.abc import Iterator
from typing import Any

import api_pages
import catalogue_pages
import command_pages
import gallery
from latex2mathml.converter import convert
from mkdocs.structure.files import File, Files

_FORMULA = re.compile(r'<(span|div) class="arithmatex">\\([(\[])(.*?)\\[)\]]</\1>', re.DOTALL)
_SECTION = re.compile(r"(?<![\w/#])([a-z_]+)\.md#([\w-]+)")
"""A page of the method that a docstring cites."""


def on_files(files: Files, config: Any) -> Files:
    """Add the generated pages and the figures' script."""
    for path, content in _generated():
        files.append(File.generated(config, path, content=content))
    return files


def _generated() -> Iterator[tuple[str, str | bytes]]:
    yield from api_pages.pages()
    yield from command_pages.pages()
    yield from catalogue_pages.pages()
    yield from gallery.pages()


def on_page_content(content: str, page: Any, files: Files, **_: Any) -> str:
    """Write formulas as MathML; in the API, link the method's sections that docstrings cite."""
    if page.file.src_uri.startswith("reference/api/"):
        content = _SECTION.sub(_linked(page, files), content)
    return _FORMULA.sub(_mathml, content)


def on_post_page(output: str, page: Any, **_: Any) -> str:
    """Put the figures into the gallery, after the search index has read its text."""
    return gallery.filled(output) if page.file.src_uri == gallery.PAGE else output


def _mathml(formula: re.Match[str]) -> str:
    block = formula[2] == "["
    # the converter knows aligned rows by their other name
    text = html.unescape(formula[3]).strip().replace("{aligned}", "{split}")
    written = convert(text, display="block" if block else "inline")
    return f'<div class="formula">{written}</div>' if block else written


def _linked(page: Any, files: Files) -> Any:
    def link(cited: re.Match[str]) -> str:
        target = files.get_file_from_path(f"explanation/{cited[1]}.md")
        if target is None:
            return cited[0]
        return f'<a href="{target.url_relative_to(page.file)}#{cited[2]}">{cited[0]}</a>'

    return link
