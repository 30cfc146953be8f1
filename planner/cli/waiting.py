"""Waiting: a line on the terminal while something takes more than two seconds."""

import contextlib
import sys
import threading
import time
from collections.abc import Iterator

_PATIENCE_S = 2.0


@contextlib.contextmanager
def waiting(task: str) -> Iterator[None]:
    """Say on a terminal's standard error what runs and for how long, and wipe it at the end."""
    if not sys.stderr.isatty():
        yield
        return
    done = threading.Event()
    thread = threading.Thread(target=_tell, args=(task, done), daemon=True)
    thread.start()
    try:
        yield
    finally:
        done.set()
        thread.join()


def _tell(task: str, done: threading.Event) -> None:
    begun = time.monotonic()
    pause, line = _PATIENCE_S, ""
    while not done.wait(pause):
        line = f"{task} ... {time.monotonic() - begun:.0f} s"
        print(f"\r{line}", end="", file=sys.stderr, flush=True)
        pause = 1.0
    print(f"\r{' ' * len(line)}\r" * bool(line), end="", file=sys.stderr, flush=True)
