"""Utilisation of steps with torch's DataLoader, where samples and steps are sleeps.

python benchmarks/whole/loader.py     # about a minute; prints the rows in input.py

Workers sleep for every sample and the step sleeps, for known times, so that only the order of
events is measured: how much reading prefetch hides.
"""

from __future__ import annotations

import time
from collections.abc import Iterator

import torch
from torch.utils.data import DataLoader, Dataset

BATCH, SAMPLE_S, STEPS, FIRST = 8, 0.010, 60, 8
CASES = (
    (0, 0.08),
    (1, 0.02),
    (1, 0.08),
    (2, 0.02),
    (2, 0.06),
    (4, 0.01),
    (4, 0.03),
    (8, 0.005),
    (8, 0.02),
)
"""Workers and step time [s]."""


class Waiting(Dataset[torch.Tensor]):
    """Dataset whose samples take a fixed time to read."""

    def __len__(self) -> int:
        return BATCH * STEPS

    def __getitem__(self, _: int) -> torch.Tensor:
        time.sleep(SAMPLE_S)
        return torch.zeros(16)


def utilisation(workers: int, step_s: float) -> float:
    """Measure step time over total time, without the first steps and the workers' shutdown."""
    loader = DataLoader(Waiting(), batch_size=BATCH, num_workers=workers)
    computing, start, end = 0.0, 0.0, 0.0
    for number, _ in enumerate(loader):
        began = time.perf_counter()
        time.sleep(step_s)
        end = time.perf_counter()
        computing += end - began
        if number == FIRST:
            computing, start = 0.0, end
    return computing / (end - start)


def timings() -> Iterator[tuple[int, float, float]]:
    """Yield workers, step time [s] and utilisation."""
    for workers, step_s in CASES:
        yield workers, step_s, round(utilisation(workers, step_s), 3)


if __name__ == "__main__":
    for row in timings():
        print(row)
