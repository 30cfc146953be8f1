"""Steps: time and node-hours of the steps of a training, without everything else."""

from __future__ import annotations

from planner.cost.estimate import Estimate
from planner.cost.step.step import smaller_step_s
from planner.describe.workload import Workload

__all__ = ["node_hours", "training_time"]


def training_time(job: Workload, estimate: Estimate) -> float:
    """Time of all steps of a workload; 0 if it states no tokens [s].

    Counted: steps of a ramp as those of the same layout with fewer passes. Left out: evaluation,
    checkpoints, restarts. Definition.

    >>> job = planner.Workload(global_batch=64, sequence_length=1024, tokens=64 * 1024 * 1000)
    >>> layout = planner.Layout(dp=4, micro_batch=16)
    >>> estimate = planner.estimate("gpt2", "polaris", layout, workload=job)
    >>> round(training_time(job, estimate) / estimate.step_time_s, 6)
    1000.0
    """
    if not job.all_tokens:
        return 0.0
    seconds, rest = 0.0, job.all_tokens
    for batch, steps in job.ramp_steps:
        share = batch / job.global_batch
        seconds += steps * smaller_step_s(estimate.step_time_parts_s, share)
        rest -= steps * share * job.tokens_per_step
    return seconds + max(rest, 0.0) / estimate.tokens_per_s


def node_hours(nodes: int, job: Workload, estimate: Estimate) -> float:
    """Node-hours of all steps of a workload, or of 1,000 steps if it states no tokens [1].

    Counted: all nodes for `training_time`. Left out: waiting in a queue. Definition.

    >>> job = planner.Workload(global_batch=64, sequence_length=1024)
    >>> layout = planner.Layout(dp=4, micro_batch=16)
    >>> estimate = planner.estimate("gpt2", "polaris", layout, workload=job)
    >>> round(node_hours(2, job, estimate) * 3600 / estimate.step_time_s, 6)
    2000.0
    """
    seconds = training_time(job, estimate) or 1000 * estimate.step_time_s
    return nodes * seconds / 3600
