"""The whole training: an estimate's steps with all that comes between, before and after them."""

from __future__ import annotations

from dataclasses import dataclass

from planner.cost.estimate import Estimate
from planner.cost.question import Question
from planner.describe.machine import Queue
from planner.describe.training.training import Training
from planner.training.answer import Amount, TrainingPart, WholeTraining, between, billed
from planner.training.checkpoints import Saved, checkpoint
from planner.training.data import InputTime, input_time
from planner.training.energy import node_power
from planner.training.evaluation import evaluation_s
from planner.training.failures import (
    Jobs,
    Losses,
    detection_s,
    jobs_in_a_row,
    mean_time_between_failures_s,
    useful,
)
from planner.training.start import start_up_s
from planner.training.steps import training_time

__all__ = ["whole_training"]

_TWICE = 2.0
# ours: what is modelled roughly (start-up, staging, waiting for data, checkpoints) may take half as
# long or twice as long


def whole_training(
    question: Question, estimate: Estimate, nodes: int, training: Training = Training()
) -> WholeTraining | None:
    """How long a training takes from its first job to its last step, why, and what it takes.

    None where the workload states no tokens, samples or epochs. Counted: the steps as they are
    estimated, waiting for data, evaluation, checkpoints, work that failures and the queue's wall
    time undo, recovery, the start of every job. Left out: waiting in queues, stragglers that are
    no failures. method.md#whole-trainings.

    >>> import planner
    >>> job = planner.Workload(global_batch=64, sequence_length=1024, tokens=1e10)
    >>> layout = planner.Layout(dp=4, micro_batch=16)
    >>> question = Question(planner.load_model("gpt2"), planner.load_machine("polaris"), job,
    ...                     planner.load_framework("ddp"))
    >>> one = planner.estimate("gpt2", "polaris", layout, workload=job, framework="ddp")
    >>> found = whole_training(question, one, 1)
    >>> found.part_s("steps") == training_time(job, one)
    True
    >>> found.time.expected > found.part_s("steps")
    True
    """
    if not question.workload.all_tokens:
        return None
    return _Run(question, estimate, nodes, training).answer()


@dataclass(frozen=True, slots=True)
class _Run:
    """A training of some steps on an estimate's layout."""

    question: Question
    estimate: Estimate
    nodes: int
    training: Training

    @property
    def steps(self) -> int:
        return self.question.workload.steps

    @property
    def steps_s(self) -> float:
        return training_time(self.question.workload, self.estimate)

    def answer(self) -> WholeTraining:
        """The parts one after the other: each needs those before it."""
        read, saved, start_s = self.read(), self.saved(), self.start_s()
        evaluating = self.evaluating_s()
        data = self.data_s(read)
        mtbf_s = float(mean_time_between_failures_s(self.num_devices, self.training.failures))
        recovery_s = detection_s(self.training.failures) + start_s
        losses = useful(
            self.steps_s + data + evaluating,
            saved.write_s,
            mtbf_s,
            recovery_s,
            self.training.checkpoints.interval_s,
            saved.behind_s,
        )
        staging_s = 0.0 if read is None else float(read.staging_s)
        queue = self.queue()
        jobs = self.jobs(queue, losses, saved, start_s + staging_s)
        count = float(jobs.jobs)
        parts = (
            _roughly("start_up", float(jobs.starts_s) - count * staging_s),
            _roughly("staging", count * staging_s),
            self.as_steps("steps", self.steps_s),
            _roughly("data", data),
            self.as_steps("evaluation", evaluating),
            _roughly("checkpoints", float(losses.checkpoints_s)),
            _roughly("lost_work", float(losses.lost_s + jobs.ends_s)),
            _roughly("restarts", float(losses.restarts_s)),
        )
        charges = self.training.charges
        power = node_power(self.question.machine, charges.node_power_watts)
        return WholeTraining(
            nodes=self.nodes,
            steps=self.steps,
            parts=parts,
            jobs=round(count),
            queue=queue.name if queue else "",
            failures=float(losses.failures),
            checkpoints=float(losses.work_s / losses.interval_s),
            checkpoint_bytes=float(saved.size_bytes),
            bill=billed(between(parts), self.nodes, charges, power),
            notes=(),
        )
