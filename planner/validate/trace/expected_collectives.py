"""Expected collectives: counts and bytes that one rank issues in a step of FSDP2.

They come from the blocks alone, in full buffers; traces are compared with them.

    data axis     a gather per parameter group in forward, in ZeRO-3 again in backward except
                  for the head, which stays gathered; one fp32 reduction per group
    tensor axis   sequence parallelism: gather and reduce-scatter around each region in both
                  directions; else one all-reduce each. Recomputation repeats the forward's
    expert axis   of counts, tokens and results one all-to-all each in forward, of gradients two in
                  backward; experts are gathered and reduced by the ranks that hold the same ones
    context axis  keys and values gathered in every pass, their fp32 gradients passed around
    pipeline      one message per micro-batch, neighbour on another rank and direction
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterator
from dataclasses import dataclass, replace

import numpy as np

from planner.cost.network.groups import geometry
from planner.cost.scenario import Scenario
from planner.cost.shards.layouts import Layouts
from planner.cost.shards.stages import Stages
from planner.cost.shards.states import local_params, without_frozen, without_tied
from planner.describe.layout import Layout
from planner.describe.model.block import Block
from planner.validate.trace.stage_trace import Collective

__all__ = ["axis_of", "axis_of_kind", "expected_collectives"]

_ACCUMULATED = 4
_COUNT = 4
_GATHERS_OF_CHUNKS = 3
"""Of the head in a chunked loss: norm forward, all chunks of head and loss, norm backward."""
_LOSS_REDUCTIONS = 3
"""Maximum, sum of exponentials and chosen logit of each token, in fp32."""


_Blocks = list[tuple[Block, float]]
"""Blocks of a stage with their number."""


class _Sums:
    """Counts and bytes by operation and axis."""

    def __init__(self) -> None:
        self._found: dict[tuple[str, str], list[float]] = defaultdict(lambda: [0.0, 0.0])

    def add(self, name: str, group: str, count: float, size: float) -> None:
        """`count` operations of `size` bytes each."""
        if count and size:
            self._found[name, group][0] += count
            self._found[name, group][1] += count * size

    def collectives(self) -> tuple[Collective, ...]:
        """Sums in a fixed order."""
        return tuple(
            Collective(name, group, round(count), round(size))
            for (name, group), (count, size) in sorted(self._found.items())
        )


def expected_collectives(
    scenario: Scenario, layout: Layout, stage: int = 0
) -> tuple[Collective, ...]:
    """Collectives of one rank of a stage in one step."""
    sums = _Sums()
    stages = Stages.of(scenario, Layouts.of(layout), stage)
    counts = [float(np.max(count)) for count in stages.counts]
    local_blocks = [(b, c) for b, c in zip(stages.blocks, counts, strict=True) if c]
    if layout.dp * layout.cp > 1:
        _data(sums, scenario, layout, local_blocks)
    if layout.cp > 1:
        _context(sums, scenario, layout, local_blocks)
    if layout.ep > 1:
        _expert(sums, scenario, layout, local_blocks)
    if layout.tp > 1:
        _tensor(sums, scenario, layout, local_blocks)
    if layout.pp > 1:
        _pipeline(sums, scenario, layout, stage)
    return sums.collectives()


@dataclass(frozen=True, slots=True)
class _Group:
    """FSDP parameter groups of one size: each is gathered and reduced at once."""

    count: float
    """Number of such groups."""
    elements: float
    """Elements of one group, with padding."""
    trained: float
    """Elements of one group that have gradients."""
    stays: bool = False
    """True if the group stays gathered from forward to backward."""
    chunked: bool = False
    """True if a chunked loss uses it: freed before and after, the head's gradient reduced apart."""
    tied: float = 0.0
    """Elements of a tied table whose gradient a chunked loss reduces twice."""
    experts: bool = False
    """True for experts of an expert-parallel group, which fewer ranks replicate."""


def _groups(scenario: Scenario, layout: Layout, local_blocks: _Blocks) -> list[_Group]:
    """Parameter groups of a stage: one per layer and its experts, one per end or one for both."""
    layers: list[_Group] = []
    ends: list[tuple[str, tuple[float, float]]] = []
    for block, count in local_blocks:
        # the embedding owns a tied table: the head's group is the final norm
        own_block = without_tied(block) if block.tied_elsewhere and layout.pp == 1 else block
        if block.kind == "layer":
            layers += _layer_groups(scenario, layout, own_block, count)
        else:
            ends.append((block.kind, _elements(scenario, layout, own_block)))
    chunked = scenario.framework.kernels.loss_chunks > 1
    if layout.pp == 1 and any(block.tied_elsewhere for block, _ in local_blocks):
        elements, trained = (sum(sizes) for sizes in zip(*(size for _, size in ends), strict=True))
        weights = [weight for block, _ in local_blocks for weight in block.weights]
        tied = float(sum(weight.num_params for weight in weights if weight.tied) * chunked)
        return [*layers, _Group(1.0, elements, trained, stays=True, chunked=chunked, tied=tied)]
    return layers + [
        _Group(1.0, *size, stays=kind == "head", chunked=chunked and kind == "head")
        for kind, size in ends
    ]


