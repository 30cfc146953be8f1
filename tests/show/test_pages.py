"""HTML for notebooks: the words and numbers of other outputs, nothing alive in it, no colours."""

from __future__ import annotations

import re
from html.parser import HTMLParser
from typing import Any

import pytest

import planner
from planner.choose.verdicts.answer_lines import answer_lines, closest_strategy, step_interval
from planner.choose.verdicts.layout_words import layout_words
from planner.describe.catalogue import names
from planner.describe.configurations.reading import read_configuration_text
from planner.evidence.learning import learn_from_text
from planner.units import format_bytes, format_seconds

_HOSTILE = '<img src=x onerror="alert(1)">&amp;'
_RUNS = (
    "system,gpu,n_gpus,model,seq_len,framework,dp,tp,zero_stage,micro_batch,global_batch,"
    "step_time_s\n"
    "Polaris,A100,16,Llama-3-8B,8192,Megatron-LM,4,4,1,1,64,60\n"
    "Polaris,A100,16,<b>nobody</b>,8192,Megatron-LM,4,4,1,1,64,60\n"
)
_ALLOWED = {
    *("div", "strong", "table", "thead", "tbody", "tr", "th", "td"),
    *("details", "summary", "ul", "li"),
}


class _Read(HTMLParser):
    """Tags, their attributes, and the text between."""

    def __init__(self, text: str) -> None:
        super().__init__()
        self.open: list[str] = []
        self.tags: set[str] = set()
        self.attributes: set[str] = set()
        self.styles = ""
        self.text = ""
        self.feed(text)
        assert not self.open

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        self.open.append(tag)
        self.tags.add(tag)
        self.attributes |= {name for name, _ in attrs}
        self.styles += " ".join(value or "" for _, value in attrs)

    def handle_endtag(self, tag: str) -> None:
        assert self.open.pop() == tag

    def handle_data(self, data: str) -> None:
        self.text += f" {data}"


def _read(value: Any) -> _Read:
    found = _Read(value._repr_html_())
    assert found.tags <= _ALLOWED
    assert found.attributes <= {"style"}
    # the page's theme decides: nothing is coloured, nothing comes from elsewhere
    assert not re.search(r"color|background|url|#", found.styles)
    return found


@pytest.fixture(scope="module")
def answer() -> planner.Plan:
    model = planner.load_model("gpt2").replaced(name=_HOSTILE)
    job = planner.Workload(global_batch=64, sequence_length=1024)
    return planner.plan(model, "polaris", nodes=1, workload=job)


def test_a_plan_is_said_in_the_words_of_all_outputs(answer: planner.Plan) -> None:
    text = _read(answer).text
    assert all(f"{label}: {line}" in text for label, line in answer_lines(answer))
    for one in answer.ranked[:8]:
        assert str(one.layout) in text
        assert format_seconds(one.step_time_s) in text
    for verdict in answer.strategies:
        assert verdict.why in text
    assert all(note in text for note in answer.notes)


def test_a_hostile_name_stays_text(answer: planner.Plan) -> None:
    found = _read(answer)
    assert "img" not in found.tags
    assert _HOSTILE in found.text
    assert "&lt;img" in answer._repr_html_()
    assert _HOSTILE in _read(planner.load_model("gpt2").replaced(name=_HOSTILE)).text
    learned = learn_from_text(_RUNS, "runs.csv")
    assert learned.refused
    assert "not used" in _read(learned).text


def test_a_plan_that_does_not_fit_says_so() -> None:
    job = planner.Workload(global_batch=8, sequence_length=8192)
    nothing = planner.plan("llama-3.1-405b", "polaris", nodes=1, workload=job)
    assert not nothing.fits
    assert closest_strategy(nothing) in _read(nothing).text


def test_an_estimate_shows_every_part(answer: planner.Plan) -> None:
    best = answer.best
    assert best is not None
    text = _read(best).text
    assert step_interval(best) in text
    for row in best.records("parts"):
        form = format_seconds if row["unit"] == "s" else format_bytes
        assert row["label"] in text
        assert form(row["value"]) in text


def test_a_played_step_shows_its_stages_and_no_events() -> None:
    layout = planner.Layout(pp=4, dp=4, grad_accumulation=8, schedule="1f1b", zero_stage=1)
    step = planner.simulate("llama-3-8b", "polaris", layout, framework="megatron-lm")
    found = _read(step)
    for idle, held in zip(step.idle_s, step.memory, strict=True):
        assert format_seconds(step.makespan_s - idle) in found.text
        assert format_bytes(held.estimated_bytes) in found.text
    assert step.bottlenecks[0].name in found.text
    # a notebook without HTML shows no thousand events
    assert len(repr(step)) < 2 * len(repr(step.estimate))


@pytest.mark.parametrize("kind", ["model", "machine", "framework"])
def test_every_entry_of_a_catalogue_is_shown(kind: str) -> None:
    load = {
        "model": planner.load_model,
        "machine": planner.load_machine,
        "framework": planner.load_framework,
    }[kind]
    for name in names(kind):
        assert name in _read(load(name)).text


def test_a_machine_shows_numbers_with_their_sources() -> None:
    machine = planner.load_machine("polaris")
    text = _read(machine).text
    quantity = machine.device.memory_bytes
    assert format_bytes(quantity.value) in text
    assert quantity.source in text


def test_descriptions_show_what_is_not_as_usual() -> None:
    layout = planner.Layout(dp=8, tp=4, zero_stage=1)
    assert layout_words(layout) in _read(layout).text
    text = _read(planner.Workload(sequence_length=4096, optimizer="lion")).text
    assert "4,096" in text
    assert "lion" in text
    assert "dropout" not in text
    files = read_configuration_text('{"zero_optimization": {"stage": 3}}', "<i>.json")
    text = _read(files).text
    assert "<i>.json" in text
    assert "zero_stage" in text


def test_a_sweep_shows_its_first_rows_and_what_became_of_all() -> None:
    found = planner.sweep(
        kind="estimate",
        models="llama-3-8b",
        machines="polaris",
        nodes=[4, 9999],
        layout={"tp": [1, 2, 4, 8, 16], "zero_stage": 3},
        backend="sequential",
    )
    shown = found._repr_html_()
    assert "10 questions: 10 rows, " in shown
    assert f"{found.num_fitting} fit, {found.num_refused} refused." in shown
    assert shown.count("<tr>") == 1 + 8
    assert "exceeds the 560 nodes of polaris" in shown
    # a thousand rows are no text for a prompt
    assert len(repr(found)) < 100
    assert found.to_frame().shape == (10, len(found.columns))
