"""Page 2: one layout: where ranks sit, what links carry, what happens when."""

from __future__ import annotations

import math
from typing import Any

import streamlit as st

from planner.app import cached, link
from planner.app.controls import Job, controls, share
from planner.app.draw import draw
from planner.app.markdown import escape
from planner.choose.plan import Plan
from planner.cost.estimate import Estimate
from planner.describe.layout import OFFLOAD, RECOMPUTE, SCHEDULES
from planner.errors import PlannerError
from planner.show import words
from planner.show.figures import layout as layouts
from planner.show.figures import memory, pipeline, time
from planner.units import counted, format_bytes, format_rate, format_seconds

__all__ = ["TITLE", "page"]

TITLE = "One layout"


def page() -> None:
    """A layout from the plan, from the address, or changed by hand."""
    st.title(TITLE, anchor=False)
    job = controls()
    if job is None:
        return
    try:
        plan = cached.plan_of(job)
        packed = _choice(plan)
        if not packed:
            st.info("No strategy has a legal layout for this job; change the job above.")
            return
        packed = _changed(packed)
        found = cached.estimate_of(job, packed)
    except PlannerError as error:
        st.error(escape(str(error)), title="This layout cannot be estimated")
        return
    _fate(found, job)
    _where(found, job)
    _carried(found, job, packed)
    _when(found, job, packed)
    share()


def _choice(plan: Plan) -> str:
    """The layout to study, as one word; the address remembers it."""
    labels: dict[str, str] = {}
    for number, e in enumerate(plan.ranked, 1):
        labels.setdefault(
            link.of(e), f"{number}. {e.layout} [{e.framework}] {format_seconds(e.step_time_s)}"
        )
    for verdict in plan.strategies:
        if verdict.estimate is not None:
            e = verdict.estimate
            labels.setdefault(
                link.of(e),
                f"{verdict.name}: {e.layout} [{e.framework}]"
                + ("" if verdict.fits else ", does not fit"),
            )
    wanted = st.query_params.get("layout", "")
    if wanted and wanted not in labels:
        labels = {wanted: "from the address, or changed by hand", **labels}
    if not labels:
        return ""
    options = list(labels)
    # a new choice in the address is a new widget: it would else keep the choice before
    chosen = st.selectbox(
        "Layout",
        options,
        index=options.index(wanted) if wanted else 0,
        format_func=lambda packed: labels[packed],
        key=f"pick_{wanted}",
    )
    if chosen and chosen != wanted and (wanted or chosen != options[0]):
        st.query_params["layout"] = chosen
    return chosen or options[0]


_DEGREES = {
    "dp": "data",
    "dp_shard": "shard over (0: all)",
    "tp": "tensor",
    "pp": "pipeline",
    "vpp": "chunks",
    "cp": "context",
    "ep": "expert",
    "micro_batch": "micro-batch",
    "grad_accumulation": "accumulation",
}
_CHOICES: dict[str, tuple[Any, ...]] = {
    "zero_stage": (0, 1, 2, 3),
    "recompute": RECOMPUTE,
    "schedule": SCHEDULES,
    "offload": OFFLOAD,
}


def _changed(packed: str) -> str:
    """A form that changes the layout; it is estimated when the form is sent."""
    layout, framework = link.unpack_layout(packed)
    with st.expander("Change this layout"), st.form(f"change_{packed}", border=False):
        columns = st.columns(5)
        fields: dict[str, Any] = {}
        for number, (name, text) in enumerate(_DEGREES.items()):
            fields[name] = columns[number % 5].number_input(
                text,
                min_value=0 if name == "dp_shard" else 1,
                max_value=1_000_000,
                value=getattr(layout, name),
                step=1,
                key=f"set_{name}_{packed}",
            )
        for number, (name, options) in enumerate(_CHOICES.items()):
            fields[name] = columns[number].selectbox(
                name.replace("_", " "),
                options,
                index=options.index(getattr(layout, name)),
                key=f"set_{name}_{packed}",
            )
        fields["sequence_parallel"] = columns[4].checkbox(
            "sequence parallel", layout.sequence_parallel, key=f"set_sp_{packed}"
        )
        if st.form_submit_button("Estimate"):
            packed = link.pack_layout(layout.replaced(**fields), framework)
            st.query_params["layout"] = packed
            st.rerun()
    return packed


