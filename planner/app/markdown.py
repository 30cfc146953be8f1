"""Markdown: what others wrote, shown as text."""

from __future__ import annotations

import re

__all__ = ["escape"]


def escape(text: str) -> str:
    r"""Text that Markdown shows as it is; no link, picture, formula or HTML comes to life.

    >>> escape("<b>[x](http://y)</b> $a$")
    '\\<b\\>\\[x\\]\\(http\\://y\\)\\</b\\> \\$a\\$'
    """
    return re.sub(r"([\\`*_{}\[\]()<>#|$~:])", r"\\\1", text)
