"""The whole training: an estimate's steps with all that comes between, before and after them."""

from __future__ import annotations

import math
from dataclasses import dataclass
from functools import cached_property

from planner.cost.estimate import Estimate
from planner.cost.scenario import Scenario
from planner.cost.shards.layouts import Layouts
from planner.describe.machine import Queue
from planner.describe.training_run import Training
from planner.training.data.input import InputTime, input_time
from planner.training.energy import NodePower, node_power
from planner.training.evaluation import evaluation_s
from planner.training.resilience.checkpoints import Checkpoint, checkpoint_of
from planner.training.resilience.failures import (
    Jobs,
    Losses,
    daly_interval_s,
    detection_s,
    jobs_in_a_row,
    mean_time_between_failures_s,
    useful,
)
from planner.training.resilience.start import start_up
from planner.training.steps import training_time
from planner.training.whole_training import Amount, TrainingPart, WholeTraining, between, billed
from planner.units import format_seconds

__all__ = ["whole_training"]

_FELT = 0.01
# of a step: waiting that is shorter is not spoken of

_ROUGH = 2.0
# ours: what is modelled roughly (start-up, staging, waiting for data, checkpoints, failures) may
# take half as long or twice as long


def whole_training(
    scenario: Scenario, estimate: Estimate, nodes: int, training: Training | None = None
) -> WholeTraining | None:
    """How long a training takes from its first job to its last step, why, and what it takes.

    None where the workload states no tokens or samples. Counted: the steps as they are estimated,
    waiting for data, evaluation, checkpoints, work that failures and the queue's wall time undo,
    recovery, the start of every job. Left out: waiting in queues, stragglers that do not fail,
    mistakes. method.md#whole-trainings.

    >>> import planner
    >>> job = planner.Workload(global_batch=64, sequence_length=1024, tokens=1e10)
    >>> layout = planner.Layout(dp=4, micro_batch=16)
    >>> scenario = Scenario(planner.load_model("gpt2"), planner.load_machine("polaris"), job,
    ...                     planner.load_framework("ddp"))
    >>> one = planner.estimate("gpt2", "polaris", layout, workload=job, framework="ddp")
    >>> found = whole_training(scenario, one, 1)
    >>> found.part_s("steps") == training_time(job, one)
    True
    >>> found.time.expected > found.part_s("steps")
    True
    """
    if not scenario.workload.all_tokens:
        return None
    return _Run(scenario, estimate, nodes, training or Training()).answer()