def _fate(found: Estimate, job: Job) -> None:
    say = st.success if found.fits else st.error
    say(
        escape(
            f"{words.fate(found, job.machine)}. {words.layout_words(found.layout)} with "
            f"{found.framework}: {format_seconds(found.step_time_s)} per step, "
            f"{format_bytes(found.memory_bytes['total'])} per device."
        )
    )


def _where(found: Estimate, job: Job) -> None:
    devices = job.nodes * job.machine.node.num_devices
    if found.layout.world != devices:
        st.warning(
            f"The layout has {counted(found.layout.world, 'rank')}, the job "
            f"{counted(devices, 'device')}."
        )
    st.subheader("Which rank sits where", anchor=False)
    layout = found.layout
    present = [axis for axis in ("tp", "cp", "dp", "pp") if getattr(layout, axis) > 1] or ["dp"]
    axis = st.segmented_control(
        "Colour by axis",
        present,
        default=present[0],
        key="rank_axis",
        help="Cells with one number share their place on this axis.",
    )
    drawing = layouts.rank_map(layout, job.machine, axis if axis in present else present[0])
    draw(drawing, key="ranks")
    st.caption(drawing.alt)


def _carried(found: Estimate, job: Job, packed: str) -> None:
    st.subheader("What each link carries", anchor=False)
    carried = cached.axes_of(job, packed)
    rows = [
        {
            "axis": row.name,
            "ranks": row.size,
            "apart": row.stride,
            "nodes": row.nodes,
            "path": "network" if row.nodes > 1 else "inside the node",
            "rate per rank": format_rate(row.bytes_per_s)
            if math.isfinite(row.bytes_per_s)
            else "-",
            "latency": format_seconds(row.latency_s),
            "carries": row.carries,
            "a rank sends": format_bytes(row.traffic.device_bytes),
            "leaves a node": format_bytes(row.traffic.node_bytes),
            "exposed time": format_seconds(row.time_s),
            "of the step [%]": 100 * row.time_s / found.step_time_s,
        }
        for row in carried
    ]
    if not rows:
        st.info("One device: nothing is sent.")
        return
    st.dataframe(
        rows,
        hide_index=True,
        key="axes",
        alt="Per axis: ranks, distance, path, rate, latency, bytes of a step and exposed time.",
        column_config={"of the step [%]": st.column_config.NumberColumn(format="%.1f")},
    )
    draw(layouts.link_loads(carried, job.machine, found.step_time_s), key="links")
    st.caption("All bytes of one step, hidden behind computation or not.")
    draw(time.waterfall(found), key="parts")


def _when(found: Estimate, job: Job, packed: str) -> None:
    st.subheader("What happens when", anchor=False)
    limit = job.machine.device.memory_bytes.value
    stages, step = cached.stage_memory_of(job, packed), cached.played_of(job, packed)
    draw(pipeline.gantt(step, found.layout.schedule), key="gantt")
    st.caption(f"{words.waiting(found)} {pipeline.whats_drawn(step)}")
    st.subheader("Memory over the step", anchor=False)
    draw(pipeline.memory_over_step(step, stages, limit), key="over_step")
    if len(stages) > 1:
        st.subheader("Memory by stage", anchor=False)
        draw(memory.stage_bars(stages, limit), key="stages")
    st.subheader("Memory of the host", anchor=False)
    draw(memory.host_bars(found, job.machine.node.host_memory_bytes.value), key="host")
