"""Mutants: small errors, one at a time, and whether the tests of their room detect them.

    python benchmarks/mutants.py          # 20 of each room; prints the killed share by room
    python benchmarks/mutants.py --only planner/cost/memory --each 40

A mutant replaces one operator, comparison, constant or function in one place of one module. It runs
in its own process, which has imported numpy and pytest but not the planner. The tests that cover
its module best run first, and the first failure ends the process.
"""

from __future__ import annotations

import ast
import contextlib
import importlib.abc
import importlib.util
import itertools
import json
import os
import random
import resource
import sys
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Annotated, Any

import hypothesis  # noqa: F401
import networkx  # noqa: F401
import numpy  # noqa: F401
import pydantic  # noqa: F401
import pytest
import typer

ROOT = Path(__file__).parent.parent
ROOMS = (
    *("cost", "choose", "training", "evidence", "emitters"),
    *("ask", "describe", "validate", "show", "sweeps"),
)
_FAST = ("-m", "not slow")
_SLOW = ("-m", "slow and not alone")
_TRACES = "tests/validate/trace/test_kept_traces.py"
_MOMENTS = ("tests/golden/test_golden.py", "-k", "moment")
_ESTIMATES = ("tests/golden/test_golden.py", "-k", "estimate")
_PLANS = ("tests/golden/test_golden.py", "-k", "plan-one or plan-exp or plan-polaris or plan-lora")
ORDER: dict[str, tuple[tuple[str, ...], ...]] = {
    "cost/memory": (_MOMENTS, (_TRACES,), _ESTIMATES, ("tests/cost/memory",)),
    "cost/operators": (
        _MOMENTS,
        (_TRACES,),
        _ESTIMATES,
        ("tests/cost/operators", "tests/cost/memory"),
    ),
    "cost/shards": (_MOMENTS, (_TRACES,), _ESTIMATES, ("tests/cost/shards", "tests/cost/memory")),
    "cost/network": (("tests/cost/network",), _ESTIMATES, _PLANS),
    "cost/schedules": (("tests/cost/schedules", "tests/cost/shards"), _ESTIMATES),
    "cost/step": (_ESTIMATES, ("tests/cost/step",), ("tests/cost/test_properties.py",)),
    "cost": (
        ("tests/cost/test_estimate.py", "tests/cost/test_arrays.py", "tests/cost/test_parts.py"),
        _ESTIMATES,
    ),
    "choose": (
        ("tests/choose/test_legality.py", "tests/choose/test_search.py"),
        ("tests/choose", *_FAST),
        _PLANS,
    ),
    "evidence/logs": (("tests/evidence/logs", *_FAST), ("tests/evidence", *_FAST)),
    "ask": (("tests/ask", *_FAST), ("tests/ask", *_SLOW)),
    "show": (("tests/show", *_FAST), ("tests/show", *_SLOW)),
    "describe": (("tests/describe", *_FAST), _ESTIMATES),
    **{
        room: ((f"tests/{room}", *_FAST),)
        for room in ("training", "evidence", "emitters", "validate", "sweeps")
    },
}
"""Stages of tests for a module, in order; the longest matching path prefix decides."""
_EXCHANGED: dict[type, tuple[type, ...]] = {
    ast.Add: (ast.Sub,),
    ast.Sub: (ast.Add,),
    ast.Mult: (ast.Div,),
    ast.Div: (ast.Mult,),
    ast.FloorDiv: (ast.Mult,),
    ast.BitAnd: (ast.BitOr,),
    ast.BitOr: (ast.BitAnd,),
    ast.Lt: (ast.LtE, ast.Gt),
    ast.LtE: (ast.Lt, ast.GtE),
    ast.Gt: (ast.GtE, ast.Lt),
    ast.GtE: (ast.Gt, ast.LtE),
    ast.Eq: (ast.NotEq,),
    ast.NotEq: (ast.Eq,),
    ast.And: (ast.Or,),
    ast.Or: (ast.And,),
}
UNCHANGED = "unchanged"
"""The unmodified module: every test must pass with it."""
_NAMES = {
    "maximum": "minimum",
    "minimum": "maximum",
    "max": "min",
    "min": "max",
    "ceil": "floor",
    "any": "all",
    "all": "any",
}


@dataclass(frozen=True)
class Mutant:
    """One replacement in one module."""

    path: str
    line: int
    index: int
    """Number of the replacement within the module."""
    what: str


# --- making mutants ----------------------------------------------------------------------------


