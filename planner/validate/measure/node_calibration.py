"""Calibrate: measure all devices of this node at once (on a CPU: cores), and write a profile."""

import json
import os
import platform
import resource
import time
from collections.abc import Callable
from datetime import date
from functools import partial
from pathlib import Path
from typing import Any
from unittest import mock

import torch
import torch.distributed as dist
import torch.nn.functional as F

from planner.describe.files import check_description_file, write_atomically
from planner.describe.machine import Machine
from planner.errors import shorten
from planner.validate.measure.collective_times import IN_STEP, time_operations
from planner.validate.measure.profile import machine_of, toml_of
from planner.validate.measure.quiet import Load, Watch, repeat
from planner.validate.ranks.launch import Progress, launch
from planner.validate.ranks.rank import Rank, RankError, gather_objects, joined, num_cores
from planner.validate.sharding.adapter import require_torch

_CPU_SIZES = (128, 256, 512, 1024)
_DEVICE_SIZES = (512, 1024, 2048, 4096, 8192)
_CPU_ATTENTION = ((4, 128, 64), (4, 512, 64), (2, 1024, 128))
_DEVICE_ATTENTION = ((8, 2048, 64), (8, 2048, 128), (4, 4096, 128), (2, 8192, 128))
_HEADS, _CHAIN = 8, 40
_MIN_S, _MAX_REPEATS, _ROUNDS = 0.06, 2000, 6


def _best_s(rank: Rank, call: Callable[[], Any]) -> float:
    """Time of one call, on a CPU its processor time; RankError if its fastest rounds differ [s]."""
    clock = time.thread_time if rank.device == "cpu" else time.perf_counter
    rank.seconds(call)
    call_s = max(rank.seconds(call, 1, clock), 1e-7)
    repeats = int(min(max(_MIN_S / _ROUNDS / call_s, 1), _MAX_REPEATS))
    rounds = repeat(lambda: [rank.seconds(call, repeats, clock) for _ in range(_ROUNDS)])
    return rounds.checked().time_s


def _gemms(rank: Rank) -> list[dict[str, Any]]:
    dtypes = {"fp32": torch.float32, "bf16": torch.bfloat16}
    if rank.device != "cpu":
        dtypes["fp16"] = torch.float16
    if rank.device.startswith("cuda"):
        dtypes["tf32"] = torch.float32
    rows: list[dict[str, Any]] = []
    for precision, dtype in dtypes.items():
        if rank.device.startswith("cuda"):
            torch.backends.cuda.matmul.allow_tf32 = precision == "tf32"
        for size in _CPU_SIZES if rank.device == "cpu" else _DEVICE_SIZES:
            rank.report(f"matrix product {precision} {size}")
            a = torch.ones(size, size, dtype=dtype, device=rank.device)
            out = torch.empty_like(a)
            seconds = _best_s(rank, partial(torch.mm, a, a, out=out))
            shape = {"m": size, "n": size, "k": size}
            rate = 2 * size**3 / seconds
            rows.append({"precision": precision, **shape, "time_s": seconds, "flop_per_s": rate})
    return rows


def _grouped_fraction(rank: Rank) -> float | None:
    """Rate of grouped matrix products / rate of one plain product of equal FLOP, in bf16."""
    rank.report("grouped matrix products")
    groups, rows, width = (4, 128, 512) if rank.device == "cpu" else (8, 2048, 4096)
    x = torch.ones(groups * rows, width, dtype=torch.bfloat16, device=rank.device)
    weights = torch.ones(groups, width, width, dtype=torch.bfloat16, device=rank.device)
    ends = torch.arange(1, groups + 1, device=rank.device, dtype=torch.int32) * rows
    try:
        grouped = _best_s(rank, lambda: F.grouped_mm(x, weights, offs=ends))
    except (AttributeError, RuntimeError):
        return None  # this torch has no grouped product for this device
    return _best_s(rank, lambda: torch.mm(x, weights[0])) / grouped


def _attention(rank: Rank) -> list[dict[str, Any]]:
    cpu = rank.device == "cpu"
    dtype = torch.float32 if cpu else torch.bfloat16
    rows = []
    for batch, sequence, dim in _CPU_ATTENTION if cpu else _DEVICE_ATTENTION:
        rank.report(f"attention {sequence} x {dim}")
        q, k, v = (
            torch.randn(batch, _HEADS, sequence, dim, dtype=dtype, device=rank.device)
            for _ in range(3)
        )
        seconds = _best_s(rank, partial(F.scaled_dot_product_attention, q, k, v, is_causal=True))
        rows.append(
            {
                "precision": "fp32" if cpu else "bf16",
                "sequence": sequence,
                "dim": dim,
                "time_s": seconds,
                # the masked half is not counted
                "flop_per_s": 2.0 * batch * _HEADS * sequence**2 * dim / seconds,
            }
        )
    return rows


def _copy_bytes_per_s(rank: Rank) -> float:
    """Bytes read and written per second by a device-to-device copy larger than any cache [B/s]."""
    rank.report("memory bandwidth")
    count = 32_000_000 if rank.device == "cpu" else 256_000_000
    source = torch.ones(count, device=rank.device)
    target = torch.empty_like(source)
    return 2 * 4 * count / _best_s(rank, lambda: target.copy_(source))


def _launch_s(rank: Rank) -> float:
    """Host time per kernel of a chain of tiny operations, forward and backward [s]."""
    rank.report("launch overhead")
    x = torch.ones(8, 8, device=rank.device, requires_grad=True)

    def chain() -> None:
        y = x
        for _ in range(_CHAIN):
            y = torch.tanh(y)
        y.sum().backward()

    return _best_s(rank, chain) / (2 * _CHAIN)


