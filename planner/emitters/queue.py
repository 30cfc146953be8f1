"""Queue: where and how long a run waits and works, in how many jobs, and when it saves."""

from __future__ import annotations

import math
import re
from dataclasses import dataclass

from planner.describe.machine import Queue
from planner.emitters.batch_job import BatchJob
from planner.errors import EmitError, shorten

__all__ = ["START_S", "Slot", "slot_of", "walltime_text"]

START_S = 600.0
"""What a job takes before its first step: start-up and the first compilation [s]."""
_ROUND_S = 600.0
# ours: ten minutes, and a round figure to ask for
_CHAIN = 20
# ours: jobs submitted at once where the site states no limit
_SAVES = 10
_SAVE_S = 3600.0
# ours: a job that dies loses a tenth of its steps or an hour, whichever is less
_WORD = re.compile(r"[A-Za-z0-9_.:@+-]+")


@dataclass(frozen=True, slots=True)
class Slot:
    """Where and how long a run is queued."""

    queue: Queue | None
    """The queue; None where the profile knows none."""
    seconds: float
    """Wall time of one job [s]."""
    jobs: int
    """Jobs in a row that all steps need."""
    steps: int
    """Steps that one job surely gets through and keeps: whole multiples of `save_every`."""
    save_every: int
    """Steps between two checkpoints."""

    @property
    def chained(self) -> int:
        """Jobs that are submitted at once: as many as needed, or as the queue lets a user have."""
        most = self.queue.max_jobs if self.queue is not None else None
        return min(self.jobs, most or _CHAIN)


def slot_of(job: BatchJob) -> Slot:
    """The shortest queue that admits the nodes and holds the run; else the longest, cut."""
    wanted = math.ceil((job.seconds + START_S) / _ROUND_S) * _ROUND_S
    queue = _queue(job, wanted)
    limit = queue.max_hours * 3600 if queue else math.inf
    if wanted <= limit:
        return Slot(queue, wanted, 1, job.steps, _save_every(job, job.steps))
    # ten minutes written as hours are a little more than ten minutes
    seconds = math.floor(limit / 60) * 60.0
    slow = job.estimate.interval_step_time_s[1]
    steps = max(int((seconds - min(START_S, seconds / 2)) / slow), 1)
    save_every = _save_every(job, steps)
    # the next job goes on from the last checkpoint, not from the last step
    steps -= steps % save_every
    return Slot(queue, seconds, math.ceil(job.steps / steps), steps, save_every)


def _save_every(job: BatchJob, steps: int) -> int:
    """A tenth of a job's steps, or what an hour surely holds where that is less."""
    hourly = _SAVE_S / job.estimate.interval_step_time_s[1]
    return max(int(min(steps / _SAVES, hourly)), 1)


def _queue(job: BatchJob, wanted: float) -> Queue | None:
    queues = job.machine.scheduler.queues
    admitting = [q for q in queues if q.min_nodes <= job.nodes <= q.max_nodes]
    if job.queue:
        return _named(job, admitting)
    if not queues:
        return None
    free = [q for q in admitting if not q.on_request]
    if not free:
        limits = ", ".join(f"{q.name} {q.min_nodes}-{q.max_nodes}" for q in queues)
        raise EmitError(
            f"{job.nodes} nodes fit no queue of {job.where} (nodes: {limits}); plan with "
            "another number of nodes, or name a queue"
        )
    fitting = [q for q in free if q.max_hours * 3600 >= wanted]
    if fitting:
        return min(fitting, key=lambda q: q.max_hours)
    return max(free, key=lambda q: q.max_hours)


def _named(job: BatchJob, admitting: list[Queue]) -> Queue:
    """The queue a user asked for, among those of the profile where it lists any."""
    if not _WORD.fullmatch(job.queue):
        raise EmitError(
            f"queue {shorten(job.queue)!r} is no name of a queue; use letters, digits, _ . - only"
        )
    if job.machine.scheduler.kind == "none":
        raise EmitError(f"{job.where} has no scheduler and so no queue {job.queue}; use no --queue")
    if not job.machine.scheduler.queues:
        # nothing is known of its limits: the site will say
        return Queue(name=job.queue, max_nodes=job.nodes, max_hours=1e5)
    for queue in admitting:
        if job.queue == queue.name or job.queue in _names_in_directives(queue):
            return queue
    names = ", ".join(q.name for q in admitting) or "none"
    raise EmitError(
        f"queue {job.queue} of {job.where} does not admit {job.nodes} nodes or is not "
        f"known; use one of {names}"
    )


def _names_in_directives(queue: Queue) -> list[str]:
    """What the directives of a queue name: `prod` of `-q prod`."""
    return [re.split(r"[ =]", directive)[-1] for directive in queue.directives]


def walltime_text(seconds: float) -> str:
    """Hours, minutes and seconds.

    >>> walltime_text(5400)
    '01:30:00'
    """
    minutes, rest = divmod(round(seconds), 60)
    return f"{minutes // 60:02d}:{minutes % 60:02d}:{rest:02d}"
