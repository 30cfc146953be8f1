"""Your run: the user's own run against its estimate, what explains it, and what it teaches."""

import functools
from dataclasses import replace
from pathlib import Path
from typing import Any

import streamlit as st

from planner.app import address, cached, link
from planner.app.controls import drop, own_runs
from planner.app.controls.page_job import PageJob, PageRequest
from planner.app.controls.panel import controls
from planner.app.draw import (
    LABELS,
    announce,
    download,
    draw,
    draw_table,
    escape,
    escaped_rows,
    list_lines,
    metrics,
    refuse,
)
from planner.app.views.layouts.choice import layout_box
from planner.app.views.runs.shards import shards
from planner.choose.verdicts.answer_lines import estimate_lines
from planner.cost.estimate import Estimate
from planner.cost.scenario.experience import Experience
from planner.errors import PlannerError
from planner.evidence.backtest import Backtest, score
from planner.evidence.logs.comparison import Comparison, compare, comparison_rows, verdict
from planner.evidence.logs.diagnosis import Explanation
from planner.evidence.logs.log_job import Job
from planner.evidence.logs.steps import RunLog, UnnamedColumnsError
from planner.evidence.recognition import Recognised
from planner.evidence.runs.run import Run
from planner.evidence.runs.run_files import run_compared, run_of_comparison, runs_from_text
from planner.show.figures import accuracy, bars
from planner.show.figures.frame import capital
from planner.show.job_texts import PARAMETERS
from planner.show.measured_runs import worst_table
from planner.units import counted, format_bytes, format_seconds

TITLE = "Your run"

_EXAMPLE = Path(__file__).with_name("example_runs.csv")
_FIGURES = LABELS["step_columns"]
"""Figures of a table of steps whose columns can be chosen, with their labels."""
_BY_NAME = "by its name"


def page(request: PageRequest) -> None:
    """Draw the place for files, then what they hold against its estimate, then live shards."""
    st.title(TITLE, anchor=False)
    st.caption(
        "Give a log, a profile or a table of runs: it is compared with its estimate, and can "
        "correct all estimates. A configuration, model or machine fills the job alone."
    )
    drop.drop_place(leads=False)
    above = st.container()
    job = controls(request)
    # below the controls, which a rerun before them would forget
    drop.fill(request.job)
    files = drop.files()
    with above:
        _present(files, request.job)
    kinds = {each.kind for each in files if isinstance(each, Recognised)}
    if job is not None and kinds - {"runs", "comparison"}:
        _job(drop.log_of(files), job)
    for each in files:
        if isinstance(each, Recognised) and each.kind == "runs":
            _runs(each)
        elif isinstance(each, Recognised) and each.kind == "comparison":
            _printed(each, request.job)
    shards()


def _present(files: list[Recognised | PlannerError], job: PageJob | None) -> None:
    if not files:
        with st.container(horizontal=True):
            example = [(_EXAMPLE.name, _EXAMPLE.read_bytes())]
            label = "Show an example: runs on Selene"
            st.button(label, key="try_example", on_click=drop.take_files, args=(example,))
            download("Example table (CSV)", _EXAMPLE.read_bytes(), "runs.csv", "get_example")
    for each in files:
        if isinstance(each, PlannerError):
            refuse(each)
            if isinstance(each, UnnamedColumnsError):
                _columns(each.columns)
    if read := [each for each in files if isinstance(each, Recognised)]:
        lines = [f"{each.name}: {each.title}" for each in read] + drop.notes(read, job)
        st.info("\n".join(f"- {escape(line)}" for line in lines))
    if error := drop.problem():
        refuse(error, title="The job stays as it was")
    if files:
        st.button("Remove these files", key="drop_clear", on_click=drop.clear)


def _columns(names: tuple[str, ...]) -> None:
    with st.form("columns"):
        places = st.columns(len(_FIGURES), vertical_alignment="bottom")
        chosen = {
            figure: place.selectbox(label, (_BY_NAME, *names), key=f"column_{figure}")
            for place, (figure, label) in zip(places, _FIGURES.items(), strict=True)
        }
        if st.form_submit_button("Read these columns"):
            drop.use_columns({k: v for k, v in chosen.items() if v != _BY_NAME})
            st.rerun()


def _job(log: RunLog | None, job: PageJob) -> None:
    try:
        shown = _layout(job)
        if shown is None:
            st.info("No strategy has a legal layout for this job; change the job above.")
        elif log is None:
            limit = job.machine.device.memory_bytes.value
            announce(estimate_lines(shown, limit), shown.fits, shown.tight)
            draw(bars.waterfall(shown), key="waterfall", caption=True)
        else:
            _log(log, job, shown)
    except PlannerError as error:
        refuse(error, title="This job cannot be estimated yet")


def _log(log: RunLog, job: PageJob, shown: Estimate) -> None:
    """Draw a log against the estimate of a layout, without what own runs taught."""
    workload = job.workload.replaced(global_batch=shown.layout.global_batch)
    scenario = replace(job.scenario_of(shown), workload=workload, experience=Experience())
    comparison = compare(log, Job(scenario, shown.layout, ()))
    _answer(comparison, shown if job.learned else None)
    draw(accuracy.measured_step(comparison), key="measured", caption=True)
    _explain(comparison, job, shown)
    _learn(run_of_comparison(comparison, log.source), job, shown)
    with st.expander("Every figure of the log"):
        st.table(comparison_rows(comparison), hide_index=True)
        list_lines(log.notes)
        if log.columns:
            _columns(log.columns)


