"""Text: files of arguments, as what a program makes of their lines."""

from __future__ import annotations

import argparse
from typing import Any

import pytest

from planner.choose.user_layouts import complete_layout
from planner.describe.catalogue import load_machine, load_model
from planner.describe.configurations.reading import read_configuration_text
from planner.describe.layout import Layout
from planner.emitters.text import _options, _tidy_json, _yaml_scalar, arguments_text, with_lines
from tests.emitters.emitted import files_of

_STAGES = {"pp": 16, "schedule": "1f1b", "grad_accumulation": 16}
"""So many that the layers of Llama 3 405B are written out, with bars between the stages."""
SEVERAL: dict[str, tuple[str, dict[str, Any]]] = {
    "one module": ("megatron-lm", {"recompute_modules": ("mlp",)}),
    "modules": ("megatron-lm", {"recompute_modules": ("layernorm", "mlp")}),
    "two levels": ("megatron-lm", {"cp": 4, "ulysses": 2}),
    "both": (
        "megatron-lm+bf16-gradients",
        {"cp": 4, "ulysses": 2, "recompute_modules": ("core_attn", "layernorm", "mlp"), **_STAGES},
    ),
}
"""Layouts that Megatron is told by options with several values."""


def _layout(fields: dict[str, Any]) -> Layout:
    recompute = "selective" if "recompute_modules" in fields else "none"
    whole = {"dp": 2, "tp": 4, "sequence_parallel": True, "zero_stage": 1, **fields}
    return Layout(recompute=recompute, **whole)


def _written(name: str) -> str:
    framework, fields = SEVERAL[name]
    return files_of("llama-3.1-405b", "eos", 64, _layout(fields), framework)["megatron.args"]


def _parsed(text: str) -> argparse.Namespace:
    """What Megatron-LM's parser makes of the lines of a file, which bash's mapfile hands over."""
    parser = argparse.ArgumentParser(exit_on_error=False)
    # megatron/training/arguments.py @d98e8a64
    parser.add_argument("--recompute-modules", nargs="*", type=str, default=[])
    parser.add_argument("--hierarchical-context-parallel-sizes", nargs="+", type=int, default=[])
    parser.add_argument("--grad-reduce-in-bf16", action="store_true")
    found, others = parser.parse_known_args(text.splitlines())
    assert all(word.startswith("--") for word in others), others
    return found


@pytest.mark.parametrize("name", SEVERAL)
def test_options_of_several_values_are_parsed(name: str) -> None:
    framework, fields = SEVERAL[name]
    found = _parsed(_written(name))
    assert found.recompute_modules == list(fields.get("recompute_modules", ()))
    degrees = [fields["ulysses"], fields["cp"] // fields["ulysses"]] if "cp" in fields else []
    assert found.hierarchical_context_parallel_sizes == degrees
    assert found.grad_reduce_in_bf16 == ("bf16-gradients" in framework)


@pytest.mark.parametrize("name", SEVERAL)
def test_options_of_several_values_are_read_back(name: str) -> None:
    """Also beside values with a bar, which in a script is a pipe."""
    model, machine = load_model("llama-3.1-405b"), load_machine("eos")
    layout = _layout(SEVERAL[name][1])
    read = read_configuration_text(_written(name), "megatron.args")
    found = complete_layout(model, machine, read, nodes=layout.world // 8)
    assert found.layout == layout
    assert not [note for note in found.notes if "not read" in note]


def test_further_options_leave_values_alone() -> None:
    text = arguments_text(["--sizes 2 2", "--last 1"])
    more = with_lines("a.args", text, ["--more", "--last 3"])
    assert more == "--sizes\n2\n2\n--last=3\n--more\n"
    assert with_lines("a.args", text, ["--sizes 4 1"]) == "--sizes\n4\n1\n--last=1\n"
    assert with_lines("a.args", "a.b=1\n", ["a.b = 2", "c=3"]) == "a.b=2\nc=3\n"


def test_yaml_scalars_are_quoted_if_yaml_would_read_another_value() -> None:
    assert [_yaml_scalar(each) for each in ("no", True, "adamW")] == ["'no'", "true", "adamW"]


def test_json_of_a_template_may_have_trailing_commas() -> None:
    assert _tidy_json('{"a": [",}", 1,],}') == '{\n  "a": [\n    ",}",\n    1\n  ]\n}\n'


def test_options_of_a_table_are_lines_of_an_argument_file() -> None:
    table = {"bf16": True, "fp16": False, "pp": 4, "sizes": (4, 2), "modules": ()}
    assert _options(table) == "--bf16\n--pp=4\n--sizes\n4\n2\n"