def _host_copies(rank: Rank) -> dict[str, float] | None:
    """Copy rates host to device and back, pinned memory [B/s]; None on a CPU."""
    if rank.device == "cpu":
        return None
    rank.report("host-device copies")
    host = torch.ones(64_000_000).pin_memory()
    device = torch.empty_like(host, device=rank.device)
    down_s = _best_s(rank, lambda: device.copy_(host, non_blocking=True))
    up_s = _best_s(rank, lambda: host.copy_(device, non_blocking=True))
    size = 4.0 * host.numel()
    return {"host_to_device_bytes_per_s": size / down_s, "device_to_host_bytes_per_s": size / up_s}


def _device(rank: Rank) -> dict[str, Any]:
    if rank.device == "cpu":
        return {
            "name": _cpu_name(),
            "memory_bytes": _memory_bytes(),
            "context_bytes": resource.getrusage(resource.RUSAGE_SELF).ru_maxrss * 1024,
            "num_units": torch.get_num_threads(),
        }
    module = getattr(torch, rank.device.split(":")[0])
    properties = module.get_device_properties(rank.device)
    free, total = module.mem_get_info()
    subslices = getattr(properties, "gpu_subslice_count", 1)
    return {
        "name": properties.name,
        "memory_bytes": total,
        "context_bytes": max(total - free - module.memory_reserved(), 0),
        "num_units": getattr(properties, "multi_processor_count", None) or subslices,
    }


def _memory_bytes() -> int:
    return os.sysconf("SC_PHYS_PAGES") * os.sysconf("SC_PAGE_SIZE")


def _cpu_name() -> str:
    try:
        for line in Path("/proc/cpuinfo").read_text().splitlines():
            if line.startswith("model name"):
                return line.split(":", 1)[1].strip()[:80]
    except OSError:
        pass
    return platform.processor() or platform.machine()


_OPERATIONS = (*IN_STEP, "all_to_all")
_SIZES = tuple(4096 * 8**k for k in range(5))
_DEVICES = ("cpu", "cuda", "xpu")


def run_rank(rank: Rank, *_: Any) -> dict[str, Any]:
    """Measure kernels and collectives on one rank, with the load of the cores."""
    rank.report("joining the process group")
    with joined(rank):
        before = after = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
        watch = Watch()
        if rank.world > 1:
            dist.barrier()
            after = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
        kernels = {
            "device": _device(rank),
            "gemm": _gemms(rank),
            "attention": _attention(rank),
            "grouped_gemm_fraction": _grouped_fraction(rank),
            "copy_bytes_per_s": _copy_bytes_per_s(rank),
            "launch_s": _launch_s(rank),
            "host_copies": _host_copies(rank),
        }
        collectives: list[dict[str, Any]] = []
        if rank.world > 1:
            collectives = time_operations(rank, _OPERATIONS, _SIZES, refuses_scatter=True)
        return {
            "kernels": kernels,
            "collectives": collectives,
            "communicator_bytes": 1024.0 * (after - before),
            "load": watch.load(gather_objects(watch.report())),
        }


def calibrate(
    device: str = "cpu",
    *,
    name: str = "measured",
    devices: int | None = None,
    limit_s: float = 120.0,
    progress: Progress = None,
) -> tuple[Machine, dict[str, Any]]:
    """Measure this node. Returns its profile and the raw measurements."""
    version = require_torch()
    count = _count(device, devices)
    entry = "planner.validate.measure.node_calibration:run_rank"
    with mock.patch.dict(os.environ, {"PLANNER_CPU": "1"} if device == "cpu" else {}):
        answers = launch(entry, count, {}, limit_s=limit_s, progress=progress)
    measured = _merge_answers(answers, device, version)
    return machine_of(name, measured), measured


def _count(device: str, devices: int | None) -> int:
    if device not in _DEVICES:
        raise RankError(f"unknown device {device!r}; use one of {', '.join(_DEVICES)}")
    if device == "cpu":
        available = num_cores()
    else:
        module = getattr(torch, device)
        available = module.device_count() if module.is_available() else 0
        if not available:
            raise RankError(
                f"torch {torch.__version__} finds no {device} device here; use --device cpu, or "
                "install a torch with support for it"
            )
    if devices is not None and not 1 <= devices <= available:
        raise RankError(
            f"devices = {devices} must be between 1 and {available}, the devices of this machine"
        )
    return devices or available


def _merge_answers(answers: list[dict[str, Any]], device: str, version: str) -> dict[str, Any]:
    count, today = len(answers), date.today().isoformat()
    load: Load = answers[0]["load"]
    when = f"Measured on {today} with torch {version}, {count} ranks at once"
    return {
        "runtime": "rocm" if device == "cuda" and torch.version.hip else device,
        "num_devices": count,
        "num_cores": num_cores(),
        "host_memory_bytes": _memory_bytes(),
        "kernels": _slowest(answers),
        "collectives": answers[0]["collectives"],
        "communicator_bytes": max(answer["communicator_bytes"] for answer in answers),
        "load": load.as_dict(),
        "how": f"{today}, torch {version}, {count} at once",
        "notes": [f"{when}, cpu/wall {load.cpu_wall:.2f}."],
    }


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
    progress: Progress = None,
) -> Machine:
    """Measure this node and write its profile, and the raw figures as `.measured.json`."""
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
