"""Neighbours: jobs near one whose sequence, batch or devices do not divide well."""

import math
from collections.abc import Iterator
from typing import Literal

from planner.choose.jobs.job_spec import JobSpec
from planner.choose.preferences import preferences
from planner.cost.estimate import Estimate
from planner.describe.machine.variants import take_devices
from planner.errors import PlannerError

Kind = Literal["as-asked", "nodes", "batch", "sequence"]
"""Part of the job that an alternative changes."""
KINDS: tuple[Kind, ...] = ("nodes", "batch", "sequence")
_LENGTH_STEP = 64
"""Multiples of this length divide over all usual degrees of tensor and context parallelism."""
_MOST_COUNTS = 3
"""Largest number of smaller node counts to search."""


def neighbours(job: JobSpec, best: Estimate | None) -> Iterator[tuple[Kind, JobSpec]]:
    """Yield the neighbours of a job whose best layout is `best`, those on all its nodes first."""
    even = with_even_length(job)
    if even is not job:
        yield "sequence", even
    for size in nearby_batches(job, fits=best is not None):
        yield "batch", _with_batch(even, size)
    batch = job.workload.global_batch
    has_few = batch < job.num_devices
    if best is None or best.layout.pp * best.layout.cp > 1 or has_few:
        least = job.nodes // 2 if best else 1
        for nodes in _fewer(job.nodes, least, job.machine.node.num_devices, batch):
            fewer = even.replaced(nodes=nodes)
            yield "nodes", fewer
            # with many sequences a batch for all devices is the one that gains
            for size in nearby_batches(fewer)[0 if has_few else -1 :]:
                yield "nodes", _with_batch(fewer, size)
        if job.nodes == 1:
            for devices in _fewer(job.num_devices, job.num_devices // 2, 1, batch):
                yield "nodes", even.replaced(machine=take_devices(job.machine, devices))


def _with_batch(job: JobSpec, size: int) -> JobSpec:
    return job.replaced(workload=job.workload.replaced(global_batch=size))


def with_even_length(job: JobSpec) -> JobSpec:
    """Pad or cut sequences to a length that divides well; the job itself if they do already.

    The tokens of an image are pieces of it: none can be cut or added.
    """
    length = job.workload.sequence_length
    rest = length % _LENGTH_STEP
    if rest == 0 or length < _LENGTH_STEP or job.model.vision is not None:
        return job
    most_cut = preferences().offers.sequence_cut.value * length
    cuts = rest <= min(most_cut, _LENGTH_STEP / 2)
    even = length - rest if cuts else length - rest + _LENGTH_STEP
    try:
        return job.replaced(workload=job.workload.replaced(sequence_length=even))
    except PlannerError:  # longer than the model can be trained on
        return job


def uneven(ranks: int, batch: int) -> int:
    """Fewest ranks that must share a sequence for all ranks to have equal parts of a batch."""
    return ranks // math.gcd(ranks, batch)


def _fewer(nodes: int, fewest: int, devices: int, batch: int) -> list[int]:
    """Node counts from `fewest`: the next smaller one, and those that divide a batch better."""
    has_few = batch < nodes * devices
    most = preferences().offers.batch_change.value * batch

    def parts(count: int) -> int:
        """Ranks that share a sequence; of a nearby batch, if there are fewer of them."""
        ranks = count * devices
        sizes = _multiples(batch, _ranks_with_sequence(ranks, batch), most) if has_few else []
        return min(uneven(ranks, size) for size in (batch, *sizes))

    least, better = uneven(nodes * devices, batch), []
    if least == 1:
        return []
    for count in range(nodes - 1, max(fewest, 1) - 1, -1):
        if least > (shared := parts(count)):
            least = shared
            better.append(count)
    following = [nodes - 1] if nodes > 1 else []
    better = better[1 - _MOST_COUNTS :] if has_few else better
    return list(dict.fromkeys(following + better))[:_MOST_COUNTS]


def nearest_batches(batch: int, ranks: int) -> list[int]:
    """Nearest multiples of `ranks` below and above a batch; none if the batch is a multiple."""
    below = batch // ranks * ranks
    return [] if below == batch else [size for size in (below, below + ranks) if size]


def nearby_batches(job: JobSpec, fits: bool = True) -> list[int]:
    """Batches that divide over nodes or devices, nearest first; only near ones if it `fits`."""
    world, batch = job.num_devices, job.workload.global_batch
    counts = {_ranks_with_sequence(job.nodes, batch), _ranks_with_sequence(world, batch)}
    if not fits:
        counts.add(world)
    sizes = {size for ranks in counts for size in nearest_multiples(batch, ranks, fits)}
    return sorted(sizes, key=lambda size: (abs(size - batch), size))


def nearest_multiples(batch: int, ranks: int, limited: bool = True) -> list[int]:
    """The nearer multiple of `ranks`, if it is near enough; without limit both multiples."""
    if limited:
        return _multiples(batch, ranks, preferences().offers.batch_change.value * batch)
    return sorted(nearest_batches(batch, ranks), key=lambda size: (abs(size - batch), size))


def _multiples(batch: int, ranks: int, most: float) -> list[int]:
    """The nearer multiple of `ranks` if it differs by at most `most`."""
    sizes = nearest_batches(batch, ranks)
    nearer = min(sizes, key=lambda size: (abs(size - batch), size), default=batch)
    return [nearer] if sizes and abs(nearer - batch) <= most else []


def _ranks_with_sequence(ranks: int, batch: int) -> int:
    """Halve `ranks` until each has a sequence of the batch, or until `ranks` is odd."""
    while ranks > batch and ranks % 2 == 0:
        ranks //= 2
    return ranks
