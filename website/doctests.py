"""Docstrings for the site: doctests become fenced code, as Markdown has no doctest blocks."""

from __future__ import annotations

from typing import Any

import griffe


class DoctestFences(griffe.Extension):
    """Put fences around the doctests of every docstring."""

    def on_object(self, *, obj: griffe.Object, **_: Any) -> None:
        """Rewrite one docstring."""
        if obj.docstring is not None:
            obj.docstring.value = fenced(obj.docstring.value)


def fenced(text: str) -> str:
    """Return a docstring with fences around its doctests.

    >>> print(fenced("One.\\n\\n>>> 1 + 1\\n2\\n\\nTwo."))
    One.
    <BLANKLINE>
    ```pycon
    >>> 1 + 1
    2
    ```
    <BLANKLINE>
    Two.
    """
    lines: list[str] = []
    inside = False
    for line in [*text.splitlines(), ""]:
        starts = line.lstrip().startswith(">>> ")
        if starts and not inside:
            lines.append("```pycon")
            inside = True
        elif inside and not line.strip():
            lines.append("```")
            inside = False
        lines.append(line.lstrip() if starts else line)
    return "\n".join(lines[:-1])
