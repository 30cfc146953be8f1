"""Mutants: small errors, one at a time, and whether a test that runs the changed line fails.

    python benchmarks/mutants.py --record     # which quick tests run which lines, and for how long
    python benchmarks/mutants.py --record --slow slow.json          # and which slow ones
    python benchmarks/mutants.py --each 10    # 10 of each room; prints the killed share by room
    python benchmarks/mutants.py --each 20 --seed 78 --slow slow.json --write   # and mutants.md

A mutant replaces one operator, comparison, constant or function in one place of one module. Tests
are collected once. Each mutant then runs in a fork: the code of its functions is replaced and the
tests that run its line follow, until one fails; what the quick tests let live is tried with the
slow ones. What runs only at import is tried in a fork that imports the package anew.
`judged_mutants.toml` says of survivors what became of them.
"""

from __future__ import annotations

import ast
import contextlib
import gc
import importlib
import importlib.abc
import importlib.util
import itertools
import json
import os
import random
import resource
import signal
import sys
import tomllib
from collections import Counter, defaultdict
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from types import CodeType, FunctionType
from typing import Annotated, Any

import coverage
import pytest
import typer
from _pytest.runner import runtestprotocol

ROOT = Path(__file__).parent.parent
ROOMS = (
    *("cost", "choose", "training", "evidence", "emitters"),
    *("ask", "describe", "validate", "show", "sweeps"),
)
_OTHERS = ("docs_console", "docs_questions", "docs_tables", "docs_tutorials", "figures", "fuzz")
TESTS = (
    *(f"tests/{room}" for room in (*ROOMS, "golden", "cli")),
    *(f"tests/test_{name}.py" for name in (*_OTHERS, "job", "tables", "units")),
    "planner",
)
_OPTIONS = ("-q", "-m", "not alone", "-p", "no:xdist", "-p", "no:cacheprovider")
_SLOW = "by a slow test: "
ALIVE = ("survived", "no test")
PAGE = ROOT / "docs" / "reference" / "mutants.md"
JUDGED = ROOT / "benchmarks" / "judged_mutants.toml"
JUDGEMENTS = ("tested", "equivalent", "words", "open")
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

    @property
    def module(self) -> str:
        """Dotted name of the changed module."""
        return self.path.removesuffix(".py").removesuffix("/__init__").replace("/", ".")

    @property
    def source(self) -> str:
        """Source of the changed line."""
        return (ROOT / self.path).read_text("utf-8").splitlines()[self.line - 1].strip()

    def tree(self) -> ast.Module:
        """Return the changed syntax tree."""
        tree = _tree(self.path)
        list(exchanges(tree))[self.index][2]()
        return ast.fix_missing_locations(tree)


# --- making mutants ----------------------------------------------------------------------------


def _formulas(tree: ast.AST) -> Iterator[ast.AST]:
    """Yield nodes of computations: no annotations, decorators, f-strings, imports or raises."""
    for node in ast.iter_child_nodes(tree):
        if node in getattr(tree, "decorator_list", ()):
            continue
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


# --- which tests run a line ----------------------------------------------------------------------