def _layout(job: PageJob) -> Estimate | None:
    plan = cached.plan_of(job)
    shown = cached.chosen(job, plan) or cached.closest(plan)
    if shown is not None:
        about = "Those of the search for this job. The page One layout changes its every field."
        layout_box(plan, shown, "Layout of the run", about)
    return shown


def _answer(comparison: Comparison, corrected: Estimate | None) -> None:
    sentences = [verdict(comparison), *comparison.doubts]
    text = " ".join(f"{capital(each)}." for each in sentences)
    announce(text, not comparison.doubts, not comparison.inside)
    low, high = map(format_seconds, comparison.interval_s)
    facts = [
        ("measured", format_seconds(comparison.step_time_s), "a step, median"),
        ("estimated", format_seconds(comparison.estimate.step_time_s), f"90 %: {low} to {high}"),
        ("measured / estimated", f"{comparison.ratio:.2f}", "of the step time"),
    ]
    if corrected:
        ratio = f"measured / this: {comparison.step_time_s / corrected.step_time_s:.2f}"
        facts.append(("with your runs", format_seconds(corrected.step_time_s), ratio))
    for each in comparison.figures:
        if each.name.endswith("_bytes"):
            name = f"memory, {each.name.removesuffix('_bytes')}"
            facts.append((name, format_bytes(each.measured), f"{each.ratio:.2f} x the estimate"))
    metrics(facts)


def _explain(comparison: Comparison, job: PageJob, shown: Estimate) -> None:
    if not comparison.explanations:
        return
    st.header("What would explain it", anchor=False)
    st.caption("One change of the job at a time, by the cost model; the closest first.")
    for number, each in enumerate(comparison.explanations):
        left, right = st.columns([6, 1], vertical_alignment="center")
        left.markdown(f"{escape(capital(each.sentence(comparison.measured)))}.")
        take = functools.partial(address.request, **_query(each, job, shown.framework))
        right.button("Take it", key=f"explain_{number}", on_click=take)


def _query(each: Explanation, job: PageJob, framework: str) -> address.Query:
    query = {PARAMETERS.get(name, name): str(value) for name, value in each.workload.items()}
    if each.network:
        query["network"] = each.network
    if each.layout.world != job.num_devices:
        query |= drop.query_of_ranks(each.layout.world, job)
    return query | {"layout": link.pack_layout(each.layout, framework)}


def _learn(run: Any, job: PageJob | None, shown: Estimate | None = None) -> None:
    """Draw the button that corrects all estimates by a run, and what was learned."""
    if isinstance(run, Run):
        learned = run in own_runs.session_runs().logged
        _learn_button("this run", f"learn_{run.row_id}", learned, own_runs.use_run, run)
    else:
        st.caption(escape(f"Nothing can be learned from it: {run.reason}."))
    if job is not None:
        own_runs.show_lessons(job, shown)


def _learn_button(source: str, key: str, learned: bool, take: Any, *runs: Any) -> None:
    about = "All estimates of this session follow them. A link to a page does not carry them."
    settings: dict[str, Any] = {"type": "primary", "disabled": learned, "help": about}
    st.button(f"Learn from {source}", key=key, on_click=take, args=runs, **settings)


def _printed(each: Recognised, job: PageJob | None) -> None:
    try:
        run = run_compared(each.content, each.name, *((job.machine, job.model) if job else ()))
    except PlannerError as error:
        refuse(error)
    else:
        _learn(run, job)


def _runs(each: Recognised) -> None:
    try:
        result = _scored(each.content)
    except PlannerError as error:
        refuse(error, title="This file holds no runs")
        return
    runs = [score.run for score in result.scores]
    if any(run.step_time_s is not None or run.memory_bytes is not None for run in runs):
        learned, take = own_runs.session_runs().table == each.content, own_runs.use_table
        _learn_button("these runs", "use_runs", learned, take, each.name, each.content)
    _plots(result)


@st.cache_data(max_entries=8, show_spinner="Estimating every run ...")
def _scored(text: str) -> Backtest:
    return score(runs_from_text(text, "the file"))


def _plots(result: Backtest) -> None:
    if result.refused:
        first, count = result.refused[0], counted(len(result.refused), "row")
        head = f"{count} left out" if result.scores else f"No row can be scored ({count})"
        st.warning(escape(f"{head}. {first.row_id}: {first.reason}."))
    if scores := result.scores:
        left, right = st.columns([3, 2])
        drawing = accuracy.parity(scores)
        with left:
            draw(drawing, key="parity")
        with right:
            draw(accuracy.errors(scores), key="errors")
            st.caption(escape(drawing.alt))
        with st.expander("Worst rows"):
            st.table(escaped_rows(worst_table(scores)), hide_index=True)
    if result.refused:
        with st.expander("Every row that is left out, and why"):
            rows = [{"row": r.row_id, "why": r.reason} for r in result.refused]
            draw_table(rows, key="refused", alt="Rows that are not scored.")
