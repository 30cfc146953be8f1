"""Case: train on every rank, compare with one process, count bytes, measure times.

Each case starts from the same weights. Rank 0 runs the single process that the case must equal,
and sends its results to the other ranks.
"""

from __future__ import annotations

import logging
import math
import os
import platform
import statistics
import time
import warnings
from collections import Counter
from collections.abc import Callable
from dataclasses import asdict, replace
from typing import Any

import torch
import torch.distributed as dist

from planner.validate.measure import quiet
from planner.validate.ranks.rank import Rank, RankError, gather_objects, joined, num_cores
from planner.validate.sharding.recorders import CollectiveRecorder, StorageTimeline
from planner.validate.train import expected_traffic
from planner.validate.train.predict import StepModel
from planner.validate.train.strategies import Spread, spread_of
from planner.validate.train.tasks import MlpTask, Task, Tensors, fit_task, make_task
from planner.validate.train.trainer import Trainer

__all__ = ["LOSS_TOLERANCE", "PARAMETER_TOLERANCE", "run_cases"]

LOSS_TOLERANCE = 1e-6
"""Relative, in fp32: six digits."""
PARAMETER_TOLERANCE = 1e-6
"""Absolute plus relative, for every element."""
CHECKED_STEPS = 4
"""The last of them is recorded; torch's buckets and buffers have settled by then."""
_WARMUP = 3

Send = Callable[[Any], None]


def run_cases(rank: Rank, payload: dict[str, Any], send: Send) -> list[dict[str, Any]]:
    """Run all cases of one world in order; rank 0 sends each result at once."""
    warnings.simplefilter("ignore")
    logging.getLogger("torch").setLevel(logging.ERROR)
    results = []
    references: dict[str, tuple[list[float], Tensors]] = {}
    rank.report("meeting the other ranks")
    with joined(rank):
        for case in payload["cases"]:
            result = _Case(rank, case, payload.get("fault", "")).run(references)
            results.append(result)
            if rank.rank == 0:
                send(result)
    return results


