"""Habits of the package: sizes of files and functions, meaningless names, names of files.

python -m tests.habits          # write the remaining names into tests/empty_names.txt
"""

from __future__ import annotations

import ast
import collections
import functools
from collections.abc import Iterator
from pathlib import Path

import planner
from tests import ROOT

__all__ = ["EMPTY", "LEFT", "empty_names", "file_lengths", "function_lengths", "repeated_names"]

PACKAGE = Path(planner.__file__).parent
LEFT = ROOT / "tests" / "empty_names.txt"
_WORDS = """
found said asked told given held kept taken whole few alone again made known here there other others
one some many every what which does far near own stated put
"""
EMPTY = frozenset(_WORDS.split())
"""Participles and pronouns: meaningless as names of variables, parameters, functions, classes."""


@functools.cache
def sources() -> list[tuple[str, ast.Module, str]]:
    """Return path, syntax tree and text of every module of the package."""
    texts = {path: path.read_text(encoding="utf-8") for path in sorted(PACKAGE.rglob("*.py"))}
    return [
        (path.relative_to(PACKAGE.parent).as_posix(), ast.parse(text), text)
        for path, text in texts.items()
    ]


def empty_names() -> list[str]:
    """List meaningless names with their module and function, sorted."""
    lines = []
    for path, tree, _ in sources():
        lines += [f"{path} {scope} {name}" for scope, name in _bindings(tree, ())]
    return sorted(lines)


def _bindings(node: ast.AST, scope: tuple[str, ...]) -> Iterator[tuple[str, str]]:
    """Yield the meaningless names that a tree binds, with the enclosing function or class."""
    for child in ast.iter_child_nodes(node):
        inner, name = scope, ""
        if isinstance(child, ast.FunctionDef | ast.AsyncFunctionDef | ast.ClassDef):
            inner, name = (*scope, child.name), child.name
        elif isinstance(child, ast.arg):
            name = child.arg
        elif isinstance(child, ast.Name) and isinstance(child.ctx, ast.Store):
            name = child.id
        if name.strip("_").lower() in EMPTY:
            yield ".".join(scope) or "*", name
        yield from _bindings(child, inner)


def file_lengths() -> dict[str, int]:
    """Count the lines of every module."""
    return {path: text.count("\n") for path, _, text in sources()}


def function_lengths() -> dict[str, int]:
    """Count the lines of every function's body, without its docstring."""
    lengths = {}
    for path, tree, _ in sources():
        for node in ast.walk(tree):
            if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef):
                body = node.body[bool(ast.get_docstring(node)) :]
                if body:
                    last = body[-1].end_lineno or body[-1].lineno
                    lengths[f"{path} {node.name}"] = last - body[0].lineno + 1
    return lengths


def repeated_names() -> dict[str, int]:
    """Return file names that three or more modules share, with their counts."""
    counts = collections.Counter(path.rpartition("/")[2] for path, _, _ in sources())
    return {name: n for name, n in counts.items() if n > 2 and not name.startswith("__")}


if __name__ == "__main__":
    LEFT.write_text("".join(f"{line}\n" for line in empty_names()), encoding="utf-8")
