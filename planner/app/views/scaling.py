"""Scaling: nodes against time, efficiency and node-hours, worked out on request.

The curve needs one search per number of nodes, so it starts with a button, shows progress and
can be stopped; what is worked out is kept.
"""

from __future__ import annotations

import streamlit as st
from streamlit.runtime.scriptrunner import get_script_run_ctx

from planner.app import cached
from planner.app.controls.page_job import PageJob
from planner.app.draw import draw, draw_table
from planner.choose.plots import ScalePoint, above_one
from planner.show.figures.curves import scaling as drawn
from planner.units import format_amount, format_seconds

__all__ = ["node_counts", "scaling"]


def node_counts(most: int, around: int) -> list[int]:
    """Powers of two around a number of nodes, that number itself, at most seven.

    >>> node_counts(560, 128)
    [16, 32, 64, 128, 256, 512]
    """
    powers = [2**i for i in range(int(most).bit_length()) if 2**i <= most]
    neighbours = [p for p in powers if around / 8 <= p <= around * 4]
    return sorted({*neighbours, around})[:7]


@st.fragment
def scaling(job: PageJob) -> None:
    """The scaling view of page 1."""
    columns = st.columns([2, 1, 1, 3], vertical_alignment="bottom")
    weak = (
        columns[0].segmented_control(
            "Global batch",
            ("stays", "grows with nodes"),
            default="stays",
            key="scale_batch",
            help="Strong scaling keeps the batch; weak scaling keeps sequences per node.",
        )
        == "grows with nodes"
    )
    jobs = [
        _sized(job, count, weak)
        for count in node_counts(int(job.machine.num_nodes.value), job.nodes)
    ]
    task = f"{weak} {job.key}"
    columns[1].button("Work out", type="primary", key="scale_start", on_click=_work, args=(task,))
    columns[2].button(
        "Stop", key="scale_stop", on_click=_work, args=("",), help="Keeps the points that are done."
    )
    computed: dict[str, ScalePoint] = st.session_state.setdefault("scale_points", {})
    missing = [sized for sized in jobs if sized.key not in computed]
    working = bool(missing) and st.session_state.get("scale_task") == task
    if working:
        done = 1 - len(missing) / len(jobs)
        st.progress(done, text=f"Searching {missing[0].nodes:,} nodes ...")
    points = [computed[sized.key] for sized in jobs if sized.key in computed]
    if points:
        _show(points, job)
    elif not working:
        st.info(f"Searches {len(jobs)} node counts one by one; each is shown when it is done.")
    if working:
        # one point a run: Streamlit hears of a button only between two runs
        computed[missing[0].key] = cached.scale_point(missing[0])
        st.rerun(scope="fragment" if _is_fragment() else "app")


def _work(task: str) -> None:
    st.session_state["scale_task"] = task


def _is_fragment() -> bool:
    """Whether this run is of the fragment alone, not of the page."""
    return bool(getattr(get_script_run_ctx(), "fragment_ids_this_run", None))


def _sized(job: PageJob, nodes: int, weak: bool) -> PageJob:
    batch = job.workload.global_batch
    if weak:
        batch = max(round(batch * nodes / job.nodes), 1)
    return job.replaced(nodes=nodes, workload=job.workload.replaced(global_batch=batch))


def _show(points: list[ScalePoint], job: PageJob) -> None:
    shown = {"time": "Step time", "efficiency": "Efficiency", "node-hours": "Node-hours"}
    for column, (quantity, title) in zip(st.columns(3), shown.items(), strict=True):
        with column:
            st.subheader(title, anchor=False)
            draw(drawn(points, quantity), key=f"scale_{quantity}")
    rows = []
    for point in points:
        queues = [
            q for q in job.machine.scheduler.queues if q.min_nodes <= point.nodes <= q.max_nodes
        ]
        rows.append(
            {
                "nodes": point.nodes,
                "step": format_seconds(point.step_time_s) if point.step_time_s else "-",
                "node-hours": format_amount(point.node_hours) if point.step_time_s else "-",
                "queues": ", ".join(f"{q.name} {q.max_hours:g} h" for q in queues) or "none known",
                "best layout": point.layout,
            }
        )
    draw_table(
        rows,
        key="scale_table",
        alt="Per number of nodes: step time, node-hours, queues and best layout.",
    )
    unit = "the tokens asked for" if job.workload.all_tokens else "1,000 steps"
    note = f"Node-hours are for {unit}. The dotted line is perfect scaling. {above_one(points)}"
    st.caption(note.strip())
