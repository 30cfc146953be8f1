"""Strategies on ranks that are threads: they train as one process does, and faults are found."""

from __future__ import annotations

import threading
from typing import Any
from unittest import mock

import pytest

pytest.importorskip("torch")

from planner.validate.ranks.rank import RankError
from planner.validate.train import trainer
from planner.validate.train.case import _Case
from planner.validate.train.tasks import SMALL_GPT, Task, fields_of, initial_state
from tests.validate.threads import on_threads

pytestmark = pytest.mark.filterwarnings("ignore")
SIZES = {"num_layers": 2, "hidden_size": 32, "head_dim": 16, "ffn_size": 64}
TASK = Task(SMALL_GPT.replaced(**SIZES), sequence=16)
PARALLEL = Task(TASK.model.replaced(parallel_residual=True), sequence=16)
ONE_NORM = Task(PARALLEL.model.replaced(norms_per_layer=1), sequence=16)


def trained(strategy: str, world: int = 2, task: Task = TASK) -> list[dict[str, Any]]:
    """Run the case of a strategy; what each rank returns."""
    case = {"strategy": strategy, "task": fields_of(task), "timed_steps": 0, "attempts": 1}
    # threads share torch's generator: weights are drawn once, before they start
    state = initial_state(task)

    def copied(_: Task) -> dict[str, Any]:
        return {name: each.clone() for name, each in state.items()}

    with mock.patch.object(trainer, "initial_state", copied):
        return on_threads(lambda rank: _Case(rank, case).run({}), world)


@pytest.mark.parametrize(
    ("strategy", "task"),
    [("sp", TASK), ("zero3", TASK), ("sp", PARALLEL), ("sp", ONE_NORM)],
    ids=["sp", "zero3", "parallel residual", "one norm"],
)
def test_two_ranks_train_as_one_process(strategy: str, task: Task) -> None:
    first, second = trained(strategy, task=task)
    assert first == second
    assert (first["equal"], first["state_bytes_equal"], len(first["losses"])) == (True, True, 4)
    assert first["losses"] == pytest.approx(first["reference_losses"], rel=1e-5)
    if strategy == "sp":  # FSDP's own collectives are not counted on threads
        assert first["bytes_equal"]
        sent = [
            {row["name"]: row["counted_bytes"] for row in rows}
            for rows in first["traffic_per_rank"]
        ]
        assert sent[0] == sent[1]
        assert set(sent[0]) == {"all_gather", "all_reduce", "reduce_scatter"}


def test_a_rank_that_trains_on_other_rows_is_found(monkeypatch: pytest.MonkeyPatch) -> None:
    drawn = Task.batch_of

    def others(task: Task, step: int) -> Any:
        x, y = drawn(task, step)
        return (x.roll(1, 1), y) if threading.current_thread().name == "1" else (x, y)

    monkeypatch.setattr(Task, "batch_of", others)
    with pytest.raises(RankError, match=r"rank . of 2 disagrees with the single process in zero3"):
        trained("zero3")


def test_states_of_one_rank_that_are_not_as_expected_are_found(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    counted = trainer.Trainer.state_bytes

    def more(self: Any) -> dict[str, int]:
        extra = threading.current_thread().name == "1"
        return {name: size + extra for name, size in counted(self).items()}

    monkeypatch.setattr(trainer.Trainer, "state_bytes", more)
    first, second = trained("zero3")
    assert (first["equal"], first["state_bytes_equal"]) == (True, False)
    assert second["state_bytes_equal"] is False