def _layer_groups(
    scenario: Scenario, layout: Layout, block: Block, count: float
) -> Iterator[_Group]:
    """The group of a layer, and that of its experts where expert parallelism shards them."""
    routed = tuple(w for w in block.weights if w.expert and layout.ep > 1)
    dense = tuple(w for w in block.weights if w not in routed)
    yield _Group(count, *_elements(scenario, layout, replace(block, weights=dense)))
    if routed:
        routed_elements = _elements(scenario, layout, replace(block, weights=routed))
        yield _Group(count, *routed_elements, experts=True)


def _elements(scenario: Scenario, layout: Layout, block: Block) -> tuple[float, float]:
    """Gathered elements of a block on one rank, and how many of them are trained."""
    total, trained = (
        float(local_params(scenario, part, Layouts.of(layout)).all_gathered)
        for part in (block, without_frozen(block))
    )
    return total, trained


def _data(sums: _Sums, scenario: Scenario, layout: Layout, local_blocks: _Blocks) -> None:
    element = scenario.workload.compute_bytes
    reduce_bytes = scenario.framework.states(scenario.workload.precision).reduce_bytes
    shards = (layout.dp_shard or layout.dp) * layout.cp
    # torch's schedules reduce once per step, and so does ZeRO-1 without a pipeline
    once = layout.pp > 1 or not layout.shards_gradients
    for group in _groups(scenario, layout, local_blocks):
        ranks = shards * layout.tp // layout.ep if group.experts else shards
        axis = axis_of_kind(layout, "expert_shard" if group.experts else "shard")
        # the head's gradient is reduced after the last chunk, the others' after backward
        parts = 2 if group.chunked else 1
        reduced_bytes = (group.trained + group.tied) / parts * reduce_bytes
        if not layout.shards_states:
            sums.add("all_reduce", axis, group.count * (ranks > 1), reduced_bytes)
            continue
        reductions = parts * group.count * (1 if once else layout.grad_accumulation)
        if layout.reshard and not group.stays:
            # forward leaves weights sharded over fewer ranks, which backward gathers again
            times = group.count * layout.grad_accumulation
            inner_axis = axis_of_kind(layout, "second_shard")
            sums.add("all_gather", inner_axis, times, group.elements * element)
        if ranks > 1:
            gathers = group.count * _gathers(layout, group, once)
            sums.add("all_gather", axis, gathers, group.elements * element)
            sums.add("reduce_scatter", axis, reductions, reduced_bytes)
        if shards < layout.dp * layout.cp:
            sums.add("all_reduce", "dp_replicate", reductions, reduced_bytes / ranks)


def _gathers(layout: Layout, group: _Group, once: bool) -> int:
    """All-gathers of one group over all its shards in a step."""
    passes = layout.grad_accumulation
    if group.chunked:
        return _GATHERS_OF_CHUNKS * passes
    if layout.reshard and not group.stays:
        return passes
    if layout.shards_weights and layout.pp == 1:
        return passes * (1 if group.stays else 2)
    if layout.shards_weights and not group.stays:
        # a backward pass leaves the weights gathered for the forward pass after it
        return passes + 1
    return 1 if once else passes


def _expert(sums: _Sums, scenario: Scenario, layout: Layout, local_blocks: _Blocks) -> None:
    axis = axis_of_kind(layout, "expert")
    experts, element = scenario.model.experts, scenario.workload.compute_bytes
    assert experts is not None
    sent = _tokens(scenario, layout) // layout.tp * experts.top_k
    size = float(sent * scenario.model.hidden_size * element)
    for block, count in local_blocks:
        is_recomputed = layout.recompute == "full" and not block.kept_whole
        if block.dispatch_top_k:
            times = count * layout.grad_accumulation
            sums.add("all_to_all", axis, times * (6 if is_recomputed else 4), size)
            sums.add(
                "all_to_all",
                axis,
                times * (2 if is_recomputed else 1),
                _COUNT * experts.num_experts,
            )


def _context(sums: _Sums, scenario: Scenario, layout: Layout, local_blocks: _Blocks) -> None:
    axis = axis_of_kind(layout, "context")
    tokens, element = _tokens(scenario, layout), scenario.workload.compute_bytes
    for block, count in local_blocks:
        gathers = 3 if layout.recompute == "full" and not block.kept_whole else 2
        for attention in block.attentions:
            width = attention.num_kv_heads * (attention.qk_dim + attention.v_dim) // layout.tp
            times = count * layout.grad_accumulation
            size = float(tokens * width)
            sums.add("all_gather", axis, times * gathers, size * layout.cp * element)
            sums.add("all_to_all", axis, times * layout.cp, size * _ACCUMULATED)


