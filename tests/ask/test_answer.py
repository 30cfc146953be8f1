"""Answers: plain data that JSON keeps, whatever is asked."""

from __future__ import annotations

import csv
import io
import json
import math
import subprocess
import sys
from typing import Any

import numpy as np
import pytest

import planner
from planner.ask import QUESTIONS, Answer
from planner.ask.option import Parameter, parameters
from planner.choose.jobs.job_spec import JobSpec
from planner.errors import DescriptionError, LayoutError, PlannerError
from planner.show.answers import answer_table
from tests.ask.jobs import OWN, SHORT


@pytest.fixture(scope="module")
def answers() -> dict[str, Answer]:
    return {
        name: ask("gpt2", "polaris", workload=SHORT, **OWN[name]) for name, ask in QUESTIONS.items()
    }


def test_every_question_is_tried() -> None:
    assert set(OWN) == set(QUESTIONS)
    called = {name.replace("-", "_") for name in QUESTIONS}
    assert called | {"Answer", "QUESTIONS"} == set(planner.ask.__all__)


@pytest.mark.slow
@pytest.mark.parametrize("name", QUESTIONS)
def test_json_keeps_an_answer(name: str, answers: dict[str, Answer]) -> None:
    answer = answers[name]
    assert Answer.from_json(answer.to_json()) == answer
    assert answer.question == name
    assert answer.found


@pytest.mark.slow
@pytest.mark.parametrize("name", QUESTIONS)
def test_an_answer_holds_what_was_asked(name: str, answers: dict[str, Answer]) -> None:
    asked = answers[name].asked
    assert (asked["model"], asked["machine"]) == ("gpt2", "polaris")
    assert asked["workload"] == SHORT.model_dump(mode="json")
    for one in parameters(QUESTIONS[name]):
        given = OWN[name].get(one.name, one.default)
        assert asked[one.name] == json.loads(json.dumps(given)), one.name


@pytest.mark.slow
@pytest.mark.parametrize("name", QUESTIONS)
def test_rows_are_flat_and_say_why(name: str, answers: dict[str, Answer]) -> None:
    answer = answers[name]
    assert answer.rows
    for row in answer.rows:
        assert row["reason"]
        for value in row.values():
            assert value is None or isinstance(value, (str, bool, int, float))
            assert not isinstance(value, float) or math.isfinite(value)
        for column in [column for column in row if column.endswith(("_low_s", "_low_bytes"))]:
            high, middle = column.replace("_low_", "_high_"), column.replace("_low_", "_")
            assert row[column] <= row[middle] <= row[high]


@pytest.mark.slow
@pytest.mark.parametrize("name", ["nodes", "zero", "host"])
def test_a_job_asks_the_same(name: str, answers: dict[str, Answer]) -> None:
    """A job brings its nodes to the questions that have the option."""
    options = {key: value for key, value in OWN[name].items() if key != "nodes"}
    job = JobSpec("gpt2", "polaris", workload=SHORT, nodes=OWN[name].get("nodes", 1))
    assert QUESTIONS[name].of_job(job, **options) == answers[name]
    on_two = JobSpec("gpt2", "polaris", workload=SHORT, nodes=2)
    asked = QUESTIONS[name].of_job(on_two, **options).asked
    assert asked.get("nodes") == (None if name == "nodes" else 2)


@pytest.mark.slow
@pytest.mark.parametrize("name", QUESTIONS)
def test_a_verdict_is_a_sentence(name: str, answers: dict[str, Answer]) -> None:
    verdict = answers[name].verdict
    assert verdict.endswith(".")
    assert not verdict.endswith("..")
    assert "\n" not in verdict
    assert not verdict[0].islower() or verdict.startswith(("gpt2", "fsdp2"))


@pytest.mark.slow
@pytest.mark.parametrize("name", QUESTIONS)
def test_csv_has_every_row(name: str, answers: dict[str, Answer]) -> None:
    answer = answers[name]
    read = list(csv.DictReader(io.StringIO(answer.to_csv())))
    assert len(read) == len(answer.rows)
    assert set(read[0]) == {column for row in answer.rows for column in row}


@pytest.mark.parametrize(
    ("changed", "reason"),
    [
        ('"verdict": {"a": 1}', "a verdict that is not text"),
        ('"verdict": 1e400', "not JSON compliant"),
    ],
)
def test_an_answer_that_cannot_be_printed_is_refused(changed: str, reason: str) -> None:
    answer = Answer("nodes", {}, True, "four", ({"nodes": 4},))
    with pytest.raises(DescriptionError, match=reason):
        Answer.from_json(answer.to_json().replace('"verdict": "four"', changed))


def test_an_option_of_another_type_is_refused() -> None:
    number: Any = 3
    nothing: Any = None
    with pytest.raises(LayoutError, match=r"^layout = 3 is not text: "):
        planner.ask.why("gpt2", "polaris", workload=SHORT, layout=number)
    with pytest.raises(LayoutError, match=r"^alone = 3 is not True or False: "):
        planner.ask.zero("gpt2", "polaris", workload=SHORT, alone=number)
    with pytest.raises(LayoutError, match=r"^grain = 'None' is not a whole number: "):
        planner.ask.sequence("gpt2", "polaris", workload=SHORT, grain=nothing)


@pytest.mark.slow
@pytest.mark.parametrize("name", QUESTIONS)
def test_a_table_is_as_wide_as_its_titles(name: str, answers: dict[str, Answer]) -> None:
    table = answer_table(answers[name])
    titles, rows = table.titles, table.cells()
    assert len(set(titles)) == len(titles)
    assert {len(row) for row in rows} == {len(titles)}
    assert titles[-1] == "reason"


