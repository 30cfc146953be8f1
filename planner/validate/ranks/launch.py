"""Launch: start ranks on this machine, watch them, and leave nothing behind.

A rank that dies ends the run at once, one that hangs soon after its time limit; the error names
the rank and what it did last. Ranks meet through a file in a private folder, so no port is open
before gloo connects its pairs on the loopback interface. Should this process itself be killed,
every rank notices its pipe closing, ends the others, removes the folder and exits.
"""

from __future__ import annotations

import contextlib
import multiprocessing
import os
import shutil
import time
from collections.abc import Iterator
from typing import Any

from planner.validate.ranks.child import rank_main
from planner.validate.ranks.folder import private_folder
from planner.validate.ranks.rank import RankError, within_reason
from planner.validate.ranks.supervise import OnResult, Progress, Watched, supervise

__all__ = ["launch"]

_PRELOAD = [
    "torch",
    "torch._dynamo",
    "torch.distributed.fsdp",
    "torch.distributed.pipelining",
    "torch.distributed.tensor.parallel",
    "torch.distributed.optim",
]


def launch(
    entry: str,
    world: int,
    payload: dict[str, Any],
    *,
    limit_s: float = 60.0,
    progress: Progress = None,
    on_result: OnResult = None,
) -> list[Any]:
    """Run `entry` ("module:function") as `world` ranks; its return values in rank order.

    The function gets (rank: Rank, payload, send) and may `send` partial results. A rank without
    progress for `limit_s` is taken to hang. Raises RankError with the rank that is to blame.
    """
    if world < 1:
        raise RankError(f"world = {world} must be at least 1; give the number of ranks")
    within_reason(limit_s)
    context = multiprocessing.get_context("forkserver")
    context.set_forkserver_preload(_PRELOAD)
    folder = private_folder()
    watched: list[Watched] = []
    alive_read, alive_write = context.Pipe(duplex=False)
    try:
        with _quiet_threads():
            for rank in range(world):
                receiver, sender = context.Pipe(duplex=False)
                process = context.Process(
                    target=rank_main,
                    args=(rank, world, entry, payload, str(folder), limit_s, sender, alive_read),
                    daemon=True,
                )
                process.start()
                sender.close()
                watched.append(Watched(rank, process, receiver, time.monotonic()))
        alive_read.close()
        supervise(watched, folder, limit_s, progress, on_result)
        return [item.result for item in watched]
    finally:
        _end(watched)
        alive_write.close()
        shutil.rmtree(folder, ignore_errors=True)


@contextlib.contextmanager
def _quiet_threads() -> Iterator[None]:
    """One thread per rank, also in libraries that read the environment once at import."""
    before = {name: os.environ.get(name) for name in ("OMP_NUM_THREADS", "MKL_NUM_THREADS")}
    os.environ.update({name: "1" for name in before})
    try:
        yield
    finally:
        for name, value in before.items():
            if value is None:
                del os.environ[name]
            else:
                os.environ[name] = value


def _end(watched: list[Watched]) -> None:
    for item in watched:
        if item.process.is_alive():
            item.process.kill()
    for item in watched:
        item.process.join(5)
        item.pipe.close()
