"""Theory: the bytes that each strategy must move per step and rank, from its definition.

Sizes are full buffers, as `planner.validate.sharding.recorder` counts them: the all-gathered
tensor, the tensor before reduction or scattering, the message. `wire_bytes` turns them into what
one rank sends in a ring, the convention of nccl-tests.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator

from planner.cost.network.table import bus_factor
from planner.errors import PlannerError
from planner.validate.train.strategies import Spread
from planner.validate.train.tasks import GptTask, Task

__all__ = ["expected_bytes", "expected_state_bytes", "wire_bytes"]

_ELEMENT = 4
Traffic = Counter[tuple[str, str]]
"""Bytes by operation and axis."""


def wire_bytes(name: str, full_bytes: float, size: int) -> float:
    """What one rank of a group of `size` sends in a ring [B]; receiving sends nothing.

    >>> wire_bytes("all_reduce", 1000, 4), wire_bytes("send", 1000, 2)
    (1500.0, 1000.0)
    """
    if name == "receive":
        return 0.0
    return full_bytes * bus_factor("send_recv" if name == "send" else name, size)


# --- parameters ------------------------------------------------------------------------------


def _tensors(task: Task, spread: Spread, chunk: int) -> Iterator[tuple[int, int, bool]]:
    """Rows, columns and whether tp splits them, of a chunk's parameters; local to a tp rank."""
    total = spread.pp * spread.chunks
    per_chunk, tp, width = task.depth // total, spread.tp, task.width
    if not isinstance(task, GptTask):
        for layer in range(per_chunk):
            columns = layer % 2 == 0
            if tp > 1:
                yield (width // tp, width, True) if columns else (width, width // tp, True)
                yield (width // tp, 1, True) if columns else (width, 1, False)
            else:
                yield from ((width, width, False), (width, 1, False))
        return
    if chunk == 0:
        yield task.vocabulary // tp, width, tp > 1
        yield task.sequence, width, False
    for _ in range(per_chunk):
        yield from _gpt_layer(task, tp)
    if chunk == total - 1:
        yield from ((width, 1, False), (width, 1, False))
        yield task.vocabulary // tp, width, tp > 1


def _gpt_layer(task: GptTask, tp: int) -> Iterator[tuple[int, int, bool]]:
    width, inner = task.width, 4 * task.width
    split, model = tp > 1, task.model
    for _ in range(4):
        yield width, 1, False  # two norms, weight and bias
    for biased in (model.qkv_bias,) * 3:
        yield width // tp, width, split
        if biased:
            yield width // tp, 1, split
    yield width, width // tp, split
    if model.out_bias:
        yield width, 1, False
    yield inner // tp, width, split
    yield width, inner // tp, split
    if model.mlp_bias:
        yield inner // tp, 1, split
        yield width, 1, False


def _chunks(spread: Spread, pp_rank: int) -> list[int]:
    return [pp_rank + k * spread.pp for k in range(spread.chunks)]


def _parameter_bytes(task: Task, spread: Spread, pp_rank: int, padded: bool) -> int:
    """Parameters of a rank before sharding; padded to whole rows per rank as FSDP2 does [B]."""
    total = 0
    for chunk in _chunks(spread, pp_rank):
        for rows, columns, _ in _tensors(task, spread, chunk):
            kept = -(-rows // spread.dp) * spread.dp if padded else rows
            total += kept * columns * _ELEMENT
    return total


def expected_state_bytes(
    task: Task, spread: Spread, pp_rank: int, dp_rank: int = 0
) -> dict[str, int] | None:
    """Parameters and Adam's two moments that stay on each rank [B].

    None where rows do not divide by dp in ZeRO-2 and 3.
    """
    unsharded = _parameter_bytes(task, spread, pp_rank, padded=False)
    if spread.zero_stage == 1:
        sharded = _sharded_bytes(task, spread, pp_rank)[dp_rank]
        return {"parameters": unsharded, "optimizer_states": 2 * sharded}
    if not spread.shards_states:
        return {"parameters": unsharded, "optimizer_states": 2 * unsharded}
    if unsharded != _parameter_bytes(task, spread, pp_rank, padded=True):
        return None
    sharded = unsharded // spread.dp
    return {"parameters": sharded, "optimizer_states": 2 * sharded}


def _sharded_bytes(task: Task, spread: Spread, pp_rank: int) -> list[int]:
    """What ZeroRedundancyOptimizer deals to each replica, tensor by tensor [B].

    The largest tensor left goes to the replica that has least.
    """
    sharded = [0] * spread.dp
    sizes = [
        rows * columns * _ELEMENT
        for chunk in _chunks(spread, pp_rank)
        for rows, columns, _ in _tensors(task, spread, chunk)
    ]
    for size in sorted(sizes, reverse=True):
        sharded[sharded.index(min(sharded))] += size
    return sharded


# --- traffic ---------------------------------------------------------------------------------


def expected_bytes(task: Task, spread: Spread, pp_rank: int) -> Traffic:
    """Full-buffer bytes by (operation, axis) of one rank and step."""
    traffic: Traffic = Counter()
    _data_traffic(task, spread, pp_rank, traffic)
    samples = task.batch // spread.dp // spread.micro_batches
    one = samples * _ELEMENT
    for size in task.stream:
        one *= size
    for chunk in _chunks(spread, pp_rank):
        if spread.tp > 1:
            _tensor_traffic(task, spread, chunk, one, samples, traffic)
        if spread.pp > 1:
            last = spread.pp * spread.chunks - 1
            for name, count in (
                ("send", (chunk < last) + (chunk > 0)),
                ("receive", (chunk > 0) + (chunk < last)),
            ):
                traffic[name, "pp"] += count * spread.micro_batches * one
    if spread.sequence_parallel and isinstance(task, GptTask):
        # norms and positions see part of the tokens: their gradients are summed over tp
        rows = task.sequence + (2 * task.depth + 1) * 2
        traffic["all_reduce", "tp"] += rows * task.width * _ELEMENT
    return Counter({key: value for key, value in traffic.items() if value})


def _data_traffic(task: Task, spread: Spread, pp_rank: int, traffic: Traffic) -> None:
    if spread.dp == 1:
        return
    if not spread.shards_gradients:
        unsharded = _parameter_bytes(task, spread, pp_rank, padded=False)
        traffic["all_reduce", "dp"] += unsharded
        if spread.zero_stage == 1:
            traffic["broadcast", "dp"] += unsharded
        return
    padded = _parameter_bytes(task, spread, pp_rank, padded=True)
    traffic["all_gather", "dp"] += padded * (2 if spread.shards_weights else 1)
    traffic["reduce_scatter", "dp"] += padded


def _tensor_traffic(
    task: Task, spread: Spread, chunk: int, one: int, samples: int, traffic: Traffic
) -> None:
    total = spread.pp * spread.chunks
    first, last, m = chunk == 0, chunk == total - 1, spread.micro_batches
    layers = task.depth // total
    if isinstance(task, GptTask):
        logits = samples * task.sequence * task.vocabulary * _ELEMENT
        traffic["all_gather", "tp"] += m * logits * last
        # attention and feed-forward, forward and backward; embedding; head
        crossings = 4 * layers + first + last
        if spread.sequence_parallel:
            traffic["all_gather", "tp"] += m * one * crossings
            traffic["reduce_scatter", "tp"] += m * one * crossings
        else:
            traffic["all_reduce", "tp"] += m * one * crossings
        return
    if layers % 2:
        raise PlannerError(f"{layers} layers per chunk do not pair up; use an even number")
    pairs = layers // 2
    if spread.sequence_parallel:
        traffic["all_gather", "tp"] += m * one * 2 * (pairs - 1)
        traffic["reduce_scatter", "tp"] += m * one * 2 * (pairs - 1)
        traffic["all_reduce", "tp"] += m * one * (1 + (not first))
    else:
        # nothing wants the gradient of the data
        traffic["all_reduce", "tp"] += m * one * (2 * pairs - first)
