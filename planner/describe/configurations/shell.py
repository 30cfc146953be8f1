"""Shell: the options that a file of arguments or a job script hands to its program.

A script is followed as far as it is plain: assignments, arrays, defaults (`${TP:-2}`), sums and
tests of what it assigned itself. Nothing is run. What depends on anything else stays open.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Mapping, Sequence
from typing import Any

from planner.describe.configurations.arithmetic import arithmetic
from planner.describe.configurations.words import cut, statements

__all__ = ["options_of", "settings_of"]

_OPTION = re.compile(r"--([A-Za-z][\w.-]*)(?:=(.*))?", re.DOTALL)
_ARGUMENT = re.compile(r"--|[\w.]+$")
"""A line of a file of arguments: an option, or one of several values of the option above."""
_SETTING = re.compile(r"([A-Za-z_]\w*(?:\.\w+)+)=(.*)", re.DOTALL)
_ASSIGNMENT = re.compile(r"([A-Za-z_]\w*)(\+?)=(.*)", re.DOTALL)
_ENDING = re.compile(r"-[A-Za-z]|[\d&]?>|\S*\.py$")
"""A word that is no value of the option before it: a short option, a redirection, a program."""
_NAME = re.compile(r"[A-Za-z_]\w*")
_EXPANSION = re.compile(
    r"\$\(\((?P<sum>[^()]*(?:\([^()]*\)[^()]*)*)\)\)"
    r"|\$\{(?P<braced>[A-Za-z_0-9]\w*)(?:\[[@*]\])?(?::?-(?P<default>[^{}]*))?\}"
    r"|\$(?P<plain>[A-Za-z_]\w*)"
)
_DECLARING = ("export", "local", "readonly", "declare", "typeset", "-x", "-a", "-i")
_SAYING = (
    "echo",
    "printf",
    "cat",
    "mkdir",
    "rm",
    "cd",
    "source",
    "module",
    "pip",
    "git",
    "[",
    "[[",
)
_TESTS: Mapping[str, Callable[[str, str], bool]] = {
    "=": lambda a, b: a == b,
    "==": lambda a, b: a == b,
    "!=": lambda a, b: a != b,
    "-eq": lambda a, b: int(a) == int(b),
    "-ne": lambda a, b: int(a) != int(b),
    "-gt": lambda a, b: int(a) > int(b),
    "-ge": lambda a, b: int(a) >= int(b),
    "-lt": lambda a, b: int(a) < int(b),
    "-le": lambda a, b: int(a) <= int(b),
}
_MOST_TEXT = 100_000
"""Characters of a variable: a script that doubles one again and again is not followed."""


def options_of(text: str) -> Mapping[str, Any]:
    """Options by name, without their dashes and with `-` for `_`; True where no value follows.

    >>> script = '''TP=2
    ... ARGS="--tensor-model-parallel-size ${TP} --bf16"
    ... torchrun --nproc_per_node $((2 * TP)) pretrain_gpt.py $ARGS --seq-length=$LENGTH'''
    >>> options_of(script)["nproc-per-node"], options_of(script)["bf16"]
    ('4', True)
    >>> options_of(script)["seq-length"]
    '$LENGTH'
    """
    lines = [line.strip() for line in text.splitlines()]
    lines = [line for line in lines if line and not line.startswith("#")]
    if lines and lines[0].startswith("--") and all(map(_ARGUMENT.match, lines)):
        return _named([part for line in lines for part in line.split(maxsplit=1)])
    return _Script().followed(text)


def settings_of(text: str) -> dict[str, Any]:
    """Settings `group.name=value` of Hydra, one a line or in a script, as tables.

    >>> settings_of('python3 -m wordplay data=owt model.n_layer=24 "model.batch_size=${MB:-2}"')
    {'model': {'n_layer': '24', 'batch_size': '2'}}
    """
    script = _Script()
    script.follow(text)
    settings: dict[str, Any] = {}
    for match in filter(None, map(_SETTING.fullmatch, script.words)):
        *path, last = match[1].split(".")
        place = settings
        for name in path:
            inner = place.setdefault(name, {})
            place = inner if isinstance(inner, dict) else {}
        place[last] = match[2]
    return settings


def _named(words: Sequence[str]) -> dict[str, Any]:
    """Options among words, each with the values after it."""
    named_values: dict[str, Any] = {}
    name = ""
    for word in words:
        match = _OPTION.fullmatch(word)
        if match:
            name = match[1].replace("_", "-")
            named_values[name] = True if match[2] is None else match[2].strip("'\"")
        elif name and not _ENDING.match(word):
            named_values[name] = (
                word if named_values[name] is True else f"{named_values[name]} {word}"
            )
        else:
            name = ""
    return named_values


class _Script:
    """What a script has assigned so far, and the options of what it started."""

    def __init__(self) -> None:
        self.variables: dict[str, str] = {}
        self.words: list[str] = []
        self.blocks: list[list[bool]] = []
        # of every open block: whether its branch runs, whether one of its branches did

    def followed(self, text: str) -> dict[str, Any]:
        self.follow(text)
        if not any(word.startswith("--") for word in self.words):
            self.words = [word for value in self.variables.values() for word in value.split()]
        return _named(self.words)

    def follow(self, text: str) -> None:
        skips = False
        for statement, end in statements(text):
            words = cut(statement)
            if words and not skips and self._enters(words):
                self._runs(words)
            tested = bool(words) and words[0] in ("[", "[[", "test")
            holds = self._holds(words) if tested else None
            skips = (end == "&&" and tested and not holds) or (end == "||" and holds is True)

    def _enters(self, words: list[str]) -> bool:
        """Whether what is left of a statement runs, after its keywords."""
        while words:
            first = words[0]
            if first == "if":
                holds = self._holds(words[1:])
                self.blocks.append([bool(holds), holds is not False])
                return False
            if first == "case":
                self.blocks.append([False, True])
                return False
            if first in ("elif", "else") and self.blocks:
                branch_taken = self.blocks[-1][1]
                holds = not branch_taken and (first == "else" or bool(self._holds(words[1:])))
                self.blocks[-1] = [holds, branch_taken or holds]
                if first == "elif":
                    return False
            elif first in ("fi", "esac") and self.blocks:
                self.blocks.pop()
            elif first not in ("then", "do", "{", "time", "exec"):
                break
            del words[0]
        return bool(words) and all(runs for runs, _ in self.blocks)

    def _runs(self, words: list[str]) -> None:
        while words and words[0] in _DECLARING:
            del words[0]
        assigned = [_ASSIGNMENT.fullmatch(word) for word in words]
        for index, match in enumerate(assigned):
            if match is None:
                if words[index] not in _SAYING:
                    self.words += [part for word in words[index:] for part in self._split(word)]
                return
            before = f"{self.variables.get(match[1], '')} " if match[2] else ""
            value = match[3]
            inner = value[1:-1] if value.startswith("(") else ""
            parts = [self._expanded(part) for part in cut(inner)] if inner else []
            text = before + (" ".join(parts) if inner else self._expanded(value))
            self.variables[match[1]] = text[:_MOST_TEXT].strip()

    def _split(self, word: str) -> list[str]:
        return self._expanded(word).split()

    def _expanded(self, word: str) -> str:
        """A word without its quotes, and with what its variables hold."""
        parts = re.split(r"('[^']*')", word)
        expanded = [p[1:-1] if p.startswith("'") else self._substituted(p) for p in parts]
        return "".join(expanded).replace("\\\n", " ").replace("\\", "")[:_MOST_TEXT]

    def _substituted(self, text: str, depth: int = 0) -> str:
        def value(match: re.Match[str]) -> str:
            if match["sum"] is not None:
                names = re.sub(r"\$\{?(\w+)\}?", r"\1", match["sum"])
                number = arithmetic(_NAME.sub(lambda m: self.variables.get(m[0], m[0]), names))
                return match[0] if number is None else str(number)
            name = match["braced"] or match["plain"]
            stored = self.variables.get(name)
            if stored is None and match["default"] is not None and depth < 3:
                return self._substituted(match["default"], depth + 1)
            return match[0] if stored is None else stored

        return _EXPANSION.sub(value, text.replace('"', ""))[:_MOST_TEXT]

    def _holds(self, words: Sequence[str]) -> bool | None:
        """Whether a test holds; None where the script alone does not decide it."""
        inner = [
            self._expanded(word) for word in words if word not in ("[", "]", "[[", "]]", "test")
        ]
        # what was never assigned is empty
        inner = [_EXPANSION.sub("", word) for word in inner]
        if len(inner) == 2 and inner[0] in ("-z", "-n"):
            return (inner[1] == "") == (inner[0] == "-z")
        if len(inner) != 3 or inner[1] not in _TESTS:
            return None
        try:
            return _TESTS[inner[1]](inner[0], inner[2])
        except ValueError:
            return None
