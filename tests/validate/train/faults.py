"""Faults: `python -m tests.validate.train.faults KIND:RANK:STEP ...` is planner with a bad rank."""

from __future__ import annotations

import os
import signal
import sys
import time
from collections.abc import Callable
from typing import Any

import torch

from planner.__main__ import main
from planner.validate.ranks.rank import Rank
from planner.validate.train import case, run
from planner.validate.train.trainer import Trainer

_VARIABLE = "TEST_FAULT"


def run_cases(
    rank: Rank, payload: dict[str, Any], send: Callable[[Any], None]
) -> list[dict[str, Any]]:
    """Run the cases on ranks of which one dies, hangs or computes wrongly at one step."""
    kind, bad, when = os.environ[_VARIABLE].split(":")
    step_rightly = Trainer.step

    def step(trainer: Trainer, number: int) -> float:
        if number == int(when):
            if kind == "die":
                os.kill(os.getpid(), signal.SIGKILL)
            elif kind == "hang":
                time.sleep(1e6)
            with torch.no_grad():
                next(trainer.chunks[0].parameters()).mul_(1.01)
        return step_rightly(trainer, number)

    if rank.rank == int(bad):
        Trainer.step = step  # type: ignore[method-assign]
    return case.run_cases(rank, payload, send)


if __name__ == "__main__":
    os.environ[_VARIABLE] = sys.argv.pop(1)
    run.CASES = "tests.validate.train.faults:run_cases"
    main()
