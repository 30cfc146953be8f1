"""Page 7: the ideas of parallel training in order, each with a figure computed on the spot."""

import tomllib
from pathlib import Path
from typing import Any

import streamlit as st

from planner.app import address, link
from planner.app.cached import estimate_of, kept_batch
from planner.app.controls.page_job import PageJob, PageRequest
from planner.app.controls.panel import controls
from planner.app.draw import draw, escape, refuse
from planner.choose.plots import SimulatedStep
from planner.choose.verdicts.decision_guide import apply_guide
from planner.cost.estimate import Estimate
from planner.cost.scenario import Scenario
from planner.cost.schedules.bubble import schedule_by_name
from planner.cost.schedules.simulate import StageTime, simulate
from planner.describe.catalogue import load_framework, load_machine, load_model
from planner.describe.layout import SCHEDULES, Layout
from planner.describe.workload import Workload
from planner.errors import PlannerError
from planner.show.figures import bars, step_timeline
from planner.units import counted, format_bytes

TITLE = "Learn"

_JOB, _EXAMPLE = "the job above", "a small example"
_FILE = Path(__file__).parent / "texts" / "learn.toml"
_IDEAS = tomllib.loads(_FILE.read_text(encoding="utf-8"))


def read_query(reader: address.QueryReader, _: PageJob | None) -> None:
    """Read this page's own parameters."""
    reader.choice("idea", list(_IDEAS), next(iter(_IDEAS)))
    reader.choice("of", (_JOB, _EXAMPLE), _JOB)


def page(request: PageRequest) -> None:
    """Draw one tab per idea; only the open one is computed."""
    st.title(TITLE, anchor=False)
    job = controls(request)
    if st.radio("Figures of", (_JOB, _EXAMPLE), key="of", horizontal=True) == _EXAMPLE:
        job = None
    tabs = st.tabs(list(_IDEAS), key="idea", on_change="rerun")
    for tab, (name, idea) in zip(tabs, _IDEAS.items(), strict=True):
        if tab.open:
            with tab:
                st.markdown(idea["text"])
                try:
                    {"Pipeline": _pipeline, "Choosing": _choosing}.get(name, _compare)(job, idea)
                except PlannerError as error:
                    refuse(error)


def _example(model: str) -> PageJob:
    workload = Workload(sequence_length=1024, global_batch=64)
    return PageJob(load_model(model), load_machine("polaris"), workload=workload)


def _compare(job: PageJob | None, idea: dict[str, Any]) -> None:
    """Draw memory and time of an idea's layouts for the job, else for the example."""
    example, estimates = _example(idea["model"]), []
    subject = job or example
    try:
        if not (estimates := _estimates(subject, idea)):
            st.caption("No layout shares the batch of the job. This is an example.")
    except PlannerError as error:
        st.caption(escape(f"The job cannot be shown: {error.plain}. This is an example."))
    if not estimates:
        subject, estimates = example, _estimates(example, idea)
    batch, tokens = subject.workload.global_batch, subject.workload.sequence_length
    place = f"{subject.model.name} on devices of {subject.machine.name}"
    st.caption(escape(f"{place}, {batch:,} sequences of {tokens:,} tokens per step."))
    limit = subject.machine.device.memory_bytes.value
    memory, time = st.columns(2)
    with memory:
        draw(bars.memory_bars(estimates, limit), key="idea_memory")
    with time:
        draw(bars.time_bars(estimates), key="idea_time")


def _estimates(job: PageJob, idea: dict[str, Any]) -> list[tuple[str, Estimate]]:
    """Estimate an idea's layouts, those that the batch divides into."""
    batch, framework, estimates = job.workload.global_batch, idea["framework"], []
    for name, fields in idea["layouts"].items():
        layout = Layout(**fields)
        if batch % layout.dp == 0:
            packed = link.pack_layout(kept_batch(layout, batch), framework)
            estimates.append((name, estimate_of(job, packed)))
    return estimates


def _pipeline(_: PageJob | None, __: dict[str, Any]) -> None:
    columns = st.columns(4)
    schedule = columns[0].selectbox("Schedule", SCHEDULES[1:], index=1, key="pipe_kind")
    stages = columns[1].slider("Stages", 2, 8, 4, key="pipe_stages")
    groups = columns[2].slider("Micro-batches per stage", 1, 8, 2, key="pipe_groups")
    chunks = columns[3].slider("Chunks (interleaved)", 2, 4, 2, key="pipe_chunks")
    rules = schedule_by_name(schedule)
    number = chunks if rules.interleaves else 2 if rules.v_shaped else 1
    timeline = simulate([StageTime(1.0, 2.0, 0.0, 1.0)] * stages, stages * groups, schedule, number)
    draw(step_timeline.gantt(SimulatedStep.of_schedule(timeline), schedule), key="pipe_gantt")
    micro_batches = max(max(timeline.in_flight(stage)[1]) for stage in range(stages))
    st.caption(
        f"Forward 1 s, backward 2 s. The step takes {timeline.makespan_s:.2f} s, stages idle "
        f"{100 * timeline.idle_fraction:.1f} % of it; the fullest stage holds {micro_batches:g} "
        "micro-batches."
    )


def _choosing(job: PageJob | None, _: dict[str, Any]) -> None:
    job = job or _example("llama-2-7b")
    scenario = Scenario(job.model, job.machine, job.workload, load_framework("fsdp2"))
    place = f"{counted(job.nodes, 'node')} of {job.machine.name}"
    advice = apply_guide([scenario], job.nodes)[1]
    st.info(escape(f"The guide for {job.model.name} on {place}: {advice}."))
    state = f"{job.model.name} has {format_bytes(16.0 * job.model.num_params)} of training state."
    st.caption(escape(f"{state} The first page says where the guide and the estimate differ."))
