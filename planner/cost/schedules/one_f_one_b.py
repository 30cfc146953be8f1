"""1F1B: plain and interleaved, and GPipe; backward passes compute all gradients at once."""

import numpy as np

from planner.cost.arrays import Float, Int
from planner.cost.schedules.schedule import (
    Passes,
    PipelinePasses,
    PipelineSchedule,
    Task,
    idle_s,
    order_1f1b,
)


def _gpipe_order(p: int, stage: int, m: int, v: int) -> list[Task]:
    forward = [Task(stage, "forward", i, 0) for i in range(m)]
    return forward + [Task(stage, "backward", i, 0) for i in reversed(range(m))]


def _gpipe_in_flight(p: Int, v: Int, m: Int, stage: Int) -> Float:
    return (m + 0 * stage).astype(float)


def _gpipe_length_s(p: Int, v: Int, m: Int, pipeline: PipelinePasses) -> Float:
    """Time of all passes: one micro-batch on all stages, the others on the slowest stages [s]."""
    stages = pipeline.at_stage
    longest_passes = np.max(stages.forward_s, axis=-1) + np.max(stages.backward_s, axis=-1)
    return pipeline.all_stages.total_s + (m - 1) * longest_passes


GPIPE = PipelineSchedule(
    name="gpipe",
    source="Huang et al. 2019, arXiv:1811.06965",
    order=_gpipe_order,
    in_flight=_gpipe_in_flight,
    length_s=_gpipe_length_s,
    least_idle_s=idle_s,
    runs_forward_ahead=True,
    no_better_than="1f1b",
)


def _plain_order(p: int, stage: int, m: int, v: int) -> list[Task]:
    forward = [Task(stage, "forward", i, 0) for i in range(m)]
    backward = [Task(stage, "backward", i, 0) for i in range(m)]
    return order_1f1b(forward, backward, min(p - stage - 1, m))


def _plain_in_flight(p: Int, v: Int, m: Int, stage: Int) -> Float:
    """Micro-batches in flight: min(m, p - i)."""
    return np.minimum(m, p - stage).astype(float)


def _plain_length_s(p: Int, v: Int, m: Int, pipeline: PipelinePasses) -> Float:
    """Time of all passes: the longest path through one of the stages and back [s]."""
    p, m = p[..., None], m[..., None]
    stages, behind = pipeline.at_stage, pipeline.after.total_s
    # while the first micro-batch is on later stages, this one does `ahead` forward passes; during
    # the last, `ahead` backward passes; with few micro-batches it waits only once
    ahead = p - 1 - pipeline.stage
    forward, back = stages.forward_s, stages.backward_s
    both = np.maximum(behind - ahead * forward, 0.0) + np.maximum(behind - ahead * back, 0.0)
    few_micro_batches = np.maximum(behind - (m - 1) * np.minimum(forward, back), 0.0)
    waits = np.where(m > ahead + 1, both, few_micro_batches)
    return np.max(pipeline.before.total_s + m * stages.total_s + waits, axis=-1)


def _plain_least_idle_s(p: Int, v: Int, m: Int, slowest: Passes, other_stages: Passes) -> Float:
    """Least idle time on the path through the slowest stage, at any position of it [s]."""
    # with w later stages that take D, the waits are at least D - w t_f and D - w t_b, together
    # D less (w t - D), which is at most the time by which all stages beat p of the slowest
    faster = (p - 1) * slowest.total_s - other_stages.total_s
    few_micro_batches = (m - 1) * slowest.total_s / 2
    return np.maximum(other_stages.total_s - np.where(m > p, faster, few_micro_batches), 0.0)


ONE_F_ONE_B = PipelineSchedule(
    name="1f1b",
    source="Narayanan et al. 2021, arXiv:2104.04473, section 2.2",
    order=_plain_order,
    in_flight=_plain_in_flight,
    length_s=_plain_length_s,
    least_idle_s=_plain_least_idle_s,
)


def _interleaved_order(p: int, stage: int, m: int, v: int) -> list[Task]:
    """Megatron-LM's order: groups of p micro-batches pass chunk 0, then chunk 1, ..."""
    forward, backward = [], []
    for first in range(0, m, p):
        for chunk in range(v):
            forward += [Task(stage, "forward", first + i, chunk) for i in range(p)]
            backward += [Task(stage, "backward", first + i, v - 1 - chunk) for i in range(p)]
    if m == p:
        return forward + backward
    return order_1f1b(forward, backward, min(2 * (p - stage - 1) + (v - 1) * p, m * v))


