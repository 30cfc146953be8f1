"""Answers stay what they were, to the digit, unless a change says which number moved and why."""

from __future__ import annotations

import json
from typing import Any

import pytest

from tests.golden.asked import ASKED, asked
from tests.golden.choices import KINDS, choices
from tests.golden.evidence import evidence
from tests.golden.fields import fields
from tests.golden.files import CASES, files
from tests.golden.moments import moments
from tests.golden.pages import PAGES, page
from tests.golden.parts import sums
from tests.golden.printed import CHECKED, COMMANDS, MEASURED, checked, measured, printed
from tests.golden.sweeps import rows
from tests.golden.write import (
    ANSWERS,
    KEPT_ASKED,
    KEPT_CHOICES,
    KEPT_EVIDENCE,
    KEPT_FIELDS,
    KEPT_FIGURES,
    KEPT_FILES,
    KEPT_MODULES,
    KEPT_MOMENTS,
    KEPT_PAGES,
    KEPT_PARTS,
    KEPT_ROWS,
    KEPT_TEXTS,
    answer,
    questions,
)

DIGITS = 1e-12
"""Relative difference that other processors' vector instructions may cause."""

pytestmark = pytest.mark.broad

WORK, TIES = ("num_candidates", "num_estimated", "count"), 8
"""Numbers of layouts, and how many of them the last digit of a bound may keep or leave out."""

QUESTIONS = questions()
QUICK_PLANS = (
    *("plan-laptop", "plan-single-device", "plan-tiles-of-pvc", "plan-tf32-encoder"),
    *("plan-muon-tokens", "plan-nothing-fits", "plan-lora", "plan-one-node", "plan-two-nodes-a100"),
    *("plan-frozen-embedding", "plan-large-pvc", "plan-wires", "plan-vision"),
)


def assert_same(now: Any, kept: Any, where: str = "") -> None:
    """Equal structure and words; equal numbers but for the last digits of a double, and ties."""
    assert type(now) is type(kept), where
    if isinstance(kept, dict):
        assert list(now) == list(kept), where
        for name in kept:
            if name in WORK and isinstance(kept[name], int):
                assert abs(now[name] - kept[name]) <= TIES, f"{where}.{name}"
            else:
                assert_same(now[name], kept[name], f"{where}.{name}")
    elif isinstance(kept, list):
        assert len(now) == len(kept), where
        for i, (a, b) in enumerate(zip(now, kept, strict=True)):
            assert_same(a, b, f"{where}[{i}]")
    elif isinstance(kept, float):
        assert now == pytest.approx(kept, rel=DIGITS, abs=0.0), where
    else:
        assert now == kept, where


@pytest.mark.parametrize(
    "name",
    [
        pytest.param(name, marks=pytest.mark.slow)
        if name.startswith("plan-") and name not in QUICK_PLANS
        else name
        for name in QUESTIONS
    ],
)
def test_the_answer_is_the_same(name: str) -> None:
    kept = json.loads((ANSWERS / f"{name}.json").read_text(encoding="utf-8"))
    assert_same(answer(QUESTIONS[name]), kept)


@pytest.mark.parametrize("name", COMMANDS)
def test_the_text_is_the_same(name: str) -> None:
    assert printed(COMMANDS[name]) == json.loads(KEPT_TEXTS.read_text(encoding="utf-8"))[name]


@pytest.mark.parametrize("name", MEASURED)
def test_the_text_of_measured_runs_is_the_same(name: str) -> None:
    kept = json.loads(KEPT_TEXTS.read_text(encoding="utf-8"))
    assert measured(MEASURED[name]) == kept[name]


@pytest.mark.parametrize("name", CHECKED)
def test_the_check_is_the_same(name: str) -> None:
    kept = json.loads(KEPT_TEXTS.read_text(encoding="utf-8"))
    assert checked(name) == kept[f"check-{name}"]
    assert set(kept) == {*COMMANDS, *MEASURED, *(f"check-{each}" for each in CHECKED)}


def test_logs_and_tables_say_the_same() -> None:
    kept = json.loads(KEPT_EVIDENCE.read_text(encoding="utf-8"))
    assert_same(json.loads(json.dumps(evidence())), kept)


def test_rows_of_sweeps_are_the_same() -> None:
    kept = json.loads(KEPT_ROWS.read_text(encoding="utf-8"))
    assert_same(json.loads(json.dumps(rows())), kept)


def test_fields_have_the_same_defaults_and_limits() -> None:
    kept = json.loads(KEPT_FIELDS.read_text(encoding="utf-8"))
    assert json.loads(json.dumps(fields())) == kept


def test_figures_are_the_same() -> None:
    pytest.importorskip("plotly")
    from tests.golden.figures import drawn

    assert_same(drawn(), json.loads(KEPT_FIGURES.read_text(encoding="utf-8")))


@pytest.mark.parametrize("name", PAGES)
def test_the_page_is_the_same(name: str) -> None:
    kept = json.loads(KEPT_PAGES.read_text(encoding="utf-8"))
    assert set(kept) == set(PAGES)
    assert page(name) == kept[name]


@pytest.mark.parametrize("name", CASES)
def test_the_files_are_the_same(name: str) -> None:
    kept = json.loads(KEPT_FILES.read_text(encoding="utf-8"))
    assert set(kept) == set(CASES)
    assert files(name) == kept[name]


def test_there_are_sixty_questions_and_no_other_answers() -> None:
    assert len(QUESTIONS) >= 60
    assert {path.stem for path in ANSWERS.glob("*.json")} == set(QUESTIONS)


def test_models_of_torch_compute_the_same() -> None:
    pytest.importorskip("torch")
    from tests.golden.modules import computed

    kept = json.loads(KEPT_MODULES.read_text(encoding="utf-8"))
    found = computed()
    assert found.keys() == kept.keys()
    for name, figures in found.items():
        assert figures == pytest.approx(kept[name], rel=1e-3, abs=1e-5), name


def test_sums_of_every_part_are_the_same() -> None:
    assert_same(sums(), json.loads(KEPT_PARTS.read_text(encoding="utf-8")))


@pytest.mark.parametrize("question", ASKED)
def test_small_questions_are_answered_the_same(question: str) -> None:
    kept = json.loads(KEPT_ASKED.read_text(encoding="utf-8"))
    of_question = {name: each for name, each in kept.items() if name.split()[0] == question}
    assert_same(json.loads(json.dumps(asked(question))), of_question)


@pytest.mark.parametrize("kind", KINDS)
def test_choices_are_the_same(kind: str) -> None:
    kept = json.loads(KEPT_CHOICES.read_text(encoding="utf-8"))
    of_kind = {name: each for name, each in kept.items() if name.split()[0] == kind}
    assert_same(json.loads(json.dumps(choices(kind))), of_kind)


def test_memory_of_every_moment_is_the_same_to_the_byte() -> None:
    """The highest moment hides what the others hold."""
    kept = json.loads(KEPT_MOMENTS.read_text(encoding="utf-8"))
    found = moments()
    assert list(found) == list(kept)
    assert {name: found[name] for name in kept if found[name] != kept[name]} == {}
