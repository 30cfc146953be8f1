"""Measured rates are those of the work: bytes, FLOP and kernels, counted in another way."""

from __future__ import annotations

import contextlib
import json
from collections.abc import Callable
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

pytest.importorskip("torch")

import torch
from torch.utils._python_dispatch import TorchDispatchMode

from planner.describe.catalogue import load_machine
from planner.validate.measure import node_calibration as module
from planner.validate.ranks.rank import Rank, RankError
from planner.validate.sharding import adapter

CPU: Any = SimpleNamespace(device="cpu", report=lambda text: None)
SECONDS = 2.0


@pytest.fixture
def calls(monkeypatch: pytest.MonkeyPatch) -> list[Callable[[], Any]]:
    """Calls that are timed; each takes two seconds and is not made."""
    timed: list[Callable[[], Any]] = []

    def best_s(rank: Any, call: Callable[[], Any]) -> float:
        assert rank is CPU
        timed.append(call)
        return SECONDS

    monkeypatch.setattr(module, "_best_s", best_s)
    return timed


class _Kernels(TorchDispatchMode):
    """Counts the operations that compute a hyperbolic tangent or its gradient."""

    count = 0

    def __torch_dispatch__(
        self, func: Any, types: Any, args: tuple[Any, ...] = (), kwargs: Any = None
    ) -> Any:
        del types
        self.count += "tanh" in str(func)
        return func(*args, **(kwargs or {}))


def test_rates_of_matrix_products(calls: list[Callable[[], Any]]) -> None:
    rows = module._gemms(CPU)
    assert [row["precision"] for row in rows] == ["fp32"] * 4 + ["bf16"] * 4
    assert [row["n"] for row in rows] == [128, 256, 512, 1024] * 2
    for row, call in zip(rows, calls, strict=True):
        left, right = call.args  # type: ignore[attr-defined]
        products = left.shape[0] * left.shape[1] * right.shape[1]
        assert row["flop_per_s"] == 2 * products / SECONDS
        assert row["m"] == row["n"] == row["k"]


def test_rates_of_attention_leave_out_the_masked_half(calls: list[Callable[[], Any]]) -> None:
    rows = module._attention(CPU)
    assert [(row["sequence"], row["dim"]) for row in rows] == [(128, 64), (512, 64), (1024, 128)]
    for batch, row in zip((4, 4, 2), rows, strict=True):
        # two products of every query and key of 8 heads, half of which is masked
        products = 2 * 2 * batch * 8 * row["sequence"] ** 2 * row["dim"]
        assert row["flop_per_s"] == products / 2 / SECONDS
        assert row["precision"] == "fp32"
    out = calls[0]()
    assert out.shape == (4, 8, 128, 64)


def test_a_copy_reads_and_writes(calls: list[Callable[[], Any]]) -> None:
    rate = module._copy_bytes_per_s(CPU)
    target = calls[0]()
    assert rate == 2 * target.numel() * target.element_size() / SECONDS
    assert target.nbytes > 100e6  # larger than a cache


def test_a_launch_is_the_time_of_one_kernel(calls: list[Callable[[], Any]]) -> None:
    launch_s = module._launch_s(CPU)
    with _Kernels() as kernels:
        calls[0]()
    assert kernels.count == 80
    assert launch_s == SECONDS / kernels.count


def test_grouped_products_have_the_flop_of_the_plain_one(
    calls: list[Callable[[], Any]], monkeypatch: pytest.MonkeyPatch
) -> None:
    times = iter((8.0, 2.0))
    monkeypatch.setattr(module, "_best_s", lambda rank, call: calls.append(call) or next(times))
    assert module._grouped_fraction(CPU) == 2.0 / 8.0
    # as many rows as 4 groups of 128
    assert calls[1]().shape == (4 * 128, 512)


def test_a_cpu_has_no_copies_between_host_and_device() -> None:
    assert module._host_copies(CPU) is None
    device = module._device(CPU)
    assert 0 < device["context_bytes"] < device["memory_bytes"]
    assert device["num_units"] == torch.get_num_threads()


def _answer(time_s: float, **more: Any) -> dict[str, Any]:
    row = {"time_s": time_s, "flop_per_s": 1 / time_s}
    kernels = {
        "gemm": [row, {**row, "time_s": 1.0}],
        "attention": [row],
        "copy_bytes_per_s": 10 / time_s,
        "launch_s": time_s,
        "host_copies": {"host_to_device_bytes_per_s": 5 / time_s},
        "grouped_gemm_fraction": 0.5,
        **more,
    }
    load = SimpleNamespace(cpu_wall=0.5, as_dict=dict)
    return {
        "kernels": kernels,
        "collectives": [],
        "communicator_bytes": time_s,
        "load": load,
    }


