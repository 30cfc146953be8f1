"""Reader: what takes inputs of one kind, with inputs that it accepts and their mutations."""

from __future__ import annotations

import random
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

ROOT = Path(__file__).parents[2]


@dataclass(frozen=True)
class Reader:
    """A reader of the planner."""

    bases: Callable[[], Sequence[Any]]
    """Make the inputs that are accepted unchanged."""
    mutate: Callable[[random.Random, Any, float], Any]
    """Change an input; the third argument is the share of mild changes."""
    use: Callable[[Any, Path], None]
    """Use an input as a user would; raises PlannerError, Refused or Odd."""
    mild: float = 0.5
    """Share of inputs that only mild changes touch."""
    share: int = 10
    """Share of all calls; small for slow readers."""

    def case(self, rng: random.Random, folder: Path) -> None:
        """Use one mutated input."""
        base = rng.choice(self.bases())
        self.use(self.mutate(rng, base, self.mild), folder)


def write(folder: Path, name: str, data: bytes | str) -> str:
    """Write a file and return its path."""
    path = folder / name
    path.write_bytes(data if isinstance(data, bytes) else data.encode("utf-8", errors="replace"))
    return str(path)