def _formulas(tree: ast.AST) -> Iterator[ast.AST]:
    """Yield syntax nodes of computations, without annotations, f-strings, imports or raises."""
    for node in ast.iter_child_nodes(tree):
        if isinstance(node, ast.Raise | ast.Assert | ast.JoinedStr | ast.Import | ast.ImportFrom):
            continue
        if isinstance(node, ast.AnnAssign):
            if node.value is not None:
                yield from (node.value, *_formulas(node.value))
            continue
        if isinstance(node, ast.arguments) or (
            isinstance(tree, ast.FunctionDef) and node is tree.returns
        ):
            continue
        yield node
        yield from _formulas(node)


def exchanges(tree: ast.Module) -> Iterator[tuple[int, str, Any]]:
    """Yield line, description and a function that makes the replacement, in a fixed order."""
    for node in _formulas(tree):
        if isinstance(node, ast.BinOp | ast.BoolOp | ast.AugAssign):
            for other in _EXCHANGED.get(type(node.op), ()):
                yield _set(node, "op", other(), f"{type(node.op).__name__} -> {other.__name__}")
        elif isinstance(node, ast.Compare) and len(node.ops) == 1:
            for other in _EXCHANGED.get(type(node.ops[0]), ()):
                words = f"{type(node.ops[0]).__name__} -> {other.__name__}"
                yield _set(node, "ops", [other()], words)
        elif isinstance(node, ast.UnaryOp) and isinstance(node.op, ast.Invert | ast.Not):
            yield _set(node, "operand", ast.UnaryOp(node.op, node.operand), "not x -> x")
        elif isinstance(node, ast.Attribute) and node.attr in _NAMES:
            yield _set(node, "attr", _NAMES[node.attr], f"{node.attr} -> {_NAMES[node.attr]}")
        elif isinstance(node, ast.Name) and node.id in _NAMES:
            yield _set(node, "id", _NAMES[node.id], f"{node.id} -> {_NAMES[node.id]}")
        elif isinstance(node, ast.Constant) and isinstance(node.value, bool):
            yield _set(node, "value", not node.value, f"{node.value} -> {not node.value}")
        elif isinstance(node, ast.Constant) and type(node.value) in (int, float):
            other = 2 if node.value == 1 else node.value + 1 if node.value < 2 else node.value / 2
            changed = type(node.value)(other) if node.value != 3 else 2
            yield _set(node, "value", changed, f"{node.value} -> {changed}")


def _set(node: Any, field: str, value: object, what: str) -> tuple[int, str, Any]:
    return node.lineno, what, lambda: setattr(node, field, value)


def mutants(room: str, only: str) -> list[Mutant]:
    """List every possible mutant of a room."""
    paths = sorted((ROOT / "planner" / room).rglob("*.py"))
    names = [str(path.relative_to(ROOT)) for path in paths]
    return [
        Mutant(name, line, index, what)
        for name in names
        if name.startswith(only)
        for index, (line, what, _) in enumerate(exchanges(_tree(name)))
    ]


def draw(each: int, seed: int, only: str) -> list[Mutant]:
    """Draw mutants of every room, the first of each room first."""
    rng = random.Random(seed)
    rooms = [mutants(room, only) for room in ROOMS]
    drawn = [rng.sample(every, min(each, len(every))) for every in rooms]
    turns = itertools.zip_longest(*drawn)
    return [mutant for turn in turns for mutant in turn if mutant is not None]


def _tree(path: str) -> ast.Module:
    return ast.parse((ROOT / path).read_text("utf-8"))


# --- running one ---------------------------------------------------------------------------------


class _Loader(importlib.abc.MetaPathFinder, importlib.abc.SourceLoader):
    """Import hook that finds the mutated module before the real one."""

    def __init__(self, mutant: Mutant) -> None:
        self.path, self.name = mutant.path, mutant.path.removesuffix(".py").replace("/", ".")
        self.tree = _tree(mutant.path)
        list(exchanges(self.tree))[mutant.index][2]()

    def find_spec(self, name: str, path: Any = None, target: Any = None) -> Any:
        """Return the spec of the mutated module; None for every other module."""
        if name != self.name.removesuffix(".__init__"):
            return None
        return importlib.util.spec_from_file_location(name, ROOT / self.path, loader=self)

    def get_filename(self, name: str) -> str:
        """Return the path of the module's source."""
        return str(ROOT / self.path)

    def get_data(self, path: str) -> bytes:
        """Return the unmodified source, so that docstrings and line numbers are real."""
        return Path(path).read_bytes()

    def get_code(self, name: str) -> Any:
        """Return the code of the mutant."""
        return compile(ast.fix_missing_locations(self.tree), str(ROOT / self.path), "exec")


