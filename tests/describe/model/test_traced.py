"""Traced modules: what a file of numbers may hold, and when a Python file is run."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from planner.describe.catalogue import load_model
from planner.describe.model.traced_file import Traced, is_python_file
from planner.describe.model.weight_blocks import weight_blocks
from planner.errors import PlannerError
from planner.show.descriptions import model_toml
from tests.cost.operators.test_custom_module import NET, traced_model


def test_parameters_are_those_of_all_blocks_shared_ones_once() -> None:
    assert NET.num_params == 5 * 8 + 3 * (64 * 32 + 2 * 64) + 10 * 64
    assert traced_model().num_params == NET.num_params
    kinds = [(block.kind, block.count) for block in weight_blocks(traced_model())]
    assert kinds == [("embedding", 1), ("layer", 3), ("head", 1)]


def test_operations_are_those_of_all_blocks() -> None:
    product, batched, attention = 2 * 100 * 64 * 32, 2 * 4 * 100 * 50 * 16, 2 * 4 * 100 * 50 * 32
    assert NET.flop == 3 * (2 * product + batched + attention)


def test_it_is_written_and_read_again(tmp_path: Path) -> None:
    path = tmp_path / "net.toml"
    path.write_text(model_toml(traced_model()))
    again = load_model(str(path))
    assert again.traced == NET
    assert again == traced_model().replaced(name="net")


@pytest.mark.parametrize("name", ["gpt2", "mixtral-8x7b", "gemma-2-27b"])
def test_so_is_every_other_model(name: str, tmp_path: Path) -> None:
    path = tmp_path / f"{name}.toml"
    path.write_text(model_toml(load_model(name)))
    assert load_model(str(path)) == load_model(name)


@pytest.mark.parametrize("roles", [["first", "repeated"], ["repeated", "last"], ["last", "first"]])
def test_blocks_begin_and_end(roles: list[str]) -> None:
    blocks: list[dict[str, Any]] = [{"name": role, "role": role} for role in roles]
    with pytest.raises(PlannerError, match="blocks must be one first block"):
        Traced(blocks=blocks)


def test_what_names_a_python_file() -> None:
    assert is_python_file("net.py:build")
    assert is_python_file("/some/where/net.py")
    assert not any(map(is_python_file, ("net.toml", "org/name", "net.py:a/b", "gpt2")))


@pytest.mark.parametrize(
    ("name", "said"),
    [
        ("net.py", "names no function; write for example net.py:build"),
        ("no/such/net.py:build", "there is no such file"),
        ("net\0.py:build", "there is no such file"),
    ],
)
def test_what_cannot_be_run_is_said(name: str, said: str) -> None:
    with pytest.raises(PlannerError, match=said):
        load_model(name)


def test_names_that_others_wrote_run_nothing(tmp_path: Path) -> None:
    path, witness = tmp_path / "net.py", tmp_path / "ran"
    path.write_text(f"open({str(witness)!r}, 'w')\n")
    with pytest.raises(PlannerError, match="is not run here"):
        load_model(f"{path}:build", run=False)
    assert not witness.exists()
