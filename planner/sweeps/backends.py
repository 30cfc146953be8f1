"""Backends: run tasks in this process, on cores of this machine (joblib) or on a Dask cluster."""

import asyncio
import contextlib
import functools
import importlib.util
import itertools
import json
import logging
import os
import signal
import sys
import threading
import time
import warnings
from collections.abc import Callable, Generator, Iterator, Sequence
from pathlib import Path
from typing import Any
from unittest import mock

from planner.errors import PlannerError, shorten
from planner.sweeps.answer_cells import Answer, answer_task
from planner.sweeps.questions import Task
from planner.units import either

BACKENDS = ("loky", "sequential", "threading", "dask")
"""Processes on the cores of this machine, this process, its threads, a Dask cluster."""

_PACKAGES = {"dask": ("distributed",), "sequential": ()}
PATIENCE_S = 60.0
"""Longest wait for the first worker of a cluster; ten times as long if all are lost."""
_CONNECTION_S, _GREETING_S = 5.0, 30.0
"""Longest waits for a connection to a scheduler, and for its first words."""


def check_backend(backend: str, jobs: int = -1, address: str | None = None) -> None:
    """Raise PlannerError if a backend is unknown, lacks a package, or takes no address."""
    if backend not in BACKENDS:
        raise PlannerError(f"the backend {shorten(backend)} is not known; use {either(BACKENDS)}")
    for package in _PACKAGES.get(backend, ("joblib",)):
        if importlib.util.find_spec(package) is None:
            extra = "dask" if backend == "dask" else "sweep"
            raise PlannerError(
                f"the backend {shorten(backend)} needs {package}; install it with `pip install "
                f"'parallelism-planner[{extra}]'`, or use --backend sequential"
            )
    if jobs == 0:
        raise PlannerError("jobs = 0 starts no worker; give 1 or more, or -1 for all cores")
    if address is not None and backend != "dask":
        raise PlannerError(
            f"address = {shorten(address)}: the backend {shorten(backend)} runs on this machine; "
            "use dask, or leave address out"
        )


def answer_tasks(
    tasks: Sequence[Task], backend: str, jobs: int, address: str | None
) -> Generator[list[Answer]]:
    """Yield the answers of tasks in any order; raises PlannerError if a backend fails."""
    try:
        if not tasks or backend == "sequential":
            yield from map(answer_task, tasks)
        elif backend == "dask":
            with _dask_client(address) as client:
                yield from _on_cluster(tasks, client)
        else:
            yield from _on_cores(tasks, backend, jobs)
    except PlannerError:
        raise
    except Exception as error:
        # joblib, pools, schedulers and the network have no common class of errors
        message = (str(error).strip() or type(error).__name__).splitlines()[0]
        raise PlannerError(
            f"the backend {shorten(backend)} failed ({shorten(message, 300)}); finished "
            "answers are kept; repeat the call to resume"
        ) from error


def _on_cores(tasks: Sequence[Task], backend: str, jobs: int) -> Iterator[list[Answer]]:
    import joblib
    from joblib.externals.loky.backend import resource_tracker

    from planner.validate.ranks.launch import interrupts_blocked

    options = {"inner_max_num_threads": 1} if backend == "loky" else {}
    with joblib.parallel_config(backend, n_jobs=jobs, **options):
        of_worker = functools.partial(answer_in_worker, os.getpid())
        answer = joblib.delayed(of_worker if backend == "loky" else answer_task)
        # a task holds several questions already: joblib must not batch tasks
        parallel = joblib.Parallel(batch_size=1, return_as="generator_unordered")
        # a tracker that starts later would unblock the signal again, and warn of a killed sweep
        with mock.patch.object(sys, "warnoptions", ["ignore"]):
            resource_tracker.ensure_running()
        with interrupts_blocked():  # workers that start here ignore Ctrl-C
            answers = parallel(answer(task) for task in tasks)
        try:
            # `yield from` would close `answers` while the warnings are still on
            for each in answers:  # noqa: UP028
                yield each
        finally:
            with warnings.catch_warnings():
                warnings.simplefilter("ignore")  # a stop cancels the rest
                answers.close()


def answer_in_worker(parent: int, task: Task) -> list[Answer]:
    """Answer a task in a loky worker, which ignores Ctrl-C and ends with its parent."""
    if os.getppid() == parent:
        signal.signal(signal.SIGINT, signal.SIG_IGN)
        _end_with(parent)
    return answer_task(task)


@functools.cache
def _end_with(parent: int) -> None:
    """Exit when the parent ends (one watch per worker); loky itself would wait for minutes."""

    def watch() -> None:
        while os.getppid() == parent:
            time.sleep(1)
        os._exit(1)

    threading.Thread(target=watch, daemon=True).start()


def _on_cluster(tasks: Sequence[Task], client: Any) -> Iterator[list[Answer]]:
    """Keep two tasks at each core; joblib would answer here if the cluster has only one core."""
    from distributed import as_completed

    waiting, running = iter(tasks), as_completed(loop=client.loop)

    def submit() -> None:
        room = 2 * sum(client.nthreads().values()) - running.count()
        for task in itertools.islice(waiting, max(room, not running.count())):
            running.add(client.submit(answer_task, task, pure=False))

    submit()
    try:
        while running.count():
            _wait(client, running.has_ready, 10 * PATIENCE_S)
            answered = next(running)
            submit()
            yield answered.result()
    finally:
        client.cancel(list(running.futures))


def _wait(client: Any, is_over: Callable[[], Any], patience_s: float = PATIENCE_S) -> None:
    """Wait while the cluster has workers, or may soon; raises PlannerError if it has none."""
    seen = time.monotonic()
    while not is_over():
        seen = time.monotonic() if client.nthreads() else seen
        if time.monotonic() - seen > patience_s:
            raise PlannerError(
                f"the Dask scheduler at {client.scheduler.address} has had no worker for "
                f"{patience_s:g} s; start some with `dask worker`, and repeat the call"
            )
        time.sleep(0.1)


async def _greet(address: str) -> None:
    """Connect to a scheduler and leave: Dask's client would wait for an answer without end."""
    from distributed import Security
    from distributed.comm.core import connect

    options = Security().get_connection_args("client")
    connecting = connect(address, timeout=_CONNECTION_S, **options)
    (await asyncio.wait_for(connecting, _GREETING_S)).abort()


@contextlib.contextmanager
def _dask_client(address: str | None) -> Iterator[Any]:
    """Connect to a scheduler: at an address, in a scheduler file, or the current one."""
    import dask
    import distributed

    logging.getLogger("distributed.client").disabled = True  # tracebacks of a lost scheduler
    address = address or dask.config.get("scheduler-address", None)
    if address is None:
        try:
            yield distributed.default_client()
        except ValueError:
            raise PlannerError(
                "the backend dask needs the address of its scheduler; give for example "
                "--address tcp://host:8786, or the scheduler's file"
            ) from None
        return
    try:
        is_file = address.endswith(".json")
        contact = str(json.loads(Path(address).read_text())["address"]) if is_file else address
        distributed.utils.LoopRunner().run_sync(_greet, contact)
        client = distributed.Client(contact, set_as_default=False)
    except (OSError, ValueError, LookupError, TypeError) as error:  # TimeoutError is an OSError
        cause = str(error) or f"no greeting within {_GREETING_S:g} s"
        raise PlannerError(
            f"no Dask scheduler answers at {shorten(address)} ({shorten(cause)}); start one with "
            "`dask scheduler`, or correct the address"
        ) from None
    with client:
        _wait(client, client.nthreads)
        yield client
