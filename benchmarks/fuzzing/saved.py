"""Saved: plans and answers as JSON, settings and preferences as TOML, options of questions."""

from __future__ import annotations

import functools
import json
import random
from pathlib import Path
from typing import Any

import planner
from fuzzing.checks import check_finite
from fuzzing.mutations import changed, edited, near, odd_value
from fuzzing.reader import Reader, write
from planner.ask import QUESTIONS
from planner.ask.answer import Answer
from planner.ask.option import Parameter, parameters
from planner.choose import preferences
from planner.cli import settings

# --- plans and answers ----------------------------------------------------------------------------


@functools.cache
def _job() -> planner.Job:
    workload = planner.Workload(global_batch=8, sequence_length=128, tokens=1e9)
    return planner.Job("gpt2", "laptop", nodes=1, workload=workload, frameworks="ddp")


def _change_json(rng: random.Random, text: str, mild: float) -> str:
    if rng.random() < 0.8:
        return json.dumps(changed(rng, json.loads(text), mild))
    return edited(rng, text, mild)


def _use_plan(text: str, folder: Path) -> None:
    plan = planner.Plan.from_json(text)
    check_finite(json.loads(plan.to_json()))


def _use_answer(text: str, folder: Path) -> None:
    answer = Answer.from_json(text)
    check_finite(json.loads(answer.to_json()))
    answer.to_csv()
    str(answer)


PLANS = Reader(lambda: [_job().plan(top=2).to_json()], _change_json, _use_plan, share=60)
ANSWERS = Reader(
    lambda: [_job().ask.memory().to_json(), _job().ask.batch().to_json()],
    _change_json,
    _use_answer,
    mild=0.3,
    share=60,
)

# --- options of questions -------------------------------------------------------------------------

_OPTIONS = {
    "deadline": {"days": 300.0}, "machine": {"against": ("polaris",)}, "network": {"nodes": 1},
    "model": {"among": ("gpt2",)},
}  # fmt: skip
_QUIET = ("network", "change", "largest-batch")
"""Questions left out: one node has no network, and two try many changes."""
_Asked = tuple[str, dict[str, Any]]


def _questions() -> list[_Asked]:
    return [(name, _OPTIONS.get(name, {})) for name in QUESTIONS if name not in _QUIET]


def _plausible(rng: random.Random, option: Parameter) -> Any:
    if option.choices:
        return rng.choice(option.choices)
    least = option.bounds.least or 1
    return near(rng, option.kind(least) if option.kind in (int, float, str) else least)


def _change_options(rng: random.Random, base: _Asked, mild: float) -> _Asked:
    name, options = base[0], dict(base[1])
    known = parameters(QUESTIONS[name])
    is_mild = rng.random() < mild
    for _ in range(rng.choice((1, 1, 2))):
        option = rng.choice(known) if known else None
        if option is None or (not is_mild and rng.random() < 0.1):
            options[rng.choice(("x", "nodes", "model", "layout"))] = odd_value(rng)
        else:
            value = _plausible(rng, option) if is_mild else odd_value(rng)
            options[option.name] = value
    return name, options


def _use_options(base: _Asked, folder: Path) -> None:
    name, options = base
    answer = QUESTIONS[name].of_job(_job(), **options)
    check_finite(json.loads(answer.to_json()))
    if not answer.verdict.strip() or "nan" in answer.verdict.split():
        raise AssertionError(f"verdict {answer.verdict!r}")


QUESTION_OPTIONS = Reader(_questions, _change_options, _use_options, mild=0.5, share=12)

# --- settings and preferences ---------------------------------------------------------------------

_SETTINGS = (
    'machine = "polaris"\nframeworks = ["fsdp2", "megatron-lm"]\naccount = "MYPROJECT"\n',
    'preferences = "my.toml"\ntemplates = "templates"\naccount = "a-b_c"\n',
)
_COMMENTS = ("# caf\xe9", "[more]", 'queue = "prod"')


def _use_settings(text: str, folder: Path) -> None:
    settings._read(Path(write(folder, "settings.toml", text)))


@functools.cache
def _preferences() -> tuple[str, ...]:
    text = preferences._DEFAULTS.read_text("utf-8")
    return (text, "[recommendation]\ntolerance = 0.1\nmax_pipeline_stages = 8\n")


def _use_preferences(text: str, folder: Path) -> None:
    preferences._load.cache_clear()
    found = preferences._load(Path(write(folder, "preferences.toml", text)))
    check_finite(found.model_dump())


def _change_settings(rng: random.Random, text: str, mild: float) -> str:
    return edited(rng, text, mild, _COMMENTS)


SETTINGS = Reader(lambda: _SETTINGS, _change_settings, _use_settings, mild=0.5, share=40)
PREFERENCES = Reader(_preferences, _change_settings, _use_preferences, mild=0.5, share=40)
