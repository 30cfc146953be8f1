"""Plan: which strategy fits, why, and what to change."""

import functools
import hashlib
import itertools
from collections.abc import Callable, Sequence
from typing import Any

import streamlit as st

from planner.app import address, cached, link
from planner.app.cached import chosen
from planner.app.controls import own_runs
from planner.app.controls.drop import drop_place
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
    labelled,
    latest,
    list_lines,
    refuse,
)
from planner.app.views import training
from planner.app.views.layouts.choice import show_code, show_why
from planner.choose.jobs.alternatives import Alternative
from planner.choose.plan import Plan
from planner.choose.preferences import preferences
from planner.choose.verdicts.answer_lines import (
    AnswerLine,
    answer_lines,
    cost_sentence,
    estimate_lines,
    headline,
    job_sentence,
    percent_chance,
    short_answer,
)
from planner.choose.verdicts.layout_words import estimate_words, layout_words
from planner.cost.estimate import Estimate
from planner.cost.parts import part
from planner.describe.job_description import JobDescription
from planner.errors import PlannerError
from planner.show import words
from planner.show.figures import bars, candidates
from planner.show.figures.frame import Drawing
from planner.show.plan_report import strategies_table
from planner.tables import Table
from planner.units import GIB, format_amount, format_seconds

TITLE = "Which strategy fits?"

_VIEWS = (
    "Strategies",
    "Layouts",
    "Step time",
    "Heatmap tp x pp",
    "Whole training",
    "Why, and notes",
    "Files",
)

_CLICKS = "clicks"
"""Number of clicks of the session, part of widget keys."""


def read_query(reader: address.QueryReader, _: PageJob | None) -> None:
    """Read this page's own parameters."""
    reader.choice("view", _VIEWS, _VIEWS[0])
    training.read_query(reader)


def page(request: PageRequest) -> None:
    """Draw the answer, the job beside its layouts, then one view of the details."""
    st.title(TITLE, anchor=False)
    answer = st.container()
    left, right = st.columns([2, 5])
    job = controls(request, left)
    if job is None:
        return
    with answer:
        try:
            plan = cached.plan_of(job)
        except PlannerError as error:
            refuse(error, title="This job cannot be planned")
            return
        shown = chosen(job, plan)
        announce(short_answer(plan, shown), bool(shown and shown.fits), bool(shown and shown.tight))
        _as_entered(plan, job)
    with left:
        _numbers(plan, job, shown)
    with right:
        _trade_off(plan, job, shown)
        if shown is not None:
            pin_button()
    _views(plan, job, shown)
    drop_place(job)


def elsewhere(_: PageJob, described: JobDescription) -> tuple[str, str]:
    """Return the command and the Python lines that plan the job."""
    return texts("planner plan", described, "plan()", "recommended")


def _numbers(plan: Plan, job: PageJob, shown: Estimate | None) -> None:
    st.caption(escape(f"{job_sentence(plan)}."))
    if shown is None:
        return
    # always one line, so that nothing below moves when a layout is chosen
    role = "chosen" if job.layout else "recommended"
    rate = f"MFU {100 * shown.mfu:.0f} %, {format_amount(shown.tokens_per_s)} {job.workload.unit}/s"
    risk = f"out-of-memory risk {percent_chance(shown.out_of_memory_probability)}"
    numbers = f"{rate}, {risk}; {cost_sentence(plan, shown)}"
    st.caption(escape(f"Numbers of the {role} layout: {estimate_words(shown)}: {numbers}"))


def _trade_off(plan: Plan, job: PageJob, shown: Estimate | None) -> None:
    """Draw memory against step time, and the slider that moves its star."""
    space, limit = cached.space_of(job), job.machine.device.memory_bytes.value
    layouts = candidates.dots(space)

    def take(point: dict[str, Any]) -> None:
        if number := point.get("customdata"):  # a star has none
            _choose(layouts[number[0]], plan)

    drawing = candidates.pareto(space, limit, plan.recommended, shown)
    _draw_clickable(drawing, "hero", job, take)
    choices = space.choices
    if len(choices) < 2:
        return
    key, stops = f"preference_{len(choices)}", range(len(choices))
    labels = [_stop_label(stop, choices, plan) for stop in stops]
    st.session_state[key] = _stop(choices, shown)
    st.select_slider(
        "From the safest and simplest layout to the fastest",
        stops,
        format_func=labels.__getitem__,
        key=key,
        on_change=latest("slider", lambda: _choose(choices[st.session_state[key]], plan)),
        help="Risk and effort count more on the left, less on the right; nothing is searched anew.",
    )


