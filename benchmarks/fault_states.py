"""Fault states: run `planner`, and send it a signal when it reaches a state, not after a time.

    python -P benchmarks/fault_states.py STATE SIGNAL WORDS...

A state is `KIND:NUMBER`, the number-th event of a kind: `loads` (the command line is imported),
`calls` (a function of the package is called), `writes` (a file or folder is opened for writing,
moved or made below the working folder) or `FUNCTION` (a function of this name is called). Without a
signal (0) the counts of calls and writes are written to the file named by PLANNER_FAULT_COUNTS.
"""

from __future__ import annotations

import json
import os
import pwd
import signal
import sys
from collections import Counter
from pathlib import Path
from types import FrameType
from typing import Any, NoReturn

PACKAGE = str(Path(__file__).parent.parent / "planner")
_FOLDER = os.getcwd()
_MAIN = os.getpid()
_WRITE_FLAGS = os.O_WRONLY | os.O_RDWR
_CHANGES = ("os.rename", "os.mkdir", "os.remove", "os.rmdir")

counts: Counter[str] = Counter()


class Stop:
    """A signal that this process sends, once, at the number-th event of a kind."""

    def __init__(self, state: str, number: int) -> None:
        self.kind, _, place = state.partition(":")
        self.place, self.signal = int(place), number
        self.is_due = number > 0

    def count(self, kind: str) -> None:
        """Count an event; send the signal if it is the one."""
        counts[kind] += 1
        if self.is_due and kind == self.kind and counts[kind] == self.place:
            self.is_due = False
            # a terminal sends Ctrl-C to every process of its group
            (os.killpg if self.signal == signal.SIGINT else os.kill)(
                os.getpgrp() if self.signal == signal.SIGINT else os.getpid(), self.signal
            )


def _is_write(event: str, arguments: tuple[Any, ...]) -> bool:
    if event == "open":
        path, _, flags = arguments
        return bool(flags & _WRITE_FLAGS) and _is_below(path)
    return event in _CHANGES and _is_below(arguments[0])


def _is_below(path: object) -> bool:
    """Whether a path lies in the working folder, and is no cache of compiled code."""
    if not isinstance(path, str | Path):
        return False
    full = os.path.abspath(path)
    return full.startswith(_FOLDER + os.sep) and "__pycache__" not in full


def watch(stop: Stop) -> None:
    """Count the events of this process."""

    def audited(event: str, arguments: tuple[Any, ...]) -> None:
        if os.getpid() != _MAIN:
            return
        if event == "import" and arguments[0] == "planner.cli.program":
            stop.count("loads")
        elif _is_write(event, arguments):
            stop.count("writes")

    def called(frame: FrameType, event: str, _: object) -> None:
        if event == "call" and frame.f_code.co_filename.startswith(PACKAGE):
            stop.count("calls")
            stop.count(frame.f_code.co_name)

    sys.addaudithook(audited)
    if stop.kind not in ("loads", "writes"):
        sys.setprofile(called)


def _without_account(user: object) -> NoReturn:
    raise KeyError(f"no account of {user}")


def main() -> None:
    """Run the words as `planner` does."""
    state, number, *words = sys.argv[1:]
    sys.argv = ["planner", *words]
    watch(Stop(state, int(number)))
    if os.environ.get("PLANNER_FAULT_NO_ACCOUNT"):
        pwd.getpwuid = pwd.getpwnam = _without_account
    from planner.__main__ import main as run

    try:
        run()
    finally:
        sys.setprofile(None)
        if counted := os.environ.get("PLANNER_FAULT_COUNTS"):
            Path(counted).write_text(json.dumps(counts), encoding="utf-8")


if __name__ == "__main__":
    main()
