"""Page 1: which strategy fits, why, and what to change."""

from __future__ import annotations

import streamlit as st

from planner.app import cached, link
from planner.app.controls import Job, controls, share
from planner.app.draw import draw
from planner.app.markdown import escape
from planner.app.views.scaling import scaling
from planner.choose.plan import Plan
from planner.cost.estimate import Estimate
from planner.cost.parts import part
from planner.errors import PlannerError
from planner.show import words
from planner.show.figures import candidates, memory, time
from planner.show.report import estimate_csv
from planner.units import GIB

__all__ = ["TITLE", "page"]

TITLE = "Which strategy fits?"

_VIEWS = ("Step time", "Heatmap tp x pp", "Memory against time", "Scaling", "Why, and notes")


def page() -> None:
    """Verdict first, then memory by strategy, then layouts and what lies behind them."""
    st.title(TITLE, anchor=False)
    job = controls()
    if job is None:
        return
    try:
        plan = cached.plan_of(job)
    except PlannerError as error:
        st.error(escape(str(error)), title="This job cannot be planned")
        return
    chosen = _chosen(plan)
    _verdict(plan, job, chosen)
    _strategies(plan, job)
    if plan.ranked:
        _ranked(plan, job)
    _views(plan, job, chosen)
    _take_away(plan, job, chosen)


def _chosen(plan: Plan) -> Estimate | None:
    """The layout picked in the table or named in the address, else the best."""
    rows = st.session_state.get("ranked", {}).get("selection", {}).get("rows")
    if rows and rows[0] < len(plan.ranked):
        st.query_params["layout"] = link.of(plan.ranked[rows[0]])
    elif rows is not None and "layout" in st.query_params and not rows:
        del st.query_params["layout"]
    wanted = st.query_params.get("layout", "")
    named = [e for e in plan.ranked if link.of(e) == wanted]
    return named[0] if named else plan.best


def _verdict(plan: Plan, job: Job, chosen: Estimate | None) -> None:
    say = st.success if plan.fits else st.error
    say(escape(words.verdict(plan)))
    if chosen is None:
        return
    limit = job.machine.device.memory_bytes.value
    if chosen != plan.best:
        st.caption(escape(f"Numbers of the chosen layout: {chosen.layout}."))
    rows = words.metrics(plan, chosen, limit)
    with st.container(horizontal=True):
        for label, value, small in rows:
            st.metric(
                label,
                value,
                delta=escape(small),
                delta_color="off",
                delta_arrow="off",
                border=True,
                width="stretch",
            )
    st.caption(escape(words.queues(plan, chosen)))


def _strategies(plan: Plan, job: Job) -> None:
    st.subheader("Memory per device, by strategy", anchor=False)
    draw(memory.strategy_bars(plan.strategies, job.machine), key="strategies")
    _fixes(plan)


def _fixes(plan: Plan) -> None:
    """Why each strategy that does not fit fails, and the cheapest change that helps."""
    rows = [
        {
            "does not fit": escape(v.name),
            "why": escape(v.why),
            "cheapest fix": escape(v.fix or ("more nodes" if v.estimate else "-")),
        }
        for v in plan.strategies
        if not v.fits
    ]
    if rows:
        st.table(rows, hide_index=True)


def _ranked(plan: Plan, job: Job) -> None:
    st.subheader("Layouts that fit, fastest first", anchor=False)
    limit = job.machine.device.memory_bytes.value
    rows = [_row(e, limit) for e in plan.ranked]
    wanted = st.query_params.get("layout", "")
    start = [i for i, e in enumerate(plan.ranked) if link.of(e) == wanted][:1]
    number = st.column_config.NumberColumn
    st.dataframe(
        rows,
        hide_index=True,
        height=250,
        key="ranked",
        on_select="rerun",
        selection_mode="single-row",
        selection_default={"selection": {"rows": start}} if start else None,
        alt="Layouts that fit, fastest first, with step time, MFU, rate and memory.",
        column_config={
            "step [s]": number(format="%.4g"),
            "MFU [%]": number(format="%.1f"),
            "tokens/s": number(format="localized"),
            "memory [GiB]": number(format="%.2f"),
            "of the device [%]": st.column_config.ProgressColumn(
                format="%.0f %%", min_value=0, max_value=100
            ),
        },
    )
    st.caption(
        f"{plan.num_candidates:,} layouts were evaluated. Select one to study it below and on the "
        "page *One layout*."
    )


def _row(found: Estimate, limit: float) -> dict[str, object]:
    parts = found.step_time_parts_s
    return {
        "framework": found.framework,
        "layout": str(found.layout),
        "step [s]": found.step_time_s,
        "MFU [%]": 100 * found.mfu,
        "tokens/s": round(found.tokens_per_s),
        "memory [GiB]": found.memory_bytes["total"] / GIB,
        "of the device [%]": 100 * found.memory_bytes["total"] / limit,
        "slowest part": part(max(parts, key=lambda k: parts[k])).label,
    }


def _views(plan: Plan, job: Job, chosen: Estimate | None) -> None:
    # only the open tab is worked out, so a change of a control stays quick
    tabs = st.tabs(_VIEWS, key="view", on_change="rerun", bind="query-params")
    limit = job.machine.device.memory_bytes.value
    for name, tab in zip(_VIEWS, tabs, strict=True):
        if not tab.open:
            continue
        with tab:
            if name == "Step time":
                _step(chosen)
            elif name == "Heatmap tp x pp":
                draw(candidates.heatmap(cached.space_of(job), limit), key="heatmap")
                st.caption(
                    "Where nothing fits, the cell says how much memory the best layout lacks."
                )
            elif name == "Memory against time":
                draw(candidates.pareto(cached.space_of(job), limit), key="pareto")
            elif name == "Scaling":
                scaling(job)
            else:
                _notes(plan)


def _step(chosen: Estimate | None) -> None:
    if chosen is None:
        st.info("Nothing fits, so there is no step to take apart.")
        return
    st.caption(escape(f"{chosen.layout} with {chosen.framework}"))
    draw(time.waterfall(chosen), key="waterfall")


def _notes(plan: Plan) -> None:
    for note in plan.notes:
        st.markdown("- " + escape(note))
    st.markdown("**Dropped while searching**")
    st.dataframe(
        [{"reason": d.reason, "combinations": d.count} for d in plan.dropped],
        hide_index=True,
        key="dropped",
        alt="Why combinations of degrees were dropped, with counts.",
    )


def _take_away(plan: Plan, job: Job, chosen: Estimate | None) -> None:
    st.subheader("Take it away", anchor=False)
    with st.container(horizontal=True):
        st.download_button(
            "Plan (JSON)",
            plan.to_json(),
            "plan.json",
            "application/json",
            key="get_json",
            on_click="ignore",
        )
        if plan.ranked:
            st.download_button(
                "Layouts (CSV)",
                estimate_csv(plan.ranked),
                "layouts.csv",
                "text/csv",
                key="get_csv",
                on_click="ignore",
            )
        if chosen is not None:
            st.download_button(
                "Layout (JSON)",
                chosen.layout.model_dump_json(indent=1),
                "layout.json",
                "application/json",
                key="get_layout",
                on_click="ignore",
            )
            archive, refusal = cached.files_of(job, link.of(chosen))
            if archive:
                st.download_button(
                    "Files to run it (ZIP)",
                    archive,
                    "run.zip",
                    "application/zip",
                    key="get_files",
                    on_click="ignore",
                )
    if chosen is not None and refusal:
        st.caption(escape(f"No files to run this layout: {refusal}."))
    share()
