"""Workers: how many tasks a cluster is given at a time, and how a worker ends."""

from __future__ import annotations

import os
import signal
import threading
from types import SimpleNamespace
from typing import Any

import pytest

from planner.errors import PlannerError
from planner.sweeps import backends
from planner.sweeps.definition import define_sweep
from planner.sweeps.questions import Task, list_questions, make_tasks
from tests.sweeps.samples import FEW


class _Completed:
    """Futures in the order of their submission, as `distributed.as_completed` gives them."""

    def __init__(self, loop: Any) -> None:
        assert loop == "a loop"
        self.futures: list[Any] = []

    def add(self, future: Any) -> None:
        self.futures.append(future)

    def count(self) -> int:
        return len(self.futures)

    def has_ready(self) -> bool:
        return bool(self.futures)

    def __next__(self) -> Any:
        return self.futures.pop(0)


class _Client:
    """A cluster that answers what it is given, and remembers how much waited at a time."""

    loop = "a loop"

    def __init__(self, threads: dict[str, int]) -> None:
        self.threads, self.submitted, self.cancelled = threads, 0, None

    def nthreads(self) -> dict[str, int]:
        return self.threads

    def submit(self, call: Any, task: Any, *, pure: bool) -> Any:
        assert (call, pure) == (backends.answer_task, False)
        self.submitted += 1
        return SimpleNamespace(result=lambda: task)

    def cancel(self, futures: list[Any]) -> None:
        self.cancelled = len(futures)


@pytest.mark.parametrize(
    ("threads", "given"),
    [
        ({"a": 2, "b": 1}, [6, 7, 8, 9, 9, 9, 9, 9, 9]),
        # workers may come later: one task waits for them
        ({}, [1, 2, 3, 4, 5, 6, 7, 8, 9]),
    ],
)
def test_a_cluster_is_given_two_tasks_for_each_core(
    threads: dict[str, int], given: list[int], monkeypatch: pytest.MonkeyPatch
) -> None:
    distributed = pytest.importorskip("distributed")
    monkeypatch.setattr(distributed, "as_completed", _Completed)
    client, tasks = _Client(threads), [*range(9)]
    answers: Any = backends._on_cluster(tasks, client)  # type: ignore[arg-type]
    submitted = []
    for place, answer in enumerate(answers):
        assert answer == place
        submitted.append(client.submitted)
    # when the first answer comes, its place has been given away
    assert submitted == [*given[1:], 9]
    assert client.cancelled == 0


def test_a_sweep_that_stops_cancels_what_waits(monkeypatch: pytest.MonkeyPatch) -> None:
    distributed = pytest.importorskip("distributed")
    monkeypatch.setattr(distributed, "as_completed", _Completed)
    client = _Client({"a": 1})
    answers: Any = backends._on_cluster([*range(9)], client)  # type: ignore[arg-type]
    next(answers)
    answers.close()
    assert client.cancelled == 2


def test_a_cluster_that_loses_its_workers_for_a_minute_ends_the_sweep(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    now = 0.0

    def sleep(_: float) -> None:
        nonlocal now
        now += 1.0

    monkeypatch.setattr(backends, "time", SimpleNamespace(monotonic=lambda: now, sleep=sleep))
    # a worker that comes back within the minute starts it again
    workers = {59.0: {"a": 1}}
    client = SimpleNamespace(
        nthreads=lambda: workers.get(now, {}), scheduler=SimpleNamespace(address="tcp://here:1")
    )
    words = "Dask scheduler at tcp://here:1 has had no worker for 60 s; start some with `dask"
    with pytest.raises(PlannerError, match=words):
        backends._wait(client, lambda: False)
    assert now == 59 + 61
    backends._wait(client, lambda: now > 150)
    assert now == 151


def task_of_few() -> Task:
    """The only task of a small sweep."""
    sweep = list_questions(define_sweep(FEW))
    (task,) = make_tasks(sweep, sweep.questions[:1])
    return task


def test_a_worker_ignores_interrupts_and_ends_with_its_parent(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    told: list[Any] = []
    monkeypatch.setattr(signal, "signal", lambda *given: told.append(given))
    monkeypatch.setattr(backends, "_end_with", told.append)
    task = task_of_few()
    ((key, *_),) = backends.answer_in_worker(os.getppid(), task)
    assert key == task.questions[0].key
    assert told == [(signal.SIGINT, signal.SIG_IGN), os.getppid()]
    told.clear()
    # where joblib answers in the process that asks
    assert backends.answer_in_worker(-1, task)
    assert told == []


def test_the_watch_of_a_parent_ends_the_worker(monkeypatch: pytest.MonkeyPatch) -> None:
    parents, ended = iter([7, 7, 1]), threading.Event()
    left: list[int] = []

    def leave(code: int) -> None:
        left.append(code)
        ended.set()

    monkeypatch.setattr(backends.os, "getppid", lambda: next(parents))
    monkeypatch.setattr(backends.os, "_exit", leave)
    monkeypatch.setattr(backends.time, "sleep", lambda _: None)
    backends._end_with.__wrapped__(7)
    assert ended.wait(60)
    assert left == [1]


@pytest.mark.parametrize(
    ("backend", "told"), [("threading", {}), ("loky", {"inner_max_num_threads": 1})]
)
def test_cores_answer_tasks_one_by_one(
    backend: str, told: dict[str, int], monkeypatch: pytest.MonkeyPatch
) -> None:
    """joblib divides nothing: a task holds several questions; loky's workers watch their parent."""
    joblib = pytest.importorskip("joblib")
    configured: list[Any] = []

    class _Parallel:
        def __init__(self, **options: Any) -> None:
            configured.append(options)

        def __call__(self, calls: Any) -> Any:
            return (call(*given, **named) for call, given, named in calls)

    class _Configured:
        def __init__(self, name: str, **options: Any) -> None:
            configured.append((name, options))

        def __enter__(self) -> None: ...

        def __exit__(self, *_: object) -> None: ...

    monkeypatch.setattr(joblib, "Parallel", _Parallel)
    monkeypatch.setattr(joblib, "parallel_config", _Configured)
    parents: list[int] = []
    monkeypatch.setattr(backends, "answer_task", lambda task: [task])
    monkeypatch.setattr(
        backends, "answer_in_worker", lambda parent, task: (parents.append(parent), [task])[1]
    )
    tasks: Any = ["a", "b", "c"]
    assert [*backends._on_cores(tasks, backend, 3)] == [["a"], ["b"], ["c"]]
    assert configured == [
        (backend, {"n_jobs": 3, **told}),
        {"batch_size": 1, "return_as": "generator_unordered"},
    ]
    assert parents == ([os.getpid()] * 3 if backend == "loky" else [])
