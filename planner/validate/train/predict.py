"""Predict: the step time of a strategy from measurements at other shapes.

    step = overhead(strategy) + compute(shapes of the rank) + copies + collectives

The overhead is the step time at a tiny shape minus the other parts.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from functools import partial
from typing import Any

import numpy as np
from numpy.typing import NDArray

from planner.validate.measure import quiet
from planner.validate.measure.collective_times import (
    IN_STEP,
    interpolate,
    relative_least_squares,
    slowest,
    time_operations,
)
from planner.validate.ranks.rank import Rank
from planner.validate.train.expected import expected_bytes
from planner.validate.train.strategies import Spread
from planner.validate.train.tasks import MlpTask, Task, fit_task
from planner.validate.train.trainer import Trainer

FIT_SHAPES = (
    (16, 64, 1),
    (16, 64, 4),
    (32, 512, 1),
    (32, 512, 4),
    (128, 512, 1),
    (256, 512, 1),
    (64, 768, 1),
    (192, 768, 1),
    (32, 1280, 4),
    (96, 1280, 1),
)
"""Rows of a micro-batch, width, micro-batches; four layers. No scored shape is among them."""
_DEPTH, _TINY_WIDTH, _REPEATS, _COPIED = 4, 64, 7, 4_000_000
_TABLE_SIZES = tuple(4096 * 8**k for k in range(5))

Float = NDArray[np.float64]


def features(
    rows: float, num_microbatches: float, matrices: Sequence[tuple[int, int]]
) -> list[float]:
    """Features of a linear step-time model: constant, calls, FLOP, weights, state, streams."""
    elements = sum(n * k for n, k in matrices)
    streams = sum(n + k for n, k in matrices)
    return [
        1.0,
        num_microbatches * len(matrices),
        6.0 * rows * num_microbatches * elements,
        num_microbatches * elements,
        elements,
        num_microbatches * rows * streams,
    ]


class StepModel:
    """Step-time model of the perceptron: fits and tables measured on the ranks of the run."""

    def __init__(self, rank: Rank) -> None:
        self._rank = rank
        shares = [quiet.probe_cpu_wall()]
        self.coefficients, self.fit_error = self._fit_compute()
        self.copy_bytes_per_s = 2 * 4 * _COPIED / self._agreed([self._copy_s()])[0]
        self.table: dict[str, tuple[list[float], list[float]]] = {}
        for row in time_operations(rank, IN_STEP, _TABLE_SIZES) if rank.world > 1 else ():
            sizes, times = self.table.setdefault(row["name"], ([], []))
            sizes.append(row["bytes"])
            times.append(row["in_step_s"])
        shares.append(quiet.probe_cpu_wall())
        self.cpu_wall = 1 - self._agreed([1 - min(shares)])[0]
        """Share of a core that the worst rank got while this was measured."""
        self._overheads: dict[Spread, float] = {}

    def _fit_compute(self) -> tuple[Float, float]:
        columns, times = [], []
        for rows, width, num_microbatches in FIT_SHAPES:
            self._rank.report(f"calibrating compute at {rows} x {width} x {num_microbatches}")
            columns.append(features(rows, num_microbatches, [(width, width)] * _DEPTH))
            times.append(self._compute_step_s(rows, width, num_microbatches))
        return relative_least_squares(columns, self._agreed(times))

    def _agreed(self, values: list[float]) -> list[float]:
        """Take the values of the slowest rank, for which the other ranks wait."""
        return values if self._rank.world == 1 else slowest(values)

    def _compute_step_s(self, rows: int, width: int, num_microbatches: int) -> float:
        task = MlpTask(batch=rows, width=width, depth=_DEPTH)
        trainer = Trainer(task, Spread("single"), replace(self._rank, world=1, rank=0))
        x, y = (tensor.to(trainer.device) for tensor in task.batch_of(0))

        def step() -> None:
            for _ in range(num_microbatches):
                task.loss(trainer.module(x), y).div(num_microbatches).backward()
            trainer.optimizer.step()
            trainer.optimizer.zero_grad(set_to_none=True)

        return float(np.median([self._rank.seconds(step) for _ in range(_REPEATS)][2:]))

    def _copy_s(self) -> float:
        """Median time of a copy into fresh memory, like that of FSDP's buffers [s]."""
        import torch

        source = torch.ones(_COPIED, device=self._rank.device)
        times = [self._rank.seconds(lambda: source.clone()) for _ in range(_REPEATS)]
        return float(np.median(times))

    def overhead_s(self, spread: Spread) -> float:
        """Overhead of a strategy, from its step time at a tiny shape [s]."""
        if spread not in self._overheads:
            tiny = MlpTask(batch=8 * spread.dp * spread.micro_batches, width=_TINY_WIDTH)
            task = fit_task(tiny, spread)
            assert isinstance(task, MlpTask)
            self._rank.report(f"calibrating the overhead of {spread.strategy}")
            trainer = Trainer(task, spread, self._rank)
            steps = range(3 + 2 * _REPEATS)
            times = [self._rank.seconds(partial(trainer.step, step)) for step in steps]
            measured = float(np.median(self._agreed(times[3:])))
            self._overheads[spread] = measured - self._parts_s(task, spread)
        return self._overheads[spread]

    def predicted_s(self, task: Task, spread: Spread) -> float | None:
        """Step time of the perceptron under a strategy [s]; None for other tasks, and for 3d."""
        if not isinstance(task, MlpTask) or (spread.tp > 1 and spread.dp > 1):
            return None
        return self.overhead_s(spread) + self._parts_s(task, spread)

    def _parts_s(self, task: MlpTask, spread: Spread) -> float:
        """Time of the slowest rank's passes with bubble, update, copies and collectives [s]."""
        rows, m = task.batch / spread.dp / spread.micro_batches, spread.micro_batches
        bubble = (spread.pp - 1) / spread.chunks / m
        matrices = task.matrices(task.depth // spread.pp, spread.tp)
        cost = self.coefficients * np.array(features(rows, m, matrices))
        # state and constant occur once per step, everything else in every pass
        stretched = np.array([1, 1 + bubble, 1 + bubble, 1 + bubble, 1, 1 + bubble])
        if spread.shards_states:
            stretched[4] = 1 / spread.dp
        copied_bytes = 0
        if spread.shards_gradients:
            # FSDP copies into and out of its flat buffers
            num_gathers = 2 if spread.shards_weights else 1
            copied_bytes = 2 * 4 * sum(n * k for n, k in matrices) * (num_gathers + 1)
        copies_s = copied_bytes / self.copy_bytes_per_s
        return float(cost @ stretched) + copies_s + self._collectives_s(task, spread)

    def _collectives_s(self, task: MlpTask, spread: Spread) -> float:
        """Time of all calls at their sizes, one by one: gloo on a CPU overlaps nothing [s]."""
        total = 0.0
        for (name, _), value in expected_bytes(task, spread, 0).items():
            if name != "receive":
                sizes, times = self.table["send_receive" if name == "send" else name]
                calls = _calls(name, value, task, spread)
                total += float(interpolate(calls, sizes, times).sum())
        return total

    def as_dict(self) -> dict[str, Any]:
        """Return fits and tables as plain data for the results."""
        return {
            "fit_shapes": [list(shape) for shape in FIT_SHAPES],
            "fit_error": self.fit_error,
            "cpu_wall": self.cpu_wall,
            "coefficients": self.coefficients.tolist(),
            "copy_bytes_per_s": self.copy_bytes_per_s,
            "in_step_table": {
                name: {"bytes": sizes, "time_s": times}
                for name, (sizes, times) in self.table.items()
            },
        }


def _calls(name: str, value: int, task: MlpTask, spread: Spread) -> list[float]:
    """Sizes of an operation's exposed calls in one step [B]."""
    layers = task.depth // spread.pp
    if name == "send":
        calls = spread.micro_batches * (2 * spread.chunks - 1 if spread.chunks > 1 else 1)
        # only fill and drain of the pipeline wait for messages
        return [value / calls] * (2 * (spread.pp - 1))
    if name == "broadcast":
        # ZeroRedundancyOptimizer broadcasts every tensor separately
        bias = 4.0 * task.width
        return [value / layers - bias, bias] * layers
    if spread.tp > 1:
        plain = 1 if spread.sequence_parallel else layers - 1
        count = plain if name == "all_reduce" else max(layers - 2, 1)
    elif name == "all_reduce":
        count = max(round(value / 25e6), 1)  # DDP's buckets
    else:
        count = layers * (2 if name == "all_gather" and spread.shards_weights else 1)
    return [value / count] * count