def stages(path: str) -> tuple[tuple[str, ...], ...]:
    """Return the test stages of a module: its doctests run after the first stage."""
    room = path.removeprefix("planner/")
    first, *others = ORDER[max((key for key in ORDER if room.startswith(key)), key=len)]
    return (first, (path,), *others)


def killed(mutant: Mutant, seconds: int, most: int = 9) -> str:
    """Run the tests of a mutant; return the failed stage, or `survived`. CPU time is limited."""
    read, write = os.pipe()
    child = os.fork()
    if child == 0:
        os.close(read)
        resource.setrlimit(resource.RLIMIT_CPU, (seconds, seconds))
        _child(mutant, write, most)
    os.close(write)
    with os.fdopen(read) as answer:
        said = answer.read()
    os.waitpid(child, 0)
    return said or "ended the process"


def _child(mutant: Mutant, pipe: int, most: int) -> None:
    """Run the stages until one fails, and report it through the pipe."""
    said = "ended the process"
    with open(os.devnull, "w") as silent, contextlib.redirect_stdout(silent):
        os.dup2(silent.fileno(), 1)
        os.dup2(silent.fileno(), 2)
        if mutant.what != UNCHANGED:
            sys.meta_path.insert(0, _Loader(mutant))
        said = "survived"
        options = [
            "-x",
            "-q",
            "--assert=plain",
            "-p",
            "no:xdist",
            "-p",
            "no:cacheprovider",
            "--no-header",
        ]
        for stage in stages(mutant.path)[:most]:
            try:
                code = int(pytest.main([*options, *stage]))
            except BaseException:
                code = 1
            # exit code 5: a stage without tests is not a failure
            if code not in (0, 5):
                said = stage[0]
                break
    os.write(pipe, said.encode())
    os._exit(0)


# --- many ----------------------------------------------------------------------------------------


def main(
    each: Annotated[int, typer.Option(help="Mutants of each room.")] = 20,
    seed: Annotated[int, typer.Option(help="Of the draw.")] = 9,
    only: Annotated[str, typer.Option(help="Beginning of the modules' paths.")] = "planner/",
    seconds: Annotated[int, typer.Option(help="CPU time of one mutant.")] = 300,
    most: Annotated[int, typer.Option(help="Stages of tests that run; survivors take all.")] = 9,
    check: Annotated[bool, typer.Option(help="First see that all tests pass without one.")] = False,
    output: Annotated[
        Path, typer.Option(help="Kept results; what is there is not run again.")
    ] = Path("mutants.jsonl"),
) -> None:
    """Run a sample of mutants; print the killed share by room, then the survivors."""
    os.chdir(ROOT)
    chosen = draw(each, seed, only)
    rows = [json.loads(line) for line in output.read_text().splitlines()] if output.exists() else []
    known = {tuple(row[:4]): row[4] for row in rows}
    for room in ORDER if check else ():
        path = next((mutant.path for mutant in chosen if f"planner/{room}" in mutant.path), None)
        if path and (said := killed(Mutant(path, 0, 0, UNCHANGED), seconds)) != "survived":
            raise SystemExit(f"{said} fails without any mutant (tests of {room}): mend that first")
    outcomes: list[tuple[Mutant, str]] = []
    for number, mutant in enumerate(chosen):
        key = (mutant.path, mutant.line, mutant.index, mutant.what)
        if key not in known:
            known[key] = killed(mutant, seconds, most)
            with output.open("a") as file:
                file.write(json.dumps([*key, known[key]]) + "\n")
        print(f"\r{number + 1} of {len(chosen)}", end="", file=sys.stderr, flush=True)
        outcomes.append((mutant, known[key]))
    print(file=sys.stderr)
    print(report(outcomes))


def report(outcomes: list[tuple[Mutant, str]]) -> str:
    """Return killed counts by room, then the survivors."""
    lines = ["| room | mutants | killed |", "|---|---:|---:|"]
    for room in ROOMS:
        ends = [end for mutant, end in outcomes if mutant.path.split("/")[1] == room]
        if ends:
            lines.append(f"| {room} | {len(ends)} | {_share(ends)} |")
    lines += [f"| all | {len(outcomes)} | {_share([end for _, end in outcomes])} |", ""]
    alive = [mutant for mutant, end in outcomes if end == "survived"]
    lines += [f"survived: {m.path}:{m.line} {m.what}" for m in sorted(alive, key=str)]
    return "\n".join(lines)


def _share(ends: list[str]) -> str:
    dead = sum(end != "survived" for end in ends)
    return f"{dead} ({100 * dead / len(ends):.0f} %)"


if __name__ == "__main__":
    typer.run(main)
