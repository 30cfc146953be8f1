"""Expected collectives: counts and bytes that the planner expects for one rank of an FSDP2 step."""

from collections import defaultdict
from collections.abc import Iterator
from dataclasses import dataclass, replace
from pathlib import Path

import numpy as np

from planner.cost.network.groups import geometry
from planner.cost.scenario import Scenario
from planner.cost.shards.layouts import Layouts
from planner.cost.shards.stages import Stages
from planner.cost.shards.states import local_params, without_frozen, without_tied
from planner.cost.step.communication.tensor_parallel import stream_bytes
from planner.describe.files import read_toml
from planner.describe.layout import Layout
from planner.describe.model.block import Block

_ACCUMULATED = 4
_COUNT = 4
_LOSS_REDUCTIONS = 3
"""All-reduces of a parallel loss: maximum, sum of exponentials, target logit of tokens, in fp32."""


@dataclass(frozen=True, slots=True)
class Collective:
    """Operations of one kind over the groups of one axis, in one step of one rank."""

    name: str
    group: str
    count: int
    bytes: int
    """Full buffers: gathered tensors, and tensors before reduction or scattering."""


def expected_collectives(
    scenario: Scenario, layout: Layout, stage: int = 0
) -> tuple[Collective, ...]:
    """List the collectives of one rank of a stage in one step, in a fixed order."""
    rank = _Rank(scenario, layout, stage)
    if layout.dp * layout.cp > 1:
        for group in rank.groups():
            rank.add_data(group)
    for block, count in rank.blocks:
        if layout.cp > 1:
            rank.add_context(block, count * layout.grad_accumulation)
        if layout.ep > 1 and block.dispatch_top_k:
            rank.add_expert(block, count * layout.grad_accumulation)
        if layout.tp > 1:
            rank.add_tensor(block, count * layout.grad_accumulation)
            rank.add_partial_gradients(block, count)
    if layout.pp > 1:
        rank.add_pipeline()
    return tuple(
        Collective(name, group, round(count), round(size))
        for (name, group), (count, size) in sorted(rank.sums.items())
    )


@dataclass(frozen=True, slots=True)
class _Group:
    """FSDP parameter groups of equal size: each is gathered and reduced in one collective."""

    count: float
    elements: float
    """Elements of one group, with padding."""
    trained: float
    """Elements of one group that have gradients."""
    stays: bool = False
    """True if the group stays gathered from forward to backward."""
    chunked: bool = False
    """True if a chunked loss uses it: freed before and after; the head is reduced separately."""
    tied: float = 0.0
    """Elements of a tied embedding, whose gradient a chunked loss reduces twice."""
    experts: bool = False
    """True for experts of an expert-parallel group, which fewer ranks replicate."""


