"""Calibrate: measure this node and write a hardware profile of kind `measured`.

A device is what one rank uses: an accelerator, or on a CPU one core with one thread. All
devices measure at the same time, as they work at the same time in training; the slowest counts.
"""

from __future__ import annotations

import json
import os
import time
from collections.abc import Callable
from datetime import date
from pathlib import Path
from typing import Any

from planner.describe.files import check_description_file, write_atomically
from planner.describe.machine import Machine
from planner.errors import shorten
from planner.validate.ranks.rank import Rank, RankError, num_cores

__all__ = ["calibrate", "calibrate_to_file"]

_OPERATIONS = (
    "all_reduce",
    "all_gather",
    "reduce_scatter",
    "broadcast",
    "all_to_all",
    "send_receive",
)
_SIZES = tuple(4096 * 8**k for k in range(5))
DEVICES = ("cpu", "cuda", "xpu")


def run_rank(rank: Rank, payload: dict[str, Any], send: Callable[[Any], None]) -> dict[str, Any]:
    """Measure kernels and collectives on one rank, with the load of the cores."""
    import resource

    from planner.validate.measure import collective_times, quiet
    from planner.validate.measure.kernel_times import measure_kernels
    from planner.validate.ranks.rank import joined

    del send, payload
    rank.report("meeting the other ranks")
    with joined(rank):
        before = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
        share, watch, cpu = quiet.probe_cpu_wall(), quiet.Watch(), time.process_time()
        rows: list[dict[str, Any]] = []
        if rank.world > 1:
            import torch.distributed as dist

            dist.barrier()
            after = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
        else:
            after = before
        kernels = measure_kernels(rank)
        if rank.world > 1:
            rows = collective_times.measure(rank, _OPERATIONS, _SIZES)
        return {
            "kernels": kernels,
            "collectives": rows,
            "communicator_bytes": 1024.0 * (after - before),
            "cpu_wall": min(share, quiet.probe_cpu_wall()),
            "cpu_s": time.process_time() - cpu,
            "foreign": watch.foreign_cores(0.0),
            "seconds": time.perf_counter() - watch.since_s,
        }


def calibrate(
    device: str = "cpu",
    *,
    name: str = "measured",
    devices: int | None = None,
    limit_s: float = 120.0,
    progress: Callable[[int, str], None] | None = None,
) -> tuple[Machine, dict[str, Any]]:
    """Measure this node. Returns its profile and the raw measurements.

    Raises RankError where torch has no such device, or a rank fails.
    """
    from planner.validate.measure.profile import machine_of
    from planner.validate.ranks.launch import launch
    from planner.validate.sharding.adapter import require_torch

    version = require_torch()
    count = _count(device, devices)
    before = os.environ.get("PLANNER_CPU")
    if device == "cpu":
        os.environ["PLANNER_CPU"] = "1"
    try:
        answers = launch(
            "planner.validate.measure.node_calibration:run_rank",
            count,
            {},
            limit_s=limit_s,
            progress=progress,
        )
    finally:
        if device == "cpu":
            os.environ.pop("PLANNER_CPU")
            if before is not None:
                os.environ["PLANNER_CPU"] = before
    measured = _merge_answers(answers, device, count, version)
    return machine_of(name, measured), measured


def _count(device: str, devices: int | None) -> int:
    if device not in DEVICES:
        raise RankError(f"unknown device {device!r}; use one of {', '.join(DEVICES)}")
    if device == "cpu":
        available = num_cores()
    else:
        import torch

        module = getattr(torch, device)
        available = module.device_count() if module.is_available() else 0
        if not available:
            raise RankError(
                f"torch {torch.__version__} finds no {device} device here; use --device cpu, or "
                "install a torch with support for it"
            )
    if devices is not None and not 1 <= devices <= available:
        raise RankError(f"devices = {devices} must lie between 1 and the {available} that are here")
    return devices or available


def _merge_answers(
    answers: list[dict[str, Any]], device: str, count: int, version: str
) -> dict[str, Any]:
    """Merge the ranks' measurements: the slowest rate of each kernel, and the load."""
    from planner.validate.measure.quiet import Load

    foreign = answers[0]["foreign"]
    if foreign is not None:
        busy_cores = sum(answer["cpu_s"] for answer in answers) / answers[0]["seconds"]
        foreign = max(foreign - busy_cores, 0.0)
    load = Load(min(answer["cpu_wall"] for answer in answers), foreign, count, num_cores())
    today = date.today().isoformat()
    notes = [
        f"Measured on {today} with torch {version}, {count} ranks at once, "
        f"cpu/wall {load.cpu_wall:.2f}."
    ]
    if load.why_not:
        notes.append(f"The cores were shared while measuring ({load.why_not}): measure again.")
    return {
        "runtime": _runtime(device),
        "num_devices": count,
        "num_cores": num_cores(),
        "host_memory_bytes": os.sysconf("SC_PHYS_PAGES") * os.sysconf("SC_PAGE_SIZE"),
        "kernels": _slowest(answers),
        "collectives": answers[0]["collectives"],
        "communicator_bytes": max(answer["communicator_bytes"] for answer in answers),
        "load": load.as_dict(),
        "how": f"{today}, torch {version}, {count} at once",
        "notes": notes,
    }


def _runtime(device: str) -> str:
    import torch

    return "rocm" if device == "cuda" and torch.version.hip else device


def _slowest(answers: list[dict[str, Any]]) -> dict[str, Any]:
    kernels = [answer["kernels"] for answer in answers]
    merged = dict(kernels[0])
    for table in ("gemm", "attention"):
        merged[table] = [
            max(rows, key=lambda row: row["time_s"])
            for rows in zip(*(k[table] for k in kernels), strict=True)
        ]
    merged["copy_bytes_per_s"] = min(k["copy_bytes_per_s"] for k in kernels)
    merged["launch_s"] = max(k["launch_s"] for k in kernels)
    if merged["host_copies"]:
        merged["host_copies"] = {
            name: min(k["host_copies"][name] for k in kernels) for name in merged["host_copies"]
        }
    return merged


def calibrate_to_file(
    output: Path,
    device: str = "cpu",
    *,
    devices: int | None = None,
    limit_s: float = 120.0,
    progress: Callable[[int, str], None] | None = None,
) -> Machine:
    """Measure and write the profile, with the raw figures beside it as `.measured.json`.

    Raises WriteError where it is no .toml that can be written, before the work; RankError as
    `calibrate`.
    """
    from planner.validate.measure.profile import toml_of

    check_description_file(output)
    machine, measured = calibrate(
        device, name=output.stem, devices=devices, limit_s=limit_s, progress=progress
    )
    comment = (
        f"Written by `planner calibrate --device {device}`; the raw figures are in "
        f"{shorten(output.with_suffix('.measured.json').name)}."
    )
    raw = json.dumps(measured, indent=1, allow_nan=False)
    write_atomically(output.with_suffix(".measured.json"), raw + "\n")
    write_atomically(output, toml_of(machine, comment))
    return machine
