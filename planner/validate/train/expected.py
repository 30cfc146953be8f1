"""Expected: bytes of a case by definition, its peak and time by the planner's estimate."""

import math
from collections import Counter
from collections.abc import Iterator, Sequence
from typing import Any

from planner.cost.estimate import estimate_layouts
from planner.cost.network.collective_table import bus_factor
from planner.cost.scenario import Scenario
from planner.cost.shards.layers_per_stage import layers_on_stage
from planner.cost.shards.layouts import Layouts
from planner.describe.catalogue import load_framework, load_machine
from planner.describe.framework.framework import Framework
from planner.describe.layout import Layout
from planner.describe.machine import Machine
from planner.describe.model.model import Model
from planner.describe.model.weight_blocks import weight_blocks
from planner.describe.workload import Workload
from planner.validate.train.strategies import SCHEDULES, Spread
from planner.validate.train.tasks import OwnTask, Task, make_task

PEAK_TOLERANCE = 0.1
"""Relative tolerance of the peak; in shards this small, single temporaries decide it."""
_ELEMENT = 4
_LEFT_OUT = ("runtime_context", "allocator_reserve")
Traffic = Counter[tuple[str, str]]
"""Bytes by operation and axis."""


def wire_bytes(name: str, full_bytes: float, size: int) -> float:
    """Bytes that one rank of a group of `size` sends in a ring [B]; receiving sends nothing."""
    if name == "receive":
        return 0.0
    return full_bytes * bus_factor("send_recv" if name == "send" else name, size)


def _tensors(task: Task, spread: Spread, pp_rank: int) -> Iterator[tuple[int, int]]:
    """Yield rows and columns of a rank's parameters after the tp split."""
    tp, blocks = spread.tp, weight_blocks(task.model)
    for chunk in _chunks(spread, pp_rank):
        for weight in [w for block in _blocks_of(blocks, spread, chunk) for w in block.weights]:
            if weight.tied:
                continue
            rows = weight.rows // (tp if weight.split == "column" else 1)
            columns = weight.columns // (tp if weight.split == "row" else 1)
            yield from [(rows, columns)] * weight.copies


def _blocks_of(blocks: Sequence[Any], spread: Spread, chunk: int) -> list[Any]:
    """Blocks of a chunk, layer by layer in the order of the model."""
    first, *kinds, last = blocks
    places: dict[int, Any] = {}
    for block in kinds:
        start = sum(each.count for each in kinds[: kinds.index(block)])
        places |= dict.fromkeys(block.places or range(start, start + block.count), block)
    total = spread.pp * spread.chunks
    start, count = layers_on_stage(len(places), total, chunk)
    layers = [places[place] for place in range(int(start), int(start + count))]
    return [first] * (chunk == 0) + layers + [last] * (chunk == total - 1)


def _chunks(spread: Spread, pp_rank: int) -> list[int]:
    return [pp_rank + k * spread.pp for k in range(spread.chunks)]


