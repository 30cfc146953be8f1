"""Watchdog: under torchrun, mpiexec or srun, end a rank that makes no progress.

The launcher then ends the others. It watches from a thread, because the rank itself may be
stuck in a collective. Which rank is to blame shows in where each of them stands: the waiting
ones in torch's communication, the cause elsewhere.
"""

from __future__ import annotations

import contextlib
import os
import sys
import threading
import time
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path

from planner.errors import PlannerError
from planner.validate.ranks.rank import Rank, RankError

__all__ = ["watching"]

_BEFORE_S = 2.0
# every rank says where it stands before the first of them ends the job


@contextlib.contextmanager
def watching(rank: Rank) -> Iterator[Rank]:
    """Watch a rank: end it after silence. Raises RankError if its peers are gone."""
    seen, last = time.monotonic(), "starting"
    over = threading.Event()
    main = threading.get_ident()

    def report(text: str) -> None:
        nonlocal seen, last
        seen, last = time.monotonic(), text
        if rank.rank == 0:
            print(text, file=sys.stderr, flush=True)

    def watch() -> None:
        reported = 0.0
        while not over.wait(0.25):
            silent = time.monotonic() - seen
            if silent > rank.timeout_s - _BEFORE_S and reported != seen:
                reported = seen
                print(
                    f"planner: rank {rank.rank} of {rank.world} has made no progress for "
                    f"{silent:.0f} s (limit {rank.timeout_s:.0f} s), last {last}, {_where(main)}",
                    file=sys.stderr,
                    flush=True,
                )
            if silent > rank.timeout_s:
                os._exit(1)

    threading.Thread(target=watch, daemon=True).start()
    try:
        yield replace(rank, report=report)
    except PlannerError:
        raise
    except RuntimeError as error:
        line = (str(error).strip().splitlines() or [""])[0][:200]
        raise RankError(
            f"rank {rank.rank} of {rank.world} failed or lost the others while {last}: {line}"
        ) from error
    finally:
        over.set()


def _where(thread: int) -> str:
    """File, line and function in which a thread stands."""
    frame = sys._current_frames().get(thread)
    if frame is None:
        return "nowhere"
    code = frame.f_code
    return f"in {Path(code.co_filename).name}:{frame.f_lineno} ({code.co_name})"
