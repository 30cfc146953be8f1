"""Learning rates: how a larger batch changes a learning rate, and what it gains in speed."""

from __future__ import annotations

import math
from typing import Annotated, Unpack

from planner.ask.answer import Row
from planner.ask.option import Nodes, Option
from planner.ask.plan_point import plan_or_reason
from planner.ask.question import Findings, JobFields, question
from planner.choose.jobs.job_spec import JobSpec
from planner.training.large_batch import (
    LINEAR,
    SQUARE_ROOT,
    more_samples,
    published,
    scaled_rate,
    warm_up_steps,
)

__all__ = ["batches_between", "learning_rate"]

_LINEAR_RULE = ("sgd", "sgd-momentum")
"""Optimizers of the linear rule; others divide by the size of the gradient."""
_MOST_BATCHES = 8
_RULES = (
    "Linear, for SGD: Goyal et al. 2017 (arXiv:1706.02677, section 2.1); square root, usual with "
    "Adam and LAMB: Krizhevsky 2014 (arXiv:1404.5997, section 5). Both are starting points for "
    "tuning.",
    "No rule holds for every batch: how far more samples a step save steps differs widely between "
    "models and data (Shallue et al. 2018, arXiv:1811.03600), up to the gradient's noise scale "
    "(McCandlish et al. 2018, arXiv:1812.06162).",
)


@question
def learning_rate(
    job: JobSpec,
    *,
    nodes: Nodes = 1,
    base_batch: Annotated[int, Option("A batch whose learning rate you know.", least=1)],
    base_rate: Annotated[float, Option("The learning rate that suits it.", above=0, most=1e6)],
    warmup_epochs: Annotated[
        float, Option("Epochs of warm-up, for any batch.", least=0, most=1000)
    ] = 5.0,
    critical_batch: Annotated[
        float | None, Option("Critical batch (noise scale) that you measured.", above=0)
    ] = None,
    **_: Unpack[JobFields],
) -> Findings:
    """Scale a learning rate from your batch to the workload's, with its warm-up and its speed.

    Batches in between are planned too: where tokens per second no longer grow, a larger batch gains
    nothing. The effect on accuracy is not estimated; published trainings of the model are listed.
    """
    workload = job.workload
    rows: dict[int, Row] = {}
    for batch in batches_between(base_batch, workload.global_batch):
        row: Row = {
            "global_batch": batch,
            "linear_rate": float(scaled_rate(base_rate, base_batch, batch, LINEAR)),
            "square_root_rate": float(scaled_rate(base_rate, base_batch, batch, SQUARE_ROOT)),
            "warm_up_steps": int(warm_up_steps(workload.samples, warmup_epochs, batch))
            if workload.samples
            else None,
        }
        if critical_batch is not None:
            row["samples_factor"] = float(more_samples(batch, critical_batch))
        point = plan_or_reason(job, nodes=nodes, global_batch=batch, ramp="")
        rows[batch] = {**row, **point.row()}
    row_of_batch = rows[workload.global_batch]
    notes = list(_RULES)
    if row_of_batch["warm_up_steps"] is None:
        notes.append("Set samples, of an epoch, for the steps of the warm-up.")
    notes += [
        f"{each.batch:,} with {each.model}: {each.outcome}; {each.optimizer} ({each.source})."
        for each in published()
        if each.model == job.model.name
    ]
    return Findings(
        _verdict(job, row_of_batch, f"{base_rate:g} for a batch of {base_batch:,}", warmup_epochs),
        list(rows.values()),
        notes,
        success=row_of_batch["fits"],
    )


def batches_between(base: int, batch: int) -> list[int]:
    """List two batches and doublings of the smaller between them; the eight largest at most.

    >>> batches_between(256, 4096), batches_between(64, 48), batches_between(1, 1_000_000)[:3]
    ([256, 512, 1024, 2048, 4096], [48, 64], [1, 16384, 32768])
    """
    low, high = sorted((base, batch))
    between = [low * 2**power for power in range(1, math.ceil(math.log2(high / low)))]
    return sorted({low, *between[2 - _MOST_BATCHES :], high})


def _verdict(job: JobSpec, row: Row, base: str, epochs: float) -> str:
    optimizer = job.workload.optimizer
    rules = {"linear": row["linear_rate"], "square-root": row["square_root_rate"]}
    usual, alternative = rules if optimizer in _LINEAR_RULE else reversed(rules)
    sentence = (
        f"Use a learning rate of {rules[usual]:.3g} for a batch of {job.workload.global_batch:,}: "
        f"{base}, scaled by the {usual} rule, which is usual with {optimizer}; the {alternative} "
        f"rule gives {rules[alternative]:.3g}"
    )
    if row["warm_up_steps"] is None:
        return f"{sentence}."
    return f"{sentence}. Warm up over {row['warm_up_steps']:,} steps ({epochs:g} epochs)."
