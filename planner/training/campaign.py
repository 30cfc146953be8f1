"""Campaign: time and bill of a whole training, from its first job to its last step."""

import math
from dataclasses import dataclass
from functools import cached_property

from planner.cost.estimate import Estimate
from planner.cost.scenario import Scenario
from planner.cost.shards.layouts import Layouts
from planner.describe.machine import Queue
from planner.describe.training.training_run import Training
from planner.training.data.input import InputTime, input_time
from planner.training.energy import NodePower, node_power
from planner.training.resilience.checkpoints import Checkpoint, checkpoint_of
from planner.training.resilience.failures import (
    Jobs,
    Losses,
    consecutive_jobs,
    daly_interval_s,
    detection_s,
    mean_time_between_failures_s,
    training_losses,
)
from planner.training.resilience.start import start_up
from planner.training.steps import evaluation_s, training_time
from planner.training.whole_training import Amount, TrainingPart, WholeTraining, bill_training
from planner.units import format_seconds

_MIN_WAIT = 0.01
# fraction of a step: the notes do not mention shorter waits for data

_ROUGH_FACTOR = 2.0
# own assumption: roughly modelled parts (start-up, staging, waiting for data, checkpoints,
# failures) may take half as long or twice as long


def whole_training(
    scenario: Scenario, estimate: Estimate, nodes: int, training: Training | None = None
) -> WholeTraining | None:
    """Estimate a whole training: duration, parts and bill; None without tokens or samples."""
    if not scenario.workload.all_tokens:
        return None
    return _Campaign(scenario, estimate, nodes, training or Training()).answer()