class _Case:
    """One strategy on one task."""

    def __init__(self, rank: Rank, case: dict[str, Any], fault: str) -> None:
        self.rank, self.case, self.fault = rank, case, fault
        self.spread = spread_of(case["strategy"], rank.world)
        self.task = fit_task(make_task(case["task"], case["sizes"]), self.spread)

    def run(self, references: dict[str, tuple[list[float], Tensors]]) -> dict[str, Any]:
        case = self.case
        self._say("the single process it must equal")
        key = repr(self.task)
        if key not in references:
            references.clear()
            references[key] = self._reference()
        self._say("building")
        trainer = Trainer(self.task, self.spread, self.rank)
        losses, recorder = self._check_steps(trainer)
        correct = self._compare(trainer, losses, references[key])
        counted = self._count_traffic(trainer, recorder)
        peaks = self._peaks(trainer)
        timed = self._time_attempts(trainer)
        return {
            "key": case["key"],
            "task": self.task.name,
            "sizes": self.task.sizes,
            "strategy": case["strategy"],
            "world": self.rank.world,
            "spread": asdict(self.spread),
            "device": self.rank.device.split(":")[0],
            "torch": str(torch.__version__),
            "num_params": self.task.num_params,
            **correct,
            **counted,
            "peak_bytes_per_rank": peaks,
            **timed,
        }

    def _say(self, message: str) -> None:
        self.rank.report(f"{self.task.name} {self.case['strategy']}: {message}")

    # --- correctness -------------------------------------------------------------------------

    def _reference(self) -> tuple[list[float], Tensors]:
        """Losses and final parameters of the single process."""
        unsharded: list[Any] = [None]
        if self.rank.rank == 0:
            trainer = Trainer(self.task, Spread("single"), self.rank)
            losses = [trainer.step(i) for i in range(CHECKED_STEPS)]
            unsharded = [(losses, trainer.parameters())]
        dist.broadcast_object_list(unsharded, src=0)
        reference: tuple[list[float], Tensors] = unsharded[0]
        return reference

    def _check_steps(self, trainer: Trainer) -> tuple[list[float], CollectiveRecorder]:
        losses, recorder = [], CollectiveRecorder()
        for step in range(CHECKED_STEPS):
            self._say(f"step {step + 1} of {CHECKED_STEPS}")
            self._fail_on_purpose(step, trainer)
            if step < CHECKED_STEPS - 1:
                losses.append(trainer.step(step))
            else:
                with recorder:
                    losses.append(trainer.step(step))
        return losses, recorder

    def _fail_on_purpose(self, step: int, trainer: Trainer) -> None:
        """For tests: `kind:rank:step` makes a rank die, hang or compute something else."""
        if not self.fault:
            return
        kind, rank, when = self.fault.split(":")
        if int(rank) != self.rank.rank or int(when) != step:
            return
        if kind == "die":
            os.kill(os.getpid(), 9)
        elif kind == "hang":
            time.sleep(1e6)
        elif kind == "disagree":
            with torch.no_grad():
                next(trainer.chunks[0].parameters()).mul_(1.01)

    def _compare(
        self, trainer: Trainer, losses: list[float], reference: tuple[list[float], Tensors]
    ) -> dict[str, Any]:
        """Raise RankError in the rank whose result differs from the single process."""
        self._say("comparing with the single process")
        expected_losses, expected = reference
        parameters = trainer.parameters()
        worst, where = 0.0, ""
        for name, value in parameters.items():
            target = expected[name]
            bound = PARAMETER_TOLERANCE * (1 + target.abs())
            error = float(((value - target).abs() / bound).max())
            if not error <= worst:
                worst, where = error, name
        everyone = gather_objects((losses, worst, where))
        # where gradients are summed one rank's fault reaches all: the worst is named
        error, rank = max((_rank_error(item[1]), rank) for rank, item in enumerate(everyone))
        if error > 1:
            raise RankError(
                f"rank {rank} of {self.rank.world} disagrees with the single process in "
                f"{self.task.name} {self.case['strategy']}: parameter {everyone[rank][2]} differs "
                f"by {error:.3g} times the tolerance of {PARAMETER_TOLERANCE:g}"
            )
        mean_losses = _mean_losses([item[0] for item in everyone])
        gaps = [abs(a / b - 1) for a, b in zip(mean_losses, expected_losses, strict=True)]
        if not max(gaps) <= LOSS_TOLERANCE:
            raise RankError(
                f"{self.task.name} {self.case['strategy']}: the losses {mean_losses} differ from "
                f"the single process's {expected_losses} by more than {LOSS_TOLERANCE:g}"
            )
        return {
            "equal": True,
            "losses": mean_losses,
            "reference_losses": expected_losses,
            "loss_error": max(gaps),
            "parameter_error_in_tolerances": max(item[1] for item in everyone),
        }

    # --- bytes -------------------------------------------------------------------------------

    def _count_traffic(self, trainer: Trainer, recorder: CollectiveRecorder) -> dict[str, Any]:
        """Counted and expected bytes of every rank, by operation and axis."""
        counted: Counter[tuple[str, str]] = Counter()
        calls: Counter[tuple[str, str]] = Counter()
        for item in recorder.operations():
            key = (item.name, trainer.axis_of(item.ranks))
            counted[key] += item.bytes
            calls[key] += item.count
        expected = expected_traffic.expected_bytes(self.task, self.spread, trainer.pp_rank)
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
            "expected": expected_traffic.expected_state_bytes(
                self.task, self.spread, trainer.pp_rank, trainer.dp_rank
            ),
        }
        sent = sum(
            expected_traffic.wire_bytes(name, value, trainer.degree(axis))
            for (name, axis), value in counted.items()
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
        """Highest sum of live tensors in a step, every rank [B].

        Counted: what torch's operators make. Left out on a CPU: DDP's buckets, made in C++.
        """
        self._say("peak memory")
        if self.rank.device != "cpu":
            torch.accelerator.reset_peak_memory_stats()
            trainer.step(CHECKED_STEPS)
            peak = int(torch.accelerator.max_memory_allocated())
        else:
            timeline = StorageTimeline()
            with timeline:
                timeline.restart()
                for tensor in trainer.resident_tensors():
                    timeline.watch(tensor)
                timeline.moment("start")
                trainer.step(CHECKED_STEPS)
                timeline.moment("stop")
            moments = timeline.moments
            phases = timeline.peaks(moments["start"], moments["stop"])
            peak = max(size for size, _ in phases.values())
        return gather_objects(peak)

    # --- time --------------------------------------------------------------------------------

    def _time_attempts(self, trainer: Trainer) -> dict[str, Any]:
        """Time the steps, again while other processes use the cores."""
        count = self.case["timed_steps"]
        if not count:
            return {"step_time_s": None, "load": None}
        timed: dict[str, Any] = {}
        for attempt in range(1, self.case["attempts"] + 1):
            measured, load = self._time_steps(trainer, count)
            timed = {**measured, "load": load.as_dict(), "attempts": attempt}
            if load.disturbance in (None, quiet.Disturbance.CROWDED):
                break
        return timed

    def _time_steps(self, trainer: Trainer, count: int) -> tuple[dict[str, Any], quiet.Load]:
        """Step times without recording, and the load; the slowest rank of each step counts."""
        model = None
        if isinstance(self.task, MlpTask) and self.rank.world <= num_cores():
            # next to what it predicts, so that both see the same neighbours
            model = StepModel(self.rank)
        for step in range(_WARMUP):
            trainer.step(step)
        dist.barrier()
        watch, cpu = quiet.Watch(), time.process_time()
        times, shares = [], [quiet.probe_cpu_wall()]
        for step in range(count):
            if step % 5 == 0:
                self._say(f"timed step {step + 1} of {count}")
                shares.append(quiet.probe_cpu_wall(0.02))
            start = time.perf_counter()
            trainer.step(step)
            self.rank.synchronise()
            times.append(time.perf_counter() - start)
        shares.append(quiet.probe_cpu_wall())
        load, slowest = self._combine_loads(watch, time.process_time() - cpu, shares, times)
        measured = {
            "step_time_s": statistics.median(slowest),
            "step_time_best_s": min(slowest),
            "step_time_p90_s": sorted(slowest)[math.ceil(0.9 * len(slowest)) - 1],
            "threads_per_rank": torch.get_num_threads(),
        }
        if model is not None:
            measured |= _prediction(model, self.task, self.spread, measured)
            load = replace(load, cpu_wall=min(load.cpu_wall, model.cpu_wall))
        return measured, load

    def _combine_loads(
        self, watch: quiet.Watch, cpu_s: float, shares: list[float], times: list[float]
    ) -> tuple[quiet.Load, list[float]]:
        """Load over all ranks, and the slowest rank's time of each step."""
        everyone = gather_objects((times, cpu_s, min(shares), platform.node()))
        same_node = [item for item in everyone if item[3] == platform.node()]
        foreign: list[Any] = [watch.foreign_cores(sum(item[1] for item in same_node))]
        dist.broadcast_object_list(foreign, src=0)
        load = quiet.Load(
            min(item[2] for item in everyone), foreign[0], len(same_node), num_cores()
        )
        return load, [max(step) for step in zip(*(item[0] for item in everyone), strict=True)]


def _prediction(
    model: StepModel, task: Task, spread: Spread, timed: dict[str, Any]
) -> dict[str, Any]:
    predicted = model.predicted_s(task, spread)
    if predicted is None:
        return {"predicted_step_time_s": None}
    return {
        "predicted_step_time_s": predicted,
        "time_error": predicted / timed["step_time_s"] - 1,
        "calibration": model.as_dict(),
    }


def _rank_error(error: float) -> float:
    """Error with NaN as the worst, so that errors compare."""
    return math.inf if math.isnan(error) else error


def _mean_losses(everyone: list[list[float]]) -> list[float]:
    """Mean over the ranks that have a loss, step by step: their shares of the batch are equal."""
    means = []
    for values in zip(*everyone, strict=True):
        numbers = [value for value in values if not math.isnan(value)]
        means.append(sum(numbers) / len(numbers) if numbers else math.nan)
    return means
