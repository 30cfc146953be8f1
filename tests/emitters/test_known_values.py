"""Known values of functions of `planner.emitters`."""

from __future__ import annotations

from planner.emitters.batch_job import slug
from planner.emitters.limits import FrameworkNames, not_expressible
from planner.emitters.recipes.megatron import uneven_stages
from planner.emitters.registry import recipes
from planner.emitters.text import (
    arguments_text,
    assigned,
    fill,
    json_text,
    toml_text,
    with_lines,
    yaml_text,
)


def test_slug() -> None:
    assert (slug('7b "$(rm -rf ~)"'), slug("mistral-7b")) == ("m-7b-rm--rf", "mistral-7b")
    assert slug("deepspeed+bucket=2e+08") == "deepspeed-bucket-2e08"


def test_not_expressible() -> None:
    assert (
        str(not_expressible("optimizer muon", "nanotron", "adamw"))
        == "the files of nanotron cannot express optimizer muon; use adamw"
    )


def test_frameworknames() -> None:
    assert FrameworkNames("schedule", "nanotron", {"gpipe": "afab"})["gpipe"] == "afab"


def test_uneven_stages() -> None:
    assert (uneven_stages([2, 2, 1]), uneven_stages([0, 1, 0])) == ("Et*2|t*2|t*1L", "E|t*1|L")


def test_recipes() -> None:
    assert "deepspeed" in recipes()


def test_fill() -> None:
    assert fill("--nodes={{ nodes }}", nodes=2) == "--nodes=2"


def test_assigned() -> None:
    assert assigned({"compile": {"enable": False}}, ["compile.enable = true", "a = 5"]) == {
        "compile": {"enable": True},
        "a": 5,
    }


def test_yaml_text() -> None:
    assert (
        yaml_text({"b": {"a": "no"}, "a": [{"x": 1e-08, "y": None}]})
        == "b:\n  a: 'no'\na:\n- x: 1.0e-08\n  y: null\n"
    )


def test_toml_text() -> None:
    assert (
        toml_text({"training": {"steps": 10, "parts": [["a"], ["b"]]}}, "ours")
        == '# ours\n\n[training]\nsteps = 10\nparts = [\n    ["a"],\n    ["b"],\n]\n'
    )


def test_json_text() -> None:
    assert json_text({"a": 1}) == '{\n  "a": 1\n}\n'


def test_arguments_text() -> None:
    assert (
        arguments_text(["--bf16", "--num-layers 32", "--sizes 4 2"])
        == "--bf16\n--num-layers=32\n--sizes\n4\n2\n"
    )


def test_with_lines() -> None:
    assert with_lines("a.args", "--x=1", ["--x 2", "--y"]) == "--x=2\n--y\n"
    assert with_lines("a.py", "", ["x = 1"]) is None