@dataclass(frozen=True)
class _Run:
    """A training on an estimate's layout; each figure needs those above it."""

    scenario: Scenario
    estimate: Estimate
    nodes: int
    training: Training

    @cached_property
    def layouts(self) -> Layouts:
        return Layouts.of(self.estimate.layout)

    @cached_property
    def steps_s(self) -> float:
        """The steps, as they are estimated [s]."""
        return training_time(self.scenario.workload, self.estimate)

    @cached_property
    def read(self) -> InputTime | None:
        """What reading the samples of a step takes; None where no dataset is stated."""
        dataset, workload = self.training.dataset, self.scenario.workload
        if dataset is None:
            return None
        machine = self.scenario.machine
        ranks = min(self.estimate.layout.world, machine.node.num_devices)
        samples = dataset.of_sequences(workload.sequence_length)
        return input_time(
            machine,
            self.nodes,
            ranks,
            workload.global_batch,
            self.estimate.step_time_s,
            samples,
            self.training.loader,
            max(workload.steps * workload.global_batch / samples.num_samples.value, 1.0),
        )

    @cached_property
    def waiting_s(self) -> float:
        """Waiting for data, in the first epoch and after it [s]."""
        if self.read is None or self.training.dataset is None:
            return 0.0
        workload = self.scenario.workload
        samples = self.training.dataset.of_sequences(workload.sequence_length).num_samples.value
        first = min(samples / workload.global_batch, workload.steps)
        later = workload.steps - first
        return float(first * self.read.first_epoch_exposed_s + later * self.read.exposed_s)

    @cached_property
    def evaluating_s(self) -> float:
        """All evaluations [s]."""
        asked = self.training.evaluation
        if not asked.every_steps:
            return 0.0
        parts_s = self.estimate.step_time_parts_s
        each = evaluation_s(self.scenario, self.estimate.layout, parts_s, asked)
        return self.scenario.workload.steps // asked.every_steps * each

    @cached_property
    def saved(self) -> Checkpoint:
        """One checkpoint."""
        return checkpoint_of(self.scenario, self.layouts, self.training.checkpoints)

    @cached_property
    def start_s(self) -> float:
        """A job before its first step [s]."""
        asked = self.training
        parts = start_up(self.scenario, self.layouts, asked.start_up, asked.checkpoints)
        return float(sum(parts.values()))

    @cached_property
    def staging_s(self) -> float:
        """Copying the dataset to the nodes at the start of a job [s]."""
        return 0.0 if self.read is None else float(self.read.staging_s)

    @cached_property
    def losses(self) -> Losses:
        """What checkpoints and failures take."""
        asked, failures = self.training.checkpoints, self.training.failures
        work_s = self.steps_s + self.waiting_s + self.evaluating_s
        write_s = self.saved.blocking_s
        mtbf_s = mean_time_between_failures_s(self.estimate.layout.world, failures)
        interval_s = asked.interval_s
        if asked.every_steps:
            interval_s = work_s * asked.every_steps / self.scenario.workload.steps
        elif interval_s is None:
            # the end of a job undoes work as a failure does
            ended = 1 / (1 / mtbf_s + 1 / self.wall_s)
            interval_s = float(daly_interval_s(write_s, ended))
        recovery_s = detection_s(failures) + self.start_s + self.staging_s
        return useful(work_s, write_s, mtbf_s, recovery_s, interval_s, self.saved.behind_s)

    @cached_property
    def queue(self) -> Queue | None:
        """The queue that lets a job of these nodes run longest, none that is by request."""
        queues = self.scenario.machine.scheduler.queues
        admit = [queue for queue in queues if queue.min_nodes <= self.nodes <= queue.max_nodes]
        free = [queue for queue in admit if not queue.on_request] or admit
        return max(free, key=lambda queue: queue.max_hours, default=None)

    @property
    def wall_s(self) -> float:
        """How long a job may run [s]."""
        return math.inf if self.queue is None else 3600 * self.queue.max_hours

    @cached_property
    def jobs(self) -> Jobs:
        """The jobs in a row that all of it needs."""
        total, interval = self.losses.total_s, self.losses.interval_s
        start_s = self.start_s + self.staging_s
        return jobs_in_a_row(total, self.wall_s, start_s, interval, self.saved.blocking_s)

    @cached_property
    def power(self) -> NodePower | None:
        """What a node draws."""
        return node_power(self.scenario.machine, self.training.charges.node_power_watts)

    def answer(self) -> WholeTraining:
        """All of it."""
        count = float(self.jobs.jobs) if math.isfinite(self.jobs.jobs) else 1.0
        lost_s = self.losses.lost_s + self.jobs.ends_s
        parts = (
            _roughly("start_up", count * self.start_s),
            _roughly("staging", count * self.staging_s),
            self._as_steps("steps", self.steps_s),
            _roughly("data", self.waiting_s),
            self._as_steps("evaluation", self.evaluating_s),
            _roughly("checkpoints", float(self.losses.checkpoints_s)),
            _roughly("lost_work", float(lost_s)),
            _roughly("restarts", float(self.losses.restarts_s)),
        )
        return WholeTraining(
            nodes=self.nodes,
            steps=self.scenario.workload.steps,
            parts=parts,
            jobs=round(count),
            queue=self.queue.name if self.queue else "",
            failures=float(self.losses.failures),
            checkpoints=float(self.losses.work_s / self.losses.interval_s),
            checkpoint_bytes=float(self.saved.total_bytes),
            bill=billed(between(parts), self.nodes, self.training.charges, self.power),
            notes=tuple(self._notes()),
        )

    def _as_steps(self, name: str, seconds: float) -> TrainingPart:
        """A part that is as uncertain as the step."""
        low, high = self.estimate.interval_step_time_s
        step = self.estimate.step_time_s
        amount = Amount(seconds, seconds * low / step, seconds * high / step)
        return TrainingPart(name, amount, with_steps=True)

    def _notes(self) -> list[str]:
        """What is not counted, and what was assumed."""
        asked, notes = self.training, []
        if asked.dataset is None:
            notes.append("No dataset is stated: waiting for data is not counted (--dataset).")
        elif self.read is not None and self.read.exposed_s > _FELT * self.estimate.step_time_s:
            notes.append(
                f"Steps wait {format_seconds(float(self.read.exposed_s))} for their data: the "
                f"slowest part of the input is {self.read.bound}."
            )
        if not asked.evaluation.every_steps:
            notes.append("No evaluation is stated, and none is counted (--evaluate-every).")
        if asked.failures.per_device_hour is None:
            notes.append(
                "Interruptions are as frequent per device as those of Llama 3 405B, 419 in 54 days "
                "on 16,384 devices (--failures)."
            )
        if not math.isfinite(self.jobs.jobs) and self.queue is not None:
            notes.append(
                f"A job of {self.queue.max_hours:g} h in {self.queue.name} is too short for its "
                "start and an interval of checkpoints: the parts are those of one job without end."
            )
        return [*notes, *self._notes_of_power()]

    def _notes_of_power(self) -> list[str]:
        if self.power is None:
            return ["The power of a node is not known: energy is not told (--node-power)."]
        drawn = f"A node draws {self.power.watts:,.0f} W, {self.power.how}"
        pue = self.training.charges.pue
        centre = f"times a PUE of {pue:g}" if pue > 1 else "without the centre's overhead (--pue)"
        return [f"{drawn}; {centre}."]


def _roughly(name: str, seconds: float) -> TrainingPart:
    return TrainingPart(name, Amount(seconds, seconds / _ROUGH, seconds * _ROUGH))
