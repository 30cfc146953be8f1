"""A question's key: of everything that an answer depends on, and of nothing else."""

from __future__ import annotations

import itertools
import json
import os
import re
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

from planner.describe.catalogue import folder, load_framework, load_machine, load_model, names
from planner.sweeps import questions
from planner.sweeps.definition import define_sweep
from planner.sweeps.questions import canonical, list_questions, make_tasks
from tests.sweeps.samples import FEW, MANY

PRINT = (
    "from planner.sweeps.questions import list_questions\n"
    "from planner.sweeps.definition import define_sweep\n"
    "from tests.sweeps.samples import FEW\n"
    "print(*[q.key for q in list_questions(define_sweep(FEW)).questions])"
)


def keys(**changes: Any) -> list[str]:
    return [q.key for q in list_questions(define_sweep({**FEW, **changes})).questions]


@pytest.mark.slow
def test_keys_are_the_same_in_every_process() -> None:
    found = set()
    for seed in ("0", "1", "2"):
        environment = {**os.environ, "PYTHONHASHSEED": seed}
        done = subprocess.run(
            [sys.executable, "-c", PRINT], env=environment, capture_output=True, check=True
        )
        found.add(done.stdout.decode().strip())
    assert found == {" ".join(keys())}


@pytest.mark.parametrize(
    "changes",
    [
        {"models": ["mistral-7b"]},
        {"machines": ["vsc-5"]},
        {"sets": [["device.memory_bytes=80GB"]]},
        {"leave_free": 10},
        {"nodes": [2, 8]},
        {"frameworks": ["fsdp2"]},
        {"frameworks": [["fsdp2", "ddp"]]},
        {"kind": "plan", "layout": {}},
        {"workload": {"global_batch": 128}},
        {"layout": {"tp": [2, 4], "pp": [2, 4]}},
    ],
)
def test_every_part_of_a_question_is_in_its_key(changes: dict[str, Any]) -> None:
    assert not set(keys(**changes)) & set(keys())


def test_a_changed_file_is_another_question(tmp_path: Path) -> None:
    own = tmp_path / "own.toml"
    text = (folder("machine") / "polaris.toml").read_text(encoding="utf-8")
    own.write_text(text, encoding="utf-8")
    before = keys(machines=[str(own)])
    assert before == keys(machines=[str(own)])
    own.write_text(f"{text}\n".replace("num_devices = 4", "num_devices = 4 # as before"))
    assert before == keys(machines=[str(own)]), "a comment changes no machine"
    changed = text.replace('"Polaris, ALCF', '"My Polaris, ALCF')
    assert changed != text
    own.write_text(changed)
    assert not set(before) & set(keys(machines=[str(own)]))


def test_what_makes_cells_is_code_that_answers() -> None:
    """Else answers of other columns would stand in one table."""
    text = (questions._PACKAGE / "sweeps" / "answer_cells.py").read_text(encoding="utf-8")
    used = re.findall(r"^from planner\.(\w+)(?:\.(\w+))?.* import (.+)$", text, re.MULTILINE)
    for room, module, taken in used:
        place = f"{room}/{module}.py" if room == "sweeps" else room
        covered = {place, f"{room}.py"} & set(questions._ANSWERING)
        assert covered or taken in ("Question, Task, fingerprint", "Kind"), taken


def test_other_code_answers_other_questions(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    before = keys()
    here = questions.fingerprint()
    package = tmp_path / "planner"
    (package / "cost").mkdir(parents=True)
    (package / "cost" / "constants.toml").write_text("value = 1\n")
    monkeypatch.setattr(questions, "_PACKAGE", package)
    monkeypatch.setattr(questions, "_ANSWERING", ("cost",))
    one = questions.fingerprint.__wrapped__()
    (package / "cost" / "constants.toml").write_text("value = 2\n")
    two = questions.fingerprint.__wrapped__()
    assert len({here, one, two}) == 3
    monkeypatch.setattr("planner.sweeps.questions.fingerprint", lambda: two)
    assert not set(before) & set(keys())


@pytest.mark.parametrize("kind", ["model", "machine", "framework"])
def test_content_is_the_whole_description(kind: str) -> None:
    load = {"model": load_model, "machine": load_machine, "framework": load_framework}[kind]
    for name in names(kind):
        one = load(name)
        again = type(one).described(json.loads(canonical(one.model_dump(mode="json"))))
        assert again == one, name


def test_questions_are_asked_once_and_rows_are_kept() -> None:
    # two what-ifs that come to the same, and a question that is stated twice
    once = ["device.memory_bytes=80GB"]
    found = list_questions(define_sweep({**FEW, "sets": [once, once * 2]}))
    assert len(found.questions) == 16
    assert len({q.key for q in found.questions}) == 8
    twice = list_questions(define_sweep({**FEW, "nodes": [1, 4, 1]}))
    assert (len(twice.questions), twice.num_stated) == (8, 12)


def test_a_task_holds_what_its_questions_need_and_no_more() -> None:
    found = list_questions(define_sweep(MANY))
    made = make_tasks(found, found.questions)
    assert sorted(q.key for task in made for q in task.questions) == sorted(
        q.key for q in found.questions
    )
    for task in made:
        assert set(task.descriptions) == {n for q in task.questions for n in (q.model, q.machine)}
    # a worker that is given one after the other reads most descriptions once
    places = [q.machine for task in made for q in task.questions]
    assert sum(a != b for a, b in itertools.pairwise(places)) == len(set(places)) - 1


@pytest.mark.parametrize(("kind", "nodes"), [("plan", 1), ("estimate", None)])
def test_a_plan_without_nodes_is_of_one(kind: str, nodes: int | None) -> None:
    """The layout of an estimate states its ranks, and so its nodes."""
    few = {key: value for key, value in FEW.items() if key not in ("nodes", "layout")}
    layout = {} if kind == "plan" else {"layout": {"dp": 4}}
    (question,) = list_questions(define_sweep({**few, "kind": kind, **layout})).questions
    assert question.cells["nodes"] == nodes
