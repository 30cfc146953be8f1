"""Page 6: how far to trust estimates: published runs, the user's own runs, live shards."""

from __future__ import annotations

import contextlib
import json
import re
import tempfile
from dataclasses import replace
from pathlib import Path
from typing import Any

import streamlit as st

from planner.app.controls import own_runs
from planner.app.controls.page_job import PageJob, PageRequest
from planner.app.draw import download, draw, draw_table, escape, metrics, on_page, refuse
from planner.app.views.shards import shards
from planner.cost.scenario.prior import Prior, memory_classes, priors
from planner.describe.base import field_docs
from planner.describe.catalogue import load_machine, names
from planner.describe.model.huggingface.hub import is_from_hub
from planner.errors import CatalogueError, PlannerError
from planner.evidence.backtest import Backtest, score
from planner.evidence.logs.comparison import compare, comparison_text
from planner.evidence.logs.log_files import read_log
from planner.evidence.logs.log_job import read_job
from planner.evidence.logs.scalars import chosen_columns
from planner.evidence.logs.steps import LogError, RunLog
from planner.evidence.residuals import residuals, summary
from planner.evidence.run_files import runs_from_text
from planner.evidence.scores import Score
from planner.show.figures import accuracy
from planner.units import counted, format_seconds

TITLE = "Trust"

_EXAMPLE = Path(__file__).with_name("example_runs.csv")
_REPORTS = (
    Path(__file__).parents[3] / "docs" / "reference" / "accuracy.md",
    Path(__file__).parents[2] / "_catalogue" / "accuracy.md",
)
# in a checkout, and in an installed package
_SPREADS = """
common compute assumed_rate traffic assumed_links host offload model layout unmeasured
alone experts_alone traffic_alone host_alone offload_alone
"""
"""Fields of the prior that are errors of their own."""
_MAX_BYTES = 5_000_000


def page(request: PageRequest) -> None:
    """Draw the known errors of estimates, then the user's own runs, then live shards."""
    st.title(TITLE, anchor=False)
    _evidence()
    _intervals()
    _runs(request.job)
    log(request.job)
    shards()
    report = next((path for path in _REPORTS if path.is_file()), None)
    if report is not None:
        with st.expander("The accuracy report of this version"):
            # its headings go below the page's own
            text = re.sub(r"^#", "##", report.read_text(encoding="utf-8"), flags=re.MULTILINE)
            st.markdown(text.replace("## Accuracy", "", 1))


def _evidence() -> None:
    """Draw all runs that this version was scored on, the totals first."""
    st.header("All measured runs", anchor=False)
    rows = residuals()
    scores = summary([row for row in rows if not row.seen])
    if scores is None:
        return
    metrics(
        (
            ("unseen runs", f"{scores.num_runs:,}", counted(scores.num_sources, "source")),
            ("median error", f"{100 * scores.median:.1f} %", "of the step time"),
            ("mean error", f"{100 * scores.mape:.1f} %", "without its sign"),
            ("bias", f"{100 * scores.bias:+.1f} %", "estimate over measurement"),
        )
    )
    quantity = st.segmented_control(
        "Errors of", ("step time", "memory"), default="step time", key="evidence_of"
    )
    drawing = accuracy.spread(rows, "memory" if quantity == "memory" else "step_time")
    draw(drawing, key="evidence", caption=True)


def _intervals() -> None:
    st.header("How wide the intervals are", anchor=False)
    prior, meaning = priors().step_time, field_docs(Prior)
    shared, memory = st.columns(2)
    with shared:
        st.subheader("Step time, by what errors have in common", anchor=False)
        rows = [
            {"error": meaning[name], "size": f"{100 * getattr(prior, name):.1f} %"}
            for name in _SPREADS.split()
        ]
        st.table(rows, hide_index=True)
        st.caption(
            "Standard deviations of measured over estimated, learned from runs that took no part "
            "in any fit. An interval holds 90 % of them for the parts that a step is made of; "
            "runs of your own shrink what they share with a job."
        )
    with memory:
        st.subheader("Memory, by class of run", anchor=False)
        classes = [
            {
                "class of run": name,
                "from": f"{memory_class.low:.2f} x estimate",
                "to": f"{memory_class.high:.2f} x estimate",
                "runs behind it": memory_class.num_runs,
                "sources": memory_class.num_sources,
            }
            for name, memory_class in memory_classes().items()
        ]
        st.table(classes, hide_index=True)
        st.caption(
            "90 % of measured runs lay between these factors of their estimates. Memory is that "
            "of a whole device: a layout is called tight where the upper end exceeds what the "
            "device has."
        )


def _runs(job: PageJob | None) -> None:
    st.header("Your own runs against their estimates", anchor=False)
    own_runs.present(job)
    if job is not None:
        own_runs.show_lessons(job)
    upload = st.file_uploader(
        "Your runs: a CSV with one run per row",
        type=["csv", "tsv"],
        max_upload_size=5,
        key="runs_file",
        help="The columns are those of the example. Nothing is stored.",
    )
    download("Example table (CSV)", _EXAMPLE.read_bytes(), "runs.csv", "get_example")
    try:
        text = _text(upload.getvalue() if upload is not None else _EXAMPLE.read_bytes())
        result = _scored(text)
    except PlannerError as error:
        refuse(error, title="This file holds no runs")
        return
    if upload is not None and text != own_runs.in_use():
        _use_button(upload.name, text, result)
    if upload is None:
        st.caption(
            "Example shown: Korthikanti et al. 2022, arXiv\\:2205.05198, tables 3 and 5, on Selene."
        )
    _plots(result)