def _tokens(scenario: Scenario, layout: Layout) -> int:
    """Tokens of a micro-batch on one context rank."""
    return layout.micro_batch * scenario.workload.sequence_length // layout.cp


def _tensor(sums: _Sums, scenario: Scenario, layout: Layout, local_blocks: _Blocks) -> None:
    workload = scenario.workload
    tokens = _tokens(scenario, layout)
    stream = float(tokens * scenario.model.hidden_size * workload.compute_bytes)
    for block, count in local_blocks:
        times = count * layout.grad_accumulation
        gathers, reductions = _crossings(layout, block)
        if layout.sequence_parallel:
            sums.add("all_gather", "tp", times * gathers, stream)
            sums.add("reduce_scatter", "tp", times * reductions, stream)
        else:
            sums.add("all_reduce", "tp", times * reductions, stream)
        if block.kind == "head":
            sums.add("all_reduce", "tp", times * _LOSS_REDUCTIONS, 4.0 * tokens)
        _replicated_gradients(sums, block, count, layout, workload.compute_bytes)


def _crossings(layout: Layout, block: Block) -> tuple[float, float]:
    """All-gathers and reductions of the stream in one pass, forward and backward.

    A recomputed layer runs to its end; selective recompute keeps what reduce-scatters give.
    """
    if block.kind != "layer":
        return 1, 1
    full = layout.recompute == "full" and not block.kept_whole
    recomputed = full or layout.recompute == "selective"
    repeats = full if layout.sequence_parallel else recomputed
    regions = block.num_tp_collectives
    return regions * (3 if recomputed else 2), regions * (3 if repeats else 2)


def _replicated_gradients(
    sums: _Sums, block: Block, count: float, layout: Layout, element: int
) -> None:
    """Reduce gradients of replicated weights that see part of the tokens or heads."""
    times = count * layout.grad_accumulation
    if layout.pp > 1 or not layout.shards_gradients:
        # gradients accumulate unreduced, in fp32, over the micro-batches
        times, element = count, _ACCUMULATED
    for weight in block.weights:
        routes = weight.part == "router" or (weight.part == "experts" and layout.ep == 1)
        # what an embedding holds whole is used per token, as norms are
        per_token = weight.part in ("norm", "position") or block.kind == "embedding"
        if weight.split == "replicated" and (
            weight.part == "qk_norm" or routes or (per_token and layout.sequence_parallel)
        ):
            # the experts' biases are one tensor
            copies = 1 if weight.expert else weight.copies
            sums.add(
                "all_reduce", "tp", times * copies, float(weight.num_params * element / copies)
            )


def _pipeline(sums: _Sums, scenario: Scenario, layout: Layout, stage: int) -> None:
    tokens = _tokens(scenario, layout)
    split = layout.tp if layout.sequence_parallel else 1
    size = tokens * scenario.model.hidden_size * scenario.workload.compute_bytes / split
    neighbours = sum(
        0 <= neighbour < layout.pp * layout.vpp and layout.stage_of(neighbour) != stage
        for number in range(layout.vpp)
        for neighbour in (layout.chunk(stage, number) - 1, layout.chunk(stage, number) + 1)
    )
    for name in ("send", "receive"):
        sums.add(name, "pp", neighbours * layout.grad_accumulation, size)


_NAMES = {
    "data": "dp",
    "shard": "dp_shard",
    "second_shard": "reshard",
    "replica": "dp_replicate",
    "context": "cp",
    "expert": "ep",
    "expert_shard": "edp",
    "tensor": "tp",
    "pipeline": "pp",
}
"""Kinds of groups, by the name that traces give them; equal groups have the first one's."""


def _places(layout: Layout) -> dict[str, tuple[int, int]]:
    """Size and stride of the groups of every kind."""
    # experts are whole where they are spread, as FSDP2 leaves them
    layouts = Layouts.of(layout if layout.ep == 1 else layout.replaced(etp=1))
    placements = {
        kind: (int(size), int(stride)) for kind, (size, stride) in geometry(layouts).items()
    }
    return {kind: placements[kind] for kind in _NAMES}


def axis_of(layout: Layout, size: int, stride: int) -> str:
    """Name of the axis along which the ranks of a group differ.

    >>> axis_of(Layout(dp=8, ep=4), 2, 4)
    'edp'
    """
    for kind, place in _places(layout).items():
        if place == (size, stride):
            return _NAMES[kind]
    return "world"


def axis_of_kind(layout: Layout, kind: str) -> str:
    """Name of the axis of a kind of groups.

    >>> axis_of_kind(Layout(dp=8, ep=8), "expert")      # the ranks of the data axis
    'dp'
    """
    return axis_of(layout, *_places(layout)[kind])
