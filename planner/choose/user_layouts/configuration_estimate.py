"""Configured: the job of a user's own files, estimated, beside what the same framework can do."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from planner.choose.planning import estimate, plan
from planner.choose.user_layouts.completion import CompletedLayout, complete_layout
from planner.cost.estimate import Estimate
from planner.cost.scenario.experience import Experience
from planner.describe.catalogue import load_framework, load_machine, load_model
from planner.describe.configurations.configuration import Configuration
from planner.describe.framework.framework import Framework
from planner.describe.machine import Machine
from planner.describe.model.model import Model
from planner.errors import LayoutError

__all__ = ["ConfigurationEstimate", "estimate_configuration", "faster_layout"]


@dataclass(frozen=True, slots=True)
class ConfigurationEstimate:
    """The estimate of a configuration."""

    job: CompletedLayout
    """What was estimated, with notes on how the files were understood."""
    estimate: Estimate
    """Memory and step time."""
    better: Estimate | None
    """The fastest layout of the same framework on the same nodes, where that is faster or the
    configured one does not fit."""


def estimate_configuration(
    model: str | Model,
    machine: str | Machine,
    configuration: Configuration,
    *,
    nodes: int | None = None,
    layout: Mapping[str, Any] | None = None,
    workload: Mapping[str, Any] | None = None,
    framework: str | Framework | None = None,
    experience: Experience = Experience(),
) -> ConfigurationEstimate:
    """Memory and step time of what files configure, and the best that their framework can do.

    `layout` and `workload` are fields that the files leave open, or that count before theirs;
    `experience` corrects the estimates, as in `plan`.
    Raises PlannerError subclasses where something is missing or does not fit.

    >>> from planner.describe.configurations.reading import read_configuration_text
    >>> config = read_configuration_text('{"train_micro_batch_size_per_gpu": 1, "zero_optimization"'
    ...     ': {"stage": 3}, "bf16": {"enabled": true}}', "ds_config.json")
    >>> found = estimate_configuration("llama-3-8b", "polaris", config, nodes=2)
    >>> found.estimate.layout.dp, found.estimate.framework
    (8, 'deepspeed')
    """
    described = model if isinstance(model, Model) else load_model(model)
    place = machine if isinstance(machine, Machine) else load_machine(machine)
    job = complete_layout(
        described,
        place,
        configuration,
        nodes=nodes,
        layout=layout,
        workload=workload,
        framework=framework,
    )
    found = estimate(
        described,
        place,
        job.layout,
        workload=job.workload,
        framework=job.framework,
        experience=experience,
    )
    return ConfigurationEstimate(
        job, found, faster_layout(described, place, job, found, experience)
    )


def faster_layout(
    model: Model,
    machine: Machine,
    job: CompletedLayout,
    found: Estimate,
    experience: Experience = Experience(),
) -> Estimate | None:
    """The fastest layout of the same framework for the same job on whole nodes.

    None where the configured one is as fast and fits, or fills no whole nodes.
    """
    nodes, rest = divmod(job.layout.world, machine.node.num_devices)
    if rest:
        return None
    framework = job.framework or load_framework(found.framework)
    try:
        answer = plan(
            model,
            machine,
            nodes=nodes,
            workload=job.workload,
            frameworks=[framework],
            top=1,
            experience=experience,
        )
    except LayoutError:
        return None
    best = answer.ranked[0] if answer.ranked else None
    if best is None or best.layout == found.layout:
        return None
    return best if not found.fits or best.step_time_s < found.step_time_s else None
