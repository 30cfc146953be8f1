"""Collectives: run every operation on real ranks, check its result, time it."""

import itertools
import socket
from collections.abc import Callable, Sequence
from typing import Any

import numpy as np
import torch
import torch.distributed as dist

from planner.cost.network.collective_table import OPERATIONS as ESTIMATED
from planner.cost.network.collective_table import bus_factor
from planner.validate.measure.quiet import Repeated, Watch, repeat
from planner.validate.ranks.launch import Progress, launch
from planner.validate.ranks.rank import Rank, RankError, external_rank, gather_objects, joined

OPERATIONS = (
    "broadcast", "reduce", "all_reduce", "all_gather", "reduce_scatter", "scatter", "gather",
    "all_to_all", "send_receive",
)  # fmt: skip
SIZES = tuple(1024 * 4**k for k in range(11))
"""1 KiB to 1 GiB."""
IN_STEP = ("all_reduce", "all_gather", "reduce_scatter", "broadcast", "send_receive")
"""Operations that are also timed between matrix products."""
_BUDGET_S, _ROUNDS = 0.04, 7


def _bus_factor(name: str, size: int) -> float:
    # half of a timed round trip, comparable to send_recv of nccl-tests
    return bus_factor("send_recv" if name == "send_receive" else name, size)


