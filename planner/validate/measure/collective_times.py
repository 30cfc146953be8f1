"""Collectives: run every operation on real ranks, check its result, time it, fit it.

Sizes are full buffers, times those of the slowest rank. Bus bandwidth is nccl-tests': bytes over
time, times the share that each rank's link must carry, so that it can be held against the link
whatever the number of ranks.
"""

from __future__ import annotations

import socket
import time
from collections.abc import Callable, Sequence
from dataclasses import asdict, dataclass
from typing import TYPE_CHECKING, Any

import numpy as np

from planner.cost.network.collective_table import OPERATIONS as ESTIMATED
from planner.cost.network.collective_table import bus_factor
from planner.validate.measure.fitting import alpha_beta
from planner.validate.ranks.rank import Rank, RankError, external_rank, gather_objects

if TYPE_CHECKING:
    import torch

__all__ = [
    "OPERATIONS",
    "SIZES",
    "collectives_csv",
    "collectives_text",
    "fit_operations",
    "measure",
    "measure_collectives",
    "slowest",
]

OPERATIONS = (
    "broadcast",
    "reduce",
    "all_reduce",
    "all_gather",
    "reduce_scatter",
    "scatter",
    "gather",
    "all_to_all",
    "send_receive",
)
SIZES = tuple(1024 * 4**k for k in range(11))
"""1 KiB to 1 GiB."""
_USUAL = SIZES[:8]
_IN_STEP = ("all_reduce", "all_gather", "reduce_scatter", "broadcast", "send_receive")
_BUDGET_S = 0.04
_ROUNDS = 7


def _bus_factor(name: str, size: int) -> float:
    # there and back is timed, and halved: what nccl-tests calls send_recv
    return bus_factor("send_recv" if name == "send_receive" else name, size)


@dataclass(frozen=True, slots=True)
class _Buffers:
    """Tensors of one operation and size on one rank."""

    rank: int
    world: int
    values: torch.Tensor
    part: torch.Tensor
    parts: list[torch.Tensor]


