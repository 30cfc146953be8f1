"""Lecture: one training step on four ranks, call by call, beside the torch code that does it."""

import ast
import json
from functools import cache
from pathlib import Path
from typing import Any

import jinja2
import streamlit as st

from planner.app import address
from planner.app.controls.page_job import PageJob, PageRequest
from planner.units import format_bytes

TITLE = "Lecture"

_STRATEGIES = {
    "Data": ("ddp", ""),
    "ZeRO-3": ("zero3", "layer {0}"),
    "Tensor": ("tensor_parallel", "layers {0} and {1}"),
    "Pipeline": ("pipeline", "tick {0}"),
}
"""File of every strategy, and how a call's argument is read."""
_ABOUT = (
    "A network of four matrices, 32 samples, fp32, on four ranks. A column is a layer, a box a "
    "whole tensor; filled is what the rank holds. Striped: part of a sum. Dark: gradient of an "
    "activation. Framed: new. Counted after every call of this code on four real ranks, without "
    "targets and what a call drops before it ends; sent is what leaves a rank if collectives run "
    "in a ring."
)
_KEYS = "The arrow keys turn the steps, too."
_CUT, _STEP = "strategy", "step"
_FOLDERS = (
    Path(__file__).parents[3] / "docs" / "lecture",
    Path(__file__).parents[2] / "_catalogue" / "lecture",
)

Call = dict[str, Any]
"""A recorded call: name and arguments, and what every rank holds after it and sent in it."""


def read_query(reader: address.QueryReader, _: PageJob | None) -> None:
    """Read the strategy and the number of the step."""
    cut = reader.choice(_CUT, list(_STRATEGIES), next(iter(_STRATEGIES)))
    reader.number(_STEP, 1, len(_calls(cut)), 1)


def page(_: PageRequest) -> None:
    """Draw the controls, the four ranks, and the code of the step."""
    st.title(TITLE, anchor=False)
    cut, number = st.session_state[_CUT] or next(iter(_STRATEGIES)), st.session_state[_STEP]
    calls, file = _calls(cut), _STRATEGIES[cut][0]
    with st.container(horizontal=True, vertical_alignment="bottom"):
        cuts = list(_STRATEGIES)
        st.segmented_control("Strategy", cuts, key=_CUT, on_change=_restart, width="content")
        with st.container(horizontal=True, width="content"):
            back, last = number == 1, number == len(calls)
            st.button("Back", on_click=_turn, args=(-1,), disabled=back, shortcut="Left")
            st.button("Next", on_click=_turn, args=(1,), disabled=last, shortcut="Right")
        st.slider("Step", 1, len(calls), key=_STEP, help=_KEYS)
    before, after = calls[max(number - 2, 0)], calls[number - 1]
    sentence, code = _method(file, after["call"][0])
    with st.container(key="lecture"):
        ranks, beside = st.columns([5, 4], gap="medium")
    title = f"{number} of {len(calls)}: {_title(cut, after)}"
    ranks.html(_picture(title, sentence, before, after, file))
    with beside, st.container(key="lecture_code"):
        st.code(code, wrap_lines=True)
        st.code(_method(file, "step")[1], wrap_lines=True)
        with st.expander(f"All of {file}.py, and what the strategies share"):
            st.code(_text(f"{file}.py"), wrap_lines=True)
            st.code(_text("shared.py"), wrap_lines=True)
    st.caption(_ABOUT)
    st.table([_summary(each) for each in _STRATEGIES])


def _restart() -> None:
    st.session_state[_STEP] = 1


def _turn(by: int) -> None:
    st.session_state[_STEP] += by


@cache
def _text(name: str) -> str:
    folder = next(each for each in _FOLDERS if each.is_dir())
    return (folder / name).read_text(encoding="utf-8")


def _calls(cut: str) -> list[Call]:
    return _records()[_STRATEGIES[cut][0]]


@cache
def _records() -> Any:
    return json.loads(_text("recorded.json"))


def _method(file: str, name: str) -> tuple[str, str]:
    """Return the docstring of a strategy's method, and its code without it."""
    for text in (_text(f"{file}.py"), _text("shared.py")):
        for node in ast.walk(ast.parse(text)):
            if isinstance(node, ast.FunctionDef) and node.name == name:
                lines = text.splitlines()
                body = lines[node.body[0].end_lineno : node.end_lineno]
                code = "\n".join(line[4:] for line in (lines[node.lineno - 1], *body))
                return ast.get_docstring(node) or "", code
    raise AssertionError(f"{file} has no method {name}")


def _title(cut: str, call: Call) -> str:
    """Name a call by its collective, else by its method, and by its layers or tick."""
    name, *arguments = call["call"]
    operations = {sent[0] for rank in call["ranks"] for sent in rank["sent"]} - {"send"}
    words = (*operations, name)[0].replace("_", "-").capitalize()
    places = [_STRATEGIES[cut][1].format(first, first + 1) for first in arguments]
    return ", ".join((words, *places))


def _picture(title: str, sentence: str, before: Call, after: Call, file: str) -> str:
    environment = jinja2.Environment(autoescape=True, trim_blocks=True, lstrip_blocks=True)
    environment.filters["bytes"] = _size
    text = (Path(__file__).parent / "texts" / "lecture.html.j2").read_text(encoding="utf-8")
    words = {"title": title, "sentence": sentence, "file": file, "name": after["call"][0]}
    pairs = list(zip(before["ranks"], after["ranks"], strict=True))
    return environment.from_string(text).render(shapes=_records()["shapes"], pairs=pairs, **words)


def _size(value: float) -> str:
    return format_bytes(value).replace(".00", "")


def _summary(cut: str) -> dict[str, str]:
    """Return what a rank holds at first and at most, and the most that one sends in a step."""
    calls = _calls(cut)
    sizes = [sum(piece[7] for piece in rank["held"]) for call in calls for rank in call["ranks"]]
    ranks = zip(*(call["ranks"] for call in calls), strict=True)
    sent = max(sum(s[3] for step in rank for s in step["sent"]) for rank in ranks)
    values = {"holds between steps": sizes[0], "holds at most": max(sizes), "sends in a step": sent}
    return {"strategy": cut} | {name: _size(value) for name, value in values.items()}
