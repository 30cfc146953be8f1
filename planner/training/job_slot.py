"""Job slot: queue, wall time and number of jobs of a run, and its checkpoint interval."""

import math
import re
from dataclasses import dataclass

from planner.describe.machine import Machine, Queue
from planner.describe.workload import Workload
from planner.errors import EmitError, shorten

START_S = 600.0
"""Time of a job before its first step: start-up and the first compilation [s]."""
_ROUND_S = 600.0
# own choices: ten minutes to start; requested wall times are multiples of ten minutes
_CHAIN = 20
# own choice: jobs submitted at once if the site states no limit
_SAVES = 10
_SAVE_S = 3600.0
# own choice: a job that dies loses at most a tenth of its steps or an hour, whichever is less
_WORD = re.compile(r"[A-Za-z0-9_.:@+-]+")


_DEFAULT_STEPS = 1000
# steps of a run that states no tokens; the plan's node-hours assume the same number


@dataclass(frozen=True, slots=True)
class Run:
    """A number of steps on a number of nodes of a machine."""

    machine: Machine
    nodes: int
    steps: int
    step_s: float
    """Time of a step at the slow end of its interval [s]."""
    queue: str = ""
    """Queue named by the user; empty: the shortest queue that holds the run."""

    @property
    def seconds(self) -> float:
        """Time of all steps [s]."""
        return self.steps * self.step_s

    @property
    def where(self) -> str:
        """Machine name, shortened for messages."""
        return shorten(self.machine.name)


@dataclass(frozen=True, slots=True)
class Slot:
    """Queue, wall time and number of jobs of a run."""

    queue: Queue | None
    """Queue of the jobs; None if the profile lists no queues."""
    seconds: float
    jobs: int
    """Number of consecutive jobs that all steps need."""
    steps: int
    """Steps that one job completes and saves; a multiple of `save_every` if there are more jobs."""
    save_every: int

    @property
    def chained(self) -> int:
        """Jobs submitted at once: all, up to the queue's limit per user (20 if it states none)."""
        most = self.queue.max_jobs if self.queue is not None else None
        return min(self.jobs, most or _CHAIN)


def planned_steps(workload: Workload) -> int:
    """Steps for the workload's tokens, or 1,000 if it states none [1]."""
    return max(workload.steps, 1) if workload.all_tokens else _DEFAULT_STEPS


def slot_of(run: Run) -> Slot:
    """Choose the shortest queue that holds the run; else split it into jobs of the longest."""
    wanted = math.ceil((run.seconds + START_S) / _ROUND_S) * _ROUND_S
    queue = _queue(run, wanted)
    limit = queue.max_hours * 3600 if queue else math.inf
    if wanted <= limit:
        return Slot(queue, wanted, 1, run.steps, _save_every(run, run.steps))
    # whole minutes: a limit in hours may be a rounding error above them
    seconds = math.floor(limit / 60) * 60.0
    steps = max(int((seconds - min(START_S, seconds / 2)) / run.step_s), 1)
    save_every = _save_every(run, steps)
    # the next job resumes from the last checkpoint, not from the last step
    steps -= steps % save_every
    return Slot(queue, seconds, math.ceil(run.steps / steps), steps, save_every)


def _save_every(run: Run, steps: int) -> int:
    return max(int(min(steps / _SAVES, _SAVE_S / run.step_s)), 1)


def _queue(run: Run, wanted: float) -> Queue | None:
    queues = run.machine.scheduler.queues
    admitting = [q for q in queues if q.min_nodes <= run.nodes <= q.max_nodes]
    if run.queue:
        return _named(run, admitting)
    if not queues:
        return None
    free = [q for q in admitting if not q.on_request]
    if not free:
        limits = ", ".join(f"{q.name} {q.min_nodes}-{q.max_nodes}" for q in queues)
        raise EmitError(
            f"{run.nodes} nodes fit no queue of {run.where} (nodes: {limits}); plan with "
            "another number of nodes, or name a queue"
        )
    fitting = [q for q in free if q.max_hours * 3600 >= wanted]
    if fitting:
        return min(fitting, key=lambda q: q.max_hours)
    return max(free, key=lambda q: (not q.debug, q.max_hours))


def _named(run: Run, admitting: list[Queue]) -> Queue:
    """Find the user's queue in the profile; accept any name if the profile lists no queues."""
    if not _WORD.fullmatch(run.queue):
        raise EmitError(
            f"queue {shorten(run.queue)!r} is not a valid queue name; use letters, digits, _ . -"
        )
    if run.machine.scheduler.kind == "none":
        raise EmitError(f"{run.where} has no scheduler; remove --queue {run.queue}")
    if not run.machine.scheduler.queues:
        # its limits are unknown: the scheduler will check them
        return Queue(name=run.queue, max_nodes=run.nodes, max_hours=1e5)
    for queue in admitting:
        # `prod` in `-q prod`
        names_in_directives = [re.split(r"[ =]", directive)[-1] for directive in queue.directives]
        if run.queue in (queue.name, *names_in_directives):
            return queue
    names = ", ".join(q.name for q in admitting) or "none"
    raise EmitError(
        f"queue {run.queue} of {run.where} does not admit {run.nodes} nodes or is not "
        f"known; use one of {names}"
    )


def walltime_text(seconds: float) -> str:
    """Format seconds as hours, minutes and seconds."""
    minutes, rest = divmod(round(seconds), 60)
    return f"{minutes // 60:02d}:{minutes % 60:02d}:{rest:02d}"
