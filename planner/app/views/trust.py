"""Trust: how far to trust estimates: published runs, and the intervals learned from them."""

import re
from collections import defaultdict
from collections.abc import Sequence
from pathlib import Path

import streamlit as st

from planner.app.controls.page_job import PageRequest
from planner.app.draw import draw, escape, metrics
from planner.cost.scenario.prior import Prior, memory_classes, priors
from planner.describe.base import field_docs
from planner.evidence.residuals import Residual, residuals, summary
from planner.show.figures import accuracy
from planner.units import counted

TITLE = "Trust"

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


def page(_: PageRequest) -> None:
    """Draw the known errors of estimates, then how wide their intervals are."""
    st.title(TITLE, anchor=False)
    _evidence()
    _intervals()
    report = next((path for path in _REPORTS if path.is_file()), None)
    if report is not None:
        with st.expander("The accuracy report of this version"):
            # its headings go below the page's own
            text = re.sub(r"^#", "##", report.read_text(encoding="utf-8"), flags=re.MULTILINE)
            st.markdown(text.replace("## Accuracy", "", 1))


def _evidence() -> None:
    st.header("All measured runs", anchor=False)
    rows = residuals()
    unseen = [row for row in rows if not row.seen and row.step_time]
    scores = summary(unseen)
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
    st.caption(escape(_main_source(unseen, scores.mape)))
    quantity = st.segmented_control(
        "Errors of", ("step time", "memory"), default="step time", key="evidence_of"
    )
    drawing = accuracy.spread(rows, "memory" if quantity == "memory" else "step_time")
    draw(drawing, key="evidence", caption=True)


def _main_source(rows: Sequence[Residual], mean: float) -> str:
    """Name the source with the largest share of all errors, and the mean without it."""
    errors: defaultdict[str, float] = defaultdict(float)
    for row in rows:
        errors[row.source] += abs(1 / (row.step_time or 1) - 1)
    source, total = max(errors.items(), key=lambda item: item[1])
    rest = summary([row for row in rows if row.source != source])
    if rest is None:
        return ""
    count = len(rows) - rest.num_runs
    return (
        f"{source} makes {100 * total / (mean * len(rows)):.0f} % of the mean error with "
        f"{counted(count, 'run')}; without it the mean is {100 * rest.mape:.1f} % and the bias "
        f"{100 * rest.bias:+.1f} %."
    )


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
