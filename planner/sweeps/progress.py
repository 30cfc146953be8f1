"""Progress: how far a sweep is, as a bar on a terminal and as a line now and then elsewhere."""

from __future__ import annotations

import sys
import time
from types import TracebackType
from typing import Any, Self

from planner.units import format_seconds

__all__ = ["Progress"]

_STEP, _PAUSE_S = 0.05, 2.0
"""Part of a sweep, and time, after which a line says how far it is."""


class Progress:
    """Counts answers; says so on standard error where it is to be seen."""

    def __init__(self, shown: bool = False) -> None:
        self.done = self.total = self.known = self.refused = 0
        self._shown = shown
        self._bar: Any = None
        self._task: Any = None
        self._said = 0.0
        self._began = self._last = time.monotonic()

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        if self._bar is not None:
            self._bar.stop()

    def start(self, total: int, known: int) -> None:
        """Begin: so many questions, of which so many were answered before."""
        self.total, self.known, self.done = total, known, known
        self._began = self._last = time.monotonic()
        self._said = known / max(total, 1)
        if self._shown and sys.stderr.isatty():
            self._bar, self._task = _bar(total, known)
        elif self._shown and known:
            _say(f"{known:,} of {total:,} questions were answered before")

    def advance(self, answers: int, refused: int) -> None:
        """So many more answers, of them so many refusals."""
        self.done += answers
        self.refused += refused
        share = self.done / max(self.total, 1)
        if self._bar is not None:
            self._bar.update(self._task, completed=self.done, refused=self.refused)
        elif self._shown and self._due(share):
            self._said, self._last = share, time.monotonic()
            _say(f"{self.done:,} of {self.total:,} questions answered{self._rest()}")

    def _due(self, share: float) -> bool:
        paused = time.monotonic() - self._last > _PAUSE_S
        return self.done == self.total or (paused and share >= self._said + _STEP)

    def _rest(self) -> str:
        """How long it has taken, and how long the rest will."""
        took = time.monotonic() - self._began
        left = took / max(self.done - self.known, 1) * (self.total - self.done)
        more = f", about {format_seconds(float(f'{left:.2g}'))} to go" if left else ""
        return f" in {format_seconds(float(f'{took:.2g}'))}{more}"


def _bar(total: int, known: int) -> tuple[Any, Any]:
    from rich.console import Console
    from rich.progress import BarColumn, MofNCompleteColumn, TextColumn, TimeRemainingColumn
    from rich.progress import Progress as Bar

    bar = Bar(
        TextColumn("sweep"),
        BarColumn(),
        MofNCompleteColumn(),
        TextColumn("{task.fields[refused]:,} refused"),
        TimeRemainingColumn(),
        console=Console(stderr=True),
    )
    task = bar.add_task("sweep", total=total, completed=known, refused=0)
    bar.start()
    return bar, task


def _say(text: str) -> None:
    print(f"planner: {text}", file=sys.stderr, flush=True)