@dataclass(frozen=True)
class Record:
    """Seconds of every test, and the tests that run each line of each module."""

    seconds: dict[str, float]
    lines: dict[str, dict[int, list[str]]]

    @classmethod
    def read(cls, file: Path) -> Record:
        """Read what `record` wrote."""
        kept = json.loads(file.read_text())
        tests = list(kept["seconds"])
        lines = {
            path: {int(line): [tests[i] for i in runs] for line, runs in rows.items()}
            for path, rows in kept["lines"].items()
        }
        return cls(kept["seconds"], lines)

    def tests(self, mutant: Mutant, budget_s: float) -> list[str]:
        """Tests that run the line: its module's own, whole answers, then three cases of each."""
        rows = self.lines.get(mutant.path, {})
        start = _function_start(mutant)
        line = max((n for n in rows if start <= n <= mutant.line), default=0) if start else 0
        shares: dict[str, int] = defaultdict(int)
        for test in rows[line] if line else itertools.chain.from_iterable(rows.values()):
            shares[test] += 1
        cases: dict[str, int] = defaultdict(int)
        keyed = []
        for test in sorted(shares, key=lambda t: (-shares[t], self.seconds[t], t)):
            function = test.split("[")[0]
            is_other = f"/test_{Path(mutant.path).stem}.py" not in function
            is_part = not test.startswith("tests/golden")
            place = (is_other, is_other and is_part, cases[function] // 3)
            keyed.append((*place, self.seconds[test], test))
            cases[function] += 1
        order = [test for *_, test in sorted(keyed)]
        sums = itertools.accumulate(self.seconds[test] for test in order)
        return [test for test, total in zip(order, sums, strict=True) if total <= budget_s]


class _Clock:
    """Pytest plugin that adds up the seconds of each test."""

    def __init__(self) -> None:
        self.seconds: dict[str, float] = defaultdict(float)

    def pytest_runtest_logreport(self, report: pytest.TestReport) -> None:
        """Add the duration of a phase."""
        self.seconds[report.nodeid] += report.duration


def record(file: Path, kind: str) -> None:
    """Run all tests of a kind under coverage; write their seconds, and the tests of each line."""
    clock, data = _Clock(), file.with_suffix(".coverage")
    os.environ["COVERAGE_FILE"] = str(data)
    options = ["--cov=planner", f"--cov-config={os.devnull}", "--cov-context=test"]
    marked = ("-m", f"not alone and {kind}")
    pytest.main([*options, "--cov-report=", *_OPTIONS, *marked, *TESTS], plugins=[clock])
    measured = coverage.CoverageData(str(data))
    measured.read()
    tests = sorted(clock.seconds)
    numbers = {test: number for number, test in enumerate(tests)}
    lines = {
        str(Path(path).relative_to(ROOT)): {
            line: sorted({numbers[c.rsplit("|", 1)[0]] for c in contexts if c})
            for line, contexts in measured.contexts_by_lineno(path).items()
            if any(contexts)
        }
        for path in measured.measured_files()
    }
    seconds = {test: round(clock.seconds[test], 3) for test in tests}
    file.write_text(json.dumps({"seconds": seconds, "lines": lines}))


def _function_start(mutant: Mutant) -> int:
    """First line of the function around a mutant; 0 if it runs at import."""
    inside = [
        node.lineno
        for node in ast.walk(_tree(mutant.path))
        if isinstance(node, ast.FunctionDef | ast.Lambda)
        and node.lineno <= mutant.line <= (node.end_lineno or 0)
    ]
    return max(inside, default=0)


# --- running one ---------------------------------------------------------------------------------


class _Loader(importlib.abc.MetaPathFinder, importlib.abc.SourceLoader):
    """Import hook that finds the mutated module before the real one."""

    def __init__(self, mutant: Mutant) -> None:
        self.path, self.name, self.tree = mutant.path, mutant.module, mutant.tree()

    def find_spec(self, name: str, path: Any = None, target: Any = None) -> Any:
        """Return the spec of the mutated module; None for every other module."""
        if name != self.name:
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
        return compile(self.tree, str(ROOT / self.path), "exec")


def _pairs(old: CodeType, new: CodeType) -> Iterator[tuple[CodeType, CodeType]]:
    """Yield the code objects of a module that differ, with what replaces them."""
    if old != new:
        yield old, new
        inner = [[c for c in code.co_consts if isinstance(c, CodeType)] for code in (old, new)]
        for pair in zip(*inner, strict=False):
            yield from _pairs(*pair)


def _functions() -> dict[str, list[FunctionType]]:
    """Find the living functions of the package, by file."""
    functions: dict[str, list[FunctionType]] = defaultdict(list)
    for thing in gc.get_objects():
        if type(thing) is FunctionType and "/planner/" in thing.__code__.co_filename:
            functions[thing.__code__.co_filename].append(thing)
    return functions


def exchange_code(mutant: Mutant, functions: Sequence[FunctionType]) -> bool:
    """Replace the code of living functions; False if the mutant runs only at import."""
    file = str(ROOT / mutant.path)
    old, new = compile(_tree(mutant.path), file, "exec"), compile(mutant.tree(), file, "exec")
    changed = dict(_pairs(old, new))
    exchanged = [function for function in functions if function.__code__ in changed]
    for function in exchanged:
        function.__code__ = changed[function.__code__]
    return bool(exchanged)


def _again(mutant: Mutant, tests: Sequence[str]) -> str:
    """Import the package anew with the mutant and run the tests."""
    for name in [name for name in sys.modules if name.split(".")[0] in ("planner", "tests")]:
        del sys.modules[name]
    sys.meta_path.insert(0, _Loader(mutant))
    ends = _Ends()
    try:
        code = int(pytest.main([*_OPTIONS, "-x", "--assert=plain", *tests], plugins=[ends]))
    except BaseException:
        code = 1
    return (ends.failed or "import fails") if code else ""


def _imported(mutant: Mutant) -> str:
    """Import the mutated module; return what happens to those whose import fails."""
    for name in [name for name in sys.modules if name.split(".")[0] == "planner"]:
        del sys.modules[name]
    sys.meta_path.insert(0, _Loader(mutant))
    try:
        importlib.import_module(mutant.module)
    except Exception:
        return "import fails"
    return ""


class _Ends:
    """Pytest plugin that keeps the name of the failed test."""

    failed = ""

    def pytest_runtest_logreport(self, report: pytest.TestReport) -> None:
        """Keep the name of a test that fails."""
        if report.failed:
            self.failed = report.nodeid


def _run(items: Iterable[pytest.Item]) -> str:
    """Run collected tests; return the name of the first that fails."""
    every = list(items)
    for item, following in itertools.zip_longest(every, every[1:]):
        if any(report.failed for report in runtestprotocol(item, nextitem=following, log=False)):
            return item.nodeid
    return ""


@dataclass(frozen=True)
class Bench:
    """Collected tests and what each of them runs."""

    records: Sequence[Record]
    """Quick tests first, then slow ones."""
    items: dict[str, pytest.Item]
    functions: dict[str, list[FunctionType]]
    budget_s: float

    def outcome(self, mutant: Mutant) -> str:
        """Return the test that detects a mutant, `no test` or `survived`."""
        quick = self._outcome(mutant, self.records[0])
        for record in self.records[1:]:
            if quick in ALIVE and (slow := self._outcome(mutant, record)) not in ALIVE:
                return _SLOW + slow
        return quick

    def _outcome(self, mutant: Mutant, record: Record) -> str:
        tests = [t for t in record.tests(mutant, self.budget_s) if t in self.items]
        if not tests:
            return _forked(lambda: _imported(mutant), 60) or "no test"
        limit_s = 60 + 4 * int(sum(record.seconds[test] for test in tests))

        def quick() -> str:
            if not exchange_code(mutant, self.functions[str(ROOT / mutant.path)]):
                return "at import"
            return _run(self.items[test] for test in tests)

        end = _forked(quick, limit_s)
        return (_forked(lambda: _again(mutant, tests), limit_s) if end == "at import" else end) or (
            "survived"
        )


def _forked(task: Any, limit_s: int) -> str:
    """Run a task in a fork with a limit of CPU time; return its answer."""
    read, write = os.pipe()
    child = os.fork()
    if child == 0:
        os.close(read)
        resource.setrlimit(resource.RLIMIT_CPU, (limit_s, limit_s))
        signal.alarm(20 * limit_s)
        answer = "ended the process"
        with open(os.devnull, "w") as silent, contextlib.suppress(BaseException):
            os.dup2(silent.fileno(), 1)
            os.dup2(silent.fileno(), 2)
            answer = task()
        os.write(write, answer.encode())
        os._exit(0)
    os.close(write)
    with os.fdopen(read) as pipe:
        answer = pipe.read()
    _, status = os.waitpid(child, 0)
    return answer if status == 0 else "ended the process"


# --- many ----------------------------------------------------------------------------------------


class _Loop:
    """Pytest plugin that runs mutants in place of the collected tests."""

    def __init__(
        self, chosen: list[Mutant], kept: Sequence[Record], output: Path, budget_s: float
    ) -> None:
        self.chosen, self.kept, self.output, self.budget_s = chosen, kept, output, budget_s
        rows = output.read_text().splitlines() if output.exists() else []
        self.known = {tuple(key): end for *key, end in map(json.loads, rows)}
        self.outcomes: list[tuple[Mutant, str]] = []

    def pytest_runtestloop(self, session: pytest.Session) -> bool:
        """Run every mutant that has no kept outcome."""
        items = {item.nodeid: item for item in session.items}
        bench = Bench(self.kept, items, _functions(), self.budget_s)
        gc.freeze()
        for number, mutant in enumerate(self.chosen):
            key = (mutant.path, mutant.line, mutant.index, mutant.what)
            if key not in self.known:
                self.known[key] = bench.outcome(mutant)
                with self.output.open("a") as file:
                    file.write(json.dumps([*key, self.known[key]]) + "\n")
            print(f"\r{number + 1} of {len(self.chosen)}", end="", file=sys.stderr, flush=True)
            self.outcomes.append((mutant, self.known[key]))
        return True


def main(
    each: Annotated[int, typer.Option(help="Mutants of each room.")] = 20,
    seed: Annotated[int, typer.Option(help="Of the draw.")] = 9,
    only: Annotated[str, typer.Option(help="Beginning of the modules' paths.")] = "planner/",
    budget_s: Annotated[float, typer.Option(help="Seconds of tests for one mutant.")] = 60,
    lines: Annotated[Path, typer.Option(help="What --record writes.")] = Path("lines.json"),
    slow: Annotated[Path | None, typer.Option(help="The same of slow tests.")] = None,
    write: Annotated[bool, typer.Option("--record", help="Run the tests, keep lines.")] = False,
    output: Annotated[
        Path, typer.Option(help="Kept results; what is there is not run again.")
    ] = Path("mutants.jsonl"),
    page: Annotated[bool, typer.Option("--write", help=f"Write {PAGE.name}.")] = False,
) -> None:
    """Run a sample of mutants; print the killed share by room, then the survivors."""
    lines, output, slow = lines.resolve(), output.resolve(), slow and slow.resolve()
    os.chdir(ROOT)
    if write:
        record(slow or lines, "slow" if slow else "not slow")
        return
    kept = [Record.read(file) for file in (lines, slow) if file]
    loop = _Loop(draw(each, seed, only), kept, output, budget_s)
    pytest.main([*_OPTIONS, *TESTS], plugins=[loop])
    print(report(loop.outcomes))
    if page:
        PAGE.write_text(page_of(loop.outcomes, each, seed, budget_s), "utf-8")


def report(outcomes: list[tuple[Mutant, str]]) -> str:
    """Return killed counts by room, then the survivors."""
    alive = [(mutant, end) for mutant, end in outcomes if end in ALIVE]
    lines = [f"{end}: {m.path}:{m.line} {m.what}" for m, end in sorted(alive, key=str)]
    return "\n".join([*_by_room(outcomes), "", *lines])


def _by_room(outcomes: list[tuple[Mutant, str]]) -> list[str]:
    """Return a table of killed counts by room."""
    lines = ["| room | mutants | killed by quick tests | by these or slow ones |"]
    lines += ["|---|---:|---:|---:|"]
    for room in (*ROOMS, "all"):
        ends = [end for mutant, end in outcomes if room in ("all", mutant.path.split("/")[1])]
        if ends:
            dead = [end for end in ends if end not in ALIVE]
            quick = [end for end in dead if not end.startswith(_SLOW)]
            shares = " | ".join(_share(len(each), len(ends)) for each in (quick, dead))
            lines.append(f"| {room} | {len(ends)} | {shares} |")
    return lines


def _share(part: int, whole: int) -> str:
    return f"{part} ({100 * part / whole:.0f} %)"


# --- the page ------------------------------------------------------------------------------------


def judgements() -> dict[tuple[str, str, str], tuple[str, str]]:
    """Return what became of survivors and why, by path, source and replacement."""
    rows = tomllib.loads(JUDGED.read_text("utf-8"))["survivor"]
    return {
        (row["path"], row["source"], row["what"]): (row["judgement"], row["why"]) for row in rows
    }


def page_of(outcomes: list[tuple[Mutant, str]], each: int, seed: int, budget_s: float) -> str:
    """Return the page of the documentation."""
    judged = judgements()
    rows = []
    for mutant, end in sorted(outcomes, key=str):
        if end in ALIVE:
            ruling, why = judged.get((mutant.path, mutant.source, mutant.what), ("open", ""))
            rows.append((mutant, ruling, why))
    counts = Counter(ruling for _, ruling, _ in rows)
    survivors = "\n".join(
        f"| {mutant.path.removeprefix('planner/')} | `{mutant.source.replace('|', chr(92) + '|')}` "
        f"| {mutant.what} | {ruling} | {why} |"
        for mutant, ruling, why in rows
    )
    real = len(outcomes) - counts["equivalent"] - counts["words"]
    dead = len(outcomes) - len(rows)
    text = (Path(__file__).parent / "mutants_page.md").read_text("utf-8")
    return text.format(
        mutants=len(outcomes),
        each=each,
        seed=seed,
        budget_s=budget_s,
        rooms="\n".join(_by_room(outcomes)),
        dead=_share(dead, real),
        now=_share(dead + counts["tested"], real),
        real=real,
        judged="\n".join(f"| {ruling} | {counts[ruling]} |" for ruling in JUDGEMENTS),
        survivors=survivors,
    )


if __name__ == "__main__":
    typer.run(main)
