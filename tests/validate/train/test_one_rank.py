"""Strategies of torch's own sharding on one rank, whose peers are pretended: bytes need no more."""

from __future__ import annotations

from collections import Counter
from pathlib import Path

import pytest

pytest.importorskip("torch")

from planner.validate.ranks.rank import Rank
from planner.validate.sharding import adapter
from planner.validate.sharding.recorders import CollectiveRecorder
from planner.validate.train.expected import expected_bytes, expected_state_bytes
from planner.validate.train.strategies import spread_of
from planner.validate.train.tasks import Task, fit_task
from planner.validate.train.trainer import Trainer

pytestmark = pytest.mark.filterwarnings("ignore")

SMALL = Task(sequence=32)


@pytest.mark.parametrize(("strategy", "number"), [("zero3", 0), ("zero2", 1), ("sp", 1)])
def test_a_rank_sends_and_holds_what_is_expected(strategy: str, number: int) -> None:
    spread = spread_of(strategy, 2)
    task = fit_task(SMALL, spread)
    with adapter.fake_world(number, 2):
        rank = Rank(number, 2, number, "planner", "nowhere", 60.0, Path())
        trainer, recorder = Trainer(task, spread, rank), CollectiveRecorder()
        trainer.step(0)
        trainer.step(1)
        with recorder:
            trainer.step(2)
        sent: Counter[tuple[str, str]] = Counter()
        for item in recorder.operations():
            sent[item.name, trainer.axis_of(item.ranks)] += item.bytes
        held = trainer.state_bytes()
    assert sent == expected_bytes(task, spread, trainer.pp_rank)
    expected = expected_state_bytes(task, spread, trainer.pp_rank, trainer.dp_rank)
    assert expected is None or held == expected
