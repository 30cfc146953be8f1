"""Case: train on every rank, compare with a single process, count bytes, measure times."""

import itertools
import logging
import math
import platform
import statistics
import warnings
from collections import Counter
from collections.abc import Callable
from dataclasses import asdict, replace
from functools import partial
from typing import Any

import torch
import torch.distributed as dist

from planner.validate.measure.quiet import Load, Watch
from planner.validate.ranks.rank import Rank, RankError, gather_objects, joined
from planner.validate.sharding.recorders import CollectiveRecorder, StorageTimeline
from planner.validate.train.expected import expected_bytes, expected_state_bytes, wire_bytes
from planner.validate.train.strategies import Spread, spread_of
from planner.validate.train.tasks import Tensors, fields_of, fit_task, make_task
from planner.validate.train.trainer import Trainer

_LOSS_TOLERANCE = 1e-6
"""Relative tolerance of losses, in fp32: six digits."""
_PARAMETER_TOLERANCE = 1e-6
"""Absolute plus relative tolerance of every parameter element."""
_CHECKED_STEPS = 4
"""Steps that are compared; the last one is recorded, after torch's buckets have settled."""
_WARMUP = 3


def run_cases(
    rank: Rank, payload: dict[str, Any], send: Callable[[Any], None]
) -> list[dict[str, Any]]:
    """Run all cases of one world in order; rank 0 sends each result at once."""
    warnings.simplefilter("ignore")
    logging.getLogger("torch").setLevel(logging.ERROR)
    results = []
    references: dict[str, tuple[list[float], Tensors]] = {}
    rank.report("joining the process group")
    with joined(rank):
        for case in payload["cases"]:
            result = _Case(rank, case).run(references)
            results.append(result)
            if rank.rank == 0:
                send(result)
    return results