def _stop(choices: Sequence[Estimate], shown: Estimate | None) -> int:
    """Return the position of the slider for a layout: its own, else that of the closest time."""
    time_s = shown.step_time_s if shown else 0.0
    return min(range(len(choices)), key=lambda i: abs(choices[i].step_time_s - time_s))


def _stop_label(stop: int, choices: Sequence[Estimate], plan: Plan) -> str:
    """Name a position of the slider by what its layout is best at, and by its step time."""
    roles = ["safest and simplest"] * (stop == 0) + ["fastest"] * (stop == len(choices) - 1)
    roles += ["recommended"] * (choices[stop] == plan.recommended)
    return ", ".join([*roles, format_seconds(choices[stop].step_time_s)])


def _choose(estimate: Estimate, plan: Plan) -> None:
    """Choose a layout for all pages; the recommended one is chosen by no choice."""
    _forget_clicks()
    address.request(layout=None if estimate == plan.recommended else link.of(estimate))


def _forget_clicks() -> None:
    """Give the figures and the table new keys, else they keep what was selected before."""
    st.session_state[_CLICKS] = st.session_state.get(_CLICKS, 0) + 1


def _digest(job: PageJob) -> str:
    """Part of widget keys: what was selected for another job, or before, means nothing here."""
    return f"{hashlib.sha256(job.key.encode()).hexdigest()[:12]}_{st.session_state.get(_CLICKS, 0)}"


def _draw_clickable(
    drawing: Drawing, name: str, job: PageJob, take: Callable[[dict[str, Any]], None]
) -> None:
    """Draw a figure that calls `take` with the point that is clicked."""
    key = f"{name}_{_digest(job)}"

    def click() -> None:
        if points := st.session_state[key]["selection"]["points"]:
            take(points[0])

    draw(drawing, key=key, on_select=latest(name, click), selection_mode="points")


def _as_entered(plan: Plan, job: PageJob) -> None:
    """Say whether the answer is for the job as entered, with buttons that change either."""
    take, changed = functools.partial(address.request, layout=None), headline(plan)
    if changed:
        start = "This answers a changed job, not the one entered. " * (not job.layout)
        st.info(escape(f"{start}{changed}"))
    ways = [way for way in plan.alternatives if way is plan.advice or way.kind == "batch"]
    with st.container(horizontal=True):
        for query in filter(None, (_entries(way, job) for way in ways)):
            label = "Enter " + " and ".join(f"{key} {value}" for key, value in query.items())
            st.button(label, key=label, on_click=take, kwargs=query)
        if changed or job.exact:
            label = "Consider nearby jobs too" if job.exact else "Answer exactly as entered"
            st.button(label, on_click=take, kwargs={"exact": "" if job.exact else "True"})


def _entries(way: Alternative, job: PageJob) -> dict[str, str]:
    """Return the fields to enter for another way to do the job: name and value."""
    values = {"nodes": way.nodes, "batch": way.global_batch, "seq": way.sequence_length}
    if way.devices < way.nodes * job.machine.node.num_devices:
        values["devices"] = way.devices
    return {key: str(value) for key, value in values.items() if value != st.session_state[key]}


def _strategies(plan: Plan, job: PageJob) -> None:
    if estimates := {each.name: each.estimate for each in plan.strategies if each.estimate}:
        drawing = bars.strategy_bars(plan.strategies, job.machine)
        _draw_clickable(
            drawing, "strategies", job, lambda point: _choose(estimates[point["y"]], plan)
        )
        tight = " Tight: it fits by the estimate, but measured runs took more; run it once first."
        st.caption(
            "The classic strategies, each with its best layout and step time, the fastest on top; "
            "the slider and the table Layouts also hold others. Click a bar to choose it."
            f"{tight * any(each.tight for each in estimates.values())}"
        )
    else:
        st.info("No classic strategy has a layout for this job; why is said of each below.")
    label = "Every strategy: layout, why, and the cheapest change that makes it fit"
    with st.expander(label, key="every_strategy"):
        st.table(escaped_rows(strategies_table(plan)), hide_index=True)
    show_code()


def _ranked(plan: Plan, job: PageJob) -> None:
    st.header("Layouts that fit, one of a kind", anchor=False)
    limit, rate = job.machine.device.memory_bytes.value, f"{job.workload.unit}/s"
    rows = [_row(e, limit, _roles(e, plan), rate) for e in plan.listed]
    packed = [link.of(e) for e in plan.listed]
    start = [packed.index(job.layout)] if job.layout in packed else []
    key = f"ranked_{_digest(job)}_{address.arrivals()}"
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
            "": st.column_config.MultiselectColumn(
                width=190, options=list(_ROLES), color=list(_ROLES.values())
            ),
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
        f"the fastest is here. Risky: out-of-memory risk above {100 * preferences().risk:.0f} %. "
        "Select one to study it here and on the page *One layout*."
    )
    show_code()


