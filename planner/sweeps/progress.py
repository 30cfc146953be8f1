"""Progress: a bar on a terminal, occasional lines elsewhere, while a sweep runs."""

import sys
import time
from typing import Any, Self

from planner.units import format_seconds

_STEP, _PAUSE_S = 0.05, 2.0
"""Least share of a sweep, and least time, between two printed lines."""


class Progress:
    """Count answers, and print the count on standard error if `shown`."""

    def __init__(self, shown: bool = False) -> None:
        self.done = self.total = self.num_known = self.refused = 0
        self._shown = shown
        self._bar: Any = None
        self._task: Any = None
        self._reported = 0.0
        self._began = self._last = time.monotonic()

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *error: object) -> None:
        if self._bar is not None:
            self._bar.stop()

    def start(self, total: int, num_known: int) -> None:
        """Begin with `total` questions, `num_known` of them already answered."""
        self.total, self.num_known, self.done = total, num_known, num_known
        self._began = self._last = time.monotonic()
        self._reported = num_known / max(total, 1)
        if self._shown and sys.stderr.isatty():
            self._bar, self._task = _bar(total, num_known)
        elif self._shown and num_known:
            _print(f"{num_known:,} of {total:,} questions were answered before")

    def advance(self, answers: int, refused: int) -> None:
        """Count new answers, `refused` of them with an error."""
        self.done += answers
        self.refused += refused
        share = self.done / max(self.total, 1)
        if self._bar is not None:
            self._bar.update(self._task, completed=self.done, refused=self.refused)
        elif self._shown and self._is_due(share):
            self._reported, self._last = share, time.monotonic()
            _print(f"{self.done:,} of {self.total:,} questions answered{self._time()}")

    def _is_due(self, share: float) -> bool:
        paused = time.monotonic() - self._last > _PAUSE_S
        return self.done == self.total or (paused and share >= self._reported + _STEP)

    def _time(self) -> str:
        elapsed = time.monotonic() - self._began
        remaining = elapsed / max(self.done - self.num_known, 1) * (self.total - self.done)
        remainder = f", about {_rounded(remaining)} to go" if remaining else ""
        return f" in {_rounded(elapsed)}{remainder}"


def _rounded(seconds: float) -> str:
    return format_seconds(float(f"{seconds:.2g}"))


def _bar(total: int, num_known: int) -> tuple[Any, Any]:
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
    task = bar.add_task("sweep", total=total, completed=num_known, refused=0)
    bar.start()
    return bar, task


def _print(text: str) -> None:
    print(f"planner: {text}", file=sys.stderr, flush=True)
