"""Page: one layout: why not another, ranks, traffic of links, timeline and memory of a step."""

import math
from typing import Any

import streamlit as st

from planner.app import address, cached, link
from planner.app.cached import chosen, closest, kept_batch
from planner.app.controls.drop import drop_place
from planner.app.controls.elsewhere import texts
from planner.app.controls.fields import widget
from planner.app.controls.page_job import PageJob, PageRequest
from planner.app.controls.panel import ROW, controls
from planner.app.controls.pins import pin_button
from planner.app.draw import announce, draw, draw_table, in_rows, refuse
from planner.app.views.layouts.choice import layout_box, show_code, show_why
from planner.choose.plan import Plan
from planner.choose.verdicts.answer_lines import AnswerLine, estimate_lines
from planner.cost.estimate import Estimate
from planner.describe.job_description import JobDescription
from planner.describe.layout import Layout
from planner.errors import PlannerError
from planner.show import words
from planner.show.figures import bars, step_timeline
from planner.show.figures import rank_layout as layouts
from planner.show.job_texts import arguments
from planner.units import format_bytes, format_rate, format_seconds

TITLE = "One layout"

_AXES = ("tp", "cp", "dp", "pp")
_COMMON = """
dp tp pp cp ep micro_batch zero_stage dp_shard sequence_parallel recompute schedule vpp
"""
"""Fields of a layout that are changed every day; the others are folded away."""
_WHY = "why"


def read_query(reader: address.QueryReader, _: PageJob | None) -> None:
    """Read the layout that a user asks about."""
    reader.text(_WHY)


def page(request: PageRequest) -> None:
    """Draw a layout from the plan, from the address, or edited by hand."""
    st.title(TITLE, anchor=False)
    job = controls(request)
    if job is None:
        return
    shown = None
    try:
        plan = cached.plan_of(job)
        if shown := chosen(job, plan) or closest(plan):
            # the answer stands before the controls that change it
            _fate(shown, job)
            layout_box(plan, shown, "Layout")
            _change(shown, job)
            pin_button()
        else:
            st.info("No strategy has a legal layout for this job; change the job above.")
        _why(job, plan)
        show_code(shown)
    except PlannerError as error:
        refuse(error, title="This layout cannot be estimated")
    drop_place(job)
    if shown is None:
        return
    packed = link.of(shown)
    _memory(shown, job)
    _where(shown, job)
    _carried(shown, job, packed)
    _when(shown, job, packed)


