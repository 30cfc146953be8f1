"""Quiet: times that other processes on the cores hardly change, and the load of the cores."""

from __future__ import annotations

import os
import time
from collections.abc import Callable
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

import numpy as np

from planner.validate.ranks.rank import RankError, num_cores

_MIN_CPU_WALL = 0.9
"""CPU time / wall time below which a time is not scored."""
_SHORTEST_S = 0.5
# the kernel counts in ticks of 10 ms per core
_MAX_FOREIGN = 0.15
"""Fraction of all cores that other processes may use before a time is not scored."""


_QUANTILES = (0.05, 0.1, 0.15)
"""Low quantiles of a call's times: the middle one is its time, the outer ones must agree."""
_MOST_ROUNDS, _MOST_S = 300, 4.0
"""Rounds and time after which a call is no longer repeated."""
_AGREEMENT, _MAX_SCATTER = 0.05, 0.5
"""Scatter from which a call is no longer repeated, and above which its time is refused."""


@dataclass(frozen=True, slots=True)
class Repeated:
    """A call's time by its fast rounds: other processes only make a call slower."""

    time_s: float
    scatter: float
    """Upper over lower of the quantiles, minus one."""

    def checked(self) -> Repeated:
        """Return itself. Raises RankError if the fast rounds differ too much."""
        if self.scatter > _MAX_SCATTER:
            raise RankError(
                f"its fastest times differ by {100 * self.scatter:.3g} %, more than "
                f"{100 * _MAX_SCATTER:.0f} %, as others use these cores; measure on idle cores"
            )
        return self


def repeat(rounds: Callable[[], list[float]]) -> Repeated:
    """Run rounds of a call until its fastest times agree, or are found not to."""
    times: list[float] = []
    while True:
        times += rounds()
        low, middle, high = map(float, np.quantile(times, _QUANTILES))
        measured = Repeated(middle, high / low - 1)
        is_over = len(times) >= _MOST_ROUNDS or sum(times) > _MOST_S
        if measured.scatter <= _AGREEMENT or is_over:
            return measured


@dataclass(frozen=True, slots=True)
class Load:
    """Load of the cores during a measurement."""

    cpu_wall: float
    """Share of a core that a pure computation got on the worst rank."""
    foreign_cores: float | None
    """Cores that other processes used at the time; None if it cannot be read."""
    num_ranks: int
    num_cores: int

    @property
    def crowded(self) -> bool:
        """True with more ranks than cores: waiting does not help."""
        return self.num_ranks > self.num_cores

    @property
    def why_not(self) -> str:
        """Reason why times are not scored; empty if they are."""
        if self.crowded:
            return f"{self.num_ranks} ranks share {self.num_cores} cores"
        if self.cpu_wall < _MIN_CPU_WALL:
            return f"cpu/wall is {self.cpu_wall:.3f}, below {_MIN_CPU_WALL}: the cores were shared"
        if self.foreign_cores is not None and self.foreign_cores > _MAX_FOREIGN * self.num_cores:
            return f"other processes used {self.foreign_cores:.1f} of {self.num_cores} cores"
        return ""

    def as_dict(self) -> dict[str, Any]:
        """Return plain data."""
        return {**asdict(self), "scored": not self.why_not, "why_not": self.why_not}


class Watch:
    """Watch this process's share of a core, and the cores that all processes use."""

    def __init__(self) -> None:
        self._shares = [probe_cpu_wall()]
        self._busy, self._since_s, self._cpu_s = _busy_s(), time.perf_counter(), time.process_time()

    def probe(self, seconds: float) -> None:
        """Sample this process's share of a core for `seconds`."""
        self._shares.append(probe_cpu_wall(seconds))

    def report(self) -> tuple[float, float]:
        """Worst share of a core since the start, and CPU time of this process [s]."""
        self.probe(0.05)
        return min(self._shares), time.process_time() - self._cpu_s

    def load(self, reports: list[tuple[float, float]]) -> Load:
        """Combine the reports of this node's ranks into the load of its cores."""
        own_cpu_s = sum(cpu_s for _, cpu_s in reports)
        share = min(share for share, _ in reports)
        return Load(share, self._foreign_cores(own_cpu_s), len(reports), num_cores())

    def _foreign_cores(self, own_cpu_s: float) -> float | None:
        """Cores used by other processes; None if unreadable or after too little time."""
        now, wall = _busy_s(), time.perf_counter() - self._since_s
        if now is None or self._busy is None or wall < _SHORTEST_S:
            return None
        return max((now - self._busy - own_cpu_s) / wall, 0.0)


def _busy_s() -> float | None:
    """Seconds that all cores were busy since boot, from the kernel."""
    try:
        fields = Path("/proc/stat").read_text().split("\n", 1)[0].split()[1:9]
        user, nice, system, _idle, _iowait, irq, softirq, steal = map(int, fields)
    except (OSError, ValueError):
        return None
    return (user + nice + system + irq + softirq + steal) / os.sysconf("SC_CLK_TCK")


def probe_cpu_wall(seconds: float = 0.05) -> float:
    """Measure the share of a core that a pure computation of about `seconds` gets now."""
    import torch

    a = torch.ones(256, 256)
    wall, cpu = time.perf_counter(), time.thread_time()
    while time.perf_counter() - wall < seconds:
        a @ a
    return min((time.thread_time() - cpu) / (time.perf_counter() - wall), 1.0)
