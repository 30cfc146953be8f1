"""Preferences: every value with its source, and a user's file on top."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

import planner
from planner.choose.preferences import VARIABLE, preferences, user_changes, user_file
from planner.choose.search.recommendation import setup_effort
from planner.cost.shards.layouts import Layouts
from planner.describe.layout import OFFLOAD, Layout
from planner.errors import DescriptionError, PlannerError
from planner.show.descriptions import quantities

Write = Callable[[str], Path]


@pytest.fixture
def write(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Write:
    """Writes a user's file of preferences and names it in the environment."""

    def written(text: str) -> Path:
        path = tmp_path / "mine.toml"
        path.write_text(text)
        monkeypatch.setenv(VARIABLE, str(path))
        return path

    return written


def test_every_judgement_says_whose_it_is() -> None:
    judged = dict(quantities(preferences()))
    assert len(judged) > 50
    assert all(each.kind == "assumed" and len(each.source) > 10 for each in judged.values())


def test_efforts_name_columns_of_a_layout() -> None:
    efforts = preferences().effort
    assert efforts.used.keys() == efforts.doubling.keys() <= Layout.model_fields.keys()
    assert set(efforts.offload) == set(OFFLOAD)
    columns = preferences().change.keys() - {"framework", "tp_beyond_wires"}
    assert columns <= Layout.model_fields.keys()


def test_a_user_overrides_one_value_by_a_number(write: Write) -> None:
    layouts = Layouts.of(Layout(tp=2))
    before = setup_effort(layouts).item()
    path = write("[effort.used]\ntp = 4\n")
    assert setup_effort(layouts).item() == before + 3
    assert user_changes() == {"effort.used.tp": (1.0, 4.0)}
    changed = preferences().effort.used["tp"]
    assert changed.kind == "assumed"
    # a long path is shortened to its end
    assert str(path).endswith(changed.source.removeprefix("..."))


def test_a_value_may_have_a_source_of_its_own(write: Write) -> None:
    write('[recommendation]\ntolerance = { value = 0.2, kind = "measured", source = "our runs" }\n')
    assert preferences().tolerance == 0.2
    assert preferences().recommendation.tolerance.source == "our runs"


def test_a_plan_follows_a_users_preferences_and_says_so(write: Write) -> None:
    job = planner.Workload(global_batch=64, sequence_length=1024)
    assert not any("Preferences" in note for note in _plan(job).notes)
    write("[recommendation]\ntolerance = 1\n[effort.used]\nmicro_batch = 9\n")
    answer = _plan(job)
    assert answer.recommended is not None
    assert answer.recommended.layout.micro_batch == 1
    assert any(
        "recommendation.tolerance = 1 (not 0.05), effort.used.micro_batch = 9 (not 0)." in note
        for note in answer.notes
    )


def _plan(workload: planner.Workload) -> planner.Plan:
    return planner.plan("gpt2", "polaris", nodes=1, workload=workload, frameworks=("ddp",))


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("[effort.used]\ntq = 1\n", "effort.used.tq is no preference; use one of tp, pp"),
        ("effort = 1\n", "effort holds several preferences; write"),
        ("[recommendation]\ntolerance = 2\n", "recommendation.tolerance = 2"),
        ("[recommendation]\ntolerance = 'much'\n", "write a number"),
        ("[recommendation.tolerance]\nvalu = 2\n", "'recommendation.tolerance.value' is missing"),
    ],
)
def test_a_users_mistake_is_one_sentence(write: Write, text: str, message: str) -> None:
    write(text)
    with pytest.raises(DescriptionError, match=r"mine\.toml") as error:
        preferences()
    assert message in str(error.value)


def test_a_file_that_is_named_must_exist(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv(VARIABLE, "/no/such/file.toml")
    with pytest.raises(PlannerError, match=r"cannot read /no/such/file\.toml"):
        preferences()


def test_the_usual_place_is_read_if_it_is_there(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.delenv(VARIABLE)
    monkeypatch.setenv("XDG_CONFIG_HOME", str(tmp_path))
    assert user_file() is None
    path = tmp_path / "planner" / "preferences.toml"
    path.parent.mkdir()
    path.write_text("[recommendation]\ntolerance = 0.1\n")
    assert user_file() == path
    assert preferences().tolerance == 0.1


@pytest.mark.parametrize(
    ("fields", "effort"),
    [
        # values of preferences.toml, added by hand
        ({"dp": 8}, 0.0),
        ({"tp": 2}, 1.0 + 0.5),
        ({"tp": 8}, 1.0 + 3 * 0.5),
        ({"pp": 4, "schedule": "1f1b", "grad_accumulation": 4}, 2.0 + 2 * 0.5),
        ({"micro_batch": 8}, 3 * 0.25),
        ({"dp": 8, "zero_stage": 1}, 0.25),
        ({"dp": 8, "zero_stage": 3}, 0.25),
        ({"dp": 8, "zero_stage": 3, "dp_shard": 4}, 0.25 + 0.5),
        ({"dp": 8, "zero_stage": 3, "reshard": 4}, 0.25 + 0.5),
        ({"dp": 8, "zero_stage": 3, "offload": "optimizer-cpu"}, 0.25 + 2.0),
        ({"dp": 8, "tp": 2, "zero_stage": 1, "micro_batch": 2}, 1.5 + 0.25 + 0.25),
    ],
)
def test_efforts_are_added(fields: dict[str, Any], effort: float) -> None:
    assert setup_effort(Layouts.of(Layout(**fields))).item() == effort
