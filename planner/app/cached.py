"""Cached: results for a job that pages reuse, and the layout that they show."""

import json
import threading
from typing import Any

import streamlit as st

from planner.app import link
from planner.app.controls.page_job import PageJob
from planner.app.draw import escape
from planner.ask import QUESTIONS, Answer
from planner.choose.jobs.probe import choose_probe
from planner.choose.plan import Plan
from planner.choose.planning import estimate, whole_training
from planner.choose.plots import (
    Axis,
    LayoutSpace,
    SimulatedStep,
    layout_space,
    parallel_axes,
    plan_with_space,
    simulate_step,
)
from planner.choose.verdicts.layout_words import parse_layout
from planner.choose.verdicts.why_not import WhyNot, why_not
from planner.cost.estimate import Estimate
from planner.cost.memory.footprint import stage_memory
from planner.describe.layout import Layout
from planner.describe.machine.variants import take_devices
from planner.describe.training.training_run import Training
from planner.emitters import emit
from planner.emitters.folder import zip_bytes
from planner.emitters.probe_files import probe_files
from planner.errors import LayoutError, PlannerError
from planner.training.whole_training import WholeTraining
from planner.units import counted

_HASH: dict[Any, Any] = {PageJob: lambda job: job.key}
_SEARCHES = threading.Semaphore(2)
"""Searches at a time: more would only slow each other down, and nobody would be served first."""


@st.cache_data(max_entries=64, show_spinner="Searching all layouts ...", hash_funcs=_HASH)
def _searched(job: PageJob) -> tuple[Plan, LayoutSpace]:
    with _SEARCHES:
        return plan_with_space(job, job.top)


def plan_of(job: PageJob) -> Plan:
    """Plan a job."""
    return _searched(job)[0]


def space_of(job: PageJob) -> LayoutSpace:
    """Return the layouts that the plan of a job was chosen from, in condensed form."""
    return _searched(job)[1]


@st.cache_data(max_entries=32, show_spinner="Collecting all layouts ...", hash_funcs=_HASH)
def whole_space_of(job: PageJob) -> LayoutSpace:
    """Return all layouts of the planned job in condensed form, also those far from the best."""
    plan, machine = plan_of(job), job.machine
    if plan.num_estimated == plan.num_candidates:
        return space_of(job)
    if plan.num_devices < plan.nodes * machine.node.num_devices:
        machine = take_devices(machine, plan.num_devices)
    return layout_space(job.replaced(machine=machine, nodes=plan.nodes, workload=plan.workload))


@st.cache_data(max_entries=128, show_spinner=False, hash_funcs=_HASH)
def estimate_of(job: PageJob, packed: str) -> Estimate:
    """Estimate a packed layout."""
    return estimate(job.model, job.machine, **_laid_out(job, packed))


def _laid_out(job: PageJob, packed: str) -> dict[str, Any]:
    """Unpack a layout and its framework; the workload gets the layout's global batch."""
    layout, framework = link.unpack_layout(packed)
    workload = job.workload.replaced(global_batch=layout.global_batch)
    laid_out = {"layout": layout, "framework": framework or None, "workload": workload}
    return {**laid_out, "experience": job.experience}


@st.cache_data(max_entries=64, show_spinner=False, hash_funcs=_HASH)
def training_of(job: PageJob, packed: str, training_json: str) -> WholeTraining:
    """Estimate the whole training on a layout; `training_json` is a `Training` as JSON."""
    training = Training.described(json.loads(training_json), where="training")
    return whole_training(job.model, job.machine, training=training, **_laid_out(job, packed))


@st.cache_data(max_entries=64, show_spinner=False, hash_funcs=_HASH)
def simulated_step_of(job: PageJob, packed: str) -> SimulatedStep:
    """Simulate the step of a layout event by event."""
    estimated = estimate_of(job, packed)
    return simulate_step(job.scenario_of(estimated), estimated)


@st.cache_data(max_entries=64, show_spinner=False, hash_funcs=_HASH)
def axes_of(job: PageJob, packed: str) -> list[Axis]:
    """Return the parallel axes of a layout with their traffic."""
    estimated = estimate_of(job, packed)
    return parallel_axes(job.scenario_of(estimated), estimated)


@st.cache_data(max_entries=64, show_spinner=False, hash_funcs=_HASH)
def stage_memory_of(job: PageJob, packed: str) -> list[dict[str, float]]:
    """Return the memory of every pipeline stage of a layout, by part."""
    estimated = estimate_of(job, packed)
    return stage_memory(job.scenario_of(estimated), estimated.layout)


@st.cache_data(max_entries=64, show_spinner=False, hash_funcs=_HASH)
def files_of(job: PageJob, packed: str) -> tuple[bytes, str]:
    """Return the files that run a layout as a ZIP archive, or the reason why there are none."""
    try:
        files = emit(plan_of(job), estimate_of(job, packed), model=job.model, machine=job.machine)
    except PlannerError as refusal:
        return b"", refusal.plain
    return zip_bytes(files), ""


@st.cache_data(max_entries=64, show_spinner=False, hash_funcs=_HASH)
def probe_of(job: PageJob, packed: str) -> bytes:
    """Return a layout's probe as a ZIP archive, whose README says why if there are no runs."""
    try:
        files = probe_files(choose_probe(job, estimate_of(job, packed)))
    except PlannerError as refusal:
        files = {"README.md": f"No small runs: {refusal.plain}.\n"}
    return zip_bytes(files)


@st.cache_data(max_entries=64, show_spinner="Computing ...", hash_funcs=_HASH)
def answer_of(job: PageJob, question: str, options: str) -> Answer:
    """Answer a question about a job; `options` is JSON."""
    values = json.loads(options).items()
    chosen = {name: tuple(v) if isinstance(v, list) else v for name, v in values}
    return QUESTIONS[question].of_job(job, **chosen)


def chosen(job: PageJob, plan: Plan) -> Estimate | None:
    """Return the job's chosen layout, else the recommended one; warn of another batch or size."""
    if not job.layout:
        return plan.recommended
    try:
        estimated = estimate_of(job, job.layout)
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
    """Return the strategy layout that needs the least memory, to show when nothing fits."""
    lacking = [v.estimate for v in plan.strategies if v.estimate is not None]
    return min(lacking, key=lambda e: e.memory_bytes["total"], default=None)


def kept_batch(layout: Layout, batch: int) -> Layout:
    """Set the gradient accumulation for a batch. Raises LayoutError if it does not divide."""
    once = layout.dp * layout.micro_batch
    if batch % once:
        candidates = [n for n in (batch // once * once, (batch // once + 1) * once) if n]
        raise LayoutError(
            f"a batch of {batch:,} is not a multiple of dp * micro_batch = {once:,}; use other "
            f"degrees or a batch of {' or '.join(f'{n:,}' for n in candidates)}"
        )
    return layout.replaced(grad_accumulation=batch // once)


@st.cache_data(max_entries=64, show_spinner="Searching layouts like it ...", hash_funcs=_HASH)
def why_of(job: PageJob, text: str) -> WhyNot:
    """Say what speaks against the layout that a text states."""
    return why_not(job, plan_of(job), parse_layout(text))
