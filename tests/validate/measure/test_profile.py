"""Profiles: what was measured is given back by the machine they describe."""

from __future__ import annotations

import itertools
import json
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import pytest

from planner.describe.catalogue import load_machine
from planner.describe.layout import Layout
from planner.describe.workload import Workload
from planner.errors import PlannerError
from planner.job import Job
from planner.validate.ranks.rank import RankError

pytestmark = pytest.mark.filterwarnings("ignore")
pytest.importorskip("torch", exc_type=ImportError)


_LINKS = {
    "latency_s": 2e-3,
    "bytes_per_s": 1e9,
    "start_s": 5e-3,
    "all_gather": 0.7,
    "reduce_scatter": 0.4,
    "send_recv": 2.0,
}


def _measured(links: Mapping[str, float] = _LINKS, runtime: str = "cpu") -> dict[str, Any]:
    """Figures of an imagined node whose collectives follow the planner's formulas exactly."""
    from planner.validate.measure.profile import _FITTED, on_one_node

    view = on_one_node(2, links)
    rows = [
        {"name": name, "ranks": 2, "bytes": size, "in_step_s": float(formula(view, size))}
        for name, formula in _FITTED.items()
        for size in (4096, 262144, 4194304, 67108864)
    ]
    gemm = [
        {"precision": p, "m": n, "n": n, "k": n, "flop_per_s": f, "time_s": 2 * n**3 / f}
        for p, f in (("fp32", 1e11), ("bf16", 4e11))
        for n in (256, 1024)
    ]
    kernels = {
        "device": {"name": 'CPU "x"', "memory_bytes": 32e9, "context_bytes": 3e8, "num_units": 1},
        "gemm": gemm,
        "attention": [{"precision": "fp32", "sequence": 512, "dim": 64, "flop_per_s": 3e10}],
        "copy_bytes_per_s": 2e10,
        "launch_s": 4e-6,
        "host_copies": None,
        "grouped_gemm_fraction": 0.8,
    }
    return {
        "runtime": runtime,
        "num_devices": 2,
        "num_cores": 2,
        "host_memory_bytes": 32e9,
        "kernels": kernels,
        "collectives": rows,
        "communicator_bytes": 1e7,
        "how": "2026, torch",
        "notes": ["Imagined."],
    }


def test_a_profile_loads_wherever_a_machine_name_does(tmp_path: Path) -> None:
    from planner.validate.measure.profile import machine_of, toml_of

    machine = machine_of("mine", _measured())
    path = tmp_path / "mine.toml"
    path.write_text(toml_of(machine, "A comment."))
    loaded = load_machine(str(path))
    assert loaded.node.num_devices == 2
    assert loaded.device.name == 'CPU "x"'
    assert loaded.peak("bf16") == 4e11
    assert loaded.device.peak_flop_per_s["fp32"].kind == "measured"
    assert loaded.device.memory_bytes.value == 16e9


def test_copies_of_the_host_are_shared_on_a_cpu_and_grouped_products_are_no_faster() -> None:
    from planner.validate.measure.profile import machine_of

    measured = _measured()
    measured["kernels"] |= {"host_copies": {"to": 9e9, "from": 7e9}, "grouped_gemm_fraction": 1.2}
    shared = machine_of("mine", measured)
    # both ranks of a CPU copy at once; an accelerator's copies are not the host's
    assert shared.node.host_memory_bytes_per_s.value == 2 * 2e10
    assert shared.device.grouped_gemm_fraction.value == 1.0
    links = {name: figure for name, figure in _LINKS.items() if name[:5] != "start"}
    other = machine_of("mine", {**_measured(links, "cuda"), "kernels": measured["kernels"]})
    assert other.node.host_memory_bytes_per_s.value == 2e10
    assert other.node.host_link_bytes_per_s.value == 7e9


@pytest.mark.parametrize("runtime", ["cpu", "cuda"])
def test_a_profile_gives_back_the_collectives_it_was_made_from(runtime: str) -> None:
    from planner.cost.network.topology import group_view
    from planner.validate.measure.profile import _FITTED, machine_of

    # NCCL's protocols start at once
    links = {
        name: figure for name, figure in _LINKS.items() if runtime == "cpu" or name[:5] != "start"
    }
    measured = _measured(links, runtime)
    machine = machine_of("mine", measured)
    assert (machine.node.fabric.start_s is None) == (runtime == "cuda")
    view = group_view(machine, 2, 1)
    for row in measured["collectives"]:
        estimate = float(_FITTED[row["name"]](view, float(row["bytes"])))
        assert estimate == pytest.approx(row["in_step_s"], rel=0.1), row


def test_a_fit_that_misses_its_own_measurements_is_refused() -> None:
    from planner.validate.measure.profile import machine_of

    measured = _measured()
    for row, delay in zip(measured["collectives"], itertools.cycle((1, 40, 1, 1, 30))):
        row["in_step_s"] *= delay
    with pytest.raises(
        PlannerError, match=r"all_reduce.*: the fit misses .*, more than 50 %; measure"
    ):
        machine_of("mine", measured)


def test_the_error_of_a_fit_widens_the_interval() -> None:
    from planner.validate.measure.profile import machine_of

    measured = _measured()
    exact = machine_of("mine", measured)
    for row in measured["kernels"]["gemm"]:
        row["time_s"] *= 2 if row["n"] == 256 else 1.1
    rough = machine_of("mine", measured)
    assert exact.device.sustained_fraction.error < 0.15 < rough.device.sustained_fraction.error
    workload = Workload(sequence_length=512, global_batch=4, precision="fp32")
    spreads = []
    for machine in (exact, rough):
        job = Job("gpt2", machine, workload=workload, frameworks="ddp")
        estimate = job.estimate(Layout(dp=2, micro_batch=2))
        low, high = estimate.interval_step_time_s
        spreads.append((high - low) / estimate.step_time_s)
    assert spreads[1] > 1.2 * spreads[0]


def test_no_such_device(tmp_path: Path) -> None:
    from planner.validate.measure.node_calibration import calibrate, calibrate_to_file

    with pytest.raises(RankError, match="unknown device"):
        calibrate("tpu")
    with pytest.raises(PlannerError, match=r"must end in \.toml"):
        calibrate_to_file(tmp_path / "x.json")
    with pytest.raises(RankError, match="devices = 0"):
        calibrate("cpu", devices=0)


@pytest.mark.alone
def test_calibrate_this_node(tmp_path: Path) -> None:
    from planner.validate.measure.node_calibration import calibrate_to_file

    try:
        machine = calibrate_to_file(tmp_path / "here.toml", "cpu", devices=2)
    except PlannerError as refusal:
        # others use these cores: no profile is better than a wrong one
        if "on idle cores" not in str(refusal) or list(tmp_path.iterdir()):
            raise
        return
    loaded = load_machine(str(tmp_path / "here.toml"))
    assert loaded.device.launch_s.value == pytest.approx(machine.device.launch_s.value, rel=1e-4)
    assert loaded.device.launch_s.kind == "measured"
    assert json.loads((tmp_path / "here.measured.json").read_text())["collectives"]