class _Rank:
    """One rank of a stage, and its collectives by operation and axis: counts and bytes."""

    def __init__(self, scenario: Scenario, layout: Layout, stage: int) -> None:
        self.scenario, self.layout, self.stage = scenario, layout, stage
        self.layouts, self.places = Layouts.of(layout), _places(layout)
        stages = Stages.of(scenario, self.layouts, stage)
        counts = [float(np.max(count)) for count in stages.counts]
        self.blocks = [(b, c) for b, c in zip(stages.blocks, counts, strict=True) if c]
        self.element = scenario.workload.compute_bytes
        self.stream = float(stream_bytes(scenario, self.layouts))
        self.tokens = float(self.layouts.tokens(scenario.workload.sequence_length))
        self.sums: dict[tuple[str, str], list[float]] = defaultdict(lambda: [0.0, 0.0])

    def _add(self, name: str, kind: str, count: float, size: float) -> None:
        if count and size:
            total = self.sums[name, axis_of(self.layout, *self.places[kind])]
            total[0] += count
            total[1] += count * size

    def groups(self) -> list[_Group]:
        """List the groups: layers, their experts, embedding and head (in one group if tied)."""
        layers: list[_Group] = []
        ends: list[tuple[str, tuple[float, float]]] = []
        for block, count in self.blocks:
            # a tied table belongs to the embedding: the head's group is the final norm
            shares = self.layout.pp == 1 and block.tied_elsewhere
            own_block = without_tied(block) if shares else block
            if block.kind == "layer":
                layers += self._layer_groups(own_block, count)
            else:
                ends.append((block.kind, self._elements(own_block)))
        chunked = self.scenario.framework.kernels.loss_chunks > 1
        if self.layout.pp == 1 and any(block.tied_elsewhere for block, _ in self.blocks):
            elements, trained = (sum(sizes) for sizes in zip(*(s for _, s in ends), strict=True))
            weights = [weight for block, _ in self.blocks for weight in block.weights]
            tied = float(sum(weight.num_params for weight in weights if weight.tied) * chunked)
            return [*layers, _Group(1.0, elements, trained, stays=True, chunked=chunked, tied=tied)]
        return layers + [
            _Group(1.0, *size, stays=kind == "head", chunked=chunked and kind == "head")
            for kind, size in ends
        ]

    def _layer_groups(self, block: Block, count: float) -> Iterator[_Group]:
        routed = tuple(w for w in block.weights if w.expert and self.layout.ep > 1)
        dense = tuple(w for w in block.weights if w not in routed)
        yield _Group(count, *self._elements(replace(block, weights=dense)))
        if routed:
            yield _Group(count, *self._elements(replace(block, weights=routed)), experts=True)

    def _elements(self, block: Block) -> tuple[float, float]:
        """Gathered elements of a block, and how many of them are trained."""
        total, trained = (
            float(local_params(self.scenario, part, self.layouts).all_gathered)
            for part in (block, without_frozen(block))
        )
        return total, trained

    def add_data(self, group: _Group) -> None:
        """Add the weight gathers and gradient reductions of a parameter group."""
        layout, framework = self.layout, self.scenario.framework
        shards = int(self.layouts.num_shards)
        ranks = shards * layout.tp // layout.ep if group.experts else shards
        kind = "expert_shard" if group.experts else "shard"
        # the head's gradient is reduced after the last chunk, the others' after backward
        parts = 2 if group.chunked else 1
        reduced_bytes = (group.trained + group.tied) / parts
        reduced_bytes *= framework.states(self.scenario.workload.precision).reduce_bytes
        if not layout.shards_states:
            self._add("all_reduce", kind, group.count * (ranks > 1), reduced_bytes)
            return
        reductions = parts * group.count * int(self.layouts.reductions_per_step(framework))
        gathered_bytes = group.elements * self.element
        if layout.reshard and not group.stays:
            # forward leaves weights sharded over fewer ranks, which backward gathers again
            times = group.count * layout.grad_accumulation
            self._add("all_gather", "second_shard", times, gathered_bytes)
        if ranks > 1:
            self._add("all_gather", kind, group.count * self._gathers(group), gathered_bytes)
            self._add("reduce_scatter", kind, reductions, reduced_bytes)
        if shards < layout.dp * layout.cp:
            self._add("all_reduce", "replica", reductions, reduced_bytes / ranks)

    def _gathers(self, group: _Group) -> int:
        layout, framework = self.layout, self.scenario.framework
        forward = int(self.layouts.gathers_per_step(framework))
        backward = int(self.layouts.backward_gathers_per_step(framework)) * layout.shards_weights
        if group.chunked:
            return forward + backward + int(self.layouts.extra_head_gathers(framework))
        if group.stays:
            return forward if layout.pp == 1 else 1
        return layout.grad_accumulation if layout.reshard else forward + backward

    def _repeats(self, block: Block) -> bool:
        return self.layout.recompute == "full" and not block.kept_whole

    def add_expert(self, block: Block, times: float) -> None:
        """Add the exchanges of tokens and their counts in `times` passes."""
        model, passes = self.scenario.model, 2 if self._repeats(block) else 1
        experts = model.experts
        assert experts is not None
        sent = self.tokens // self.layout.tp * experts.top_k
        size = sent * model.hidden_size * self.element
        self._add("all_to_all", "expert", times * (2 + 2 * passes), size)
        self._add("all_to_all", "expert", times * passes, _COUNT * experts.num_experts)

    def add_context(self, block: Block, times: float) -> None:
        """Add the exchanges of keys, values and their gradients in `times` passes."""
        gathers, cp = 3 if self._repeats(block) else 2, self.layout.cp
        for attention in block.attentions:
            width = attention.num_kv_heads * (attention.qk_dim + attention.v_dim) // self.layout.tp
            size = self.tokens * width
            self._add("all_gather", "context", times * gathers, size * cp * self.element)
            self._add("all_to_all", "context", times * cp, size * _ACCUMULATED)

    def add_tensor(self, block: Block, times: float) -> None:
        """Add the collectives of the residual stream and the loss in `times` passes."""
        gathers = reductions = 1.0
        if block.kind == "layer":
            # a recomputed layer runs to its end; selective recompute keeps reduce-scattered results
            full, sequence = self._repeats(block), self.layout.sequence_parallel
            recomputed = full or self.layout.recompute == "selective"
            gathers = block.num_tp_collectives * (3 if recomputed else 2)
            repeated = full if sequence else recomputed
            reductions = block.num_tp_collectives * (3 if repeated else 2)
        if self.layout.sequence_parallel:
            self._add("all_gather", "tensor", times * gathers, self.stream)
            self._add("reduce_scatter", "tensor", times * reductions, self.stream)
        else:
            self._add("all_reduce", "tensor", times * reductions, self.stream)
        if block.kind == "head":
            self._add("all_reduce", "tensor", times * _LOSS_REDUCTIONS, 4.0 * self.tokens)

    def add_partial_gradients(self, block: Block, count: float) -> None:
        """Add gradient reductions of replicated weights that see part of the tokens or heads."""
        layout = self.layout
        times, element = count * layout.grad_accumulation, self.element
        if layout.pp > 1 or not layout.shards_gradients:
            # gradients accumulate unreduced, in fp32, over the micro-batches
            times, element = count, _ACCUMULATED
        for weight in block.weights:
            routes = weight.part == "router" or (weight.part == "experts" and layout.ep == 1)
            # replicated weights of an embedding are applied per token, like norms
            per_token = weight.part in ("norm", "position") or block.kind == "embedding"
            if weight.split == "replicated" and (
                weight.part == "qk_norm" or routes or (per_token and layout.sequence_parallel)
            ):
                # the experts' biases are one tensor
                copies = 1 if weight.expert else weight.copies
                size = float(weight.num_params * element / copies)
                self._add("all_reduce", "tensor", times * copies, size)

    def add_pipeline(self) -> None:
        """Add the messages to and from neighbour stages on other ranks."""
        layout = self.layout
        chunks = [layout.chunk(self.stage, number) for number in range(layout.vpp)]
        neighbours = sum(
            0 <= neighbour < layout.pp * layout.vpp and layout.stage_of(neighbour) != self.stage
            for chunk in chunks
            for neighbour in (chunk - 1, chunk + 1)
        )
        size = self.stream / (layout.tp if layout.sequence_parallel else 1)
        for name in ("send", "receive"):
            self._add(name, "pipeline", neighbours * layout.grad_accumulation, size)


_NAMES = read_toml(Path(__file__).with_name("axes.toml"))
"""Axis name of each kind of group in traces; equal groups have the first name."""


def _places(layout: Layout) -> dict[str, tuple[int, int]]:
    # FSDP2 keeps experts whole under expert parallelism
    layouts = Layouts.of(layout if layout.ep == 1 else layout.replaced(etp=1))
    placements = geometry(layouts)
    return {kind: (int(placements[kind][0]), int(placements[kind][1])) for kind in _NAMES}


def axis_of(layout: Layout, size: int, stride: int) -> str:
    """Name of the axis along which the ranks of a group differ."""
    for kind, place in _places(layout).items():
        if place == (size, stride):
            return _NAMES[kind]
    return "world"
