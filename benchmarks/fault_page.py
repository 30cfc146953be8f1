"""Fault page: `docs/reference/faults.md` from the cells of the matrix."""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Sequence
from typing import Any

_INTRODUCTION = """\
# Faults

Every command under every fault, as `make faults` finds it.

A command is stopped in states, not after times: while it loads, in the midst of its work, and at
writes from the first to the last. An output file holds all of an answer or is not there. The same
command then writes the same bytes, and a sweep goes on from its journal. Nothing is left running.
A stop while a file is written can leave a hidden draft (`.NAME.*` or `.emit-*`), which may be
deleted.

Exit codes without a fault: 0 the answer is complete, 1 nothing fits, 2 refused or not written, 3
doubts or refused rows. 70 is an error of the program itself; no fault ends so.
"""

_HOW = {
    "none": "nothing goes wrong",
    "kill -9": "the process is killed",
    "SIGTERM": "a scheduler or a service ends the process",
    "Ctrl-C": "an interrupt of the terminal, to every process of its group",
    "output on a full disk": "standard output is `/dev/full`",
    "files on a full disk": "no file may grow beyond 100 bytes",
    "read-only folder": "the working folder must not be changed",
    "no HOME, no account": "no HOME, and a user without an account",
    "ASCII locale": "`LC_ALL=C`",
    "reader gone": "the reader of a pipe is gone, as with `head`",
    "old package": "typer 0.12.5, older than the package asks for",
    "port taken": "another server listens at the explorer's port",
    "dead address": "nothing listens at the address",
    "silent address": "a server accepts the connection and never answers",
}


def page(cells: Sequence[Any], waiting: Sequence[str] = ()) -> str:
    """Return the page: counts, rows that wait for a longer run, faults, commands."""
    bad = [[c for c in cells if part(c)] for part in (_lost, _said_badly, _ended_badly)]
    lost, said, ended = (f"{len(cells) - len(wrong)} of {len(cells)}" for wrong in bad)
    counts = (
        f"Runs: {len(cells)}. Nothing lost: {lost}. At most one sentence: {said}. "
        f"The fault's own exit code: {ended}."
    )
    if waiting:
        counts += f" Not run to the end: {', '.join(f'`{name}`' for name in waiting)}."
    return (
        f"{_INTRODUCTION}\n{counts}\n\n## By fault\n\n{_fault_table(cells)}\n\n"
        f"## What happens, and what is said\n\n{_sentences(cells)}\n\n"
        f"## By command\n\n{_command_table(cells)}\n"
    )


def _lost(cell: Any) -> str:
    return str(cell.lost)


def _said_badly(cell: Any) -> str:
    return str(cell.message_fault)


def _ended_badly(cell: Any) -> str:
    return str(cell.code_fault)


def _listed(items: Sequence[Any]) -> str:
    return ", ".join(str(item) for item in items)


def _fault_table(cells: Sequence[Any]) -> str:
    lines = ["| fault | runs | exit codes | lost |", "|---|---:|---:|---|"]
    for fault in dict.fromkeys(cell.fault for cell in cells):
        same = [cell for cell in cells if cell.fault == fault]
        codes = _listed(sorted({cell.code for cell in same}))
        lost = sum(bool(cell.lost) for cell in same) or "nothing"
        lines.append(f"| {fault} | {len(same)} | {codes} | {lost} |")
    return "\n".join(lines)


def _sentences(cells: Sequence[Any]) -> str:
    """Return what each fault is, and its most frequent sentence without the program's name."""
    lines = []
    for fault in dict.fromkeys(cell.fault for cell in cells):
        said = Counter(line for cell in cells if cell.fault == fault for line in cell.said)
        line = f"- **{fault}**: {_HOW[fault]}"
        if said:
            sentence = max(said, key=lambda text: (said[text], text)).removeprefix("planner: ")
            line += f'. Said: "{re.sub(r"/[^ ]*/(?=[a-z.])", "", sentence)}"'
        lines.append(line)
    return "\n".join(lines)


def _command_table(cells: Sequence[Any]) -> str:
    lines = ["| command | faults | runs | exit codes |", "|---|---:|---:|---|"]
    for name in dict.fromkeys(cell.command for cell in cells):
        same = [cell for cell in cells if cell.command == name]
        faults = len({cell.fault for cell in same} - {"none"})
        codes = _listed(sorted({cell.code for cell in same}))
        lines.append(f"| `{name}` | {faults} | {len(same)} | {codes} |")
    return "\n".join(lines)
