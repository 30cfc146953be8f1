"""Shell: command-line options of an argument file or a job script, read without running it."""

import ast
import operator
import re
import warnings
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Literal

_OPERATIONS: Mapping[type[ast.operator], Callable[[int, int], int]] = {
    ast.Add: operator.add,
    ast.Sub: operator.sub,
    ast.Mult: operator.mul,
    ast.FloorDiv: operator.floordiv,
    ast.Div: operator.floordiv,
}
_LARGEST = 10**15


def _arithmetic(text: str) -> int | None:
    try:
        tree = parsed(text.strip(), "eval")
    except (SyntaxError, ValueError, RecursionError, MemoryError):
        return None
    return evaluate_integer(tree.body) if isinstance(tree, ast.Expression) else None


def parsed(text: str, mode: Literal["exec", "eval"] = "exec") -> ast.AST:
    """Parse a text as Python, with SyntaxWarnings silenced."""
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", SyntaxWarning)
        return compile(text, "<text>", mode, ast.PyCF_ONLY_AST)


def evaluate_integer(node: ast.expr) -> int | None:
    """Evaluate a parsed integer expression; None if it is anything else, or too large."""
    if isinstance(node, ast.Constant) and type(node.value) is int:
        return node.value if abs(node.value) <= _LARGEST else None
    if not isinstance(node, ast.BinOp) or type(node.op) not in _OPERATIONS:
        return None
    left, right = evaluate_integer(node.left), evaluate_integer(node.right)
    if left is None or right is None:
        return None
    if right == 0 and isinstance(node.op, ast.Div | ast.FloorDiv):
        return None
    number = _OPERATIONS[type(node.op)](left, right)
    return number if abs(number) <= _LARGEST else None


_OPENERS, _CLOSERS = "({", ")}"
_HEREDOC = re.compile(r"<<-?\s*['\"]?(\w+)['\"]?")
_WRITTEN = re.compile(r"(?<!<)>\s*['\"]?([^\s'\";&|<>]+)")


def _statements(script: str) -> Iterator[tuple[str, str]]:
    """Yield statements with their terminators: a line end, `;`, `&&`, `||`, `|` or `&`."""
    # a comment ends with its line, also behind a backslash
    text = _bare_text(_parted(script)[0]).replace("\\\n", " ")
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


def _cut(statement: str) -> list[str]:
    """Split a statement into words, quotes and variables left as written."""
    words, start = [], 0
    for index, sign in _bare(statement):
        if sign.isspace():
            words.append(statement[start:index])
            start = index + 1
    return [word for word in [*words, statement[start:]] if word]


def _bare_text(text: str) -> str:
    pieces, start = [], 0
    for index, sign in _bare(text):
        if sign == "#" and index >= start and not text[index - 1 : index].strip():
            pieces.append(text[start:index])
            end = text.find("\n", index)
            start = len(text) if end < 0 else end
    return "".join([*pieces, text[start:]]).strip()


def _bare(text: str) -> Iterator[tuple[int, str]]:
    """Yield index and character outside quotes and parentheses; of a comment its first."""
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
        elif sign == "#" and not text[index - 1 : index].strip():
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


def _parted(text: str) -> tuple[str, dict[str, str]]:
    """Split a script into its lines and the texts that they write into files, by file."""
    lines: list[str] = []
    texts: dict[str, list[str]] = {}
    until = target = ""
    for line in text.splitlines():
        if until:
            until = "" if line.strip() == until else until
            texts.setdefault(target, []).extend([line] if until else [])
            continue
        lines.append(line)
        match = _HEREDOC.search(line) if not line.lstrip().startswith("#") else None
        until = match[1] if match else ""
        written = _WRITTEN.search(line)
        target = written[1] if written else ""
    return "\n".join(lines), {name: "\n".join(rows) for name, rows in texts.items() if name}


_OPTION = re.compile(r"--([A-Za-z][\w.-]*)(?:=(.*))?", re.DOTALL)
_ARGUMENT = re.compile(r"--|[\w.]+$")
"""A line of an argument file: an option, or one of several values of the option above it."""
_SETTING = re.compile(r"([A-Za-z_]\w*(?:\.\w+)+)=(.*)", re.DOTALL)
_ASSIGNMENT = re.compile(r"([A-Za-z_]\w*)(\+?)=(.*)", re.DOTALL)
_ENDING = re.compile(r"-[A-Za-z]|[\d&]?>|\S*\.py$")
"""A word that is not a value of the option before it: a short option, redirection, program."""
_NAME = re.compile(r"[A-Za-z_]\w*")
_EXPANSION = re.compile(
    r"\$\(\((?P<sum>[^()]*(?:\([^()]*\)[^()]*)*)\)\)"
    r"|\$\{(?P<braced>[A-Za-z_0-9]\w*)(?:\[[@*]\])?(?::?-(?P<default>[^{}]*))?\}"
    r"|\$(?P<plain>[A-Za-z_]\w*)"
)
_DECLARING = ("export", "local", "readonly", "declare", "typeset", "-x", "-a", "-i")
_IGNORED_COMMANDS = (
    "echo", "printf", "cat", "mkdir", "rm", "cd", "source", "module", "pip", "git", "[", "[[",
)  # fmt: skip
_TESTS: Mapping[str, Callable[[Any, Any], bool]] = {
    "=": operator.eq,
    "==": operator.eq,
    "!=": operator.ne,
    **{f"-{name}": getattr(operator, name) for name in ("eq", "ne", "gt", "ge", "lt", "le")},
}
_MOST_TEXT = 100_000
"""Most characters kept of a variable, for scripts that double one repeatedly."""


