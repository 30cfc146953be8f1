"""Job: its fields, its file, and equal jobs from every way to make one."""

from __future__ import annotations

from pathlib import Path

import pytest

import planner
from planner import Job, Layout, Workload
from planner.describe.catalogue import names
from planner.errors import PlannerError

WORKLOAD = Workload(global_batch=64, sequence_length=1024)
SMALL = Job("gpt2", "polaris", workload=WORKLOAD, frameworks="ddp")


def test_a_job_answers_as_the_functions_do() -> None:
    layout = Layout(dp=4, micro_batch=16)
    named = {"workload": WORKLOAD, "framework": "ddp"}
    assert SMALL.plan() == planner.plan(
        "gpt2", "polaris", nodes=1, workload=WORKLOAD, frameworks="ddp"
    )
    assert SMALL.estimate(layout) == planner.estimate("gpt2", "polaris", layout, **named)
    simulated = planner.simulate("gpt2", "polaris", layout, **named)
    assert SMALL.simulate(layout).makespan_s == simulated.makespan_s
    assert SMALL.emit() == planner.emit(SMALL.plan())
    asked = planner.ask.host("gpt2", "polaris", nodes=1, workload=WORKLOAD, frameworks="ddp")
    assert SMALL.ask.host() == asked


def test_a_job_trains_for_its_tokens() -> None:
    job = SMALL.replaced(workload=WORKLOAD.replaced(tokens=1e9))
    layout = Layout(dp=4, micro_batch=16)
    whole = planner.whole_training(
        "gpt2", "polaris", layout, workload=job.workload, framework="ddp"
    )
    assert job.train(layout) == whole


@pytest.mark.slow
@pytest.mark.parametrize("kind", ["model", "machine", "framework"])
def test_a_job_with_descriptions_of_ones_own_survives_its_file(kind: str) -> None:
    load = {
        "model": planner.load_model,
        "machine": planner.load_machine,
        "framework": planner.load_framework,
    }[kind]
    num_read = 0
    for name in names(kind):
        own = load(name).replaced(name="mine")
        parts = {"model": "llama-3-8b", "machine": "dgx-h100", kind: own}
        frameworks = [parts.pop("framework")] if kind == "framework" else []
        try:
            job = Job(**parts, frameworks=frameworks)
        except PlannerError:  # a machine without bf16, or a framework that does not run there
            continue
        assert Job.from_toml(job.to_toml()) == job, name
        num_read += 1
    assert num_read >= 10


def test_fields_that_say_nothing_are_not_written() -> None:
    text = Job("gpt2", "polaris", workload=WORKLOAD).to_toml()
    assert text.splitlines()[:3] == ['model = "gpt2"', 'machine = "polaris"', "nodes = 1"]
    assert "frameworks" not in text
    assert "training" not in text


def test_a_file_names_files_beside_it(tmp_path: Path) -> None:
    fields = planner.load_model("gpt2").model_dump(mode="json", exclude_none=True)
    own = Job(planner.load_model("gpt2").replaced(name="mine"), "polaris", workload=WORKLOAD)
    assert fields["name"] == "gpt2"
    (tmp_path / "job.toml").write_text(own.to_toml(), encoding="utf-8")
    assert Job.read(tmp_path / "job.toml") == own
    other = Job.read(tmp_path / "job.toml", {"nodes": 2, "workload": {"global_batch": 128}})
    assert (other.nodes, other.workload.global_batch) == (2, 128)
    assert other.workload.sequence_length == WORKLOAD.sequence_length


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ('model = "gpt2"\n', "machine' is missing"),
        ('model = "gpt2"\nmachine = "polaris"\nnode = 2\n', "'node' is not known"),
        ('model = "gpt2"\nmachine = "polaris"\nnodes = 0\n', "nodes = 0 must be at least 1"),
        ('model = "gpt2"\nmachine = "polaris"\nnodes = 2\ndevices = 1\n', "part of one node"),
        ('model = "nobody"\nmachine = "polaris"\n', "nobody"),
    ],
)
def test_a_file_that_is_no_job_is_refused_in_one_sentence(text: str, message: str) -> None:
    with pytest.raises(PlannerError, match=message) as refused:
        Job.from_toml(text)
    assert "\n" not in str(refused.value)


def test_a_layout_of_other_nodes_is_refused() -> None:
    with pytest.raises(PlannerError, match="use nodes = 2 or a layout of 4 ranks"):
        SMALL.estimate(Layout(dp=8, micro_batch=8))


def test_an_unknown_question_lists_those_that_there_are() -> None:
    with pytest.raises(AttributeError, match=r"no question 'node'; planner\.ask has nodes"):
        SMALL.ask.node()
