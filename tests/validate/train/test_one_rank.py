"""One rank, whose peers are pretended: what it sends and holds, and how its case is judged."""

from __future__ import annotations

from collections import Counter
from pathlib import Path
from typing import Any

import pytest

pytest.importorskip("torch")

from planner.describe.catalogue import load_machine, load_model
from planner.validate.ranks.rank import Rank, RankError
from planner.validate.sharding import adapter
from planner.validate.sharding.recorders import CollectiveRecorder
from planner.validate.train.case import _Case
from planner.validate.train.expected import (
    estimate_peak,
    estimate_time,
    expected_bytes,
    expected_state_bytes,
)
from planner.validate.train.strategies import Spread, spread_of
from planner.validate.train.tasks import SMALL_GPT, Task, fields_of, fit_task, make_task
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
def test_so_does_a_rank_of_an_own_module(name: str, strategy: str, traced_here: None) -> None:
    file = f"{own_modules.__file__}:{name}"
    check(make_task(load_model(file).model_dump(mode="json"), 8, 1, file), strategy, 1)


def one_process(references: dict[str, Any], **changes: Any) -> dict[str, Any]:
    """Run the case of a single process on a small model."""
    sizes = {"num_layers": 1, "hidden_size": 64, "head_dim": 16, "ffn_size": 128}
    task = fields_of(Task(SMALL_GPT.replaced(**sizes), sequence=32))
    case = {"strategy": "single", "task": task, "timed_steps": 10, "attempts": 1, **changes}
    rank = Rank(0, 1, 0, "planner", "nowhere", 60.0, Path())
    with adapter.fake_world(0, 1):
        return _Case(rank, case).run(references)


def test_a_case_is_compared_counted_and_timed(monkeypatch: pytest.MonkeyPatch) -> None:
    times = iter([3.0, 1.0, 2.0, 10.0, 4.0, 6.0, 5.0, 8.0, 7.0, 9.0])

    def seconds(_: Rank, call: Any) -> float:
        call()
        return next(times)

    monkeypatch.setattr(Rank, "seconds", seconds)
    found = one_process(references := {})
    assert found["losses"] == found["reference_losses"]
    assert len(found["losses"]) == 4
    assert (found["equal"], found["bytes_equal"], found["state_bytes_equal"]) == (True, True, True)
    assert found["state_bytes_per_rank"][0]["counted"]["parameters"] == 4 * found["num_params"]
    figures = ("step_time_s", "step_time_best_s", "step_time_p90_s")
    assert [found[name] for name in figures] == [5.5, 1.0, 9.0]
    peak = found | estimate_peak(found)
    assert peak["peak_error"] == pytest.approx(
        peak["planned_peak_bytes"] / max(found["peak_bytes_per_rank"]) - 1, abs=1e-6
    )
    time = estimate_time(found, load_machine("laptop"))
    assert time["planned_error"] == pytest.approx(time["planned_step_time_s"] / 5.5 - 1)
    assert sum(time["planned_parts_s"].values()) == pytest.approx(time["planned_step_time_s"])
    # a reference that went elsewhere is a fault of the rank that differs
    ((key, (losses, weights)),) = references.items()
    for told in (
        (losses, {**weights, "norm.weight": weights["norm.weight"] + 1e-4}),
        ([losses[0] * (1 + 1e-5), *losses[1:]], weights),
    ):
        with pytest.raises(RankError, match=r"rank 0 of 1 disagrees|the losses .* differ"):
            one_process({key: told}, timed_steps=0)
    assert one_process(references, timed_steps=0)["step_time_s"] is None
