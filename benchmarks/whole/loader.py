"""Utilisation of steps behind torch's DataLoader, where samples and steps are waits.

python benchmarks/whole/loader.py     # about a minute; prints the rows that input.py holds

Workers sleep for every sample and the step sleeps, for known times, so that nothing but the order
of events is measured: what prefetch hides, and what it does not.
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
"""Workers, and time of a step [s]."""


class Waiting(Dataset[torch.Tensor]):
    """Samples that take a while to read."""

    def __len__(self) -> int:
        return BATCH * STEPS

    def __getitem__(self, _: int) -> torch.Tensor:
        time.sleep(SAMPLE_S)
        return torch.zeros(16)


def utilisation(workers: int, step_s: float) -> float:
    """Time of steps over all time, without the first ones and the end of the workers."""
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
    """Workers, time of a step [s], utilisation."""
    for workers, step_s in CASES:
        yield workers, step_s, round(utilisation(workers, step_s), 3)


if __name__ == "__main__":
    for row in timings():
        print(row)
