"""Fuzz: real inputs of every reader, mutated; each case must end in an answer or in one sentence.

    python benchmarks/fuzz.py --cases 100000 --write     # all readers, and docs/reference/fuzz.md
    python benchmarks/fuzz.py --reader logs --first 17 --cases 1 --verbose      # one case again

Reader and number identify a case: they always make the same input. Every case has a CPU time and a
memory limit. Answers must be finite, not negative and consistent; a refusal is a `PlannerError`,
or exit code 2, with one printed line that has a remedy. The exit code is 1 if any case ends
otherwise.
"""

from __future__ import annotations

import contextlib
import json
import logging
import os
import random
import resource
import signal
import sys
import tempfile
import tomllib
import traceback
import warnings
from collections import Counter, defaultdict
from collections.abc import Iterator
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Annotated, Any

import numpy as np
import typer
from fuzzing.checks import Odd, Refused, check_refusal
from fuzzing.readers import ABOUT, READERS

from planner.errors import PlannerError

OUTCOMES = ("answer", "refusal", "traceback", "odd", "hang")
WRONG = OUTCOMES[2:]
SECONDS, MEMORY_BYTES = 20, 4 * 2**30
_SHOWN = 3
_ROOT = Path(__file__).parent.parent
PAGE = _ROOT / "docs" / "reference" / "fuzz.md"
_MENDED = Path(__file__).parent / "fuzzing" / "mended.toml"


class Hang(BaseException):
    """A case exceeded its CPU time; a BaseException, so that `except Exception` lets it pass."""


@dataclass(frozen=True)
class Result:
    """Outcome of one case."""

    reader: str
    number: int
    outcome: str
    what: str = ""
    """Place and message of the failure; empty for answers and refusals."""


# --- one case ----------------------------------------------------------------------------------


def run_case(name: str, number: int, folder: Path) -> Result:
    """Make the input of a case, use it, and return the outcome."""
    rng = random.Random(f"{name}:{number}")
    try:
        with warnings.catch_warnings(), np.errstate(all="warn", under="ignore"):
            warnings.simplefilter("error", RuntimeWarning)
            READERS[name].case(rng, folder)
    except (PlannerError, Refused) as error:
        return _refused(name, number, str(error))
    except Odd as error:
        return Result(name, number, "odd", str(error)[:300])
    except Hang:
        return Result(name, number, "hang", _place(sys.exc_info()[2]))
    except (Exception, SystemExit, KeyboardInterrupt) as error:
        outcome = "odd" if isinstance(error, RuntimeWarning) else "traceback"
        place = _place(error.__traceback__)
        return Result(name, number, outcome, f"{place} {type(error).__name__}: {error}"[:200])
    return Result(name, number, "answer")


def _refused(name: str, number: int, text: str) -> Result:
    try:
        check_refusal(text)
    except Odd as error:
        return Result(name, number, "odd", str(error)[:300])
    return Result(name, number, "refusal", text[:200])


def _place(trace: Any) -> str:
    """Return the innermost line of a traceback that is in the package."""
    frames = [f for f in traceback.extract_tb(trace) if "planner" in f.filename]
    last = frames[-1] if frames else traceback.extract_tb(trace)[-1]
    return f"{Path(last.filename).name}:{last.lineno} {last.name}"


# --- many cases, in a process of their own -------------------------------------------------------


def _limits() -> None:
    """Set the limits: CPU time of a case, memory beyond what the process has."""

    def stop(signum: int, frame: Any) -> None:
        raise Hang

    signal.signal(signal.SIGPROF, stop)
    # a test process may hold torch and the caches of other tests already
    pages = int(Path("/proc/self/statm").read_text().split()[0])
    most = pages * resource.getpagesize() + MEMORY_BYTES
    resource.setrlimit(resource.RLIMIT_AS, (most, most))


def _child(name: str, numbers: range, pipe: int) -> None:
    """Run cases and write their outcomes; an uninterruptible call ends the process."""
    _limits()
    logging.disable(logging.WARNING)  # of Streamlit, which runs no page here
    sys.stdin = open(os.devnull)  # noqa: SIM115
    with tempfile.TemporaryDirectory() as folder, os.fdopen(pipe, "w") as out:
        os.chdir(folder)
        for number in numbers:
            used = resource.getrusage(resource.RUSAGE_SELF)
            hard = int(used.ru_utime + used.ru_stime + 3 * SECONDS) + 1
            resource.setrlimit(resource.RLIMIT_CPU, (hard, resource.RLIM_INFINITY))
            signal.setitimer(signal.ITIMER_PROF, SECONDS)
            try:
                result = run_case(name, number, Path(folder))
            except Hang:
                result = Result(name, number, "hang", "between two calls")
            signal.setitimer(signal.ITIMER_PROF, 0)
            print(json.dumps([number, result.outcome, result.what]), file=out, flush=True)


def run_cases(name: str, numbers: range) -> Iterator[Result]:
    """Yield results of cases in order; a case that kills the process counts as a hang."""
    left = numbers
    while left:
        read, write = os.pipe()
        sys.stdout.flush()
        child = os.fork()
        if child == 0:
            os.close(read)
            code = 1
            try:
                _child(name, left, write)
                code = 0
            except BaseException:
                traceback.print_exc()
            finally:
                os._exit(code)
        os.close(write)
        done = left.start
        with os.fdopen(read) as lines:
            for line in lines:
                number, outcome, what = json.loads(line)
                done = number + 1
                yield Result(name, number, outcome, what)
        os.waitpid(child, 0)
        if done < left.stop:
            yield Result(name, done, "hang", "the process was killed")
            done += 1
        left = range(done, left.stop)


