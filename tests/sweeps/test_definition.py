"""What a sweep file may say: lists and rows become questions, what is no sweep is one sentence."""

from __future__ import annotations

from pathlib import Path
from typing import Any, Literal

import pytest

import planner
from planner.describe.workload import Workload
from planner.errors import PlannerError
from planner.sweeps.columns import _type
from planner.sweeps.definition import _values, define_sweep, read_sweep
from planner.sweeps.questions import list_questions

JOB = {"models": "gpt2", "machines": "polaris"}


def said(*columns: str, **asked: Any) -> list[tuple[Any, ...]]:
    """Some columns of every question."""
    found = list_questions(define_sweep({**JOB, **asked})).questions
    return [tuple(q.cells.get(name) for name in columns) for q in found]


def test_every_combination_is_a_question_in_the_order_of_the_file() -> None:
    found = said("model", "nodes", "global_batch", models=["gpt2", "mistral-7b"], nodes=[1, 2],
                 workload={"global_batch": [8, 16]})  # fmt: skip
    assert found == [
        (model, nodes, batch)
        for model in ("gpt2", "mistral-7b")
        for nodes in (1, 2)
        for batch in (8, 16)
    ]


def test_rows_say_what_the_rest_leaves_open() -> None:
    rows = [
        {"nodes": 1, "workload": {"global_batch": 8}},
        {"nodes": [2, 3], "models": "mistral-7b"},
    ]
    found = said("model", "nodes", "sequence_length", "global_batch", rows=rows,
                 workload={"sequence_length": 512})  # fmt: skip
    assert found == [("gpt2", 1, 512, 8), ("mistral-7b", 2, 512, 256), ("mistral-7b", 3, 512, 256)]


def test_a_table_of_tables_is_one_after_the_other() -> None:
    layouts = [{"dp": 4}, {"dp": 2, "tp": [2, 4]}]
    assert said("asked_layout", kind="estimate", layout=layouts) == [
        ("dp=4",),
        ("dp=2 tp=2",),
        ("dp=2 tp=4",),
    ]


def test_what_ifs_and_frameworks_stand_alone_or_together() -> None:
    sets = [[], "device.memory_bytes=80GB", ["device.memory_bytes=80GB", "num_nodes=4"]]
    assert said("set", sets=sets) == [
        ("",),
        ("device.memory_bytes=80GB",),
        ("device.memory_bytes=80GB num_nodes=4",),
    ]
    named = said("asked_frameworks", frameworks=[[], "ddp", ["ddp", "fsdp2+compile"]])
    assert named == [("",), ("ddp",), ("ddp fsdp2+compile",)]


def test_fields_that_are_lists_have_several_values_in_a_list_of_lists() -> None:
    one = said("frozen", workload={"frozen": ["embedding", "head"]})
    two = said("frozen", workload={"frozen": [["embedding"], ["embedding", "head"]]})
    assert one == [("embedding+head",)]
    assert two == [("embedding",), ("embedding+head",)]


def test_sequences_are_the_models_own_where_none_is_stated() -> None:
    assert said("model", "sequence_length", models=["gpt2", "llama-3-8b"]) == [
        ("gpt2", 1024),
        ("llama-3-8b", 4096),
    ]


def test_descriptions_are_taken_as_they_are() -> None:
    small = planner.load_model("gpt2").replaced(num_layers=2, name="small")
    fast = planner.load_machine("polaris", ("device.memory_bytes=80GB",))
    job = planner.Workload(global_batch=8, sequence_length=256)
    layout = planner.Layout(dp=4, micro_batch=2)
    found = planner.sweep(models=small, machines=fast, workload=job, layout=layout,
                          kind="estimate", backend="sequential")  # fmt: skip
    one = planner.estimate(small, fast, layout, workload=job)
    assert found.rows[0]["step_time_s"] == one.step_time_s
    assert found.rows[0]["model"] == "small"


