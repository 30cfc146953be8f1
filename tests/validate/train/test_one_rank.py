"""Strategies of torch's own sharding on one rank, whose peers are pretended: bytes need no more."""

from __future__ import annotations

import sys
from collections import Counter
from pathlib import Path
from typing import Any

import pytest

pytest.importorskip("torch")

from planner.describe.catalogue import load_model
from planner.describe.model import traced_file
from planner.validate.ranks.rank import Rank
from planner.validate.sharding import adapter
from planner.validate.sharding.recorders import CollectiveRecorder
from planner.validate.trace.module_trace import trace_file
from planner.validate.train.expected import expected_bytes, expected_state_bytes
from planner.validate.train.strategies import Spread, spread_of
from planner.validate.train.tasks import Task, fit_task, make_task
from planner.validate.train.trainer import Trainer
from tests.validate.train import own_modules

pytestmark = pytest.mark.filterwarnings("ignore")

SMALL = Task(sequence=32)


def counted(task: Task, spread: Spread, number: int) -> tuple[Trainer, Counter[tuple[str, str]]]:
    """Train on rank `number` of two, and count the bytes of its third step."""
    rank = Rank(number, 2, number, "planner", "nowhere", 60.0, Path())
    trainer, recorder = Trainer(task, spread, rank), CollectiveRecorder()
    trainer.step(0)
    trainer.step(1)
    with recorder:
        trainer.step(2)
    sent: Counter[tuple[str, str]] = Counter()
    for item in recorder.operations():
        sent[item.name, trainer.axis_of(item.ranks)] += item.bytes
    return trainer, sent


def check(task: Task, strategy: str, number: int) -> None:
    """Bytes that are sent and held equal those that are expected."""
    spread = spread_of(strategy, 2)
    task = fit_task(task, spread)
    with adapter.fake_world(number, 2):
        trainer, sent = counted(task, spread, number)
        held = trainer.state_bytes()
    assert sent == expected_bytes(task, spread, trainer.pp_rank)
    expected = expected_state_bytes(task, spread, trainer.pp_rank, trainer.dp_rank)
    assert expected is None or held == expected


@pytest.mark.parametrize(("strategy", "number"), [("zero3", 0), ("zero2", 1), ("sp", 1)])
def test_a_rank_sends_and_holds_what_is_expected(strategy: str, number: int) -> None:
    check(Task(sequence=32), strategy, number)


@pytest.mark.parametrize(("name", "strategy"), [("odd", "tp"), ("gated", "tp"), ("mlp", "zero2")])
def test_so_does_a_rank_of_an_own_module(
    name: str, strategy: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(sys, "path", [*sys.path])

    def traced(resolved: str, path: str, function: str, *_: int) -> dict[str, Any]:
        return trace_file(resolved, function, path)

    monkeypatch.setattr(traced_file, "_traced", traced)
    file = f"{own_modules.__file__}:{name}"
    check(make_task(load_model(file).model_dump(mode="json"), 8, 1, file), strategy, 1)
