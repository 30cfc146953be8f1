"""Estimate a user's configuration files, and what the same framework can do better."""

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
    """The layout as completed, with notes on how the files were understood."""
    estimate: Estimate
    """Memory and step time."""
    better: Estimate | None
    """A faster layout of the same framework on the same nodes, or one that fits; None without."""


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
    """Estimate the layout that files configure, and the best that their framework can do.

    `layout` and `workload` are fields that complete or override those of the files; `experience`
    corrects the estimates, as in `plan`. Raises PlannerError subclasses where something is missing
    or does not fit.

    >>> from planner.describe.configurations.reading import read_configuration_text
    >>> config = read_configuration_text('{"train_micro_batch_size_per_gpu": 1, "zero_optimization"'
    ...     ': {"stage": 3}, "bf16": {"enabled": true}}', "ds_config.json")
    >>> result = estimate_configuration("llama-3-8b", "polaris", config, nodes=2)
    >>> result.estimate.layout.dp, result.estimate.framework
    (8, 'deepspeed')
    """
    model = model if isinstance(model, Model) else load_model(model)
    machine = machine if isinstance(machine, Machine) else load_machine(machine)
    job = complete_layout(
        model,
        machine,
        configuration,
        nodes=nodes,
        layout=layout,
        workload=workload,
        framework=framework,
    )
    configured = estimate(
        model,
        machine,
        job.layout,
        workload=job.workload,
        framework=job.framework,
        experience=experience,
    )
    better = faster_layout(model, machine, job, configured, experience)
    return ConfigurationEstimate(job, configured, better)


def faster_layout(
    model: Model,
    machine: Machine,
    job: CompletedLayout,
    configured: Estimate,
    experience: Experience = Experience(),
) -> Estimate | None:
    """Find the fastest layout of the same framework for the same job on whole nodes.

    None if the configured layout is as fast and fits, or does not fill whole nodes.
    """
    nodes, rest = divmod(job.layout.world, machine.node.num_devices)
    if rest:
        return None
    framework = job.framework or load_framework(configured.framework)
    try:
        best = plan(
            model,
            machine,
            nodes=nodes,
            workload=job.workload,
            frameworks=framework,
            top=1,
            experience=experience,
        ).best
    except LayoutError:
        return None
    if best is None or best.layout == configured.layout:
        return None
    is_faster = best.step_time_s < configured.step_time_s
    return best if is_faster or not configured.fits else None
