"""`planner sweep` on two loky workers that stop at a known point until the test ends them.

    python -m tests.sweeps.held_sweep FOLDER COUNT SWEEP_ARGUMENTS...

After COUNT tasks every worker that takes a further task writes `worker-PID` into FOLDER and waits:
the sweep cannot end by itself.
"""

from __future__ import annotations

import functools
import os
import signal
import sys
import time
from pathlib import Path

from planner.cli import main
from planner.sweeps import backends
from planner.sweeps.answer_cells import Answer
from planner.sweeps.questions import Task

__all__ = ["answer_or_wait"]

_answer_in_worker = backends.answer_in_worker


def answer_or_wait(folder: Path, count: int, parent: int, task: Task) -> list[Answer]:
    """Answer one of the first `count` tasks; wait for the end of the test in a later one."""
    for number in range(count):
        try:
            (folder / f"task-{number}").touch(exist_ok=False)
        except FileExistsError:
            continue
        return _answer_in_worker(parent, task)
    (folder / f"worker-{os.getpid()}").touch()
    while os.getppid() == parent:
        time.sleep(0.1)
    os._exit(1)


if __name__ == "__main__":
    from tests.sweeps import held_sweep  # by this name workers find the function

    # a shell starts background jobs, and with them the tests, with this signal ignored
    signal.signal(signal.SIGINT, signal.default_int_handler)
    backends.answer_in_worker = functools.partial(  # type: ignore[assignment]
        held_sweep.answer_or_wait, Path(sys.argv[1]), int(sys.argv[2])
    )
    main(["sweep", *sys.argv[3:]])
