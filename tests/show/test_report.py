"""The document of a plan: its numbers are the plan's, and it is whole and safe to open."""

from __future__ import annotations

import itertools
import re
from dataclasses import replace
from html import unescape
from html.parser import HTMLParser
from typing import Any

import pytest

import planner
from planner.choose.plan import Plan
from planner.choose.verdicts.answer_lines import answer_lines
from planner.show.figures.palette import ink
from planner.show.reports.svg_bars import stacked_bars
from planner.units import format_bytes, format_seconds

_HOSTILE = "<script>alert('$x')</script>&\""
_VOID = {"meta", "path", "rect"}


class _Document(HTMLParser):
    """Elements that are open, and the addresses that a browser would load."""

    def __init__(self, text: str) -> None:
        super().__init__()
        self.open: list[str] = []
        self.tags: set[str] = set()
        self.loaded: list[str] = []
        self.feed(text)
        self.close()

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        self.tags.add(tag)
        self.loaded += [value or "" for name, value in attrs if name in ("src", "href", "data")]
        if tag not in _VOID:
            self.open.append(tag)

    def handle_startendtag(self, tag: str, attrs: Any) -> None:
        self.tags.add(tag)

    def handle_endtag(self, tag: str) -> None:
        assert self.open.pop() == tag


@pytest.fixture(scope="module")
def plan() -> Plan:
    """A plan with a whole training."""
    workload = planner.Workload(sequence_length=4096, global_batch=256, tokens=3e11)
    return planner.plan("llama-3-8b", "polaris", nodes=4, workload=workload)


def test_the_numbers_are_those_of_the_plan(plan: Plan) -> None:
    text = unescape(re.sub(r"<[^>]+>", " ", plan.report()))
    best, training = plan.recommended, plan.training
    assert best is not None
    assert training is not None
    for label, line in answer_lines(plan):
        assert label in text
        assert line.split("] ")[-1] in text
    for seconds in best.step_time_parts_s.values():
        assert not seconds or format_seconds(seconds) in text
    assert format_bytes(best.memory_bytes["total"]) in text
    assert format_seconds(training.time.expected) in text
    machine = planner.load_machine("polaris")
    assert machine.device.sustained_fraction.source in text
    assert machine.sources["ALCF"] in text
    for name in ("job.sh", "megatron.args"):
        assert planner.emit(plan)[name].strip() in text


def test_it_is_the_same_for_a_plan_from_its_json(plan: Plan) -> None:
    assert Plan.from_json(plan.to_json()).report() == plan.report()


def test_it_is_whole_and_loads_nothing(plan: Plan) -> None:
    text = plan.report()
    document = _Document(text)
    assert document.open == []
    assert document.loaded == []
    assert not document.tags & {"script", "iframe", "object", "link", "img"}
    assert "url(" not in text.replace("url(#", "")
    assert "@import" not in text
    # a reader of the document has no command line
    assert "(--" not in text


def test_hostile_names_stay_text(plan: Plan) -> None:
    machine = planner.load_machine("polaris").replaced(name="mine", evidence=_HOSTILE)
    hostile = replace(plan, model=_HOSTILE, machine=_HOSTILE, notes=(_HOSTILE,))
    text = hostile.report(machine=machine)
    assert "script" not in _Document(text).tags
    assert _HOSTILE in unescape(text)


def test_a_plan_that_does_not_fit_says_why_without_a_picture() -> None:
    plan = planner.plan("llama-3.1-405b", "polaris", nodes=1)
    text = plan.report()
    assert not plan.fits
    assert _Document(text).open == []
    assert "<svg" not in text
    assert "Does not fit" in text
    assert "None: nothing fits on 1 node" in text


def test_bars_are_as_long_as_their_parts() -> None:
    parts = {"weights": 3.0, "gradients": 1.0, "logits_and_loss": 0.0}
    drawn = stacked_bars({"a": parts, "b": {"weights": 6.0}}, {"a": "4", "b": "6"}, 5.0, "limit")
    colour = ink("weights").color
    widths = [float(w) for w in re.findall(rf'width="([\d.]+)" height="15" fill="{colour}"', drawn)]
    # two rows, then the legend
    assert widths[0] / widths[1] == pytest.approx(0.5, abs=0.01)
    assert len(widths) == 3
    assert "logits" not in drawn
    line = float(re.findall(r'd="M([\d.]+) 16V', drawn)[0])
    assert (line - 180) / widths[1] == pytest.approx(5 / 6, abs=0.01)


def test_bars_and_texts_do_not_overlap_and_lie_in_the_picture() -> None:
    names = ("weights", "gradients", "optimizer_states", "activations", "logits_and_loss")
    parts = {name: 1.0 + number for number, name in enumerate(names)}
    tables = {"first": parts, "second": {"weights": 20.0}}
    drawn = stacked_bars(tables, {"first": "15", "second": "20"}, 30.0, "limit")
    width, height = map(float, re.findall(r'viewBox="0 0 (\d+) ([\d.]+)"', drawn)[0])
    fills = re.findall(r'<rect ([^>]*) fill="#', drawn)
    boxes = [dict(re.findall(r'(\w+)="([\d.]+)"', row)) for row in fills]
    spans = [{name: float(value) for name, value in box.items()} for box in boxes]
    # five parts of one bar, one of the other, five of the legend
    assert len(spans) == 11
    for box in spans:
        assert 0 <= box["x"] < box["x"] + box["width"] <= width
        assert 0 <= box["y"] < box["y"] + box["height"] <= height
    for one, other in itertools.combinations(spans, 2):
        beside = one["x"] + one["width"] <= other["x"] + 0.11
        beside |= other["x"] + other["width"] <= one["x"] + 0.11
        below = one["y"] + one["height"] <= other["y"] or other["y"] + other["height"] <= one["y"]
        assert beside or below, (one, other)
    # the largest number, here the limit, takes what names and texts leave: 720 - 180 - 150
    assert sum(box["width"] for box in spans[:5]) == pytest.approx(390 * 15 / 30, abs=0.3)
    texts = [
        {**{name: float(x) for name, x in re.findall(r'\b([xy])="([\d.]+)"', row)}, "text": text}
        for row, text in re.findall(r"<text ([^>]*)>([^<]*)</text>", drawn)
    ]
    places = [(text["x"], text["y"]) for text in texts]
    assert len(set(places)) == len(places)
    for x, y in places:
        assert 0 <= x < width
        assert 0 < y <= height
    # each legend text stands beside its box
    for box, text in zip(spans[6:], texts[-5:], strict=True):
        assert 0 < float(text["x"]) - box["x"] - box["width"] < 10
        assert box["y"] < float(text["y"]) <= box["y"] + box["height"]
