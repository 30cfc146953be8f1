"""Ranks that are threads of this process: real collectives of torch, without starting processes."""

from __future__ import annotations

import threading
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch
import torch.distributed as dist

from planner.validate.ranks.rank import Rank

threaded = pytest.importorskip("torch.testing._internal.distributed.multi_threaded_pg")


def on_threads(work: Callable[[Rank], Any], world: int = 2) -> list[Any]:
    """Run work on every rank; the results by rank, or the first rank's error."""
    results: list[Any] = [None] * world
    errors: dict[int, BaseException] = {}
    threaded._install_threaded_pg()
    torch._C._distributed_c10d._set_thread_isolation_mode(True)
    store = dist.HashStore()

    def one(number: int) -> None:
        try:
            dist.init_process_group("threaded", rank=number, world_size=world, store=store)
            rank = Rank(number, world, number, "planner", "nowhere", 60.0, Path())
            results[number] = work(rank)
        except BaseException as error:
            errors[number] = error
            threaded.ProcessLocalGroup.exception_handle(error)
        finally:
            if dist.is_initialized():
                dist.destroy_process_group()

    threads = [
        threading.Thread(target=one, args=(number,), name=str(number)) for number in range(world)
    ]
    try:
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()
    finally:
        threaded.ProcessLocalGroup.reset()
        torch._C._distributed_c10d._set_thread_isolation_mode(False)
        threaded._uninstall_threaded_pg()
    for _, error in sorted(errors.items()):
        if not isinstance(error, SystemExit):  # how the peers of a rank that fails are ended
            raise error
    return results
