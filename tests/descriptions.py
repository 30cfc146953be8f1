"""Descriptions: short ways to make the scenarios and candidates that many tests use."""

from __future__ import annotations

from collections.abc import Sequence

from planner.choose.jobs.job_search import search_job
from planner.choose.jobs.job_spec import JobSpec
from planner.choose.search import Candidates, SearchScope
from planner.cost.scenario import Scenario
from planner.cost.scenario.experience import Experience
from planner.describe.catalogue import load_framework, load_machine, load_model
from planner.describe.framework.framework import Framework
from planner.describe.machine import Machine
from planner.describe.model.model import Model
from planner.describe.workload import Workload

JOB = {"sequence_length": 4096, "global_batch": 64}
"""Default workload fields of a test."""


def scenario(
    model: str | Model = "llama-3-8b",
    framework: str | Framework = "megatron-lm",
    machine: str | Machine = "polaris",
    **workload: object,
) -> Scenario:
    """Make a scenario from catalogue names or descriptions; keywords are workload fields.

    A module whose tests share other defaults sets them once with `functools.partial`.
    """
    return default_scenario(model, framework, machine, **{**JOB, **workload})


def default_scenario(
    model: str | Model = "llama-3-8b",
    framework: str | Framework = "megatron-lm",
    machine: str | Machine = "polaris",
    **workload: object,
) -> Scenario:
    """Make a scenario like `scenario`, but with the package's defaults of a workload.

    A framework by its name runs its own blocks, also for models that its code does not build.
    """
    return Scenario(
        load_model(model) if isinstance(model, str) else model,
        load_machine(machine) if isinstance(machine, str) else machine,
        Workload.described(workload),
        load_framework(framework).with_own_blocks() if isinstance(framework, str) else framework,
    )


def searched(
    model: Model,
    machine: Machine,
    nodes: int,
    workload: Workload,
    frameworks: Sequence[str | Framework] = (),
    experience: Experience = Experience(),
    scope: SearchScope = SearchScope(),
) -> dict[str, Candidates]:
    """Search a job; return its candidates by framework."""
    job = JobSpec(
        model,
        machine,
        nodes=nodes,
        workload=workload,
        frameworks=frameworks,
        experience=experience,
    )
    return search_job(job, scope)
