"""Page 1: which strategy fits, why, and what to change."""

from __future__ import annotations

import functools
import hashlib

import streamlit as st

from planner.app import address, cached, link
from planner.app.cached import chosen
from planner.app.controls import own_runs
from planner.app.controls.page_job import PageJob, PageRequest
from planner.app.controls.panel import controls
from planner.app.draw import draw, draw_table, escape, escaped_rows, metrics, refuse
from planner.app.views import training
from planner.app.views.scaling import scaling
from planner.choose.plan import Plan
from planner.cost.estimate import Estimate
from planner.cost.parts import part
from planner.errors import PlannerError
from planner.show import words
from planner.show.figures import bars, candidates
from planner.show.layout_words import CODE
from planner.show.plan_report import strategies_table
from planner.tables import Table
from planner.units import GIB

__all__ = ["TITLE", "page"]

TITLE = "Which strategy fits?"

_VIEWS = (
    "Step time",
    "Whole training",
    "Heatmap tp x pp",
    "Memory against time",
    "Scaling",
    "Why, and notes",
)


def asks(reader: address.QueryReader, _: PageJob | None) -> None:
    """What only this page asks."""
    reader.choice("view", _VIEWS, _VIEWS[0])
    training.asks(reader)


def page(request: PageRequest) -> None:
    """Verdict first, then memory by strategy, then layouts and what lies behind them."""
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


def _verdict(plan: Plan, job: PageJob, shown: Estimate | None) -> None:
    tight = plan.recommended is not None and plan.recommended.tight
    say = (st.warning if tight else st.success) if plan.fits else st.error
    say(escape(words.plan_sentence(plan)))
    _batches(plan)
    if shown is None:
        return
    own_runs.show_lessons(job, shown)
    limit = job.machine.device.memory_bytes.value
    # always a line, so that nothing below moves when a layout is found
    role = "chosen" if job.layout else "recommended"
    st.caption(escape(f"Numbers of the {role} layout: {shown.layout} with {shown.framework}."))
    metrics(words.metrics(plan, shown, limit))
    st.caption(escape(words.queue_sentence(plan, shown)))


def _batches(plan: Plan) -> None:
    """A button for each nearby batch that the devices share evenly."""
    if not plan.batches:
        return
    with st.container(horizontal=True):
        for offer in plan.batches:
            size = offer.global_batch
            st.button(
                f"Take a batch of {size:,}",
                on_click=functools.partial(address.request, batch=str(size), layout=None),
                key=f"batch_{size}",
            )


def _strategies(plan: Plan, job: PageJob) -> None:
    st.header("Memory and step, by strategy", anchor=False)
    if any(verdict.estimate for verdict in plan.strategies):
        _bars(plan, job)
    else:
        st.info("No classic strategy has a layout for this job; why is said of each below.")
    # empty columns would only take room
    with st.expander("Every strategy: layout, why, and the cheapest change that makes it fit"):
        st.table(escaped_rows(strategies_table(plan)), hide_index=True)


def _bars(plan: Plan, job: PageJob) -> None:
    draw(bars.strategy_bars(plan.strategies, job.machine), key="strategies")
    st.caption(
        "Bold is the step time. Strategies are the classic ones, each with its best layout; the "
        "fastest of all layouts is below."
        + (
            ""
            if not any(v.estimate and v.estimate.tight for v in plan.strategies)
            else " Tight: it fits by the estimate, but measured runs have taken more; run it once "
            "first."
        )
    )


def _ranked(plan: Plan, job: PageJob) -> None:
    st.header("Layouts that fit, one of a kind", anchor=False)
    limit = job.machine.device.memory_bytes.value
    shown = plan.listed
    rate = f"{job.workload.unit}/s"
    rows = [_row(e, limit, _role(e, plan), rate) for e in shown]
    packed = [link.of(e) for e in shown]
    start = [packed.index(job.layout)] if job.layout in packed else []
    # another job has another table: a row of the one before says nothing about it
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
            "": st.column_config.TextColumn(width=100),
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
        "the fastest is here. Select one to study it below and on the page *One layout*."
    )
    with st.expander("How to read a layout"):
        st.table([{"code": code, "means": means} for code, means in CODE.items()], hide_index=True)


def _select(key: str, packed: list[str]) -> None:
    """Take the selected row's layout; no row is the recommended one."""
    rows = st.session_state[key]["selection"]["rows"]
    address.request(layout=packed[rows[0]] if rows else None)


def _role(estimate: Estimate, plan: Plan) -> str:
    roles = {"recommended": plan.recommended, "fastest": plan.best}
    return ", ".join(role for role, candidate in roles.items() if candidate == estimate)


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
        "out of memory": words.percent_chance(estimate.out_of_memory_probability),
        "slowest part": part(max(parts, key=lambda k: parts[k])).label,
    }


def _views(plan: Plan, job: PageJob, shown: Estimate | None) -> None:
    # only the open tab is worked out, so a change of a control stays quick
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
            elif name == "Scaling":
                scaling(job)
            else:
                _notes(plan)


def _step(shown: Estimate | None) -> None:
    if shown is None:
        st.info("Nothing fits, so there is no step to take apart.")
        return
    st.caption(escape(f"{shown.layout} with {shown.framework}"))
    draw(bars.waterfall(shown), key="waterfall")


def _notes(plan: Plan) -> None:
    for note in plan.notes:
        st.markdown("- " + escape(note))
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
        _download("Plan (JSON)", plan.to_json(), f"{name}-plan.json", "get_json")
        if plan.ranked:
            rows = tuple(estimate.record() for estimate in plan.listed)
            _download("Layouts (CSV)", Table(rows).to_csv(), f"{name}-layouts.csv", "get_csv")
        if shown is not None:
            layout = shown.layout.model_dump_json(indent=1)
            _download("Layout (JSON)", layout, f"{name}-layout.json", "get_layout")
            archive, refusal = cached.files_of(job, link.of(shown))
            if archive:
                _download("Files to run it (ZIP)", archive, f"{name}-run.zip", "get_files")
    if shown is not None and refusal:
        st.caption(escape(f"No files to run this layout: {refusal}."))
        _with_files(plan, job)


_TYPES = {".json": "application/json", ".csv": "text/csv", ".zip": "application/zip"}


def _download(label: str, data: str | bytes, name: str, key: str) -> None:
    """A button that saves data as a file."""
    kind = _TYPES[name[name.rindex(".") :]]
    st.download_button(label, data, name, kind, key=key, on_click="ignore")


def _with_files(plan: Plan, job: PageJob) -> None:
    """Offer the first layout of the list that files can be written for."""
    for candidate in plan.listed:
        if cached.files_of(job, link.of(candidate))[0]:
            layout_name = f"{candidate.layout} with {candidate.framework}"
            st.button(
                escape(f"Take the first that has files: {layout_name}"),
                key="take_files",
                on_click=address.request,
                kwargs={"layout": link.of(candidate)},
            )
            return
