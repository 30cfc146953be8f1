"""Kernels: rates of matrix products, copies, attention and launches on one rank's device."""

from __future__ import annotations

import time
from collections.abc import Callable
from functools import partial
from typing import Any

from planner.validate.ranks.rank import Rank

__all__ = ["measure_kernels"]

_CPU_SIZES = (128, 256, 512, 1024)
_DEVICE_SIZES = (512, 1024, 2048, 4096, 8192)
_CPU_ATTENTION = ((4, 128, 64), (4, 512, 64), (2, 1024, 128))
_DEVICE_ATTENTION = ((8, 2048, 64), (8, 2048, 128), (4, 4096, 128), (2, 8192, 128))
_HEADS = 8
_CHAIN = 40
_MIN_S, _MAX_REPEATS = 0.06, 2000


def _best_s(rank: Rank, call: Callable[[], Any]) -> float:
    """Low quantile of the time of one call: a busy neighbour only makes it slower [s]."""
    call()
    rank.synchronise()
    start = time.perf_counter()
    call()
    rank.synchronise()
    call_s = max(time.perf_counter() - start, 1e-7)
    repeats = int(min(max(_MIN_S / 6 / call_s, 1), _MAX_REPEATS))
    rounds = []
    for _ in range(6):
        start = time.perf_counter()
        for _ in range(repeats):
            call()
        rank.synchronise()
        rounds.append((time.perf_counter() - start) / repeats)
    return sorted(rounds)[1]


def _dtypes(rank: Rank) -> dict[str, Any]:
    import torch

    dtypes = {"fp32": torch.float32, "bf16": torch.bfloat16}
    if rank.device != "cpu":
        dtypes["fp16"] = torch.float16
    if rank.device.startswith("cuda"):
        dtypes["tf32"] = torch.float32
    return dtypes


def _gemms(rank: Rank) -> list[dict[str, Any]]:
    import torch

    rows = []
    for precision, dtype in _dtypes(rank).items():
        if rank.device.startswith("cuda"):
            torch.backends.cuda.matmul.allow_tf32 = precision == "tf32"
        for size in _CPU_SIZES if rank.device == "cpu" else _DEVICE_SIZES:
            rank.report(f"matrix product {precision} {size}")
            a = torch.ones(size, size, dtype=dtype, device=rank.device)
            out = torch.empty_like(a)
            seconds = _best_s(rank, partial(torch.mm, a, a, out=out))
            rows.append(
                {
                    "precision": precision,
                    "m": size,
                    "n": size,
                    "k": size,
                    "time_s": seconds,
                    "flop_per_s": 2 * size**3 / seconds,
                }
            )
    return rows


def _grouped_fraction(rank: Rank) -> float | None:
    """Rate of grouped matrix products / rate of one plain product of equal FLOP, in bf16."""
    import torch
    import torch.nn.functional as F

    rank.report("grouped matrix products")
    groups, rows, width = (4, 128, 512) if rank.device == "cpu" else (8, 2048, 4096)
    x = torch.ones(groups * rows, width, dtype=torch.bfloat16, device=rank.device)
    weights = torch.ones(groups, width, width, dtype=torch.bfloat16, device=rank.device)
    ends = torch.arange(1, groups + 1, device=rank.device, dtype=torch.int32) * rows
    try:
        grouped = _best_s(rank, lambda: F.grouped_mm(x, weights, offs=ends))
    except (AttributeError, RuntimeError):
        return None  # this torch has none for this device
    return _best_s(rank, lambda: torch.mm(x, weights[0])) / grouped


def _attention(rank: Rank) -> list[dict[str, Any]]:
    import torch
    import torch.nn.functional as F

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
    import torch

    rank.report("memory bandwidth")
    count = 32_000_000 if rank.device == "cpu" else 256_000_000
    source = torch.ones(count, device=rank.device)
    target = torch.empty_like(source)
    return 2 * 4 * count / _best_s(rank, lambda: target.copy_(source))


def _launch_s(rank: Rank) -> float:
    """Host time per kernel of a chain of tiny operations, forward and backward [s]."""
    import torch

    rank.report("launch overhead")
    x = torch.ones(8, 8, device=rank.device, requires_grad=True)

    def chain() -> None:
        y = x
        for _ in range(_CHAIN):
            y = torch.tanh(y)
        y.sum().backward()

    return _best_s(rank, chain) / (2 * _CHAIN)


def _host_copies(rank: Rank) -> dict[str, float] | None:
    """Host to device and back, pinned memory [B/s]; None where there is no device."""
    if rank.device == "cpu":
        return None
    import torch

    rank.report("host-device copies")
    host = torch.ones(64_000_000).pin_memory()
    device = torch.empty_like(host, device=rank.device)
    size = 4.0 * host.numel()
    return {
        "host_to_device_bytes_per_s": size
        / _best_s(rank, lambda: device.copy_(host, non_blocking=True)),
        "device_to_host_bytes_per_s": size
        / _best_s(rank, lambda: host.copy_(device, non_blocking=True)),
    }


def _device(rank: Rank) -> dict[str, Any]:
    """Name, memory, context and units that the device reports."""
    import os
    import resource

    import torch

    if rank.device == "cpu":
        resident = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss * 1024
        total = os.sysconf("SC_PHYS_PAGES") * os.sysconf("SC_PAGE_SIZE")
        return {
            "name": _cpu_name(),
            "memory_bytes": total,
            "context_bytes": resident,
            "num_units": torch.get_num_threads(),
        }
    module = getattr(torch, rank.device.split(":")[0])
    properties = module.get_device_properties(rank.device)
    free, total = module.mem_get_info()
    units = getattr(properties, "multi_processor_count", None) or getattr(
        properties, "gpu_subslice_count", 1
    )
    return {
        "name": properties.name,
        "memory_bytes": total,
        "context_bytes": max(total - free - module.memory_reserved(), 0),
        "num_units": units,
    }


def _cpu_name() -> str:
    import platform
    from pathlib import Path

    try:
        for line in Path("/proc/cpuinfo").read_text().splitlines():
            if line.startswith("model name"):
                return line.split(":", 1)[1].strip()[:80]
    except OSError:
        pass
    return platform.processor() or platform.machine()


def measure_kernels(rank: Rank) -> dict[str, Any]:
    """Measure one rank's device: products, attention, copies, launches."""
    return {
        "device": _device(rank),
        "gemm": _gemms(rank),
        "attention": _attention(rank),
        "grouped_gemm_fraction": _grouped_fraction(rank),
        "copy_bytes_per_s": _copy_bytes_per_s(rank),
        "launch_s": _launch_s(rank),
        "host_copies": _host_copies(rank),
    }