@pytest.mark.parametrize(
    ("given", "said"),
    [
        ({"global_batch": 8}, r"workload=planner\.Workload\(global_batch=\.\.\.\)"),
        ({"workloads": SHORT}, "unknown argument 'workloads': did you mean workload"),
        ({"most_node": 2}, "unknown argument 'most_node': did you mean most_nodes"),
        ({"workload": {"global_batch": 8}}, r"is not a planner\.Workload"),
    ],
)
def test_what_no_question_takes_is_refused(given: dict[str, Any], said: str) -> None:
    """An argument that nobody reads would be an answer to another question."""
    for name, ask in QUESTIONS.items():
        with pytest.raises(PlannerError, match="most|known" if "most_node" in given else said):
            ask("gpt2", "polaris", **{**OWN[name], **given})
    with pytest.raises(PlannerError, match=said):
        planner.ask.nodes("gpt2", "polaris", **given)


def test_one_name_stands_for_several() -> None:
    one = planner.ask.machine("gpt2", "polaris", workload=SHORT, against="vsc-5")
    assert one == planner.ask.machine("gpt2", "polaris", workload=SHORT, against=("vsc-5",))


@pytest.mark.parametrize("text", ["", "[]", "{}", '{"question": 1}', "null", '{"rows": [1]}'])
def test_what_is_no_answer_is_refused(text: str) -> None:
    with pytest.raises(DescriptionError, match=r"not an answer: .*planner ask --json"):
        Answer.from_json(text)


def test_a_description_of_ones_own_is_kept_whole() -> None:
    machine = planner.load_machine("polaris", ("device.memory_bytes=20GB",))
    software = planner.load_framework("fsdp2+compile")
    answer = planner.ask.host("gpt2", machine, workload=SHORT, frameworks=(software, "ddp"))
    kept: dict[str, Any] = answer.asked["machine"]
    assert planner.Machine.described(kept) == machine
    assert answer.asked["frameworks"] == ["fsdp2+compile", "ddp"]


@pytest.mark.parametrize("name", QUESTIONS)
@pytest.mark.parametrize(
    ("model", "machine", "changes", "said"),
    [
        ("resnet-50", "polaris", {}, "trains on samples, not sequences"),
        ("gpt2", "polaris", {"sequence_length": 4096}, "exceeds the 1024 learned positions"),
        ("gpt2", "polaris", {"expert_imbalance": 2.0}, "gpt2 has no experts"),
        ("gpt2", "vsc-4", {}, "'bf16' is not supported"),
    ],
)
def test_a_job_that_makes_no_sense_is_refused_before_any_search(
    name: str, model: str, machine: str, changes: dict[str, Any], said: str
) -> None:
    with pytest.raises(planner.PlannerError, match=said):
        QUESTIONS[name](model, machine, workload=SHORT.replaced(**changes), **OWN[name])


BOUNDED = [
    (name, one)
    for name, question in QUESTIONS.items()
    for one in parameters(question)
    if one.choices or one.bounds.least is not None or one.bounds.above is not None
]


@pytest.mark.parametrize(("name", "one"), BOUNDED, ids=lambda each: getattr(each, "name", each))
def test_what_is_beyond_an_option_is_refused(name: str, one: Parameter) -> None:
    beyond = ["sideways", None] if one.choices else [-1, "three", True, 10**400, math.nan]
    beyond += [0.0] if one.bounds.above == 0 else []
    beyond += [math.inf] if one.kind is float else []
    beyond += [2 * one.bounds.most] if one.bounds.most else []
    beyond += [2.5] if one.kind is int else []
    for value in beyond:
        with pytest.raises(LayoutError, match=f"^{one.name} = "):
            QUESTIONS[name]("gpt2", "polaris", workload=SHORT, **{**OWN[name], one.name: value})


@pytest.mark.slow
def test_numbers_of_numpy_are_plain_in_an_answer() -> None:
    """As `for n in np.arange(...)` gives them."""
    two, factor = np.int64(2), np.float32(1.5)
    answer = planner.ask.batch("gpt2", "polaris", nodes=two, within=factor, workload=SHORT)
    assert Answer.from_json(answer.to_json()) == answer
    assert (answer.asked["nodes"], answer.asked["within"]) == (2, 1.5)


def test_one_text_is_one_of_several() -> None:
    one = planner.ask.machine("gpt2", "polaris", against="vsc-5", workload=SHORT)
    assert one == planner.ask.machine("gpt2", "polaris", against=("vsc-5",), workload=SHORT)
    other: Any = (planner.load_model("gpt2"),)
    with pytest.raises(LayoutError, match=r"^against = .* every value must be text or a machine"):
        planner.ask.machine("gpt2", "polaris", against=other, workload=SHORT)
    number: Any = 3
    with pytest.raises(LayoutError, match=r"^also = '3': every value must be text"):
        planner.ask.change("gpt2", "polaris", also=number, workload=SHORT)


@pytest.mark.parametrize("tolerance", [-0.1, math.nan, math.inf, "0.1", [0.1]])
def test_a_tolerance_is_a_share(tolerance: Any) -> None:
    with pytest.raises(LayoutError, match=r"^tolerance = .* must be at least 0 and finite"):
        planner.ask.host("gpt2", "polaris", workload=SHORT, tolerance=tolerance)
    with pytest.raises(LayoutError, match=r"^tolerance = .* must be at least 0 and finite"):
        planner.plan("gpt2", "polaris", nodes=1, workload=SHORT, tolerance=tolerance)


def test_the_questions_load_nothing_heavy() -> None:
    code = "import sys, planner.ask; print(*sys.modules)"
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    loaded = {name.partition(".")[0] for name in done.stdout.split()}
    assert not loaded & {"torch", "streamlit", "plotly", "pandas", "networkx", "rich", "typer"}