@pytest.mark.parametrize(
    ("text", "words"),
    [
        ("models = [", "is not valid TOML"),
        ("models = ['gpt2']", "the field 'machines' is missing; add it"),
        ("modls = 'gpt2'\nmachines = 'polaris'", "unknown field 'modls': did you mean models"),
        ("model = 'gpt2'\nmachines = 'polaris'", "unknown field 'model': did you mean models"),
        ("models = 'gpt3000'\nmachines = 'polaris'", "unknown model 'gpt3000'"),
        ("models = 'gpt2'\nmachines = 'polris'", "did you mean polaris"),
        ("models = 3\nmachines = 'polaris'", "3 is not a name"),
        ("models = []\nmachines = 'polaris'", "models = [] is empty"),
        ("GOOD\nnodes = ['two']", "nodes.0 = two is refused"),
        ("GOOD\nkind = 'guess'", "write 'plan' or 'estimate'"),
        ("GOOD\nframeworks = ['fsdp3']", "unknown framework 'fsdp3'"),
        ("GOOD\nsets = ['device.memory_bytes']", "is not of the form section.field=value"),
        ("GOOD\nsets = ['device.memry_bytes=80GB']", "unknown field 'device.memry_bytes'"),
        ("GOOD\nworkload = 3", "workload = 3 is not a table"),
        ("GOOD\n[workload]\nglobal_bach = 8", "the field 'global_bach' is not known"),
        ("GOOD\n[workload]\nglobal_batch = [8, 'many']", "global_batch = many is refused"),
        ("GOOD\n[workload]\nglobal_batch = []", "global_batch = [] is empty"),
        ("GOOD\nkind = 'estimate'\n[layout]\ntp = 0", "tp = 0 is refused"),
        ("GOOD\n[[rows]]\nnodes = 'x'", "sweep.toml, row 1"),
        ("GOOD\n[[rows]]\nkind = 'plan'", "kind applies to the whole sweep"),
        ("GOOD\n[layout]\ntp = 2", "a plan searches all layouts; leave layout out"),
        ("GOOD\nrows = 3", "rows must be tables"),
        (f"GOOD\nnodes = {list(range(2000))}\nleave_free = {list(range(999))}", "1,000,000"),
    ],
)
def test_what_is_no_sweep_is_one_sentence(tmp_path: Path, text: str, words: str) -> None:
    path = tmp_path / "sweep.toml"
    path.write_text(text.replace("GOOD", "models = 'gpt2'\nmachines = 'polaris'"))
    with pytest.raises(PlannerError) as refused:
        planner.sweep(path, into=tmp_path / "results.csv")
    assert words in str(refused.value)
    assert "\n" not in str(refused.value)
    # nothing was begun
    assert list(tmp_path.iterdir()) == [path]


def test_a_sweep_has_a_million_questions_at_most() -> None:
    many = {"kind": "estimate", "models": "gpt2", "machines": "polaris", "layout": {"dp": 8}}
    lengths = {"sequence_length": list(range(1, 1001))}
    (part,) = define_sweep({**many, "nodes": list(range(1, 1001)), "workload": lengths})
    assert part.num_questions == 1_000_000
    with pytest.raises(PlannerError, match="1001000 questions, more than the limit"):
        define_sweep({**many, "nodes": list(range(1, 1002)), "workload": lengths})


def test_a_file_and_fields_are_not_mixed(tmp_path: Path) -> None:
    with pytest.raises(PlannerError, match="nodes is stated in addition to the file"):
        planner.sweep(tmp_path / "sweep.toml", nodes=2)


def test_json_says_the_same_as_toml(tmp_path: Path) -> None:
    (tmp_path / "a.toml").write_text('models = "gpt2"\nmachines = "polaris"\nnodes = [1, 2]\n')
    (tmp_path / "a.json").write_text('{"models": "gpt2", "machines": "polaris", "nodes": [1, 2]}')
    (tmp_path / "b.json").write_text("[]")
    assert read_sweep(tmp_path / "a.toml") == read_sweep(tmp_path / "a.json")
    with pytest.raises(PlannerError, match="is not a table"):
        read_sweep(tmp_path / "b.json")


def test_the_type_of_a_column_is_that_of_its_field() -> None:
    annotations = (int, float | None, tuple[str, ...], Literal["a"])
    assert [_type(each) for each in annotations] == [int, float, str, str]


def test_a_list_field_takes_several_values_as_a_list_of_lists() -> None:
    assert _values(Workload, "frozen", ["head"]) == [["head"]]
    assert _values(Workload, "frozen", [[], ["head"]]) == [[], ["head"]]
