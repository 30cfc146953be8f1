"""Small modules traced in this process: products, splits and stages, beside torch's own.

A user's file is traced in a worker of its own, which takes longer to start.
"""

from __future__ import annotations

import functools
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

torch = pytest.importorskip("torch")

from torch.utils.flop_counter import FlopCounterMode  # noqa: E402

from planner.describe.model.traced_file import Traced  # noqa: E402
from planner.errors import DescriptionError  # noqa: E402
from planner.validate.sharding import own_module  # noqa: E402
from planner.validate.trace.module_trace import trace_file  # noqa: E402
from tests.validate.train import own_modules  # noqa: E402

pytestmark = pytest.mark.filterwarnings("ignore")
FILE = str(own_modules.__file__)
NAMES = ("toy", "mlp", "odd", "gated", "conv", "skip")


@pytest.fixture(autouse=True)
def _paths() -> Iterator[None]:
    """A traced file's folder is on the path of imports, which is put back."""
    paths = [*sys.path]
    yield
    sys.path[:] = paths


@functools.cache
def traced(name: str) -> Traced:
    """What was traced of a module."""
    return Traced.model_validate(trace_file(FILE, name))


@pytest.mark.parametrize(
    ("name", "splits", "width", "units"),
    [
        ("toy", {"net1": "column", "net2": "row"}, 10, ("net1", "net2")),
        ("odd", {"0": "column", "2": "row", "4": "gathered"}, 64, ("0", "2", "4")),
        ("conv", {}, 0, ("0", "2")),
        ("skip", {"one": "column", "two": "row"}, 8, ()),
    ],
)
def test_splits_and_units_follow_the_graph(
    name: str, splits: dict[str, str], width: int, units: tuple[str, ...]
) -> None:
    found = traced(name)
    assert {split.name: split.kind for split in found.splits} == splits
    assert (found.split_width, found.units) == (width, units)
    assert bool(found.no_tp) == (not splits)
    assert bool(found.no_pp) == (not units)


@pytest.mark.parametrize("name", NAMES)
def test_parameters_and_products_are_those_of_torch(name: str) -> None:
    module, sample = getattr(own_modules, name)()
    with FlopCounterMode(display=False) as counter:
        module(torch.zeros((4, *sample.shape)))
    assert traced(name).flop == counter.get_total_flops() / 4
    assert traced(name).num_params == sum(each.numel() for each in module.parameters())


def test_a_layer_keeps_its_input() -> None:
    """Of the MLP: the sample, and for every layer what GELU reads and what it hands on."""
    kept = sum(block.count * block.saved.fp32 for block in traced("mlp").blocks)
    assert kept == 4 * 64 * (4 + 4)
    assert traced("mlp").results.fp32 == 4 * 64


def test_stages_one_after_the_other_are_the_module() -> None:
    module, sample = own_modules.mlp()
    x = torch.randn((3, *sample.shape))
    expected, units = module(x), ["0", "2", "4", "6"]
    first = own_module.make_stage(own_modules.mlp()[0], units, ["4"], 0)
    last = own_module.make_stage(own_modules.mlp()[0], units, ["4"], 1)
    for part in (first, last):
        part.load_state_dict(
            {name: module.state_dict()[name] for name in part.state_dict()}, strict=True
        )
    assert torch.equal(last(first(x)), expected)
    names = {*first.state_dict()}, {*last.state_dict()}
    assert names == ({"0.weight", "2.weight"}, {"4.weight", "6.weight"})


BATCHES = """
import torch
class Pairs(torch.nn.Module):
    def __init__(self):
        super().__init__()
        self.part = torch.nn.Linear(4, 4)
    def forward(self, x):
        y = self.part(x)
        return y @ y.T
class Odd(Pairs):
    def forward(self, x):
        return self.part(x) if len(x) < 4 else self.part(self.part(x))
def pairs(): return Pairs(), torch.empty(4)
def odd(): return Odd(), torch.empty(4)
def nothing(): return Pairs()
def words(): return Pairs(), "x"
def broken(): raise ValueError("no data")
"""


@pytest.mark.parametrize(
    ("name", "words"),
    [
        ("pairs", "grows with the square of the batch|not linear in the batch"),
        ("odd", "different operations for 2 and 4 samples"),
        ("nothing", "returned a Pairs; return \\(module, sample\\)"),
        ("words", "as the sample; return \\(module, sample\\)"),
        ("broken", "no data"),
        ("absent", "has no function 'absent' \\(it defines Odd, Pairs, broken"),
    ],
)
def test_what_has_no_costs_per_sample_is_refused(name: str, words: str, tmp_path: Path) -> None:
    file: Any = tmp_path / "batches.py"
    file.write_text(BATCHES)
    with pytest.raises(DescriptionError, match=words):
        trace_file(str(file), name)