def _use_button(name: str, text: str, result: Backtest) -> None:
    """Draw a button that corrects all estimates with the runs; none if nothing was measured."""
    runs = [each.run for each in result.scores]
    if any(run.step_time_s is not None or run.memory_bytes is not None for run in runs):
        st.button(
            "Use these runs for all estimates",
            key="use_runs",
            type="primary",
            on_click=own_runs.use,
            args=(name, text),
            help="Step times, memory, intervals and rankings of this session then follow them. "
            "A link to a page does not carry them.",
        )


def _text(data: bytes) -> str:
    if len(data) > _MAX_BYTES:
        raise CatalogueError(f"the file has {len(data) / 1e6:.0f} MB; at most 5 MB are read")
    try:
        return data.decode("utf-8-sig")
    except UnicodeDecodeError:
        return data.decode("cp1252", errors="replace")


@st.cache_data(max_entries=8, show_spinner="Estimating every run ...")
def _scored(text: str) -> Backtest:
    return score(runs_from_text(text, "the file"))


def _plots(result: Backtest) -> None:
    if scores := result.scores:
        left, right = st.columns([3, 2])
        drawing = accuracy.parity(scores)
        with left:
            draw(drawing, key="parity")
        with right:
            draw(accuracy.errors(scores), key="errors")
            st.caption(escape(drawing.alt))
        st.subheader("Worst rows", anchor=False)
        draw_table(_worst(scores), key="worst", alt="The runs estimated worst.")
    if result.refused:
        with st.expander(f"{len(result.refused)} rows are not scored, and why"):
            rows = [{"row": r.row_id, "why": r.reason} for r in result.refused]
            draw_table(rows, key="refused", alt="Rows that are not scored.")


def _worst(scores: tuple[Score, ...]) -> list[dict[str, Any]]:
    timed = [s for s in scores if s.error is not None]
    timed.sort(key=lambda s: (-abs(s.error or 0.0), s.run.row_id))
    return [
        {
            "row": s.run.row_id,
            "source": s.run.source,
            "machine": s.run.machine_label,
            "layout": str(s.run.layout),
            "measured": format_seconds(s.run.step_time_s or 0.0),
            "estimated": format_seconds(s.estimate.step_time_s),
            "error [%]": round(100 * (s.error or 0.0), 1),
            "assumed": "; ".join(s.run.assumed),
        }
        for s in timed[:10]
    ]


_MAX_MB = 50
_AS_LOGGED = "as the log says"
_HELP = (
    "Lines of wordplay/ezpz, nanoGPT, Megatron-LM, DeepSpeed, torchtitan, nanotron, Trainer and "
    "others; CSV or JSON lines with a column of times; a profile of torch.profiler (.json or "
    ".json.gz); an event file of TensorBoard. It is deleted once it is read."
)


def log(job: PageJob | None) -> None:
    """Draw the controls for a training log and its comparison with the estimate."""
    st.header("Your own log against its estimate", anchor=False)
    columns = st.columns([2, 2, 3, 3])
    machines = names("machine")
    usual = job.machine.name if job and job.machine.name in machines else "polaris"
    machine = columns[0].selectbox("Machine", machines, index=machines.index(usual), key="log_on")
    own_models = {job.model.name: job.model} if job and is_from_hub(job.model) else {}
    options = (_AS_LOGGED, *own_models, *names("model"))
    model = columns[1].selectbox("Model", options, key="log_model")
    layout = columns[2].text_input(
        "Layout, where the log does not say",
        key="log_layout",
        max_chars=400,
        placeholder='{"dp": 4, "micro_batch": 16}',
        help="A JSON object of degrees, or of a job: "
        '{"layout": {"dp": 8}, "workload": {"sequence_length": 1024}, "framework": "fsdp2"}.',
    )
    column_names = columns[3].text_input(
        "Columns, where their names do not say",
        key="log_columns",
        max_chars=400,
        placeholder="time_s=dt, loss=train loss",
        help="What a column of a table or a scalar of TensorBoard holds: FIGURE=COLUMN, ...",
    )
    upload = st.file_uploader("A training log", max_upload_size=_MAX_MB, key="log_file", help=_HELP)
    if upload is None:
        return
    try:
        chosen = chosen_columns([words for words in column_names.split(",") if words.strip()])
        comparison = read_upload(upload.getvalue(), upload.name, chosen)
        logged = read_job(
            comparison,
            load_machine(machine),
            _object(layout),
            model=None if model == _AS_LOGGED else own_models.get(model, model),
        )
        text = on_page(comparison_text(compare(comparison, logged)))
        st.code(text, language=None, wrap_lines=True)
    except PlannerError as error:
        refuse(error, title="This log cannot be compared yet")


def read_upload(data: bytes, name: str, columns: dict[str, str] | None = None) -> RunLog:
    """Read an uploaded log of any known format. Raises LogError if it cannot be read."""
    called = re.sub(r"[^\w.-]+", "_", name)[-100:].strip(".") or "log"
    # readers of profiles and event files need a file on disk
    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder) / called
        path.write_bytes(data)
        try:
            return replace(read_log(path, columns), source=called)
        except PlannerError as error:
            # users of the page know the file's name alone
            raise LogError(on_page(error.plain.replace(f"{folder}/", ""))) from None


def _object(text: str) -> dict[str, Any] | None:
    if not text.strip():
        return None
    data = None
    with contextlib.suppress(ValueError, RecursionError):
        data = json.loads(text)
    if not isinstance(data, dict):
        raise CatalogueError('the layout is not a JSON object; for example {"dp": 4, "tp": 2}')
    return data
