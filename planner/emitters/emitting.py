"""Emitting: the files that run one layout of a plan, with checks of the arguments."""

import numbers
import re
from types import UnionType

from planner.choose.plan import Plan
from planner.cost.estimate import Estimate
from planner.cost.scenario import Scenario
from planner.describe.catalogue import load_framework, load_machine, load_model
from planner.describe.framework.framework import Framework
from planner.describe.machine import Machine
from planner.describe.model.model import Model
from planner.errors import EmitError, shorten


def emit(
    plan: Plan,
    rank: int | Estimate | None = None,
    *,
    model: Model | None = None,
    machine: Machine | None = None,
    framework: Framework | None = None,
    steps: int | None = None,
    queue: str = "",
    account: str = "",
    benchmark: bool = False,
) -> dict[str, str]:
    """Return files (name to text) of a plan's recommended or `rank`-th layout, or an estimate."""
    # imported late: most plans write no files
    from planner.emitters.batch_job import BatchJob
    from planner.emitters.files import files_of
    from planner.training.job_slot import planned_steps

    if isinstance(rank, Estimate):
        estimate = rank
    else:
        _check_whole("rank", rank)
        _check_kind("plan", plan, Plan, "plan; give what planner.plan(...) returned")
        estimate = plan.ranked_at(rank)
    _check_whole("steps", steps)
    if steps is not None and steps < 1:
        raise EmitError(f"steps = {steps} must be at least 1; give a positive number")
    _check_kind("queue", queue, str, "name; write for example queue='prod'")
    if not re.fullmatch(r"[\w.:@+-]*", account, re.ASCII):
        raise EmitError(
            f"account = {shorten(repr(account))} is not a name; use letters, digits and . : @ + - _"
        )
    _check_kind("benchmark", benchmark, bool, "truth value; give True or False")
    for name, value, kind in (
        ("model", model, Model),
        ("machine", machine, Machine),
        ("framework", framework, Framework),
    ):
        _check_kind(name, value, kind | None, f"description; give planner.load_{name}(...)")
    scenario = Scenario(
        model or load_model(plan.model, run=False),
        machine or load_machine(plan.machine),
        plan.workload,
        framework or load_framework(estimate.framework),
    )
    steps = planned_steps(plan.workload) if steps is None else int(steps)
    return files_of(BatchJob(scenario, estimate, plan.nodes, steps, queue, account, benchmark))


def _check_whole(name: str, value: int | None) -> None:
    if value is None:
        return
    if isinstance(value, bool) or not isinstance(value, numbers.Integral):
        raise EmitError(
            f"{name} = {shorten(repr(value))} is not a whole number; write for example {name}=2"
        )


def _check_kind(name: str, value: object, kind: type | UnionType, remedy: str) -> None:
    if not isinstance(value, kind):
        raise EmitError(f"{name} = {shorten(repr(value))} is not a {remedy}")
