"""Draw: figures with their text alternatives, tables, messages and escaped text."""

import re
from collections.abc import Callable, Iterable, Iterator, Sequence
from pathlib import Path
from typing import Any

import streamlit as st

from planner.ask import QUESTIONS
from planner.ask.option import parameters
from planner.choose.verdicts.answer_lines import AnswerLine
from planner.describe.files import read_toml
from planner.describe.layout import Layout
from planner.describe.model.model import Model
from planner.describe.workload import Workload
from planner.errors import PlannerError
from planner.show.figures.frame import Drawing
from planner.tables import Table

LABELS = read_toml(Path(__file__).with_name("labels.toml"))
"""Labels of controls."""
_OPTIONS = (option.name for question in QUESTIONS.values() for option in parameters(question))
_FIELDS = {*Workload.model_fields, *Layout.model_fields, *Model.model_fields, *_OPTIONS}
_FIELD = re.compile(rf"(?<![\w.])({'|'.join(sorted(n for n in _FIELDS if '_' in n))})(?![\w.])")


def on_page(text: str) -> str:
    """Write names of fields as labels of controls, with blanks; leave preferences unnamed."""
    text = re.sub(r" \(preference \w+\)", "", text)
    return _FIELD.sub(lambda match: match[0].replace("_", " "), text)


def escape(text: str) -> str:
    """Escape a page's text for Markdown: links, pictures, formulas and HTML stay plain text."""
    return re.sub(r"([\\`*_{}\[\]()<>#|$~:])", r"\\\1", on_page(text))


_CONFIG = {
    "displaylogo": False,
    "responsive": True,
    "modeBarButtons": [["toImage", "resetScale2d"]],
}
_INK = "#333333"
"""Colour of text in figures, which style.css replaces in the dark theme."""


def draw(drawing: Drawing, key: str, caption: bool = False, **settings: Any) -> None:
    """Draw a figure with a text alternative for screen readers; `caption` also shows it as text."""
    font = {"color": _INK}
    figure = drawing.figure
    figure.update_layout(font=font, legend={"font": font}, modebar={"orientation": "h"})
    figure.update_xaxes(tickfont=font, title={"font": font})
    figure.update_yaxes(tickfont=font, title={"font": font})
    figure.update_traces(textfont=font, selector={"type": "bar", "textposition": "outside"})
    st.plotly_chart(figure, key=key, alt=drawing.alt, config=_CONFIG, **settings)
    if caption:
        st.caption(escape(drawing.alt))


def latest(name: str, act: Callable[[], None]) -> Callable[[], None]:
    """Return a callback that runs the last `act` of this name.

    Streamlit keeps every callback of a session, and with it what the callback holds.
    """
    st.session_state.setdefault("acts", {})[name] = act
    return lambda: st.session_state["acts"][name]()


def draw_table(rows: Sequence[dict[str, Any]], key: str, alt: str, **settings: Any) -> None:
    """Draw rows as a sortable table with a text alternative for screen readers."""
    named = [{k: on_page(v) if isinstance(v, str) else v for k, v in row.items()} for row in rows]
    st.dataframe(named, hide_index=True, key=key, alt=alt, **settings)


def escaped_rows(table: Table) -> list[dict[str, str]]:
    """Return the cells of a table for `st.table`, which reads Markdown."""
    rows = table.text_records()
    return [{title: escape(cell) for title, cell in row.items()} for row in rows]


def metrics(rows: Iterable[tuple[str, str, str]]) -> None:
    """Draw metrics side by side: label, value and small print."""
    with st.container(horizontal=True):
        for label, value, small in rows:
            st.metric(label, value, escape(small), "off", delta_arrow="off", border=True)


def refuse(error: PlannerError, title: str | None = None) -> None:
    """Show an error message."""
    st.error(escape(error.plain), title=title)


def announce(sentence: str | Iterable[AnswerLine], fits: bool, tight: bool = False) -> None:
    """Show a verdict or answer lines in the colour for fits, fits tightly, or does not fit."""
    say = (st.warning if tight else st.success) if fits else st.error
    if isinstance(sentence, str):
        say(escape(sentence))
    else:
        say(labelled(sentence))


def labelled(lines: Iterable[AnswerLine]) -> str:
    """Return answer lines as Markdown, a line each."""
    # two blanks break a line
    return "  \n".join(f"**{escape(line.label)}:** {escape(line.plain)}" for line in lines)


def download(
    label: str, data: str | bytes | Callable[[], str | bytes], name: str, key: str
) -> None:
    """Draw a button that saves data as a file; a function is called when it is pressed."""
    ending = name.rpartition(".")[2]
    kind = f"{'text' if ending in ('csv', 'html') else 'application'}/{ending}"
    st.download_button(label, data, name, kind, key=key, on_click="ignore")


def list_lines(lines: Iterable[str]) -> None:
    """Draw a list, a bullet a line."""
    for line in lines:
        st.markdown("- " + escape(line))


def in_rows(items: Sequence[Any], width: int, **settings: Any) -> Iterator[tuple[Any, Any]]:
    """Yield every item with its column, in rows of `width` columns."""
    for start in range(0, len(items), width):
        yield from zip(st.columns(width, **settings), items[start : start + width], strict=False)