def elsewhere(job: PageJob, described: JobDescription) -> tuple[str, str] | None:
    """Return the command and the Python lines that estimate the layout."""
    plan = cached.plan_of(job)
    shown = plan.recommended or closest(plan)
    packed = job.layout or (link.of(shown) if shown else "")
    if not packed:
        return None
    layout, framework = link.unpack_layout(packed)
    fields = layout.model_dump(exclude_defaults=True)
    sized = {**described.workload, "global_batch": layout.global_batch}
    changes = {
        "workload": {name: v for name, v in sized.items() if name not in ("samples", "epochs")},
        "nodes": -(-layout.world // job.machine.node.num_devices),
        "frameworks": (framework,),
        "tolerance": None,
    }
    call = f"estimate(planner.Layout({arguments(fields)}))"
    fields.pop("grad_accumulation", None)
    job_of_layout = described.replaced(**changes)
    return texts("planner estimate", job_of_layout, call, "step_time_s", **fields)


def _why(job: PageJob, plan: Plan) -> None:
    text = st.text_input(
        "Why not this layout?",
        key=_WHY,
        max_chars=400,
        placeholder="such as DDP, dp4 tp4 zero1, or a layout of a table",
        help="A classic strategy, or any part of a layout in code. The answer says how it is read.",
    )
    if text.strip():
        name = text.strip().lower()
        name = "ddp" if name == "dp" else name
        named = [v.estimate for v in plan.strategies if name in v.name.lower().split(" / ")]
        each = next(iter(named), None)
        show_why(job, f"{each.layout} [{each.framework}]" if each else text)


def _change(shown: Estimate, job: PageJob) -> None:
    layout, packed = shown.layout, link.of(shown)
    # gradient accumulation follows from the other fields and the job's batch
    common = _COMMON.split()
    rare = [n for n in Layout.model_fields if n not in (*common, "grad_accumulation")]
    with st.expander("Change this layout"), st.form(f"change_{packed}", border=False):
        st.caption(
            f"The batch stays {job.workload.global_batch:,} sequences: the passes of a step "
            "(gradient accumulation) follow."
        )
        fields: dict[str, Any] = {}
        for place, names in ((st.container(), common), (st.expander("More fields"), rare)):
            with place, st.container(key=f"{ROW}_{len(names)}"):
                for column, name in in_rows(names, 4, vertical_alignment="bottom"):
                    value, key = getattr(layout, name), f"set_{name}_{packed}"
                    fields[name] = widget(column, Layout, name, key=key, value=value)
        if st.form_submit_button("Estimate"):
            _use(layout.replaced(**fields), shown.framework, job)


def _use(layout: Layout, framework: str, job: PageJob) -> None:
    """Choose an edited layout, or answer why it is refused."""
    if layout.pp == 1 or layout.schedule == "none":
        layout = layout.replaced(schedule="none" if layout.pp == 1 else "1f1b")
    try:
        packed = link.pack_layout(kept_batch(layout, job.workload.global_batch), framework)
        cached.estimate_of(job, packed)
    except PlannerError:
        address.request(why=f"{layout} [{framework}]")
    else:
        address.request(layout=packed)
    st.rerun()


def _fate(shown: Estimate, job: PageJob) -> None:
    label, _, margin = words.fit_sentence(shown, job.machine).partition(": ")
    limit = job.machine.device.memory_bytes.value
    lines = [AnswerLine(label, f"{margin}."), *estimate_lines(shown, limit)]
    announce(lines, shown.fits, shown.tight)


def _memory(shown: Estimate, job: PageJob) -> None:
    st.header("Memory of a device", anchor=False)
    limit = job.machine.device.memory_bytes.value
    draw(bars.memory_bars([("this layout", shown)], limit), key="memory")


def _where(shown: Estimate, job: PageJob) -> None:
    st.header("Which rank sits where", anchor=False)
    layout = shown.layout
    present = [axis for axis in _AXES if getattr(layout, axis) > 1] or ["dp"]
    axis = st.segmented_control(
        "Colour by axis",
        present,
        default=present[0],
        key=f"axis_{link.of(shown)}",
        help="Cells with one number share their place on this axis.",
    )
    draw(layouts.rank_map(layout, job.machine, axis or present[0]), key="ranks", caption=True)


def _carried(shown: Estimate, job: PageJob, packed: str) -> None:
    st.header("What each link carries", anchor=False)
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
            "of the step [%]": 100 * row.time_s / shown.step_time_s,
        }
        for row in carried
    ]
    if not rows:
        st.info("One device: nothing is sent.")
        return
    draw_table(
        rows,
        key="axes",
        alt="Per axis: ranks, distance, path, rate, latency, bytes of a step and exposed time.",
        column_config={"of the step [%]": st.column_config.NumberColumn(format="%.1f")},
    )
    draw(layouts.link_loads(carried, job.machine, shown.step_time_s), key="links")
    st.caption("All bytes of one step, hidden behind computation or not.")
    st.header("Where the step's time goes", anchor=False)
    draw(bars.waterfall(shown), key="parts")


def _when(shown: Estimate, job: PageJob, packed: str) -> None:
    st.header("What happens when", anchor=False)
    limit = job.machine.device.memory_bytes.value
    stages, step = cached.stage_memory_of(job, packed), cached.simulated_step_of(job, packed)
    drawing = step_timeline.gantt(step, shown.layout.schedule)
    draw(drawing, key="gantt")
    waiting = words.idle_explanation(shown, step_timeline.has_numbers(drawing))
    st.caption(f"{waiting} {step_timeline.drawn_part(step)}")
    st.header("Memory over the step", anchor=False)
    draw(step_timeline.memory_over_step(step, stages, limit), key="over_step")
    if len(stages) > 1:
        st.header("Memory by stage", anchor=False)
        draw(bars.stage_bars(stages, limit), key="stages")
    st.header("Memory of the host", anchor=False)
    draw(bars.host_bars(shown, job.machine.node.host_memory_bytes.value), key="host")