def _interleaved_in_flight(p: Int, v: Int, m: Int, stage: Int) -> Float:
    """Micro-batches in flight: 2 (p - i - 1) + (v - 1) p + 1 chunks of 1/v stage."""
    chunks = 2 * (p - stage - 1) + (v - 1) * p + 1
    # with as many micro-batches as stages every forward pass precedes the first backward
    return np.where(m == p, m, np.minimum(chunks / v, m))


def _interleaved_in_flight_by_chunk(p: Int, v: Int, m: Int, stage: Int, layers: Float) -> Float:
    """Passes in flight, by chunk, when most layers' activations are held. Shape (chunks, ...)."""
    in_flight_passes = np.rint(_interleaved_in_flight(p, v, m, stage) * v).astype(np.int64)
    chunk = np.arange(len(layers)).reshape(-1, *[1] * np.ndim(p))
    layers = np.where(chunk < v, layers, 0.0)
    backwards = np.where(chunk < v, np.take_along_axis(layers, (v - 1 - chunk) % len(layers), 0), 0)

    # candidate peaks: after every turn of p forward passes, and of p backward passes
    turns = np.arange(len(layers) + 1).reshape(-1, 1, *[1] * np.ndim(p)) * p
    after = np.concatenate([turns, turns - in_flight_passes % p], axis=1).reshape(-1, *np.shape(p))
    done = np.clip(after, 0, m * v - in_flight_passes)
    most = np.argmax(
        _layers_of(in_flight_passes + done, p, v, layers) - _layers_of(done, p, v, backwards), 0
    )
    at = np.take_along_axis(done, most[None], axis=0)
    alive = _passed(in_flight_passes + at, p, v, chunk) - _passed(at, p, v, v - 1 - chunk)
    return np.where(chunk < v, alive, 0).astype(float)


def _passed(number: Int, p: Int, v: Int, chunk: Int) -> Int:
    """Number of a chunk's passes among the first `number` passes."""
    rounds, rest = np.divmod(number, p * v)
    return p * rounds + np.clip(rest - chunk * p, 0, p)


def _layers_of(number: Int, p: Int, v: Int, layers: Float) -> Float:
    """Layers in the first `number` passes, which take chunks in the order of `layers`."""
    rounds, rest = np.divmod(number, p * v)
    turn, passes_of_turn = np.divmod(rest, p)
    before = np.cumsum(layers, axis=0) - layers
    full_chunks, last = (np.take_along_axis(part, turn, axis=0) for part in (before, layers))
    return np.asarray(p * rounds * np.sum(layers, axis=0) + p * full_chunks + passes_of_turn * last)


def _interleaved_length_s(p: Int, v: Int, m: Int, pipeline: PipelinePasses) -> Float:
    """Time of all passes: the longest path through a stage's chunks; forward first if m = p [s]."""
    p, v, m = p[..., None], v[..., None], m[..., None]
    stages, before, after = pipeline.at_stage, pipeline.before, pipeline.after
    ahead = 2 * (p - 1 - pipeline.stage) / v
    waits = np.maximum(after.total_s - ahead * stages.forward_s, 0.0)
    waits = waits + np.maximum(after.total_s - ahead * stages.backward_s, 0.0)
    through = np.max(before.total_s + m * stages.total_s + waits, axis=-1)
    forward = before.forward_s + m * stages.forward_s + after.forward_s
    back = before.backward_s + m * stages.backward_s + after.backward_s
    separate = np.max(forward, axis=-1) + np.max(back, axis=-1)
    return np.where((m == p)[..., 0], separate, through)


INTERLEAVED = PipelineSchedule(
    name="interleaved-1f1b",
    source="Narayanan et al. 2021, arXiv:2104.04473, section 2.2",
    order=_interleaved_order,
    in_flight=_interleaved_in_flight,
    in_flight_by_chunk=_interleaved_in_flight_by_chunk,
    length_s=_interleaved_length_s,
    interleaves=True,
)