class _Buffers:
    def __init__(self, rank: Rank, size_bytes: int) -> None:
        self.rank, self.world, device = rank.rank, rank.world, rank.device
        count = max(size_bytes // 4 // rank.world, 1) * rank.world
        # the pattern tells ranks and positions apart and stays exact in fp32
        self.values = (torch.arange(count, device=device) % 251).float() + rank.rank
        self.part = torch.full((count // rank.world,), float(rank.rank), device=device)
        self.parts = list(self.values.clone().chunk(rank.world))


def _call(name: str, b: _Buffers) -> Callable[[], None]:
    """Return a function that runs the operation on fixed buffers."""
    root = b.rank == 0
    # torch 2.13 renamed them
    all_gather = getattr(dist, "all_gather_single", dist.all_gather_into_tensor)
    reduce_scatter = getattr(dist, "reduce_scatter_single", dist.reduce_scatter_tensor)

    def send_receive() -> None:
        # a round trip between ranks 0 and 1: half of it is one message
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
    b = _Buffers(rank, size_bytes)
    n, count = b.world, b.values.numel()
    base = (torch.arange(count, device=b.values.device) % 251).float()
    total = n * base + sum(range(n))
    slice_of_rank = slice(b.rank * (count // n), (b.rank + 1) * (count // n))
    owners = torch.arange(n, device=base.device).float().repeat_interleave(count // n)
    expected: dict[str, tuple[torch.Tensor, torch.Tensor]] = {
        "broadcast": (b.values, base),
        "reduce": (b.values, total if b.rank == 0 else b.values),
        "all_reduce": (b.values, total),
        "all_gather": (b.values, owners),
        "reduce_scatter": (b.part, total[slice_of_rank]),
        "scatter": (b.part, base[slice_of_rank]),
        "gather": (b.parts[-1], torch.full_like(b.parts[-1], n - 1.0)),
        "all_to_all": (b.values, base[slice_of_rank].repeat(n) + owners),
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


def slowest(values: list[float]) -> list[float]:
    """Take the maximum of each value over all ranks; every rank gets the same result."""
    return [max(column) for column in zip(*gather_objects(values), strict=True)]


def _isolated_s(name: str, rank: Rank, size_bytes: int) -> list[float]:
    """Times of one operation in loops without compute, one per round [s]."""
    call = _call(name, _Buffers(rank, size_bytes))
    call()
    elapsed_s = slowest([rank.seconds(call)])[0]
    repeats = int(min(max(_BUDGET_S / _ROUNDS / max(elapsed_s, 1e-6), 1), 200))
    rounds = []
    for _ in range(_ROUNDS):
        dist.barrier()
        rounds.append(rank.seconds(call, repeats))
    return slowest(rounds)


def _in_step(name: str, rank: Rank, size_bytes: int) -> Repeated:
    """Time of one operation between matrix products, of the rank that arrives last [s]."""
    call = _call(name, _Buffers(rank, size_bytes))
    a = torch.ones(512, 512, device=rank.device)
    call()

    def rounds() -> list[float]:
        measured = []
        for _ in range(2 * _ROUNDS):
            rank.seconds(lambda: (a @ a, a @ a))
            measured.append(rank.seconds(call))
        # a rank that arrives early waits for what others do before the operation
        return [min(column) for column in zip(*gather_objects(measured), strict=True)]

    return repeat(rounds)


def time_operations(
    rank: Rank, operations: Sequence[str], sizes: Sequence[int], *, refuses_scatter: bool = False
) -> list[dict[str, Any]]:
    """Time every operation at every size on two or more ranks; RankError if times scatter."""
    rows = []
    for name, size in itertools.product(operations, sizes):
        rank.report(f"{name} of {size} bytes")
        _check(name, rank, size)
        half = 2 if name == "send_receive" else 1
        isolated_s = np.array(_isolated_s(name, rank, size)) / half
        # other processes only make it slower, so a low quantile is the operation itself
        time_s = float(np.quantile(isolated_s, 0.2))
        row: dict[str, Any] = {
            "name": name,
            "bytes": size,
            "ranks": rank.world,
            "time_s": time_s,
            "median_s": float(np.median(isolated_s)),
            "bus_bytes_per_s": size / time_s * _bus_factor(name, rank.world),
        }
        if name in IN_STEP:
            in_step = _in_step(name, rank, size)
            if refuses_scatter:
                in_step.checked()
            row |= {"in_step_s": in_step.time_s / half, "scatter": in_step.scatter}
        rows.append(row)
    return rows


def run_rank(rank: Rank, payload: dict[str, Any], _: Any) -> dict[str, Any]:
    """Measure on one rank, with the load of the cores."""
    rank.report("joining the process group")
    with joined(rank):
        watch = Watch()
        rows = time_operations(rank, payload["operations"], payload["sizes"])
        everyone = gather_objects((watch.report(), socket.gethostname()))
        load = watch.load([report for report, _ in everyone])
    return {
        "rows": rows,
        "load": load.as_dict(),
        "backend": rank.backend,
        "nodes": len({host for _, host in everyone}),
    }


def measure_collectives(
    world: int,
    *,
    operations: Sequence[str] = OPERATIONS,
    sizes: Sequence[int] = SIZES[:8],
    limit_s: float = 60.0,
    progress: Progress = None,
) -> dict[str, Any] | None:
    """Measure on new local ranks, or as a rank of a launcher (then only rank 0 gets the result)."""
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
    entry = "planner.validate.measure.collective_times:run_rank"
    payload = {"operations": list(operations), "sizes": list(sizes)}
    results = launch(entry, world, payload, limit_s=limit_s, progress=progress, outer=outer)
    first: dict[str, Any] = results[0]
    return first if outer is None or not outer.rank else None


def collectives_csv(result: dict[str, Any]) -> str:
    """Format as CSV for `planner calibrate`, only the operations that estimates use."""
    lines = ["collective,nodes,ranks,size_bytes,time_us"]
    lines += [
        f"{row['name']},{result['nodes']},{row['ranks']},{row['bytes']},{1e6 * row['time_s']:.3f}"
        for row in result["rows"]
        if row["name"] in ESTIMATED
    ]
    return "\n".join(lines)


def collectives_text(result: dict[str, Any]) -> str:
    """Format times as a text table."""
    lines = [f"{'operation':16}{'bytes':>10}{'time us':>11}{'in a step us':>14}{'bus GB/s':>10}"]
    for row in result["rows"]:
        step = f"{1e6 * row['in_step_s']:14.1f}" if "in_step_s" in row else f"{'':14}"
        lines.append(
            f"{row['name']:16}{row['bytes']:10d}{1e6 * row['time_s']:11.1f}{step}"
            f"{row['bus_bytes_per_s'] / 1e9:10.3f}"
        )
    if result["load"]["why_not"]:
        lines.append(f"not scored: {result['load']['why_not']}")
    return "\n".join(lines)