def shares(names: list[str], cases: int) -> dict[str, int]:
    """Deal cases to readers by their shares."""
    total = sum(READERS[name].share for name in names)
    return {name: -(-cases * READERS[name].share // total) for name in names}


def refused_bases(name: str) -> list[str]:
    """Return the unchanged inputs that a reader does not accept, with the reason."""
    refused = []
    with tempfile.TemporaryDirectory() as folder, contextlib.chdir(folder):
        for base in READERS[name].bases():
            try:
                READERS[name].use(base, Path(folder))
            except (PlannerError, Refused, Odd) as error:
                refused.append(f"{str(base)[:60]!r}: {error}")
    return refused


# --- report --------------------------------------------------------------------------------------


def table(results: dict[str, Counter[str]]) -> str:
    """Return a table of outcomes by reader."""
    total: Counter[str] = sum(results.values(), Counter())
    rows = [_row(name, counts) for name, counts in {**results, "all": total}.items()]
    head = ["| input | calls | accepted | refused | tracebacks | wrong answers | hangs |"]
    return "\n".join([*head, "|---|" + "---:|" * 6, *rows])


def _row(name: str, counts: Counter[str]) -> str:
    calls = sum(counts.values())
    accepted = f"{100 * counts['answer'] / calls:.0f} %"
    cells = [accepted, *(f"{counts[outcome]:,}" for outcome in OUTCOMES[1:])]
    return f"| {name} | {calls:,} | " + " | ".join(cells) + " |"


def report_wrong(wrong: list[Result]) -> str:
    """Return the failures by place, with the numbers of the first cases."""
    places: dict[tuple[str, str, str], list[Result]] = defaultdict(list)
    for result in wrong:
        place = " ".join(result.what.split(" ")[:3])
        places[result.reader, result.outcome, place].append(result)
    lines = []
    for (name, outcome, _), found in sorted(places.items(), key=lambda item: -len(item[1])):
        numbers = ", ".join(str(result.number) for result in found[:_SHOWN])
        lines.append(f"{outcome} x {len(found)}: {name} {numbers}: {found[0].what}")
    return "\n".join(lines)


def page(results: dict[str, Counter[str]], left: int) -> str:
    """Return the page of the documentation; `left` cases fail when they are run again."""
    failures = sum(counts[outcome] for counts in results.values() for outcome in WRONG)
    mended = tomllib.loads(_MENDED.read_text("utf-8"))["mended"]
    rows = [f"| {row['input']} | {row['failure']} | {row['now']} |" for row in mended]
    text = (Path(__file__).parent / "fuzzing" / "page.md").read_text("utf-8")
    bases = {name: len(READERS[name].bases()) for name in results}
    inputs = "\n".join(f"| {name} | {ABOUT[name]} | {bases[name]} |" for name in results)
    return text.format(
        table=table(results),
        inputs=inputs,
        mended="\n".join(rows),
        seconds=SECONDS,
        memory=MEMORY_BYTES // 2**30,
        calls=f"{sum(map(Counter.total, results.values())):,}",
        failures=failures,
        left=left or "none",
    )


def main(
    cases: Annotated[int, typer.Option(help="Cases in all, dealt by share.")] = 100_000,
    reader: Annotated[list[str] | None, typer.Option(help=f"One of {', '.join(READERS)}.")] = None,
    first: Annotated[int, typer.Option(help="Number of each reader's first case.")] = 0,
    verbose: Annotated[bool, typer.Option(help="One case in this process, with its end.")] = False,
    into: Annotated[Path | None, typer.Option(help="Append the results, one line each.")] = None,
    write: Annotated[
        Path | None, typer.Option(help=f"Write {PAGE.name} from results, with failures run again.")
    ] = None,
    refusals: Annotated[Path | None, typer.Option(help="Append every refusal here.")] = None,
) -> None:
    """Run the cases; print a table and the failures."""
    chosen = reader or list(READERS)
    if verbose:
        with tempfile.TemporaryDirectory() as folder:
            os.chdir(folder)
            READERS[chosen[0]].case(random.Random(f"{chosen[0]}:{first}"), Path(folder))
        return
    if write:
        raise typer.Exit(_write_page(write))
    counts: dict[str, Counter[str]] = {}
    wrong: list[Result] = []
    for name, number in shares(chosen, cases).items():
        if unfit := refused_bases(name):
            raise SystemExit(f"{name}: unchanged inputs are not accepted: {unfit}")
        results = list(run_cases(name, range(first, first + number)))
        counts[name] = Counter(result.outcome for result in results)
        failures = [result for result in results if result.outcome in WRONG]
        wrong += failures
        if into:
            _append(into, json.dumps([name, counts[name], [asdict(each) for each in failures]]))
        if refusals:
            texts = (f"{name} {each.number}: {each.what}" for each in results if each.what)
            _append(refusals, "\n".join(texts))
        print(_row(name, counts[name]), file=sys.stderr, flush=True)
    print(table(counts))
    print(report_wrong(wrong))
    raise typer.Exit(1 if wrong else 0)


def _append(path: Path, text: str) -> None:
    with path.open("a", encoding="utf-8") as file:
        print(text, file=file)


def _write_page(path: Path) -> int:
    """Write the page from results; failures that happen again are printed, and end it with 1."""
    counts: dict[str, Counter[str]] = defaultdict(Counter)
    again: list[Result] = []
    for line in path.read_text("utf-8").splitlines():
        name, outcomes, failures = json.loads(line)
        counts[name].update(outcomes)
        numbers = (failure["number"] for failure in failures)
        again += [result for n in numbers for result in run_cases(name, range(n, n + 1))]
    left = [result for result in again if result.outcome in WRONG]
    PAGE.write_text(page(dict(counts), len(left)), "utf-8")
    print(report_wrong(left))
    return 1 if left else 0


if __name__ == "__main__":
    typer.run(main)