def test_the_slowest_rank_counts() -> None:
    merged = module._merge_answers([_answer(2.0), _answer(4.0), _answer(3.0)], "cpu", "2.9")
    kernels = merged["kernels"]
    assert [row["time_s"] for row in kernels["gemm"]] == [4.0, 1.0]
    assert kernels["attention"] == [{"time_s": 4.0, "flop_per_s": 0.25}]
    assert (kernels["copy_bytes_per_s"], kernels["launch_s"]) == (2.5, 4.0)
    assert kernels["host_copies"] == {"host_to_device_bytes_per_s": 1.25}
    assert (merged["num_devices"], merged["communicator_bytes"]) == (3, 4.0)
    assert merged["runtime"] == "cpu"
    plain = module._merge_answers([_answer(2.0, host_copies=None)], "cpu", "2.9")
    assert plain["kernels"]["host_copies"] is None


def test_as_many_devices_as_there_are(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(module, "num_cores", lambda: 4)
    assert [module._count("cpu", count) for count in (None, 1, 4)] == [4, 1, 4]
    for count in (0, 5):
        with pytest.raises(RankError, match=f"devices = {count} must be between 1 and 4"):
            module._count("cpu", count)
    with pytest.raises(RankError, match="unknown device 'tpu'; use one of cpu, cuda, xpu"):
        module._count("tpu", None)
    if not torch.cuda.is_available():
        with pytest.raises(RankError, match="finds no cuda device here"):
            module._count("cuda", None)


def test_one_rank_measures_everything(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(module, "_CPU_SIZES", (8, 16))
    monkeypatch.setattr(module, "_CPU_ATTENTION", ((1, 4, 8),))
    monkeypatch.setattr(module, "_best_s", lambda rank, call: (call(), SECONDS)[1])
    said: list[str] = []
    rank = Rank(0, 1, 0, "planner", "nowhere", 60.0, report=said.append)
    threads = torch.get_num_threads()
    try:
        with adapter.fake_world(0, 1):
            monkeypatch.setattr(module, "joined", lambda _: contextlib.nullcontext())
            found = module.run_rank(rank)
    finally:
        torch.set_num_threads(threads)
    kernels = found["kernels"]
    assert [row["precision"] for row in kernels["gemm"]] == ["fp32", "fp32", "bf16", "bf16"]
    assert kernels["gemm"][1]["flop_per_s"] == 2 * 16**3 / SECONDS
    assert kernels["grouped_gemm_fraction"] in (None, 1.0)
    assert kernels["copy_bytes_per_s"] == 2 * 4 * 32_000_000 / SECONDS
    assert (found["collectives"], found["communicator_bytes"]) == ([], 0.0)
    assert found["load"].num_ranks == 1
    assert said[:2] == ["joining the process group", "matrix product fp32 8"]
    assert said[-1] == "launch overhead"


@pytest.mark.parametrize(("call_s", "repeats"), [(1e-3, 10), (1.0, 1), (0.0, 2000)])
def test_rounds_of_a_call_take_a_hundredth_of_a_second(call_s: float, repeats: int) -> None:
    asked: list[int] = []

    def seconds(call: Any, count: int = 1, clock: Any = None) -> float:
        del clock
        call()
        asked.append(count)
        return call_s or 1e-9

    rank: Any = SimpleNamespace(device="cpu", seconds=seconds)
    calls: list[int] = []
    assert module._best_s(rank, lambda: calls.append(1)) == (call_s or 1e-9)
    assert asked == [1, 1, *[repeats] * 6]


def test_a_profile_is_written_with_its_measurements(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    machine = load_machine("laptop")
    monkeypatch.setattr(module, "calibrate", lambda *_, **told: (machine, {"told": str(told)}))
    assert module.calibrate_to_file(tmp_path / "mine.toml", "cpu", devices=3) is machine
    raw = json.loads((tmp_path / "mine.measured.json").read_text())
    assert "'name': 'mine', 'devices': 3" in raw["told"]
    text = (tmp_path / "mine.toml").read_text()
    assert text.startswith("# Written by `planner calibrate --device cpu`; the raw figures are in")
    assert "mine.measured.json" in text
    assert load_machine(str(tmp_path / "mine.toml")).device.name == machine.device.name
