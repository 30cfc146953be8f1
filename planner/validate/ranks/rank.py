"""Ranks: rank numbers from the launcher's environment, the process group, and a watchdog."""

import contextlib
import os
import sys
import threading
import time
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, field, replace
from datetime import timedelta
from pathlib import Path
from typing import Any

from planner.describe.files import read_toml
from planner.errors import PlannerError, shorten

LAUNCH = read_toml(Path(__file__).with_name("launch.toml"))
"""Launchers with their variables, and modules that ranks share."""
Clock = Callable[[], float]
_WALL = time.perf_counter
_PORT = 29500
_HIGHEST_PORT = 65535
_LOCAL_SIZES = ("OMPI_COMM_WORLD_LOCAL_SIZE", "PMI_LOCAL_SIZE", "PALS_LOCAL_SIZE")
_SHORTEST_S, _LONGEST_S = 5, 1_000_000
_BEFORE_S = 2.0
"""Time for every rank to print the line that it executes, before the first ends the job [s]."""


class RankError(PlannerError):
    """A rank that cannot start, dies, hangs or disagrees with the others."""


def num_cores() -> int:
    """Count the cores that this process may use."""
    if hasattr(os, "sched_getaffinity"):
        return len(os.sched_getaffinity(0))
    return os.cpu_count() or 1


def check_limit(limit_s: float) -> None:
    """Raise RankError for a time limit that is too short or too long."""
    if not _SHORTEST_S <= limit_s <= _LONGEST_S:
        raise RankError(
            f"limit = {limit_s:g} s must be at least {_SHORTEST_S} s and at most {_LONGEST_S:,} s; "
            "give the longest time without progress of a rank"
        )


@dataclass(frozen=True, slots=True)
class Rank:
    """One rank of a run."""

    rank: int
    world: int
    local_rank: int
    launcher: str
    rendezvous: str
    """Address where the ranks meet: file:///path, or tcp://host:port."""
    timeout_s: float
    """Longest wait of a collective, and longest time without progress [s]."""
    folder: Path | None = None
    """Private folder of the run, removed at its end; None under another launcher."""
    report: Callable[[str], None] = field(default=lambda _: None, compare=False)
    """Reports the rank's current activity; a rank silent for `timeout_s` counts as hanging."""

    @property
    def device(self) -> str:
        """Torch device: cuda or xpu if available, else cpu."""
        import torch

        for name in ("cuda", "xpu"):
            module = getattr(torch, name, None)
            if module is not None and module.is_available() and not os.environ.get("PLANNER_CPU"):
                return f"{name}:{self.local_rank % module.device_count()}"
        return "cpu"

    @property
    def backend(self) -> str:
        """Backend for the device: nccl, xccl or gloo."""
        return {"cuda": "nccl", "xpu": "xccl"}.get(self.device.split(":")[0], "gloo")

    def seconds(self, call: Callable[[], Any], repeats: int = 1, clock: Clock = _WALL) -> float:
        """Mean time that a call takes on the device, by a clock [s]."""
        start = clock()
        for _ in range(repeats):
            call()
        if self.device != "cpu":
            import torch

            torch.accelerator.synchronize()
        return (clock() - start) / repeats


def _launchers(env: Mapping[str, str]) -> Iterator[tuple[str, str, str, str]]:
    for launcher, rank_name, world_name, local_name in LAUNCH["launchers"]:
        # a batch script has these variables too, but is not a job step
        if launcher == "srun" and "SLURM_STEP_ID" not in env:
            continue
        if rank_name in env and world_name in env:
            yield launcher, rank_name, world_name, local_name


def is_launched(environment: Mapping[str, str] | None = None) -> bool:
    """True if torchrun, mpiexec or srun started this process as a rank."""
    return any(_launchers(os.environ if environment is None else environment))


def external_rank(timeout_s: float, environment: Mapping[str, str] | None = None) -> Rank | None:
    """Rank of this process under torchrun, mpiexec or srun; RankError if variables contradict."""
    env = os.environ if environment is None else environment
    for launcher, rank_name, world_name, local_name in _launchers(env):
        rank, world = _number(env, rank_name, launcher), _number(env, world_name, launcher)
        local = _number(env, local_name, launcher) if local_name in env else rank
        if not 0 <= rank < world:
            raise RankError(
                f"{rank_name}={rank} must lie between 0 and {world_name}-1 = {world - 1}; "
                "unset both to let this command start the ranks itself"
            )
        check_limit(timeout_s)
        return Rank(rank, world, local, launcher, _meeting_point(env, world, launcher), timeout_s)
    return None


def _number(env: Mapping[str, str], name: str, launcher: str) -> int:
    try:
        number = int(env[name])
    except ValueError:
        number = -1
    if number < 0:
        raise RankError(
            f"{name}={shorten(env[name], 40)!r} must be a whole number; start under {launcher} "
            "again, or unset its variables"
        )
    return number


def _port(env: Mapping[str, str]) -> int:
    text = env.get("MASTER_PORT", str(_PORT))
    if not (text.isascii() and text.isdigit() and 1 <= int(text[:6]) <= _HIGHEST_PORT):
        raise RankError(
            f"MASTER_PORT={shorten(text, 40)!r} must lie between 1 and {_HIGHEST_PORT}; set it to "
            "a free port, the same on all ranks"
        )
    return int(text)


