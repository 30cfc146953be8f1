"""Job slots: queue, wall time, jobs and saved steps of a run, worked out by hand."""

from __future__ import annotations

from typing import Any

import pytest

from planner.describe.catalogue import load_machine
from planner.describe.machine import Machine
from planner.errors import EmitError
from planner.training.job_slot import Run, Slot, slot_of

POLARIS = load_machine("polaris")


def _with_queues(*queues: dict[str, Any]) -> Machine:
    scheduler = POLARIS.scheduler.model_dump()
    return POLARIS.replaced(scheduler={**scheduler, "queues": list(queues)})


def _slot(nodes: int, steps: int, step_s: float, queue: str = "") -> Slot:
    return slot_of(Run(POLARIS, nodes, steps, step_s, queue))


@pytest.mark.parametrize(
    ("nodes", "steps", "step_s", "queue", "seconds", "jobs", "per_job", "save_every"),
    [
        # 1,000 s and ten minutes to start, rounded up to ten minutes; ten checkpoints
        (10, 1000, 1.0, "debug-scaling", 1800, 1, 1000, 100),
        # 10,600 s are 18 times ten minutes, which prod (small) just admits
        (10, 1000, 10.0, "prod (small)", 10800, 1, 1000, 100),
        # 10,200 s hold 485 steps, of which 10 x 48 are saved; no debug queue for several jobs
        (10, 1000, 21.0, "prod (small)", 10800, 3, 480, 48),
        # a checkpoint an hour: 3,600 steps, 167 of them in 168 hours less the start
        (2, 3_000_000, 1.0, "capacity", 604_800, 5, 601_200, 3600),
        # at least one step a job, and one between two checkpoints
        (10, 3, 20_000.0, "prod (small)", 10800, 3, 1, 1),
        (11, 4, 60.0, "prod (small)", 1200, 1, 4, 1),
    ],
)
def test_slots_of_polaris(
    nodes: int,
    steps: int,
    step_s: float,
    queue: str,
    seconds: float,
    jobs: int,
    per_job: int,
    save_every: int,
) -> None:
    slot = _slot(nodes, steps, step_s)
    assert slot.queue is not None
    assert slot.queue.name == queue
    assert (slot.seconds, slot.jobs, slot.steps) == (seconds, jobs, per_job)
    assert slot.save_every == save_every


def test_as_many_jobs_are_submitted_as_the_site_allows() -> None:
    # capacity takes 2 jobs of a user, prod states no limit: 20 at once
    assert _slot(2, 3_000_000, 1.0).chained == 2
    assert _slot(10, 3, 20_000.0).chained == 3
    assert _slot(10, 30, 20_000.0).chained == 20


def test_a_short_queue_keeps_half_its_time_for_steps_and_whole_minutes() -> None:
    # 0.2501 h are 900.36 s: 15 minutes, of which half are kept for steps
    machine = _with_queues({"name": "short", "max_nodes": 8, "max_hours": 0.2501})
    slot = slot_of(Run(machine, 8, 100, 10.0))
    assert (slot.seconds, slot.steps, slot.jobs) == (900, 44, 3)


def test_a_training_of_several_jobs_leaves_the_debug_queue() -> None:
    trial = {"name": "trial", "max_nodes": 8, "max_hours": 5, "debug": True}
    machine = _with_queues(trial, {"name": "batch", "max_nodes": 8, "max_hours": 2})
    chosen = [slot_of(Run(machine, 8, steps, 10.0)).queue for steps in (100, 1500, 1800)]
    assert [queue and queue.name for queue in chosen] == ["batch", "trial", "batch"]


@pytest.mark.parametrize(("name", "queue"), [("prod", "prod (small)"), ("demand", "demand")])
def test_a_queue_is_named_as_in_the_scheduler_or_in_its_directive(name: str, queue: str) -> None:
    slot = _slot(11, 10, 1.0, name)
    assert slot.queue is not None
    assert slot.queue.name == queue


def test_a_profile_without_queues_takes_any_name_and_any_length() -> None:
    machine = _with_queues()
    assert slot_of(Run(machine, 8, 10**6, 10.0)) == Slot(None, 10_000_800, 1, 10**6, 360)
    slot = slot_of(Run(machine, 8, 10**6, 10.0, "mine"))
    assert slot.queue is not None
    assert (slot.queue.name, slot.jobs) == ("mine", 1)


@pytest.mark.parametrize(
    ("machine", "nodes", "queue", "message"),
    [
        ("polaris", 500, "", "500 nodes fit no queue of polaris (nodes: debug 1-2, "),
        (
            "polaris",
            11,
            "debug",
            "does not admit 11 nodes or is not known; use one of prod (small)",
        ),
        ("polaris", 11, "a b", "is not a valid queue name"),
        ("laptop", 1, "x", "has no scheduler; remove --queue x"),
    ],
)
def test_refusals(machine: str, nodes: int, queue: str, message: str) -> None:
    with pytest.raises(EmitError) as error:
        slot_of(Run(load_machine(machine), nodes, 10, 1.0, queue))
    assert message in str(error.value)