@dataclass(frozen=True)
class _Campaign:
    """Whole training on an estimated layout; each property uses those above it."""

    scenario: Scenario
    estimate: Estimate
    nodes: int
    training: Training

    @cached_property
    def layouts(self) -> Layouts:
        return Layouts.of(self.estimate.layout)

    @cached_property
    def steps_s(self) -> float:
        return training_time(self.scenario.workload, self.estimate)

    @cached_property
    def input(self) -> InputTime | None:
        """Input time of a step; None if no dataset is stated."""
        dataset, workload = self.training.dataset, self.scenario.workload
        if dataset is None:
            return None
        machine, batch = self.scenario.machine, workload.global_batch
        ranks = min(self.estimate.layout.world, machine.node.num_devices)
        samples = dataset.of_sequences(workload.sequence_length)
        epochs = max(workload.steps * batch / samples.num_samples.value, 1.0)
        job = (machine, self.nodes, ranks, batch, self.estimate.step_time_s)
        return input_time(*job, samples, self.training.loader, epochs)

    @cached_property
    def waiting_s(self) -> float:
        """Total time that steps wait for data, in the first and in later epochs [s]."""
        if self.input is None or self.training.dataset is None:
            return 0.0
        workload = self.scenario.workload
        samples = self.training.dataset.of_sequences(workload.sequence_length).num_samples.value
        first = min(samples / workload.global_batch, workload.steps)
        later = workload.steps - first
        return float(first * self.input.first_epoch_exposed_s + later * self.input.exposed_s)

    @cached_property
    def evaluating_s(self) -> float:
        options, estimate = self.training.evaluation, self.estimate
        if not options.every_steps:
            return 0.0
        each = evaluation_s(self.scenario, estimate.layout, estimate.step_time_parts_s, options)
        return self.scenario.workload.steps // options.every_steps * each

    @cached_property
    def checkpoint(self) -> Checkpoint:
        return checkpoint_of(self.scenario, self.layouts, self.training.checkpoints)

    @cached_property
    def start_s(self) -> float:
        options = self.training
        parts = start_up(self.scenario, self.layouts, options.start_up, options.checkpoints)
        return float(sum(parts.values()))

    @cached_property
    def staging_s(self) -> float:
        """Time to copy the dataset to the nodes at the start of a job [s]."""
        return 0.0 if self.input is None else float(self.input.staging_s)

    @cached_property
    def losses(self) -> Losses:
        saving, failures = self.training.checkpoints, self.training.failures
        work_s = self.steps_s + self.waiting_s + self.evaluating_s
        write_s = self.checkpoint.blocking_s
        mtbf_s = mean_time_between_failures_s(self.estimate.layout.world, failures)
        interval_s = saving.interval_s
        if saving.every_steps:
            interval_s = work_s * saving.every_steps / self.scenario.workload.steps
        elif interval_s is None:
            # the end of a job loses work as a failure does
            interval_s = float(daly_interval_s(write_s, 1 / (1 / mtbf_s + 1 / self.wall_s)))
        recovery_s = detection_s(failures) + self.start_s + self.staging_s
        behind_s = self.checkpoint.behind_s
        return training_losses(work_s, write_s, mtbf_s, recovery_s, interval_s, behind_s)

    @cached_property
    def queue(self) -> Queue | None:
        """Queue with the longest limit for these nodes; on-request queues only if no other fits."""
        queues = self.scenario.machine.scheduler.queues
        admit = [queue for queue in queues if queue.min_nodes <= self.nodes <= queue.max_nodes]
        open_queues = [queue for queue in admit if not queue.on_request] or admit
        return max(open_queues, key=lambda queue: queue.max_hours, default=None)

    @property
    def wall_s(self) -> float:
        """Time limit of a job [s]."""
        return math.inf if self.queue is None else 3600 * self.queue.max_hours

    @cached_property
    def jobs(self) -> Jobs:
        total, interval = self.losses.total_s, self.losses.interval_s
        return consecutive_jobs(total, self.wall_s, self.start_s + self.staging_s, interval)

    @cached_property
    def power(self) -> NodePower | None:
        return node_power(self.scenario.machine, self.training.charges.node_power_watts)

    def answer(self) -> WholeTraining:
        count = float(self.jobs.jobs) if math.isfinite(self.jobs.jobs) else 1.0
        lost_s = self.losses.lost_s + self.jobs.ends_s
        parts = (
            _rough_part("start_up", count * self.start_s),
            _rough_part("staging", count * self.staging_s),
            self._step_like_part("steps", self.steps_s),
            _rough_part("data", self.waiting_s),
            self._step_like_part("evaluation", self.evaluating_s),
            _rough_part("checkpoints", float(self.losses.checkpoints_s)),
            _rough_part("lost_work", float(lost_s)),
            _rough_part("restarts", float(self.losses.restarts_s)),
        )
        return WholeTraining(
            nodes=self.nodes,
            steps=self.scenario.workload.steps,
            parts=parts,
            jobs=round(count),
            queue=self.queue.name if self.queue else "",
            failures=float(self.losses.failures),
            checkpoints=float(self.losses.work_s / self.losses.interval_s),
            checkpoint_bytes=float(self.checkpoint.total_bytes),
            bill=bill_training(parts, self.nodes, self.training.charges, self.power),
            notes=tuple(self._notes()),
        )

    def _step_like_part(self, name: str, seconds: float) -> TrainingPart:
        (low, high), step = self.estimate.interval_step_time_s, self.estimate.step_time_s
        amount = Amount(seconds, seconds * low / step, seconds * high / step)
        return TrainingPart(name, amount, with_steps=True)

    def _notes(self) -> list[str]:
        options, notes = self.training, []
        if self.input is None:
            notes.append("No dataset is stated: waiting for data is not counted.")
        elif self.input.exposed_s > _MIN_WAIT * self.estimate.step_time_s:
            notes.append(
                f"Steps wait {format_seconds(float(self.input.exposed_s))} for their data: the "
                f"slowest part of the input is {self.input.bound}."
            )
        if not options.evaluation.every_steps:
            notes.append("No evaluation is stated, and none is counted.")
        if options.failures.per_device_hour is None:
            notes.append(
                "Interruptions are as frequent per device as those of Llama 3 405B, 419 in 54 days "
                "on 16,384 devices."
            )
        if not math.isfinite(self.jobs.jobs) and self.queue is not None:
            notes.append(
                f"A job of {self.queue.max_hours:g} h in {self.queue.name} is too short for its "
                "start and one checkpoint interval: the parts assume a single job without a time "
                "limit."
            )
        return [*notes, *self._power_notes()]

    def _power_notes(self) -> list[str]:
        pue, power = self.training.charges.pue, self.power
        if power is None:
            return ["Node power is unknown, so energy is not estimated; state it."]
        centre = f"times a PUE of {pue:g}" if pue > 1 else "without the centre's overhead"
        return [f"A node draws {power.watts:,.0f} W, {power.how}; {centre}."]


def _rough_part(name: str, seconds: float) -> TrainingPart:
    return TrainingPart(name, Amount(seconds, seconds / _ROUGH_FACTOR, seconds * _ROUGH_FACTOR))