def _meeting_point(env: Mapping[str, str], world: int, launcher: str) -> str:
    """Address where the ranks meet: MASTER_ADDR, else srun's launch node, else this node."""
    host = env.get("MASTER_ADDR") or env.get("SLURM_LAUNCH_NODE_IPADDR")
    if host is None:
        sizes = [name for name in _LOCAL_SIZES if env.get(name)]
        if sizes and _number(env, sizes[0], launcher) < world:
            raise RankError(
                f"{world} ranks on several nodes need a rendezvous address; set MASTER_ADDR to "
                "the name of the first node"
            )
        host = "127.0.0.1"
    return f"tcp://{host}:{_port(env)}"


_LEFT_GROUPS: list[Any] = []
"""Groups that ranks have left, alive: a destructor with Python's lock would wait for gloo's."""


@contextlib.contextmanager
def joined(rank: Rank) -> Iterator[None]:
    """Initialise torch.distributed for a block. Raises RankError if the ranks cannot meet."""
    import torch
    import torch.distributed as dist

    torch.set_num_threads(1)
    if rank.backend == "gloo" and rank.folder is not None:
        # all ranks are on this node: nothing listens on the network
        loopback = "lo0" if sys.platform == "darwin" else "lo"
        os.environ.setdefault("GLOO_SOCKET_IFNAME", loopback)
    elif rank.backend != "gloo":
        torch.accelerator.set_device_index(int(rank.device.split(":")[1]))
    try:
        dist.init_process_group(
            rank.backend,
            rank=rank.rank,
            world_size=rank.world,
            timeout=timedelta(seconds=rank.timeout_s),
            **_store(rank),
        )
    except (RuntimeError, ValueError, OSError) as error:
        raise RankError(_why_not(rank, error)) from error
    _LEFT_GROUPS.append(dist.group.WORLD)
    try:
        yield
    finally:
        if dist.is_initialized():
            dist.destroy_process_group()


def gather_objects(value: Any) -> list[Any]:
    """All-gather a Python object: every rank's value, in rank order."""
    import torch.distributed as dist

    values: list[Any] = [None] * dist.get_world_size()
    dist.all_gather_object(values, value)
    return values


def _store(rank: Rank) -> dict[str, Any]:
    if rank.rendezvous.startswith("file:"):
        return {"init_method": rank.rendezvous}
    if rank.launcher == "torchrun":
        return {"init_method": "env://"}
    from torch.distributed import TCPStore  # type: ignore[attr-defined]

    host, port = rank.rendezvous.removeprefix("tcp://").rsplit(":", 1)
    timeout = timedelta(seconds=rank.timeout_s)
    return {"store": TCPStore(host, int(port), rank.world, rank.rank == 0, timeout=timeout)}


def _why_not(rank: Rank, error: Exception) -> str:
    text = str(error).splitlines()[0] if str(error) else type(error).__name__
    port = rank.rendezvous.rsplit(":", 1)[-1]
    if "EADDRINUSE" in str(error) or "address already in use" in str(error).lower():
        return f"port {port} is in use on this node; set MASTER_PORT to a free one"
    return (
        f"rank {rank.rank} of {rank.world} could not join the others at {rank.rendezvous} within "
        f"{rank.timeout_s:.0f} s: {text[:200]}; check that all ranks started"
    )


@contextlib.contextmanager
def watching(rank: Rank) -> Iterator[Rank]:
    """Watch a rank, and end it if it makes no progress. Raises RankError if its peers are gone."""
    seen, last = time.monotonic(), "starting"
    over = threading.Event()
    main = threading.get_ident()

    def report(text: str) -> None:
        nonlocal seen, last
        seen, last = time.monotonic(), text
        if rank.rank == 0:
            print(text, file=sys.stderr, flush=True)

    def watch() -> None:
        reported = 0.0
        while not over.wait(0.25):
            silent = time.monotonic() - seen
            if silent > rank.timeout_s - _BEFORE_S and reported != seen:
                reported = seen
                print(
                    f"planner: rank {rank.rank} of {rank.world} has made no progress for "
                    f"{silent:.0f} s (limit {rank.timeout_s:.0f} s), last {last}, {_where(main)}",
                    file=sys.stderr,
                    flush=True,
                )
            if silent > rank.timeout_s:
                os._exit(1)

    threading.Thread(target=watch, daemon=True).start()
    try:
        yield replace(rank, report=report)
    except PlannerError:
        raise
    except RuntimeError as error:
        line = (str(error).strip().splitlines() or [""])[0][:200]
        raise RankError(
            f"rank {rank.rank} of {rank.world} failed or lost its peers while {last}: {line}"
        ) from error
    finally:
        over.set()


def _where(thread: int) -> str:
    frame = sys._current_frames().get(thread)
    if frame is None:
        return "nowhere"
    code = frame.f_code
    return f"in {Path(code.co_filename).name}:{frame.f_lineno} ({code.co_name})"
