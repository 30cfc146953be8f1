"""Page 1: which strategy fits, why, and what to change."""

from __future__ import annotations

import functools
import hashlib

import streamlit as st

from planner.app import address, cached, link
from planner.app.cached import chosen
from planner.app.controls import own_runs
from planner.app.controls.elsewhere import texts
from planner.app.controls.page_job import PageJob, PageRequest
from planner.app.controls.panel import controls
from planner.app.controls.pins import pin_button
from planner.app.draw import (
    announce,
    download,
    draw,
    draw_table,
    escape,
    escaped_rows,
    list_lines,
    refuse,
)
from planner.app.views import training
from planner.choose.jobs.alternatives import of_kind
from planner.choose.plan import Plan
from planner.choose.preferences import preferences
from planner.choose.verdicts.answer_lines import (
    AnswerLine,
    answer_lines,
    cost_sentence,
    estimate_lines,
    percent_chance,
)
from planner.choose.verdicts.layout_words import CODE
from planner.cost.estimate import Estimate
from planner.cost.parts import part
from planner.describe.job_description import JobDescription
from planner.errors import PlannerError
from planner.show import words
from planner.show.figures import bars, candidates
from planner.show.plan_report import strategies_table
from planner.tables import Table
from planner.units import GIB

TITLE = "Which strategy fits?"

_VIEWS = (
    "Step time",
    "Whole training",
    "Heatmap tp x pp",
    "Memory against time",
    "Why, and notes",
)


def read_query(reader: address.QueryReader, _: PageJob | None) -> None:
    """Read this page's own parameters."""
    reader.choice("view", _VIEWS, _VIEWS[0])
    training.read_query(reader)


def page(request: PageRequest) -> None:
    """Draw the verdict, then memory by strategy, then the layouts and their details."""
    st.title(TITLE, anchor=False)
    job = controls(request)
    if job is None:
        return
    try:
        plan = cached.plan_of(job)
    except PlannerError as error:
        refuse(error, title="This job cannot be planned")
        return
    shown = chosen(job, plan)
    _verdict(plan, job, shown)
    _strategies(plan, job)
    if plan.ranked:
        _ranked(plan, job)
    _views(plan, job, shown)
    _take_away(plan, job, shown)


def elsewhere(_: PageJob, described: JobDescription) -> tuple[str, str]:
    """Return the command and the Python lines that plan the job."""
    return texts("planner plan", described, "plan()", "recommended")


def _verdict(plan: Plan, job: PageJob, shown: Estimate | None) -> None:
    tight = plan.recommended is not None and plan.recommended.tight
    announce(answer_lines(plan), plan.fits, tight)
    _other_ways(plan, job)
    if shown is None:
        return
    own_runs.show_lessons(job, shown)
    # always one line, so that nothing below moves when a layout is found
    role = "chosen" if job.layout else "recommended"
    st.caption(escape(f"Numbers of the {role} layout: {shown.layout} with {shown.framework}."))
    if shown != plan.recommended:
        cost = AnswerLine("Cost", cost_sentence(plan, shown))
        lines = [*estimate_lines(shown, plan.device_memory_bytes), cost]
        announce(lines, shown.fits, shown.tight)
    st.caption(escape(words.queue_sentence(plan)))


def _other_ways(plan: Plan, job: PageJob) -> None:
    """Draw a button for each nearby batch that divides better over the devices."""
    batches = [each.global_batch for each in of_kind(plan.alternatives, "batch")]
    with st.container(horizontal=True):
        for size in batches:
            if size != job.workload.global_batch:
                take = functools.partial(address.request, batch=str(size), layout=None)
                st.button(f"Take a batch of {size:,}", on_click=take, key=f"batch_{size}")


def _strategies(plan: Plan, job: PageJob) -> None:
    st.header("Memory and step, by strategy", anchor=False)
    if estimates := [verdict.estimate for verdict in plan.strategies if verdict.estimate]:
        draw(bars.strategy_bars(plan.strategies, job.machine), key="strategies")
        tight = (
            " Tight: it fits by the estimate, but measured runs have taken more; run it once first."
        )
        st.caption(
            "Bold is the step time, a star the fastest. Strategies are the classic ones, each with "
            "its best layout; the fastest of all layouts is below."
            f"{tight * any(each.tight for each in estimates)}"
        )
    else:
        st.info("No classic strategy has a layout for this job; why is said of each below.")
    with st.expander("Every strategy: layout, why, and the cheapest change that makes it fit"):
        st.table(escaped_rows(strategies_table(plan)), hide_index=True)


_RISKY = f"Risky: out-of-memory risk above {100 * preferences().risk:.0f} %."


