"""Data parallelism at scale, against measured steps (benchmarks/whole/scaling.py)."""

from __future__ import annotations

import importlib
from types import ModuleType

import pytest

from planner.describe.catalogue import names
from tests import ROOT

pytestmark = [
    pytest.mark.slow,
    pytest.mark.skipif(
        "cosmoflow" not in names("model"), reason="needs the description of CosmoFlow"
    ),
]


@pytest.fixture
def scaling(monkeypatch: pytest.MonkeyPatch) -> ModuleType:
    """The benchmark, which is no part of the package."""
    monkeypatch.syspath_prepend(str(ROOT / "benchmarks"))
    return importlib.import_module("whole.scaling")


def test_cosmoflow_on_2_to_256_nodes(scaling: ModuleType) -> None:
    """argonne-lcf/dl_scaling @f09626e, cosmoflow_pytorch/results: half of the rows, held out."""
    known = scaling
    errors = {
        (framework, nodes): known.cosmoflow_s(framework, nodes) / step_s - 1
        for framework, measured in known.COSMOFLOW.items()
        for nodes, step_s in measured.items()
    }
    held_out = [pair for pair in errors if pair[1] not in known.FITTED]
    within = {pair for pair in held_out if abs(errors[pair]) <= 0.2}
    assert within >= {("horovod", nodes) for nodes in (2, 8, 32, 128)} | {("ddp", 128)}
    assert sum(abs(error) <= 0.2 for error in errors.values()) >= 10


@pytest.mark.parametrize(
    ("devices", "each", "rate"), [(2, 32, 368), (2, 64, 422), (8, 32, 1485), (8, 64, 1734)]
)
def test_resnet_50_on_p100(scaling: ModuleType, devices: int, each: int, rate: float) -> None:
    """tensorflow @5984ffef, docs_src/performance/benchmarks.md: images/s that no fit has seen."""
    batch = devices * each
    found = scaling.resnet_s(devices, batch)
    assert found == pytest.approx(batch / rate, rel=0.12)


def test_resnet_50_on_another_pascal(scaling: ModuleType) -> None:
    """jcjohnson/cnn-benchmarks @2ee75e2b: Torch on a Pascal Titan X, which no fit has seen."""
    [(measured, estimate)] = [
        (measured, estimate)
        for what, _, measured, estimate, _ in scaling.rows()
        if "Titan X" in what
    ]
    assert estimate == pytest.approx(measured, rel=0.05)


def test_speed_ups_of_the_records(scaling: ModuleType) -> None:
    """29 h on 8 P100, 1 h on 256 (Goyal et al. 2017, arXiv:1706.02677)."""
    found = {
        what: (measured, estimate)
        for what, unit, measured, estimate, _ in scaling.rows()
        if unit == "1"
    }
    measured, estimate = found["ResNet-50, 256 P100 over 8, 90 epochs"]
    assert measured == 29
    assert estimate == pytest.approx(measured, rel=0.1)
