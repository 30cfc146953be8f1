"""Words: a shell script cut into statements and words, quotes and parentheses kept together."""

from __future__ import annotations

import re
from collections.abc import Iterator

__all__ = ["cut", "statements"]

_OPENERS, _CLOSERS = "({", ")}"
_HEREDOC = re.compile(r"<<-?\s*['\"]?(\w+)['\"]?")


def statements(script: str) -> Iterator[tuple[str, str]]:
    """Statements, each with what ends it: a line end, `;`, `&&`, `||` or `|`.

    >>> list(statements("a=1; b  # no\\nc && d"))
    [('a=1', ';'), ('b', '\\n'), ('c', '&&'), ('d', '')]
    """
    text = _without_documents(script.replace("\\\n", " "))
    start = 0
    for index, sign in _bare(text):
        if index < start or sign not in "\n;&|":
            continue
        end = sign * 2 if text[index : index + 2] in ("&&", "||", ";;") else sign
        if sign == "&" and end == "&" and text[index - 1 : index] in (">", "<"):
            continue
        bare = _bare_text(text[start:index])
        if bare:
            yield bare, end
        start = index + len(end)
    rest = _bare_text(text[start:])
    if rest:
        yield rest, ""


def cut(statement: str) -> list[str]:
    """Words of a statement, as written.

    >>> cut('torchrun $ARGS "a b" x=( 1 2 )')
    ['torchrun', '$ARGS', '"a b"', 'x=( 1 2 )']
    """
    words, start = [], 0
    for index, sign in _bare(statement):
        if sign.isspace():
            words.append(statement[start:index])
            start = index + 1
    return [word for word in [*words, statement[start:]] if word]


def _bare_text(text: str) -> str:
    """Text without comments."""
    pieces, start = [], 0
    for index, sign in _bare(text, comments=True):
        if sign == "#" and index >= start:
            pieces.append(text[start:index])
            end = text.find("\n", index)
            start = len(text) if end < 0 else end
    return "".join([*pieces, text[start:]]).strip()


def _bare(text: str, *, comments: bool = False) -> Iterator[tuple[int, str]]:
    """Places of the signs that stand in no quotes, parentheses or comment."""
    quote, depth, index = "", 0, 0
    while index < len(text):
        sign = text[index]
        if sign == "\\" and quote != "'":
            index += 2
            continue
        if quote:
            quote = "" if sign == quote else quote
        elif sign in "'\"`":
            quote = sign
        elif sign == "#" and (index == 0 or text[index - 1].isspace()):
            if comments:
                yield index, sign
            end = text.find("\n", index)
            index = len(text) if end < 0 else end
            continue
        elif sign == "(" or (sign == "{" and text[index - 1 : index] == "$"):
            depth += 1
        elif depth and sign in _CLOSERS:
            depth -= 1
        elif not depth:
            yield index, sign
        index += 1


def _without_documents(text: str) -> str:
    """The script without the texts that it writes into files (`<<EOT`)."""
    lines: list[str] = []
    until = ""
    for line in text.splitlines():
        if until:
            until = "" if line.strip() == until else until
            continue
        lines.append(line)
        match = _HEREDOC.search(line) if not line.lstrip().startswith("#") else None
        until = match[1] if match else ""
    return "\n".join(lines)
