"""Expected: the collectives that the planner takes one rank to issue in a step of FSDP2.

Counts and full buffers, from the blocks alone; a trace is compared with them.

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
_GATHERS_IN_PIECES = 3
"""For the norm's forward pass, for all pieces of head and loss, for the norm's backward pass."""
_LOSS_REDUCTIONS = 3
"""Maximum, sum of exponentials and chosen logit of each token, in fp32."""


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
        """What was added, in a fixed order."""
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
    """Parameters that are gathered and reduced at once."""

    count: float
    """How many such groups."""
    elements: float
    """Of each, with padding."""
    trained: float
    """Of these, what has gradients."""
    stays: bool = False
    """Gathered from forward to backward."""
    pieces: bool = False
    """Of a loss in pieces: freed before them and after, and the head's gradient reduced apart."""
    twice: float = 0.0
    """Of that, what has a gradient of the embedding too."""
    experts: bool = False
    """Of an expert-parallel group: replicated on fewer ranks."""


def _groups(
    scenario: Scenario, layout: Layout, local_blocks: list[tuple[Block, float]]
) -> list[_Group]:
    """Parameter groups of a stage."""
    layers, ends = [], []

    def elements(block: Block) -> tuple[float, float]:
        both = (
            local_params(scenario, part, Layouts.of(layout)).all_gathered
            for part in (block, without_frozen(block))
        )
        total, trained = (float(part) for part in both)
        return total, trained

    for block, count in local_blocks:
        # a shared table is the embedding's; what is left is the final norm
        own_block = without_tied(block) if block.tied_elsewhere and layout.pp == 1 else block
        if block.kind != "layer":
            ends.append((block.kind, elements(own_block)))
            continue
        routed = tuple(w for w in own_block.weights if w.expert and layout.ep > 1)
        rest = tuple(w for w in own_block.weights if w not in routed)
        layers.append(_Group(count, *elements(replace(own_block, weights=rest))))
        if routed:
            mine = elements(replace(own_block, weights=routed))
            layers.append(_Group(count, *mine, experts=True))
    pieces = scenario.framework.kernels.loss_chunks > 1
    if layout.pp == 1 and any(block.tied_elsewhere for block, _ in local_blocks):
        total, trained = (sum(sizes) for sizes in zip(*(size for _, size in ends), strict=True))
        table = sum(
            weight.num_params for b, _ in local_blocks for weight in b.weights if weight.tied
        )
        twice = float(table * pieces)
        return [*layers, _Group(1.0, total, trained, stays=True, pieces=pieces, twice=twice)]
    return layers + [
        _Group(1.0, *size, stays=kind == "head", pieces=pieces and kind == "head")
        for kind, size in ends
    ]


def _data(
    sums: _Sums, scenario: Scenario, layout: Layout, local_blocks: list[tuple[Block, float]]
) -> None:
    element = scenario.workload.compute_bytes
    reduce_bytes = scenario.framework.states(scenario.workload.precision).reduce_bytes
    shards = (layout.dp_shard or layout.dp) * layout.cp
    passes = layout.grad_accumulation
    for group in _groups(scenario, layout, local_blocks):
        ranks = shards * layout.tp // layout.ep if group.experts else shards
        axis = axis_of_kind(layout, "expert_shard" if group.experts else "shard")
        count, elements = group.count, group.elements
        # the head's gradient is reduced after the last piece, the others' after backward
        parts = 2 if group.pieces else 1
        trained = (group.trained + group.twice) / parts
        if not layout.shards_states:
            sums.add("all_reduce", axis, count * (ranks > 1), trained * reduce_bytes)
            continue
        # torch's schedules reduce once per step, and keep ZeRO-2 parameters gathered over it;
        # so does ZeRO-1 without a pipeline
        often = 1 if layout.pp > 1 or not layout.shards_gradients else passes
        gathers = often
        if layout.shards_weights and layout.pp == 1:
            gathers = passes * (1 if group.stays else 2)
        elif layout.shards_weights and not group.stays:
            # a backward pass leaves the weights gathered for the forward pass after it
            gathers = passes + 1
        if layout.reshard and not group.stays:
            # what a forward pass gathered is sharded over fewer ranks, its backward pass's own
            inner_shard = axis_of_kind(layout, "second_shard")
            sums.add("all_gather", inner_shard, count * passes, elements * element)
            gathers = passes
        if ranks > 1:
            gathers = _GATHERS_IN_PIECES * passes if group.pieces else gathers
            sums.add("all_gather", axis, count * gathers, elements * element)
            sums.add("reduce_scatter", axis, parts * count * often, trained * reduce_bytes)
        if shards < layout.dp * layout.cp:
            size = trained * reduce_bytes / ranks
            sums.add("all_reduce", "dp_replicate", parts * count * often, size)


def _expert(
    sums: _Sums, scenario: Scenario, layout: Layout, local_blocks: list[tuple[Block, float]]
) -> None:
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


def _context(
    sums: _Sums, scenario: Scenario, layout: Layout, local_blocks: list[tuple[Block, float]]
) -> None:
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


def _tensor(
    sums: _Sums, scenario: Scenario, layout: Layout, local_blocks: list[tuple[Block, float]]
) -> None:
    workload, model = scenario.workload, scenario.model
    tokens = _tokens(scenario, layout)
    stream = float(tokens * model.hidden_size * workload.compute_bytes)
    passes, sequence = layout.grad_accumulation, layout.sequence_parallel
    # a repeated layer runs to its end; selective recomputation keeps what reduce-scatters give
    for block, count in local_blocks:
        times = count * passes
        full = layout.recompute == "full" and not block.kept_whole
        is_recomputed = full or layout.recompute == "selective"
        if block.kind == "layer":
            regions = block.num_tp_collectives
            if sequence:
                repeated = regions if full else 0
                sums.add("all_gather", "tp", times * regions * (3 if is_recomputed else 2), stream)
                sums.add("reduce_scatter", "tp", times * (2 * regions + repeated), stream)
            else:
                repeated = regions if is_recomputed else 0
                sums.add("all_reduce", "tp", times * (2 * regions + repeated), stream)
        elif sequence:
            sums.add("all_gather", "tp", times, stream)
            sums.add("reduce_scatter", "tp", times, stream)
        else:
            sums.add("all_reduce", "tp", times, stream)
        if block.kind == "head":
            sums.add("all_reduce", "tp", times * _LOSS_REDUCTIONS, 4.0 * tokens)
        _small(sums, block, count, layout, workload.compute_bytes)


def _small(sums: _Sums, block: Block, count: float, layout: Layout, element: int) -> None:
    """Gradients of replicated weights whose ranks saw different tokens or heads."""
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
