"""Docstring contract of formulas: the required parts, and the formulas that lack some.

python -m tests.docstrings             # prints how many formulas have each part

Formulas are the public functions of `planner.cost` that return numbers, plain or in dataclasses.
Functions that look up a constant, a name or a mask are not formulas.
"""

from __future__ import annotations

import ast
import doctest
import functools
import importlib
import inspect
import re
import sys
import textwrap
from collections.abc import Callable, Iterator
from dataclasses import fields, is_dataclass
from pathlib import Path
from typing import Any

from tests import ROOT
from tests.markdown import METHOD, read

__all__ = ["formulas", "incomplete", "lacks", "totals", "unknown_units"]

UNITS = ("1", "B", "B/parameter", "B/s", "B/token", "FLOP", "FLOP/s", "elements", "W", "kWh", "s")
"""Allowed units in brackets; 1 is a count, an index or a ratio."""

_BRACKETS = re.compile(r"(?<![\w)])\[([A-Za-z0-9/]+)\]")
_SOURCE = re.compile(
    r"arXiv:\d{4}\.\d{4,5}|doi:10\.\S+|[A-Z][\w-]+( et al\.| and [A-Z][\w-]+)?,? (19|20)\d\d\b"
    r"|\b[Dd]efinition\b"
)
_SECTION = re.compile(r"(\w+\.md)#([\w-]+)")
_NUMBERS = re.compile(r"\b(float|int|Float|Int|NDArray)\b")
_PLAIN = {*("float", "int", "float64", "int64"), *("tuple", "list", "dict", "str")}
_PLAIN |= {"Float", "Int", "NDArray", "np"}
_WORDS = re.compile(r"[A-Za-z_]\w*")

Formula = Callable[..., Any]


def formulas() -> dict[str, Formula]:
    """Return the functions that the contract applies to, by module and name."""
    return {
        f"{function.__module__.rpartition('.')[2]}.{name}": function
        for path in sorted((ROOT / "planner" / "cost").rglob("*.py"))
        for name, function in _exported(path)
        if _holds_numbers(_returned(function), function.__module__)
    }


def _exported(path: Path) -> Iterator[tuple[str, Formula]]:
    """Yield the public functions that a module defines."""
    parts = path.relative_to(ROOT).with_suffix("").parts
    module = importlib.import_module(".".join(parts).removesuffix(".__init__"))
    for name, value in vars(module).items():
        function = inspect.unwrap(value) if callable(value) else value
        own = inspect.isfunction(function) and function.__module__ == module.__name__
        if own and not name.startswith("_"):
            yield name, function


def _has_unit(formula: Formula, text: str) -> bool:
    """True if the first paragraph names the unit, or the formula returns a dataclass."""
    if not _NUMBERS.search(_returned(formula)):
        return True
    return any(unit in UNITS for unit in _BRACKETS.findall(text.split("\n\n")[0]))


def _has_source(_: Formula, text: str) -> bool:
    """True if it cites a publication or an existing section of the method, or a definition."""
    sections = set(_SECTION.findall(text))
    return bool(_SOURCE.search(text)) or bool(sections and sections <= _headings())


def _has_known_value(formula: Formula, text: str) -> bool:
    """True if an example has an expected output, or a test of known values names the formula."""
    examples = doctest.DocTestParser().get_examples(text)
    package, _, module = formula.__module__.rpartition(".")
    names = (f"test_{formula.__name__}", f"test_{module}_{formula.__name__}")
    tests = _tests_of_known_values(".".join(package.split(".")[:3]))
    return any(example.want for example in examples) or not tests.isdisjoint(names)


RULES: dict[str, Callable[[Formula, str], bool]] = {
    "unit": _has_unit,
    "counted": lambda _, text: "Counted:" in text,
    "left_out": lambda _, text: "Left out:" in " ".join(text.split()),
    "source": _has_source,
    "known_value": _has_known_value,
}
"""Parts that a docstring must have, each with its check."""


def lacks(formula: Formula) -> set[str]:
    """Return the rules that a formula's docstring breaks."""
    text = inspect.getdoc(formula) or ""
    return {rule for rule, keeps in RULES.items() if not keeps(formula, text)}


def unknown_units(formula: Formula) -> set[str]:
    """Return bracketed words in the first paragraph that are not in `UNITS`."""
    prose = re.sub(r"^\s*(>>>|\.\.\.).*$", "", inspect.getdoc(formula) or "", flags=re.MULTILINE)
    first = prose.split("\n\n")[0]
    return {unit for unit in _BRACKETS.findall(first) if unit not in UNITS}


def incomplete() -> dict[str, list[str]]:
    """Return the formulas that break a rule, with the broken rules."""
    missing = {name: lacks(formula) for name, formula in formulas().items()}
    return {
        name: [rule for rule in RULES if rule in rules] for name, rules in missing.items() if rules
    }


def _returned(formula: Formula) -> str:
    return _annotations(formula).get("return", "")


@functools.cache
def _annotations(item: Any) -> dict[str, str]:
    """Return the annotations of a function's result or a class's fields, as written."""
    written = ast.parse(textwrap.dedent(inspect.getsource(item))).body[0]
    if isinstance(written, ast.FunctionDef):
        return {"return": ast.unparse(written.returns)} if written.returns else {}
    assert isinstance(written, ast.ClassDef)
    return {
        line.target.id: ast.unparse(line.annotation)
        for line in written.body
        if isinstance(line, ast.AnnAssign) and isinstance(line.target, ast.Name)
    }


def _only_numbers(annotation: str) -> bool:
    return bool(_NUMBERS.search(annotation)) and set(_WORDS.findall(annotation)) <= _PLAIN


def _holds_numbers(annotation: str, module: str) -> bool:
    """True if an annotation is numeric, or names a dataclass with a numeric field."""
    namespace = vars(sys.modules[module])
    named = (namespace.get(word) for word in _WORDS.findall(annotation))
    return _only_numbers(annotation) or any(
        _holds_numbers(_annotations(kind).get(field.name, ""), kind.__module__)
        for kind in named
        if isinstance(kind, type) and is_dataclass(kind)
        for field in fields(kind)
    )


@functools.cache
def _tests_of_known_values(package: str) -> set[str]:
    """Return the names of tests in the file of known values of `planner.cost` or a subpackage."""
    folder = ROOT.joinpath("tests", *package.split(".")[1:])
    path = folder / "test_known_values.py"
    return (
        set(re.findall(r"^def (\w+)", path.read_text(), re.MULTILINE)) if path.exists() else set()
    )


@functools.cache
def _headings() -> set[tuple[str, str]]:
    """Return the pages of the method, each with the anchors of its headings."""
    return {
        (page, re.sub(r"[^\w -]", "", title.lower()).replace(" ", "-"))
        for page in METHOD
        for title in re.findall(r"^#+ (.+)$", read(page), re.MULTILINE)
    }


def totals() -> str:
    """Count the formulas that keep each rule."""
    broken, count = incomplete().values(), len(formulas())
    complete = (f"{count - sum(rule in rules for rules in broken)} {rule}" for rule in RULES)
    return f"of {count} formulas: {', '.join(complete)}"


if __name__ == "__main__":
    print(totals())