def _buffers(rank: Rank, size_bytes: int) -> _Buffers:
    import torch

    count = max(size_bytes // 4 // rank.world, 1) * rank.world
    device = rank.device
    # the pattern tells ranks and positions apart and stays exact in fp32
    values = (torch.arange(count, device=device) % 251).float() + rank.rank
    part = torch.full((count // rank.world,), float(rank.rank), device=device)
    return _Buffers(rank.rank, rank.world, values, part, list(values.clone().chunk(rank.world)))


def _call(name: str, b: _Buffers) -> Callable[[], None]:
    """Return a function that runs the operation on fixed buffers."""
    import torch.distributed as dist

    root = b.rank == 0
    # torch 2.13 renamed them
    all_gather = getattr(dist, "all_gather_single", dist.all_gather_into_tensor)
    reduce_scatter = getattr(dist, "reduce_scatter_single", dist.reduce_scatter_tensor)

    def send_receive() -> None:
        # there and back between ranks 0 and 1: half of it is one message
        if b.rank == 0:
            dist.send(b.values, 1)
            dist.recv(b.values, 1)
        elif b.rank == 1:
            dist.recv(b.values, 0)
            dist.send(b.values, 0)

    calls: dict[str, Callable[[], Any]] = {
        "broadcast": lambda: dist.broadcast(b.values, 0),
        "reduce": lambda: dist.reduce(b.values, 0),
        "all_reduce": lambda: dist.all_reduce(b.values),
        "all_gather": lambda: all_gather(b.values, b.part),
        "reduce_scatter": lambda: reduce_scatter(b.part, b.values),
        "scatter": lambda: dist.scatter(b.part, b.parts if root else None, src=0),
        "gather": lambda: dist.gather(b.part, b.parts if root else None, dst=0),
        "all_to_all": lambda: dist.all_to_all_single(b.values, b.values.clone()),
        "send_receive": send_receive,
    }
    return calls[name]


def _check(name: str, rank: Rank, size_bytes: int) -> None:
    """Raise RankError where an operation gives a wrong result."""
    import torch

    b = _buffers(rank, size_bytes)
    n, count = b.world, b.values.numel()
    base = (torch.arange(count, device=b.values.device) % 251).float()
    total = n * base + sum(range(n))
    slice_of_rank = slice(b.rank * (count // n), (b.rank + 1) * (count // n))
    owners = torch.arange(n, device=base.device).float()
    expected: dict[str, tuple[torch.Tensor, torch.Tensor]] = {
        "broadcast": (b.values, base),
        "reduce": (b.values, total if b.rank == 0 else b.values),
        "all_reduce": (b.values, total),
        "all_gather": (b.values, owners.repeat_interleave(count // n)),
        "reduce_scatter": (b.part, total[slice_of_rank]),
        "scatter": (b.part, base[slice_of_rank]),
        "gather": (b.parts[-1], torch.full_like(b.parts[-1], n - 1.0)),
        "all_to_all": (
            b.values,
            base[slice_of_rank].repeat(n) + owners.repeat_interleave(count // n),
        ),
        "send_receive": (b.values, base if b.rank < 2 else b.values),
    }
    _call(name, b)()
    got, wanted = expected[name]
    if name == "gather" and b.rank:
        return
    if not torch.equal(got, wanted):
        raise RankError(
            f"rank {rank.rank} of {n} disagrees: {name} of {size_bytes} bytes gave a wrong "
            "result; check the installation of torch and its backend"
        )


# --- time ------------------------------------------------------------------------------------


def slowest(values: list[float]) -> list[float]:
    """Maximum of each value over the ranks, the same on every rank."""
    return [max(column) for column in zip(*gather_objects(values), strict=True)]


def _isolated(name: str, rank: Rank, size_bytes: int) -> list[float]:
    """Times of one operation in loops without compute, one per round [s]."""
    import torch.distributed as dist

    call = _call(name, _buffers(rank, size_bytes))
    call()
    start = time.perf_counter()
    call()
    rank.synchronise()
    elapsed_s = slowest([time.perf_counter() - start])[0]
    repeats = int(min(max(_BUDGET_S / _ROUNDS / max(elapsed_s, 1e-6), 1), 200))
    rounds = []
    for _ in range(_ROUNDS):
        dist.barrier()
        start = time.perf_counter()
        for _ in range(repeats):
            call()
        rank.synchronise()
        rounds.append((time.perf_counter() - start) / repeats)
    return slowest(rounds)


def _in_step(name: str, rank: Rank, size_bytes: int) -> list[float]:
    """Times of one operation between matrix products, as in a training step [s].

    Ranks arrive apart and threads must wake: small messages take many times longer so.
    """
    import torch

    call = _call(name, _buffers(rank, size_bytes))
    a = torch.ones(512, 512, device=rank.device)
    call()
    measured = []
    for _ in range(2 * _ROUNDS):
        for _ in range(2):
            a @ a
        rank.synchronise()
        start = time.perf_counter()
        call()
        rank.synchronise()
        measured.append(time.perf_counter() - start)
    return slowest(measured)


def measure(rank: Rank, operations: Sequence[str], sizes: Sequence[int]) -> list[dict[str, Any]]:
    """Time every operation at every size, inside a process group of two or more ranks."""
    rows = []
    for name in operations:
        half = 2 if name == "send_receive" else 1
        for size in sizes:
            rank.report(f"{name} of {size} bytes")
            _check(name, rank, size)
            isolated_s = [value / half for value in _isolated(name, rank, size)]
            row: dict[str, Any] = {
                "name": name,
                "bytes": size,
                "ranks": rank.world,
                # others can only make it slower: a low quantile is the operation itself
                "time_s": float(np.quantile(isolated_s, 0.2)),
                "median_s": float(np.median(isolated_s)),
            }
            row["bus_bytes_per_s"] = size / row["time_s"] * _bus_factor(name, rank.world)
            if name in _IN_STEP:
                step = [value / half for value in _in_step(name, rank, size)]
                row["in_step_s"] = float(np.median(step))
            rows.append(row)
    return rows


def fit_operations(rows: Sequence[dict[str, Any]]) -> list[dict[str, Any]]:
    """Fit latency and bandwidth of each operation, with the mean relative error."""
    fits = []
    for name in dict.fromkeys(row["name"] for row in rows):
        mine = [row for row in rows if row["name"] == name]
        if len(mine) >= 2:
            size = mine[0]["ranks"]
            wire = [row["bytes"] * _bus_factor(name, size) for row in mine]
            fit = alpha_beta(wire, [row["time_s"] for row in mine])
            fits.append({"name": name, "ranks": size, **asdict(fit)})
    return fits


def run_rank(rank: Rank, payload: dict[str, Any], send: Callable[[Any], None]) -> dict[str, Any]:
    """Measure and fit on one rank, with the load of the cores."""
    from planner.validate.measure import quiet
    from planner.validate.ranks.rank import joined, num_cores

    rank.report("meeting the other ranks")
    with joined(rank):
        shares = [quiet.probe_cpu_wall()]
        watch, cpu = quiet.Watch(), time.process_time()
        rows = measure(rank, payload["operations"], payload["sizes"])
        shares.append(quiet.probe_cpu_wall())
        mine = (min(shares), time.process_time() - cpu, socket.gethostname())
        everyone = gather_objects(mine)
        nodes = len({item[2] for item in everyone})
        load = quiet.Load(
            min(item[0] for item in everyone),
            watch.foreign_cores(sum(item[1] for item in everyone)),
            rank.world,
            num_cores(),
        )
    return {
        "rows": rows,
        "fits": fit_operations(rows),
        "load": load.as_dict(),
        "backend": rank.backend,
        "nodes": nodes,
    }


def measure_collectives(
    world: int,
    *,
    operations: Sequence[str] = OPERATIONS,
    sizes: Sequence[int] = _USUAL,
    limit_s: float = 60.0,
    progress: Callable[[int, str], None] | None = None,
) -> dict[str, Any] | None:
    """Measure on `world` new local ranks, or as one rank of an external launcher.

    Returns None on ranks other than 0 of a launcher. Raises RankError for impossible arguments, or
    with the rank that failed.
    """
    from planner.validate.sharding.adapter import require_torch

    require_torch()
    outer = external_rank(limit_s)
    world = outer.world if outer else world
    unknown = sorted(set(operations) - set(OPERATIONS))
    if unknown:
        raise RankError(
            f"unknown operation {', '.join(unknown)}; use some of {', '.join(OPERATIONS)}"
        )
    if world < 2:
        raise RankError(f"world = {world}: a collective needs 2 or more ranks; raise --world")
    if not sizes or min(sizes) < 4:
        raise RankError(f"sizes {list(sizes)} must be 4 bytes or more each")
    payload = {"operations": list(operations), "sizes": list(sizes)}
    if outer is not None:
        from planner.validate.ranks.watchdog import watching

        with watching(outer) as rank:
            result = run_rank(rank, payload, lambda value: None)
        return None if outer.rank else result
    from planner.validate.ranks.launch import launch

    results = launch(
        "planner.validate.measure.collective_times:run_rank",
        world,
        payload,
        limit_s=limit_s,
        progress=progress,
    )
    first: dict[str, Any] = results[0]
    return first


def collectives_csv(result: dict[str, Any]) -> str:
    """CSV for `planner calibrate`, of the operations that estimates know."""
    lines = ["collective,nodes,ranks,size_bytes,time_us"]
    lines += [
        f"{row['name']},{result['nodes']},{row['ranks']},{row['bytes']},{1e6 * row['time_s']:.3f}"
        for row in result["rows"]
        if row["name"] in ESTIMATED
    ]
    return "\n".join(lines)


def collectives_text(result: dict[str, Any]) -> str:
    """Table of times and fits as text."""
    lines = [f"{'operation':16}{'bytes':>10}{'time us':>11}{'in a step us':>14}{'bus GB/s':>10}"]
    for row in result["rows"]:
        step = f"{1e6 * row['in_step_s']:14.1f}" if "in_step_s" in row else f"{'':14}"
        lines.append(
            f"{row['name']:16}{row['bytes']:10d}{1e6 * row['time_s']:11.1f}{step}"
            f"{row['bus_bytes_per_s'] / 1e9:10.3f}"
        )
    for fit in result["fits"]:
        lines.append(
            f"{fit['name']:16}alpha {1e6 * fit['alpha_s']:8.1f} us, "
            f"{fit['bytes_per_s'] / 1e9:7.3f} GB/s, mean error of the fit {100 * fit['mape']:.0f} %"
        )
    if result["load"]["why_not"]:
        lines.append(f"not scored: {result['load']['why_not']}")
    return "\n".join(lines)