class _Case:
    def __init__(self, rank: Rank, case: dict[str, Any]) -> None:
        self.rank, self.case = rank, case
        self.spread = spread_of(case["strategy"], rank.world)
        self.task = fit_task(make_task(**case["task"]), self.spread)

    def run(self, references: dict[str, tuple[list[float], Tensors]]) -> dict[str, Any]:
        case = self.case
        self._say("training the reference on a single process")
        key = repr(self.task)
        if key not in references:
            references.clear()
            references[key] = self._reference()
        self._say("building")
        trainer = Trainer(self.task, self.spread, self.rank)
        losses, recorder = self._check_steps(trainer)
        return {
            "strategy": case["strategy"],
            "task": fields_of(self.task),
            "world": self.rank.world,
            "spread": asdict(self.spread),
            "device": self.rank.device.split(":")[0],
            "torch": str(torch.__version__),
            "num_params": self.task.model.num_params,
            **self._compare(trainer, losses, references[key]),
            **self._count_traffic(trainer, recorder),
            "peak_bytes_per_rank": self._peaks(trainer),
            **self._time_attempts(trainer),
        }

    def _say(self, message: str) -> None:
        self.rank.report(f"{self.case['strategy']}: {message}")

    def _reference(self) -> tuple[list[float], Tensors]:
        """Train in a single process on rank 0. Returns its losses and final parameters."""
        unsharded: list[Any] = [None]
        if self.rank.rank == 0:
            trainer = Trainer(self.task, Spread("single"), self.rank)
            losses = [trainer.step(i) for i in range(_CHECKED_STEPS)]
            unsharded = [(losses, trainer.parameters())]
        dist.broadcast_object_list(unsharded, src=0)
        reference: tuple[list[float], Tensors] = unsharded[0]
        return reference

    def _check_steps(self, trainer: Trainer) -> tuple[list[float], CollectiveRecorder]:
        losses, recorder = [], CollectiveRecorder()
        for step in range(_CHECKED_STEPS):
            self._say(f"step {step + 1} of {_CHECKED_STEPS}")
            if step < _CHECKED_STEPS - 1:
                losses.append(trainer.step(step))
            else:
                with recorder:
                    losses.append(trainer.step(step))
        return losses, recorder

    def _compare(
        self, trainer: Trainer, losses: list[float], reference: tuple[list[float], Tensors]
    ) -> dict[str, Any]:
        """Compare with the single process. Raises RankError that names the rank that differs."""
        self._say("comparing with the single process")
        expected_losses, expected = reference
        parameters = trainer.parameters()
        worst, where = 0.0, ""
        for name, value in parameters.items():
            target = expected[name]
            bound = _PARAMETER_TOLERANCE * (1 + target.abs())
            error = float(((value - target).abs() / bound).max())
            if not error <= worst:
                worst, where = error, name
        everyone = gather_objects((losses, worst, where))
        # summed gradients carry one rank's fault to all ranks: the worst rank is named
        errors = [math.inf if math.isnan(item[1]) else item[1] for item in everyone]
        error, rank = max((error, rank) for rank, error in enumerate(errors))
        if error > 1:
            raise RankError(
                f"rank {rank} of {self.rank.world} disagrees with the single process in "
                f"{self.case['strategy']}: parameter {everyone[rank][2]} differs by {error:.3g} "
                f"times the tolerance of {_PARAMETER_TOLERANCE:g}"
            )
        mean_losses = _mean_losses([item[0] for item in everyone])
        gaps = [abs(a / b - 1) for a, b in zip(mean_losses, expected_losses, strict=True)]
        if not max(gaps) <= _LOSS_TOLERANCE:
            raise RankError(
                f"{self.case['strategy']}: the losses {mean_losses} differ from the single "
                f"process's {expected_losses} by more than {_LOSS_TOLERANCE:g}"
            )
        return {
            "equal": True,
            "losses": mean_losses,
            "reference_losses": expected_losses,
            "loss_error": max(gaps),
            "parameter_error_in_tolerances": max(item[1] for item in everyone),
        }

    def _count_traffic(self, trainer: Trainer, recorder: CollectiveRecorder) -> dict[str, Any]:
        counted: Counter[tuple[str, str]] = Counter()
        calls: Counter[tuple[str, str]] = Counter()
        for item in recorder.operations():
            key = (item.name, trainer.axis_of(item.ranks))
            counted[key] += item.bytes
            calls[key] += item.count
        place = (self.task, self.spread, trainer.pp_rank)
        expected = expected_bytes(*place)
        rows = [
            {
                "name": name,
                "axis": axis,
                "count": calls[name, axis],
                "counted_bytes": counted[name, axis],
                "expected_bytes": expected[name, axis],
            }
            for name, axis in sorted({*counted, *expected})
        ]
        states = {
            "counted": trainer.state_bytes(),
            "expected": expected_state_bytes(*place, trainer.dp_rank),
        }
        sent = sum(
            wire_bytes(name, value, trainer.degree(axis)) for (name, axis), value in counted.items()
        )
        everyone = gather_objects((rows, states, sent))
        equal = all(
            row["counted_bytes"] == row["expected_bytes"] for item in everyone for row in item[0]
        )
        is_exact = all(item[1]["expected"] in (None, item[1]["counted"]) for item in everyone)
        return {
            "bytes_equal": equal,
            "state_bytes_equal": is_exact,
            "sent_bytes_per_rank": [item[2] for item in everyone],
            "traffic_per_rank": [item[0] for item in everyone],
            "state_bytes_per_rank": [item[1] for item in everyone],
        }

    def _peaks(self, trainer: Trainer) -> list[int]:
        """Peak of live tensors in a step, for every rank; on a CPU without DDP's buckets [B]."""
        self._say("peak memory")
        if self.rank.device != "cpu":
            torch.accelerator.reset_peak_memory_stats()
            trainer.step(_CHECKED_STEPS)
            peak = int(torch.accelerator.max_memory_allocated())
        else:
            timeline = StorageTimeline()
            with timeline:
                timeline.restart()
                for tensor in itertools.chain(*trainer.resident_tensors().values()):
                    timeline.watch(tensor)
                timeline.moment("start")
                trainer.step(_CHECKED_STEPS)
                timeline.moment("stop")
            phases = timeline.peaks(timeline.moments["start"], timeline.moments["stop"])
            peak = max(size for size, _ in phases.values())
        return gather_objects(peak)

    def _time_attempts(self, trainer: Trainer) -> dict[str, Any]:
        """Time the steps; try again, up to `attempts` times, if other processes use the cores."""
        count = self.case["timed_steps"]
        if not count:
            return {"step_time_s": None, "load": None}
        timed: dict[str, Any] = {}
        for attempt in range(1, self.case["attempts"] + 1):
            measured, load = self._time_steps(trainer, count)
            timed = {**measured, "load": load.as_dict(), "attempts": attempt}
            if load.crowded or not load.why_not:
                break
        return timed

    def _time_steps(self, trainer: Trainer, count: int) -> tuple[dict[str, Any], Load]:
        """Step times without recording, and the load; the slowest rank of each step counts."""
        for step in range(_WARMUP):
            trainer.step(step)
        dist.barrier()
        watch, times = Watch(), []
        for step in range(count):
            if step % 5 == 0:
                self._say(f"timed step {step + 1} of {count}")
                watch.probe(0.02)
            times.append(self.rank.seconds(partial(trainer.step, step)))
        load, slowest = self._combine_loads(watch, times)
        measured: dict[str, Any] = {
            "step_time_s": statistics.median(slowest),
            "step_time_best_s": min(slowest),
            "step_time_p90_s": sorted(slowest)[math.ceil(0.9 * len(slowest)) - 1],
            "threads_per_rank": torch.get_num_threads(),
        }
        return measured, load

    def _combine_loads(self, watch: Watch, times: list[float]) -> tuple[Load, list[float]]:
        """Load of rank 0's node, with the worst CPU share; the slowest rank's time of each step."""
        everyone = gather_objects((times, watch.report(), platform.node()))
        load = watch.load([report for _, report, node in everyone if node == platform.node()])
        loads: list[Any] = [replace(load, cpu_wall=min(report[0] for _, report, _ in everyone))]
        dist.broadcast_object_list(loads, src=0)
        return loads[0], [max(step) for step in zip(*(item[0] for item in everyone), strict=True)]


def _mean_losses(everyone: list[list[float]]) -> list[float]:
    """Mean over the ranks that have a loss, step by step: their shares of the batch are equal."""
    means = []
    for values in zip(*everyone, strict=True):
        numbers = [value for value in values if not math.isnan(value)]
        means.append(sum(numbers) / len(numbers) if numbers else math.nan)
    return means