def _ranked(plan: Plan, job: PageJob) -> None:
    st.header("Layouts that fit, one of a kind", anchor=False)
    limit, rate = job.machine.device.memory_bytes.value, f"{job.workload.unit}/s"
    rows = [_row(e, limit, _role(e, plan), rate) for e in plan.listed]
    packed = [link.of(e) for e in plan.listed]
    start = [packed.index(job.layout)] if job.layout in packed else []
    # each job has its own key: a row selected for another job means nothing here
    table = hashlib.sha256(job.key.encode()).hexdigest()[:12]
    key = f"ranked_{table}_{address.arrivals()}"
    number = st.column_config.NumberColumn
    draw_table(
        rows,
        height=250,
        key=key,
        on_select=functools.partial(_select, key, packed),
        selection_mode="single-row",
        selection_default={"selection": {"rows": start}} if start else None,
        alt="Layouts that fit, fastest first, with step time, MFU, rate and memory.",
        column_config={
            "": st.column_config.TextColumn(width=140),
            "step [s]": number(format="%.4g"),
            "MFU [%]": number(format="%.1f"),
            rate: number(format="localized"),
            "memory [GiB]": number(format="%.2f"),
            "of the device [%]": st.column_config.ProgressColumn(
                format="%.0f %%", min_value=0, max_value=100
            ),
        },
    )
    st.caption(
        f"{words.search_summary(plan)}; of each framework, degrees and sharding "
        f"the fastest is here. {_RISKY} Select one to study it below and on the page *One layout*."
    )
    with st.expander("How to read a layout"):
        st.table([{"code": code, "means": means} for code, means in CODE.items()], hide_index=True)


def _select(key: str, packed: list[str]) -> None:
    """Choose the selected row's layout; without a selection, the recommended one."""
    rows = st.session_state[key]["selection"]["rows"]
    address.request(layout=packed[rows[0]] if rows else None)


def _role(estimate: Estimate, plan: Plan) -> str:
    roles = {"recommended": plan.recommended, "fastest": plan.best}
    marks = [role for role, candidate in roles.items() if candidate == estimate]
    risky = estimate.out_of_memory_probability > preferences().risk
    return ", ".join(marks + ["risky"] * risky)


def _row(estimate: Estimate, limit: float, role: str, rate: str) -> dict[str, object]:
    parts = estimate.step_time_parts_s
    return {
        "": role,
        "framework": estimate.framework,
        "layout": str(estimate.layout),
        "step [s]": estimate.step_time_s,
        "MFU [%]": 100 * estimate.mfu,
        rate: round(estimate.tokens_per_s),
        "memory [GiB]": estimate.memory_bytes["total"] / GIB,
        "of the device [%]": 100 * estimate.memory_bytes["total"] / limit,
        "out of memory": percent_chance(estimate.out_of_memory_probability),
        "slowest part": part(max(parts, key=lambda k: parts[k])).label,
    }


def _views(plan: Plan, job: PageJob, shown: Estimate | None) -> None:
    st.caption("How it scales with nodes is a question of the page *Questions*: scaling.")
    # only the open tab is computed, so that changing a control stays quick
    tabs = st.tabs(_VIEWS, key="view", on_change="rerun")
    limit = job.machine.device.memory_bytes.value
    for name, tab in zip(_VIEWS, tabs, strict=True):
        if not tab.open:
            continue
        with tab:
            if name == "Step time":
                _step(shown)
            elif name == "Whole training":
                training.show_training(job, shown)
            elif name == "Heatmap tp x pp":
                draw(candidates.heatmap(cached.space_of(job), limit), key="heatmap")
                st.caption(
                    "Where nothing fits, the cell says how much memory the best layout lacks."
                )
            elif name == "Memory against time":
                draw(candidates.pareto(cached.space_of(job), limit, shown), key="pareto")
            else:
                _notes(plan)


def _step(shown: Estimate | None) -> None:
    if shown is None:
        st.info("Nothing fits, so there is no step to take apart.")
        return
    st.caption(escape(f"{shown.layout} with {shown.framework}"))
    draw(bars.waterfall(shown), key="waterfall")


def _notes(plan: Plan) -> None:
    list_lines(plan.notes)
    st.subheader("Dropped while searching", anchor=False)
    draw_table(
        [{"reason": d.reason, "combinations": f"{d.count:,}"} for d in plan.dropped],
        key="dropped",
        alt="Why combinations of degrees were dropped, with counts.",
    )


def _take_away(plan: Plan, job: PageJob, shown: Estimate | None) -> None:
    st.header("Take it away", anchor=False)
    with st.container(horizontal=True):
        name = job.file_name
        report = functools.partial(plan.report, job.model, job.machine)
        download("Report to print (HTML)", report, f"{name}-report.html", "get_report")
        download("Plan (JSON)", plan.to_json, f"{name}-plan.json", "get_json")
        if plan.ranked:
            rows = tuple(estimate.record() for estimate in plan.listed)
            download("Layouts (CSV)", Table(rows).to_csv(), f"{name}-layouts.csv", "get_csv")
        if shown is not None:
            layout = shown.layout.model_dump_json(indent=1)
            download("Layout (JSON)", layout, f"{name}-layout.json", "get_layout")
            archive, refusal = cached.files_of(job, link.of(shown))
            if archive:
                download("Files to run it (ZIP)", archive, f"{name}-run.zip", "get_files")
            pin_button()
    if shown is not None and refusal:
        st.caption(escape(f"No files to run this layout: {refusal}."))
        _with_files(plan, job)


def _with_files(plan: Plan, job: PageJob) -> None:
    """Draw a button for the first listed layout that files can be written for."""
    for candidate in plan.listed:
        if cached.files_of(job, link.of(candidate))[0]:
            first = f"{candidate.layout} with {candidate.framework}"
            take = functools.partial(address.request, layout=link.of(candidate))
            label = escape(f"Take the first that has files: {first}")
            st.button(label, key="take_files", on_click=take)
            return