def options_of(text: str) -> Mapping[str, Any]:
    """Read options by name, dashes stripped and `_` written as `-`; True for one without value."""
    lines = [line.strip() for line in text.splitlines()]
    lines = [line for line in lines if line and not line.startswith("#")]
    if lines and lines[0].startswith("--") and all(map(_ARGUMENT.match, lines)):
        return _named([part for line in lines for part in line.split(maxsplit=1)])
    return _Script().followed(text)


def settings_of(text: str) -> dict[str, Any]:
    """Read Hydra settings `group.name=value`, one per line or in a script, as nested tables."""
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


@dataclass(frozen=True, slots=True)
class FollowedScript:
    """What a script does, without running it."""

    variables: Mapping[str, str]
    commands: tuple[tuple[str, ...], ...]
    """Words of every command that runs."""
    files: Mapping[str, str]
    """Texts that it writes into files, by name."""


def follow_script(text: str) -> FollowedScript:
    """Follow a shell script: variables, commands, and the texts that it writes into files."""
    script = _Script()
    script.follow(text)
    files = {
        script.expanded(name): script.filled(body)[:_MOST_TEXT]
        for name, body in _parted(text)[1].items()
    }
    return FollowedScript(script.variables, tuple(script.commands), files)


def _named(words: Sequence[str]) -> dict[str, Any]:
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
    """A script that is followed but not run: its variables, and the words of its commands."""

    def __init__(self) -> None:
        self.variables: dict[str, str] = {}
        self.words: list[str] = []
        self.commands: list[tuple[str, ...]] = []
        self.blocks: list[list[bool]] = []
        # per open block: whether the current branch runs, and whether any branch has run

    def followed(self, text: str) -> dict[str, Any]:
        self.follow(text)
        if not any(word.startswith("--") for word in self.words):
            self.words = [word for value in self.variables.values() for word in value.split()]
        return _named(self.words)

    def follow(self, text: str) -> None:
        skips = False
        for statement, end in _statements(text):
            words = _cut(statement)
            if words and not skips and self._enters(words):
                self._runs(words)
            tested = bool(words) and words[0] in ("[", "[[", "test")
            holds = self._holds(words) if tested else None
            skips = (end == "&&" and tested and not holds) or (end == "||" and holds is True)

    def _enters(self, words: list[str]) -> bool:
        """Strip the shell keywords of a statement; True if the rest of it runs."""
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
                command = " ".join(map(self.expanded, words[index:])).split()
                self.commands.append(tuple(command))
                if words[index] not in _IGNORED_COMMANDS:
                    self.words += command
                return
            before = f"{self.variables.get(match[1], '')} " if match[2] else ""
            value = match[3]
            inner = value[1:-1] if value.startswith("(") else ""
            parts = [self.expanded(part) for part in _cut(inner)] if inner else []
            text = before + (" ".join(parts) if inner else self.expanded(value))
            self.variables[match[1]] = text[:_MOST_TEXT].strip()

    def expanded(self, word: str) -> str:
        """Fill in the variables of a word, and remove its quotes."""
        parts = re.split(r"('[^']*')", word)
        expanded = [
            p[1:-1] if p.startswith("'") else self.filled(p.replace('"', ""))[:_MOST_TEXT]
            for p in parts
        ]
        return "".join(expanded).replace("\\\n", " ").replace("\\", "")[:_MOST_TEXT]

    def filled(self, text: str) -> str:
        """Fill in variables and integer arithmetic; unknown ones stay as they are."""

        def value(match: re.Match[str]) -> str:
            if match["sum"] is not None:
                names = re.sub(r"\$\{?(\w+)\}?", r"\1", match["sum"])
                number = _arithmetic(_NAME.sub(lambda m: self.variables.get(m[0], m[0]), names))
                return match[0] if number is None else str(number)
            name = match["braced"] or match["plain"]
            stored = self.variables.get(name)
            if stored is None and match["default"] is not None:
                return self.filled(match["default"])  # it has no braces
            return match[0] if stored is None else stored

        return _EXPANSION.sub(value, text)

    def _holds(self, words: Sequence[str]) -> bool | None:
        """Evaluate a shell test; None if the script alone does not decide it."""
        tested = [word for word in words if word not in ("[", "]", "[[", "]]", "test")]
        # variables that were never assigned are empty
        inner = [_EXPANSION.sub("", self.expanded(word)) for word in tested]
        if len(inner) == 2 and inner[0] in ("-z", "-n"):
            return (inner[1] == "") == (inner[0] == "-z")
        if len(inner) != 3 or inner[1] not in _TESTS:
            return None
        left, test, right = inner
        try:
            sides = (int(left), int(right)) if test.startswith("-") else (left, right)
            return _TESTS[test](*sides)
        except ValueError:
            return None
