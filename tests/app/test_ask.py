"""The page of questions: its controls are the questions' own, its answers those of the calls."""

from __future__ import annotations

import sys

import pytest

pytest.importorskip("streamlit")
pytest.importorskip("plotly")

from streamlit.testing.v1 import AppTest

import planner
from planner.app.draw import LABELS, escape
from planner.app.views.ask import AT_ONCE
from planner.ask import GROUPS, QUESTIONS
from planner.ask.option import parameters
from planner.describe.workload import Workload

# every answer plans many jobs
pytestmark = pytest.mark.slow
_JOB = {"model": "gpt2", "nodes": "2", "batch": "64", "seq": "1024", "tokens": "1B"}
_WORKLOAD = Workload(sequence_length=1024, global_batch=64, tokens=1e9)


@pytest.fixture(autouse=True)
def _own_main(monkeypatch: pytest.MonkeyPatch) -> None:
    """AppTest leaves its page behind as __main__, which a process started later would run."""
    monkeypatch.setitem(sys.modules, "__main__", sys.modules["__main__"])


def _page(**query: str) -> AppTest:
    app = AppTest.from_string(
        "from planner.app.main import open_page\nopen_page('ask')", default_timeout=600
    )
    for name, value in {**_JOB, **query}.items():
        app.query_params[name] = value
    return app.run()


@pytest.mark.parametrize("name", QUESTIONS)
def test_every_parameter_is_a_control(name: str) -> None:
    app = _page(question=name)
    assert not app.exception
    assert app.selectbox(key="question").value == name
    keys = {one.key for one in (*app.number_input, *app.selectbox, *app.checkbox, *app.text_input)}
    own = {one.name for one in parameters(QUESTIONS[name])} - {"nodes"}
    assert {f"ask_{each}" for each in own} <= keys
    waits = [each for each in app.info if "An answer takes some seconds" in each.value]
    assert bool(waits) == (name not in AT_ONCE)


def test_quick_questions_are_answered_on_opening_and_stand_first() -> None:
    app = _page()
    assert app.selectbox(key="question").value == AT_ONCE[0]
    assert not [each for each in app.button if each.key == "ask_start"]
    call = QUESTIONS[AT_ONCE[0]]
    answer = call("gpt2", "polaris", workload=_WORKLOAD, nodes=2, against=("dgx-h100",))
    assert app.success[0].value == escape(answer.verdict)
    # a change of the job is answered, too
    app.number_input(key="nodes").set_value(1).run()
    assert "1 node" in app.success[0].value


def test_questions_are_sentences() -> None:
    sentences = LABELS["questions"]
    assert sentences.keys() == QUESTIONS.keys()
    assert all(each.endswith("?") and len(each.split()) > 3 for each in sentences.values())
    assert len(set(sentences.values())) == len(sentences)


def test_questions_are_listed_by_subject() -> None:
    app, listed = _page(), []
    for subject, questions in GROUPS.items():
        [radio] = app.radio
        radio.set_value(subject).run()
        assert not app.exception
        options = app.selectbox(key="question").options
        assert sorted(options) == sorted(LABELS["questions"][name] for name in questions)
        # those that are answered on opening stand first, and one of them is answered
        quick = [LABELS["questions"][name] in options[: len(AT_ONCE)] for name in AT_ONCE]
        at_once = [name in questions for name in AT_ONCE]
        assert quick == at_once
        assert bool(app.success or app.error) == any(at_once)
        listed += questions
    assert listed == list(QUESTIONS)