def _parameter_bytes(task: Task, spread: Spread, pp_rank: int, *, padded_to: int = 1) -> int:
    """Parameters of a rank before sharding, rows padded as FSDP2 does [B]."""
    tensors = _tensors(task, spread, pp_rank)
    return sum(-(-rows // padded_to) * padded_to * columns * _ELEMENT for rows, columns in tensors)


def expected_state_bytes(
    task: Task, spread: Spread, pp_rank: int, dp_rank: int = 0
) -> dict[str, int] | None:
    """Parameters and Adam's moments that stay on a rank [B]; None if FSDP pads rows."""
    unsharded = stays = updated = _parameter_bytes(task, spread, pp_rank)
    if spread.zero_stage == 1:
        updated = _owned_bytes(task, spread, pp_rank)[dp_rank]
    elif spread.shards_states:
        if unsharded != _parameter_bytes(task, spread, pp_rank, padded_to=spread.dp):
            return None
        stays = updated = unsharded // spread.dp
    return {"parameters": stays, "optimizer_states": 2 * updated}


def _owned_bytes(task: Task, spread: Spread, pp_rank: int) -> list[int]:
    """Bytes per rank of ZeroRedundancyOptimizer: largest tensors first, to the emptiest [B]."""
    owned = [0] * spread.dp
    sizes = [rows * columns * _ELEMENT for rows, columns in _tensors(task, spread, pp_rank)]
    for size in sorted(sizes, reverse=True):
        owned[owned.index(min(owned))] += size
    return owned


def expected_bytes(task: Task, spread: Spread, pp_rank: int) -> Traffic:
    """Full-buffer bytes by (operation, axis) of one rank and step."""
    traffic: Traffic = Counter()
    if spread.dp > 1:
        _add_data(traffic, task, spread, pp_rank)
    last = spread.pp * spread.chunks - 1
    # residual stream of all micro-batches together
    stream_bytes = task.batch // spread.dp * math.prod(task.stream) * _ELEMENT
    for chunk in _chunks(spread, pp_rank):
        ends = (chunk == 0, chunk == last)
        if isinstance(task, OwnTask):
            _add_own(traffic, task, spread, chunk)
            continue
        _add_tensor(traffic, task, spread, stream_bytes, ends)
        if spread.pp > 1:
            for name in ("send", "receive"):
                traffic[name, "pp"] += (2 - sum(ends)) * stream_bytes
    if spread.tp > 1 and not isinstance(task, OwnTask):
        traffic["all_reduce", "tp"] += _partial_bytes(task, spread)
    return Counter({key: value for key, value in traffic.items() if value})


def _add_data(traffic: Traffic, task: Task, spread: Spread, pp_rank: int) -> None:
    if spread.shards_gradients:
        padded = _parameter_bytes(task, spread, pp_rank, padded_to=spread.dp)
        traffic["all_gather", "dp"] += padded * (2 if spread.shards_weights else 1)
        traffic["reduce_scatter", "dp"] += padded
        return
    unsharded = _parameter_bytes(task, spread, pp_rank)
    traffic["all_reduce", "dp"] += unsharded
    if spread.zero_stage == 1:
        traffic["broadcast", "dp"] += unsharded


def _add_tensor(
    traffic: Traffic, task: Task, spread: Spread, stream_bytes: int, ends: tuple[bool, bool]
) -> None:
    """Add stream and full logits of a transformer's chunk; `ends`: is it the first, the last."""
    if spread.tp == 1:
        return
    rows = task.batch // spread.dp * task.sequence
    traffic["all_gather", "tp"] += rows * task.model.vocab_size * _ELEMENT * ends[1]
    # attention and feed-forward, forward and backward; embedding; head
    crossings = 4 * (task.depth // (spread.pp * spread.chunks)) + sum(ends)
    split = ("all_gather", "reduce_scatter")
    for name in split if spread.sequence_parallel else ("all_reduce",):
        traffic[name, "tp"] += stream_bytes * crossings


def _add_own(traffic: Traffic, task: OwnTask, spread: Spread, chunk: int) -> None:
    """Add a user's chunk: sums over its split Linear layers, tensors to and from neighbours."""
    sample_bytes, traced = task.batch // spread.dp * _ELEMENT, task.traced.blocks
    blocks = _blocks_of(traced, spread, chunk)
    for operation in [each for block in blocks for each in block.operations if spread.tp > 1]:
        size = sample_bytes * operation.rows * operation.count
        if operation.split in ("column", "gathered") and operation.input_gradient:
            traffic["all_reduce", "tp"] += size * operation.k
        if operation.split in ("row", "gathered"):
            name = "all_reduce" if operation.split == "row" else "all_gather"
            traffic[name, "tp"] += size * operation.n
    for border in (chunk, chunk + 1):
        if 0 < border < spread.pp * spread.chunks:
            block = next(b for b in _blocks_of(traced, spread, border) if b.role == "repeated")
            kinds = [each.split for each in block.operations if each.split != "replicated"]
            # a pair that is cut hands on its columns
            parts = spread.tp if kinds[:1] == ["row"] else 1
            for name in ("send", "receive"):
                traffic[name, "pp"] += sample_bytes * block.width // parts


def _partial_bytes(task: Task, spread: Spread) -> int:
    """Gradients, summed once a step, of weights that see part of the heads or tokens [B]."""
    parts = {"qk_norm", "norm", "position"} if spread.sequence_parallel else {"qk_norm"}
    return _ELEMENT * sum(
        block.count * weight.num_params
        for block in weight_blocks(task.model)
        for weight in block.weights
        if weight.part in parts or (spread.sequence_parallel and weight.name == "embedding.norm")
    )


def estimate_peak(case: dict[str, Any]) -> dict[str, Any]:
    """Estimate the peak of the fullest rank, without context and reserve, and its error."""
    # the peak does not depend on the machine's rates
    memory = _estimate(case, load_machine("laptop")).memory_bytes
    peak = memory["total"] - sum(memory.get(part, 0.0) for part in _LEFT_OUT)
    error = peak / max(case["peak_bytes_per_rank"]) - 1
    return {
        "planned_peak_bytes": round(peak),
        "peak_error": error,
        "peak_within": abs(error) <= PEAK_TOLERANCE,
    }


def estimate_time(case: dict[str, Any], machine: Machine) -> dict[str, Any]:
    """Estimate the step time of a finished case."""
    estimate = _estimate(case, machine)
    fields: dict[str, Any] = {
        "planned_step_time_s": estimate.step_time_s,
        "planned_parts_s": estimate.step_time_parts_s,
    }
    if case["step_time_s"]:
        fields["planned_error"] = estimate.step_time_s / case["step_time_s"] - 1
    return fields


def _estimate(case: dict[str, Any], machine: Machine) -> Any:
    scenario, layout = scenario_of(case, machine)
    return estimate_layouts(scenario, Layouts.stack([layout]))[0]


def scenario_of(case: dict[str, Any], machine: Machine) -> tuple[Scenario, Layout]:
    """Return the scenario and the layout of a finished case on a machine."""
    task, spread = make_task(**case["task"]), case["spread"]
    shared_fields = ("dp", "tp", "pp", "sequence_parallel", "zero_stage")
    layout = Layout.described(
        {
            **{name: spread[name] for name in shared_fields},
            "vpp": spread["chunks"],
            "micro_batch": task.batch // spread["dp"] // spread["micro_batches"],
            "grad_accumulation": spread["micro_batches"],
            "schedule": SCHEDULES[spread["schedule"]],
            "recompute": case.get("recompute", "none"),
        }
    )
    workload = Workload(
        sequence_length=task.sequence, global_batch=task.batch, precision="fp32", dropout=0.0
    )
    return Scenario(task.model, machine, workload, _framework(case, task.model)), layout


def _framework(case: dict[str, Any], model: Model) -> Framework:
    plain = case["strategy"] in ("single", "ddp", "zero1")
    framework = load_framework("ddp" if plain else "fsdp2").with_own_blocks()
    # a gate is a separate product; on a CPU, RMS norm is several kernels, layer norm one
    unfused_norm = case["device"] == "cpu" and model.norm == "rmsnorm"
    kernels = framework.kernels.replaced(
        fused_norm=not unfused_norm,
        # the loss is that of a single process, on full logits
        gathers_logits=True,
        fused_activation=framework.kernels.fused_activation and not model.gated_mlp,
    )
    framework = framework.replaced(kernels=kernels.model_dump())
    if plain:
        return framework
    # AdamW runs over all tensors at once, with a temporary as large as the weights it updates
    states = framework.full.replaced(optimizer_temporary_bytes=4.0)
    if case["spread"]["zero_stage"] < 2:
        # plain modules compute with the parameter itself
        states = states.replaced(sharded_weight_bytes=4.0, master_bytes=0.0)
    # all stages get the same number of layers; torchtitan gives the end stages fewer
    return framework.replaced(full=states, balance="layers")
