"""Expected traffic: bytes that each strategy moves per step and rank, from its definition.

Sizes are full buffers, as `planner.validate.sharding.recorders` counts them: the all-gathered
tensor, the tensor before reduction or scattering, the message. `wire_bytes` turns them into what
one rank sends in a ring, the convention of nccl-tests.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator

from planner.cost.network.collective_table import bus_factor
from planner.describe.model.block import Block
from planner.describe.model.weight_blocks import weight_blocks
from planner.errors import PlannerError
from planner.validate.train.strategies import Spread
from planner.validate.train.tasks import GptTask, MlpTask, ModelTask, Task

__all__ = ["expected_bytes", "expected_state_bytes", "wire_bytes"]

_ELEMENT = 4
Traffic = Counter[tuple[str, str]]
"""Bytes by operation and axis."""


def wire_bytes(name: str, full_bytes: float, size: int) -> float:
    """Bytes that one rank of a group of `size` sends in a ring [B]; receiving sends nothing.

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
    per_chunk, tp = task.depth // total, spread.tp
    if isinstance(task, MlpTask):
        width = task.width
        for layer in range(per_chunk):
            columns = layer % 2 == 0
            if tp > 1:
                yield (width // tp, width, True) if columns else (width, width // tp, True)
                yield (width // tp, 1, True) if columns else (width, 1, False)
            else:
                yield from ((width, width, False), (width, 1, False))
        return
    embedding, *kinds, head = weight_blocks(task.model)
    if chunk == 0:
        yield from _local(embedding, tp)
    # the layers of a dense model are alike
    for _ in range(per_chunk):
        yield from _local(kinds[0], tp)
    if chunk == total - 1:
        yield from _local(head, tp)


def _local(block: Block, tp: int) -> Iterator[tuple[int, int, bool]]:
    """Tensors of a block on a tp rank."""
    for weight in block.weights:
        rows = weight.rows // tp if weight.split == "column" else weight.rows
        columns = weight.columns // tp if weight.split == "row" else weight.columns
        for _ in range(weight.copies):
            yield rows, columns, tp > 1 and weight.split != "replicated"


def _chunks(spread: Spread, pp_rank: int) -> list[int]:
    return [pp_rank + k * spread.pp for k in range(spread.chunks)]


def _parameter_bytes(task: Task, spread: Spread, pp_rank: int, padded: bool) -> int:
    """Parameters of a rank before sharding; padded to whole rows per rank as FSDP2 does [B]."""
    total = 0
    for chunk in _chunks(spread, pp_rank):
        for rows, columns, _ in _tensors(task, spread, chunk):
            padded_rows = -(-rows // spread.dp) * spread.dp if padded else rows
            total += padded_rows * columns * _ELEMENT
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
    """Bytes that ZeroRedundancyOptimizer assigns to each replica, tensor by tensor [B].

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
    message_bytes = samples * _ELEMENT
    for size in task.stream:
        message_bytes *= size
    for chunk in _chunks(spread, pp_rank):
        if spread.tp > 1:
            _tensor_traffic(task, spread, chunk, message_bytes, samples, traffic)
        if spread.pp > 1:
            last = spread.pp * spread.chunks - 1
            for name, count in (
                ("send", (chunk < last) + (chunk > 0)),
                ("receive", (chunk > 0) + (chunk < last)),
            ):
                traffic[name, "pp"] += count * spread.micro_batches * message_bytes
    if spread.tp > 1 and not isinstance(task, MlpTask):
        traffic["all_reduce", "tp"] += _partial_bytes(task, spread)
    return Counter({key: value for key, value in traffic.items() if value})


def _partial_bytes(task: GptTask | ModelTask, spread: Spread) -> int:
    """Gradients of weights that see part of the heads or, split by sequence, of the tokens [B].

    They are summed over tp, once a step.
    """
    parts = {"qk_norm", "norm", "position"} if spread.sequence_parallel else {"qk_norm"}
    return _ELEMENT * sum(
        block.count * weight.num_params
        for block in weight_blocks(task.model)
        for weight in block.weights
        if weight.part in parts or (spread.sequence_parallel and weight.name == "embedding.norm")
    )


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
    task: Task, spread: Spread, chunk: int, message_bytes: int, samples: int, traffic: Traffic
) -> None:
    total = spread.pp * spread.chunks
    first, last, m = chunk == 0, chunk == total - 1, spread.micro_batches
    layers = task.depth // total
    if not isinstance(task, MlpTask):
        logits = samples * task.sequence * task.model.vocab_size * _ELEMENT
        traffic["all_gather", "tp"] += m * logits * last
        # attention and feed-forward, forward and backward; embedding; head
        regions = 1 if task.model.parallel_residual else 2
        crossings = 2 * regions * layers + first + last
        if spread.sequence_parallel:
            traffic["all_gather", "tp"] += m * message_bytes * crossings
            traffic["reduce_scatter", "tp"] += m * message_bytes * crossings
        else:
            traffic["all_reduce", "tp"] += m * message_bytes * crossings
        return
    if layers % 2:
        raise PlannerError(f"{layers} layers per chunk do not pair up; use an even number")
    pairs = layers // 2
    if spread.sequence_parallel:
        traffic["all_gather", "tp"] += m * message_bytes * 2 * (pairs - 1)
        traffic["reduce_scatter", "tp"] += m * message_bytes * 2 * (pairs - 1)
        traffic["all_reduce", "tp"] += m * message_bytes * (1 + (not first))
    else:
        # nothing wants the gradient of the data
        traffic["all_reduce", "tp"] += m * message_bytes * (2 * pairs - first)
