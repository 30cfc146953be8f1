"""Fuzz: malformed input of every kind; each case must end in an answer or in one sentence.

    python benchmarks/fuzz.py --cases 100000             # all kinds of input, in equal parts
    python benchmarks/fuzz.py --kind logs --first 17 --cases 1 --verbose      # one case again

Kind and number identify a case: they always make the same input. Every case has a CPU time and a
memory limit. Answers must be finite; a refusal is a `PlannerError`, or exit code 2, with one
printed line. The exit code is 1 if any case ends otherwise.
"""

from __future__ import annotations

import json
import os
import random
import resource
import signal
import sys
import tempfile
import traceback
import warnings
from collections import Counter, defaultdict
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Annotated, Any

import numpy as np
import typer
from fuzz_inputs import KINDS, Odd, Refused

from planner.errors import PlannerError

OUTCOMES = ("answer", "refusal", "traceback", "odd", "hang")
WRONG = OUTCOMES[2:]
SECONDS, MEMORY_BYTES = 12, 4 * 2**30
_LONGEST_REFUSAL = 1500
_SHOWN = 3


class Hang(BaseException):
    """A case exceeded its CPU time; a BaseException, so that `except Exception` lets it pass."""


@dataclass(frozen=True)
class Result:
    """Outcome of one case."""

    kind: str
    number: int
    outcome: str
    what: str = ""
    """Place and message of the failure; empty for answers and refusals."""


# --- one case ----------------------------------------------------------------------------------


def run_case(kind: str, number: int, folder: Path) -> Result:
    """Make the input of a case, use it, and return the outcome."""
    rng = random.Random(f"{kind}:{number}")
    try:
        with warnings.catch_warnings(), np.errstate(all="warn", under="ignore"):
            warnings.simplefilter("error", RuntimeWarning)
            KINDS[kind](rng, folder)
    except (PlannerError, Refused) as error:
        said = str(error)
        if "\n" in said.strip() or len(said) > _LONGEST_REFUSAL or not said.strip():
            return Result(kind, number, "odd", f"refusal of {len(said)} characters: {said[:90]!r}")
        return Result(kind, number, "refusal")
    except Odd as error:
        return Result(kind, number, "odd", str(error)[:200])
    except Hang:
        return Result(kind, number, "hang", _place(sys.exc_info()[2]))
    except (Exception, SystemExit, KeyboardInterrupt) as error:
        outcome = "odd" if isinstance(error, RuntimeWarning) else "traceback"
        place = _place(error.__traceback__)
        return Result(kind, number, outcome, f"{place} {type(error).__name__}: {error}"[:200])
    return Result(kind, number, "answer")


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


def _child(kind: str, numbers: range, pipe: int) -> None:
    """Run cases and write their outcomes; an uninterruptible call ends the process."""
    _limits()
    sys.stdin = open(os.devnull)  # noqa: SIM115
    with tempfile.TemporaryDirectory() as folder, os.fdopen(pipe, "w") as out:
        os.chdir(folder)
        for number in numbers:
            used = resource.getrusage(resource.RUSAGE_SELF)
            hard = int(used.ru_utime + used.ru_stime + 3 * SECONDS) + 1
            resource.setrlimit(resource.RLIMIT_CPU, (hard, resource.RLIM_INFINITY))
            signal.setitimer(signal.ITIMER_PROF, SECONDS)
            try:
                result = run_case(kind, number, Path(folder))
            except Hang:
                result = Result(kind, number, "hang", "between two calls")
            signal.setitimer(signal.ITIMER_PROF, 0)
            print(json.dumps([number, result.outcome, result.what]), file=out, flush=True)


def run_cases(kind: str, numbers: range) -> Iterator[Result]:
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
                _child(kind, left, write)
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
                yield Result(kind, number, outcome, what)
        os.waitpid(child, 0)
        if done < left.stop:
            yield Result(kind, done, "hang", "the process was killed")
            done += 1
        left = range(done, left.stop)


# --- report --------------------------------------------------------------------------------------


def table(results: dict[str, Counter[str]]) -> str:
    """Return a table of outcomes by kind of input."""
    lines = ["| input | calls | answers | refusals | tracebacks | NaN or odd | hangs |"]
    lines += ["|---|" + "---:|" * 6]
    total: Counter[str] = Counter()
    for kind, found in results.items():
        total += found
        lines.append(_row(kind, found))
    return "\n".join([*lines, _row("all", total)])


def _row(name: str, found: Counter[str]) -> str:
    cells = [sum(found.values()), *(found[outcome] for outcome in OUTCOMES)]
    return f"| {name} | " + " | ".join(f"{cell:,}" for cell in cells) + " |"


def report_wrong(wrong: list[Result]) -> str:
    """Return the failures by place, with the numbers of the first cases."""
    places: dict[tuple[str, str, str], list[Result]] = defaultdict(list)
    for result in wrong:
        place = " ".join(result.what.split(" ")[:3])
        places[result.kind, result.outcome, place].append(result)
    lines = []
    for (kind, outcome, _), found in sorted(places.items(), key=lambda item: -len(item[1])):
        numbers = ", ".join(str(result.number) for result in found[:_SHOWN])
        lines.append(f"{outcome} x {len(found)}: {kind} {numbers}: {found[0].what}")
    return "\n".join(lines)


def main(
    cases: Annotated[int, typer.Option(help="Cases in all, in equal parts.")] = 100_000,
    kind: Annotated[list[str] | None, typer.Option(help=f"One of {', '.join(KINDS)}.")] = None,
    first: Annotated[int, typer.Option(help="Number of each kind's first case.")] = 0,
    verbose: Annotated[bool, typer.Option(help="One case in this process, with its end.")] = False,
) -> None:
    """Run the cases; print a table and the failures."""
    chosen = kind or list(KINDS)
    if verbose:
        with tempfile.TemporaryDirectory() as folder:
            os.chdir(folder)
            KINDS[chosen[0]](random.Random(f"{chosen[0]}:{first}"), Path(folder))
        return
    counts: dict[str, Counter[str]] = {}
    wrong: list[Result] = []
    for name in chosen:
        counts[name] = Counter()
        for result in run_cases(name, range(first, first + -(-cases // len(chosen)))):
            counts[name][result.outcome] += 1
            if result.outcome in WRONG:
                wrong.append(result)
    print(table(counts))
    print(report_wrong(wrong))
    raise typer.Exit(1 if wrong else 0)


if __name__ == "__main__":
    typer.run(main)
