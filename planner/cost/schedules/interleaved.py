"""Interleaved 1F1B: every stage holds several chunks of the model."""

from __future__ import annotations

import numpy as np

from planner.cost.arrays import Float, Int
from planner.cost.schedules.schedule import PipelineSchedule, Task, one_each

__all__ = ["INTERLEAVED"]


def _order(p: int, stage: int, m: int, v: int) -> list[Task]:
    """Megatron-LM's order: groups of p micro-batches pass chunk 0, then chunk 1, ..."""
    forward, backward = [], []
    for first in range(0, m, p):
        for chunk in range(v):
            forward += [Task(stage, "forward", first + i, chunk) for i in range(p)]
            backward += [Task(stage, "backward", first + i, v - 1 - chunk) for i in range(p)]
    if m == p:
        return forward + backward
    return one_each(forward, backward, min(2 * (p - stage - 1) + (v - 1) * p, m * v))


def _in_flight(p: Int, v: Int, m: Int, stage: Int) -> Float:
    """2 (p - i - 1) + (v - 1) p + 1 chunks of 1/v stage."""
    chunks = 2 * (p - stage - 1) + (v - 1) * p + 1
    # with as many micro-batches as stages every forward pass precedes the first backward
    return np.where(m == p, m, np.minimum(chunks / v, m))


def _of_chunks(p: Int, v: Int, m: Int, stage: Int, layers: Float) -> Float:
    """Passes of each chunk in flight when most layers' activations are held. Shape (chunks, ...).

    In the order of the tasks, n forward passes are p floor(n / (p v)) of each chunk and up to p
    more of each in turn; backward passes are as many, from the last chunk. Between them always
    the same number is in flight, of which chunks changes: most at a turn of either.
    """
    held = np.rint(_in_flight(p, v, m, stage) * v).astype(np.int64)
    chunk = np.arange(len(layers)).reshape(-1, *[1] * np.ndim(p))

    def passed(number: Int, turn: Int) -> Int:
        """Passes of the chunk of a turn among the first `number`."""
        rounds, rest = np.divmod(number, p * v)
        return p * rounds + np.clip(rest - turn * p, 0, p)

    most, found = np.full(np.shape(p), -1.0), np.zeros(np.shape(layers))
    for turn in range(len(layers) + 1):
        for after in (turn * p, turn * p - held % p):
            done = np.clip(after, 0, m * v - held)
            alive = passed(held + done, chunk) - passed(done, v - 1 - chunk)
            alive = np.where(chunk < v, alive, 0).astype(float)
            total = np.sum(alive * layers, axis=0)
            found = np.where(total > most, alive, found)
            most = np.maximum(total, most)
    return found


INTERLEAVED = PipelineSchedule(
    name="interleaved-1f1b",
    source="Narayanan et al. 2021, arXiv:2104.04473, section 2.2",
    order=_order,
    in_flight=_in_flight,
    of_chunks=_of_chunks,
    interleaves=True,
)