def _select(key: str, packed: list[str]) -> None:
    """Choose the selected row's layout; without a selection, the recommended one."""
    rows = st.session_state[key]["selection"]["rows"]
    address.request(layout=packed[rows[0]] if rows else None)


_ROLES = {"recommended": "green", "fastest": "blue", "risky": "orange"}
"""Marks of layouts in the table, with their colours."""


def _roles(estimate: Estimate, plan: Plan) -> list[str]:
    risky = estimate.out_of_memory_probability > preferences().risk
    marked = (estimate == plan.recommended, estimate == plan.best, risky)
    return list(itertools.compress(_ROLES, marked))


def _row(estimate: Estimate, limit: float, roles: list[str], rate: str) -> dict[str, object]:
    parts = estimate.step_time_parts_s
    return {
        "": roles,
        "framework": estimate.framework,
        "layout": layout_words(estimate.layout, brief=True),
        "step [s]": estimate.step_time_s,
        "MFU [%]": 100 * estimate.mfu,
        rate: round(estimate.tokens_per_s),
        "memory [GiB]": estimate.memory_bytes["total"] / GIB,
        "of the device [%]": 100 * estimate.memory_bytes["total"] / limit,
        "out of memory": percent_chance(estimate.out_of_memory_probability),
        "slowest part": part(max(parts, key=lambda k: parts[k])).label,
        "code": str(estimate.layout),
    }


def _views(plan: Plan, job: PageJob, shown: Estimate | None) -> None:
    if shown is not None:
        own_runs.show_lessons(job, shown)
    # only the open tab is computed, so that changing a control stays quick
    tabs = st.tabs(_VIEWS, key="view", on_change="rerun")
    views: tuple[Callable[[], None], ...] = (
        lambda: _strategies(plan, job),
        lambda: _ranked(plan, job),
        lambda: _step(shown),
        lambda: _heatmap(plan, job),
        lambda: training.show_training(job, shown),
        lambda: _notes(plan, job, shown),
        lambda: _take_away(plan, job, shown),
    )
    for tab, show in zip(tabs, views, strict=True):
        if tab.open:
            with tab:
                show()


def _heatmap(plan: Plan, job: PageJob) -> None:
    space, limit = cached.whole_space_of(job), job.machine.device.memory_bytes.value
    cells = {(str(cell.layout.tp), str(cell.layout.pp)): cell for cell in space.cells}

    def take(point: dict[str, Any]) -> None:
        cell = cells[str(point["x"]), str(point["y"])]
        if cell.fits:
            _choose(cell, plan)
        else:
            st.session_state["cell"] = f"{cell.layout} [{cell.framework}]"
            _forget_clicks()

    _draw_clickable(candidates.heatmap(space, limit), "heatmap", job, take)
    if cell := st.session_state.pop("cell", ""):
        show_why(job, cell)
    else:
        st.caption("Click a cell to choose its layout, or a grey one to read why nothing fits.")


def _step(shown: Estimate | None) -> None:
    if shown is None:
        st.info("Nothing fits, so there is no step to take apart.")
        return
    draw(bars.waterfall(shown), key="waterfall")


def _notes(plan: Plan, job: PageJob, shown: Estimate | None) -> None:
    lines = answer_lines(plan)
    if shown is not None and shown != plan.recommended:
        cost = AnswerLine("Cost", cost_sentence(plan, shown))
        lines = [*lines, *estimate_lines(shown, plan.device_memory_bytes), cost]
    st.markdown(labelled(lines))
    list_lines([words.queue_sentence(plan), *plan.notes])
    st.header("Dropped while searching", anchor=False)
    draw_table(
        [{"reason": d.reason, "combinations": f"{d.count:,}"} for d in plan.dropped],
        key="dropped",
        alt="Why combinations of degrees were dropped, with counts.",
    )


def _take_away(plan: Plan, job: PageJob, shown: Estimate | None) -> None:
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
                probe = functools.partial(cached.probe_of, job, link.of(shown))
                download(
                    "Small runs to measure first (ZIP)", probe, f"{name}-probe.zip", "get_probe"
                )
    if shown is not None and refusal:
        st.caption(escape(f"No files to run this layout: {refusal}."))
        _with_files(plan, job)


def _with_files(plan: Plan, job: PageJob) -> None:
    """Draw a button for the first listed layout that files can be written for."""
    for candidate in plan.listed:
        if cached.files_of(job, link.of(candidate))[0]:
            take = functools.partial(address.request, layout=link.of(candidate))
            label = escape(f"Take the first that has files: {estimate_words(candidate)}")
            st.button(label, key="take_files", on_click=take)
            return