@pytest.mark.parametrize(
    ("name", "query", "own"),
    [
        (
            "scaling",
            {"ask_most_nodes": "4", "ask_kind": "weak"},
            {"most_nodes": 4, "kind": "weak", "nodes": 2},
        ),
        ("deadline", {"ask_days": "2", "ask_most_nodes": "2"}, {"days": 2.0, "most_nodes": 2}),
        ("machine", {"ask_against": "vsc-5"}, {"against": ("vsc-5",), "nodes": 2}),
        ("zero", {"ask_alone": "True"}, {"alone": True, "nodes": 2}),
    ],
)
def test_an_answer_is_that_of_the_call(
    name: str, query: dict[str, str], own: dict[str, object]
) -> None:
    app = _page(question=name, **query)
    if name not in AT_ONCE:
        app.button(key="ask_start").click().run()
    assert not app.exception
    answer = QUESTIONS[name]("gpt2", "polaris", workload=_WORKLOAD, **own)
    assert app.success[0].value == escape(answer.verdict)
    assert len(app.dataframe[0].value) == len(answer.rows)


def test_another_job_waits_to_be_asked() -> None:
    app = _page(question="nodes", ask_most_nodes="3")
    app.button(key="ask_start").click().run()
    assert app.success
    app.number_input(key="nodes").set_value(1).run()
    assert not app.success
    assert "An answer takes some seconds" in app.info[0].value


def test_an_answer_is_in_the_address_until_the_question_changes() -> None:
    app = _page(question="batch")
    assert "answer" not in app.query_params
    app.button(key="ask_start").click().run()
    assert "1" in app.query_params["answer"]
    link = app.code[-1].value
    assert "answer=1" in link
    verdict = app.success[0].value
    # the link alone answers, in a session of its own
    assert _page(question="batch", answer="1").success[0].value == verdict
    app.selectbox(key="question").set_value("sequence").run()
    assert "answer" not in app.query_params
    assert "An answer takes some seconds" in app.info[0].value


def test_an_option_changed_with_the_click_is_in_the_answer() -> None:
    app = _page(question="scaling", ask_most_nodes="2", answer="1")
    app.selectbox(key="ask_kind").set_value("weak")
    app.button(key="ask_start").click().run()
    options = {"kind": "weak", "nodes": 2, "most_nodes": 2}
    answer = QUESTIONS["scaling"]("gpt2", "polaris", workload=_WORKLOAD, **options)
    assert app.success[0].value == escape(answer.verdict)


@pytest.mark.parametrize("name", QUESTIONS)
def test_controls_are_labelled_with_words(name: str) -> None:
    for option in parameters(QUESTIONS[name]):
        label = option.bounds.label
        if option.name == "nodes":
            continue
        assert len(label.split()) > 1 or label == "Dataset", option.name
        if "percent" in option.bounds.help.lower():
            assert "[%]" in label
        if option.name.endswith("_s") or "econds" in option.bounds.help:
            assert "[s]" in label


def test_what_cannot_be_asked_is_one_sentence() -> None:
    app = _page(question="machine", ask_against="nowhere")
    assert not app.exception
    assert "unknown machine 'nowhere'" in app.error[0].value


def test_the_address_states_question_and_controls() -> None:
    app = _page(question="scaling")
    app.selectbox(key="ask_kind").set_value("weak").run()
    assert "weak" in app.query_params["ask_kind"]
    app.radio[0].set_value("Layouts").run()
    app.selectbox(key="question").set_value("host").run()
    assert "host" in app.query_params["question"]
    assert "ask_kind" not in app.query_params


def test_wishes_that_cannot_be_are_said() -> None:
    app = _page(question="everything", ask_against="vsc-5")
    assert not app.exception
    assert app.selectbox(key="question").value == AT_ONCE[0]
    assert any("everything" in each.value for each in app.warning)


def test_nodes_and_scaling_give_one_number_of_a_node_count() -> None:
    """Both are of the recommended layout, as the first page is."""
    job = {"workload": _WORKLOAD, "most_nodes": 4}
    scaled, sized = (QUESTIONS[name]("gpt2", "polaris", **job) for name in ("scaling", "nodes"))
    steps = [{row["nodes"]: row["step_time_s"] for row in each.rows} for each in (scaled, sized)]
    both = steps[0].keys() & steps[1].keys()
    assert len(both) > 1
    for nodes in both:
        plan = planner.plan("gpt2", "polaris", nodes=nodes, workload=_WORKLOAD)
        assert steps[0][nodes] == steps[1][nodes] == plan.recommended.step_time_s
