"""Chosen: the layout that the user picked, changed by hand or was sent, for this very job."""

from __future__ import annotations

import streamlit as st

from planner.app import cached
from planner.app.controls.page_job import PageJob
from planner.app.markdown import escape
from planner.choose.plan import Plan
from planner.cost.estimate import Estimate
from planner.describe.layout import Layout
from planner.errors import LayoutError, PlannerError
from planner.units import counted

__all__ = ["chosen", "closest", "kept_batch"]


def chosen(job: PageJob, plan: Plan) -> Estimate | None:
    """The layout of the job, else the recommended one; says where it is of another size."""
    if not job.layout:
        return plan.recommended
    try:
        estimated = cached.estimate_of(job, job.layout)
    except PlannerError as error:
        st.warning(escape(f"The chosen layout cannot be used: {error.plain}; another is shown."))
        return plan.recommended
    layout, batch = estimated.layout, job.workload.global_batch
    if layout.global_batch != batch:
        st.warning(
            f"This layout trains {layout.global_batch:,} sequences per step, the job "
            f"{batch:,}: step times of the two do not compare."
        )
    if layout.world != job.num_devices:
        st.warning(
            f"The layout has {counted(layout.world, 'rank')}, the job "
            f"{counted(job.num_devices, 'device')}."
        )
    return estimated


def closest(plan: Plan) -> Estimate | None:
    """What to look at where nothing fits: the layout that lacks least memory."""
    lacking = [v.estimate for v in plan.strategies if v.estimate is not None]
    return min(lacking, key=lambda e: e.memory_bytes["total"], default=None)


def kept_batch(layout: Layout, batch: int) -> Layout:
    """A layout with as many passes as a batch needs; LayoutError where the batch does not divide.

    >>> kept_batch(Layout(dp=8, micro_batch=2), 256).grad_accumulation
    16
    """
    once = layout.dp * layout.micro_batch
    if batch % once:
        candidates = [n for n in (batch // once * once, (batch // once + 1) * once) if n]
        raise LayoutError(
            f"a batch of {batch:,} is no multiple of dp * micro_batch = {once:,}; use other "
            f"degrees or a batch of {' or '.join(f'{n:,}' for n in candidates)}"
        )
    return layout.replaced(grad_accumulation=batch // once)
