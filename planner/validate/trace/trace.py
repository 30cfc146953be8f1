"""Trace: exact bytes and collectives of one rank, from torch's own sharding, at any scale.

The model is built and sharded by FSDP2, DTensor and torch's pipeline schedules in one process
under a fake process group with fake tensors. Deep stages are traced at two depths and extended
linearly, which is exact: every part of a step is linear in the number of equal layers, and the
phases are extended one by one before the highest is taken.
"""

from __future__ import annotations

from contextlib import nullcontext
from dataclasses import asdict, dataclass
from typing import Any

import numpy as np

from planner.cost.scenario import Scenario
from planner.cost.shards.stages import Stages
from planner.describe.layout import Layout
from planner.describe.model.model import Model
from planner.errors import LayoutError
from planner.validate.trace.tracer import TraceError, Tracer

__all__ = ["Collective", "Trace", "TraceError", "requests_of", "trace"]

_DEPTHS = (4, 6)
"""Layers traced of a deeper stage: fewer than four and other phases hold the peak."""


@dataclass(frozen=True, slots=True)
class Collective:
    """Operations of one kind over the groups of one axis, in one step of one rank."""

    name: str
    group: str
    count: int
    bytes: int
    """Full buffers: gathered tensors, and tensors before reduction or scattering."""


@dataclass(frozen=True, slots=True)
class Trace:
    """What one rank of one stage holds and sends in a step."""

    model: str
    layout: Layout
    stage: int
    num_layers: int
    depths: tuple[int, ...]
    """Numbers of layers that were traced; more than one where the result is extended."""
    torch: str
    parameters_bytes: int
    gradients_bytes: int
    optimizer_states_bytes: int
    start_of_backward_bytes: dict[str, int]
    """Alive when a backward pass starts, with most micro-batches in flight, by category."""
    peak_bytes: int
    peak_phase: str
    peak_parts_bytes: dict[str, int]
    phases_bytes: dict[str, int]
    """Peak of every phase."""
    loss_parts_bytes: dict[str, int]
    """Alive when the loss's backward needs most, by category; empty where there is no head."""
    collectives: tuple[Collective, ...]

    def as_dict(self) -> dict[str, Any]:
        """The trace as JSON-able data."""
        return {**asdict(self), "layout": self.layout.model_dump()}


def trace(
    scenario: Scenario,
    layout: Layout,
    *,
    stage: int = 0,
    optimizer: str = "fused",
    full_depth: bool = False,
    tracer: Tracer | None = None,
) -> Trace:
    """Trace one rank of a pipeline stage: the first of the stage, whose shards are largest.

    Counted: parameters, gradients, AdamW states, activations, gathered parameters, gradient
    reduction, temporaries of every operator. Left out: the device's context, the allocator's
    rounding and reserve, communicator buffers. Many traces can share a `tracer`.
    """
    _check(scenario, layout, stage)
    _, dense, count = _layers(scenario, layout, stage)
    depths: tuple[int, ...] = tuple(dense + depth for depth in _DEPTHS)
    partly = layout.recompute_layers > 0 or layout.recompute_every > 1
    if full_depth or partly or count <= depths[-1] or layout.vpp > 1:
        depths = (count,)
    with Tracer() if tracer is None else nullcontext(tracer) as worker:
        answers = [
            worker.ask(
                _request(
                    scenario, layout, stage, optimizer, _chunks(scenario, layout, stage, depth)
                )
            )
            for depth in depths
        ]
    result = answers[0]
    if len(depths) > 1:
        result = _extended(answers[0], answers[1], depths, count)
    return _trace(scenario, layout, stage, depths, count, result)


def _check(scenario: Scenario, layout: Layout, stage: int) -> None:
    framework, model = scenario.framework.family, scenario.model
    dropout_rate = scenario.workload.dropout
    dropout = model.dropout if dropout_rate is None else dropout_rate
    wrong = [
        (framework != "fsdp2", f"framework {framework} is not traced; use fsdp2"),
        (
            layout.cp > 1 and (not _rings(model) or scenario.workload.attention != "flash"),
            f"cp = {layout.cp} is traced with causal fused attention alone, without sinks, ALiBi "
            "or latent projections; use cp = 1",
        ),
        (
            layout.cp > 1 and layout.recompute == "selective",
            "selective recompute is not traced with context parallelism; use none or full",
        ),
        (
            scenario.workload.sequence_length % (2 * layout.cp) > 0 and layout.cp > 1,
            f"sequence_length = {scenario.workload.sequence_length} must be a multiple of 2 cp = "
            f"{2 * layout.cp}: each rank has an early and a late piece",
        ),
        *_wrong_experts(scenario, layout),
        *_wrong_recompute(layout),
        (layout.offload != "none", f"offload {layout.offload} is not traced; use none"),
        (
            scenario.workload.optimizer not in ("adamw", "adam-8bit"),
            f"optimizer {scenario.workload.optimizer} is not traced; use adamw or adam-8bit",
        ),
        (
            scenario.framework.kernels.optimizer_in_backward and layout.grad_accumulation > 1,
            f"grad_accumulation = {layout.grad_accumulation} is not traced with an optimizer in "
            "backward, which needs 1",
        ),
        *_wrong_adapters(scenario, layout),
        *_wrong_pieces(scenario, layout),
        (
            scenario.workload.precision in ("fp8",),
            "fp8 products are not traced; use bf16",
        ),
        (
            dropout > 0,
            f"dropout = {dropout:g} is not traced; use a workload with dropout 0",
        ),
        (
            layout.tp > 1 and (model.latent_attention is not None or model.qk_norm == "full"),
            f"tp = {layout.tp} is not traced with latent attention and norms over all heads, "
            "whose sharding torch leaves to each program; use tp = 1",
        ),
        (
            layout.sequence_parallel and layout.tp > 1 and model.pooler,
            "sequence parallelism is not traced with a pooler, which reads one token; leave it out",
        ),
        (not 0 <= stage < layout.pp, f"stage = {stage} must be below pp = {layout.pp}"),
    ]
    for is_wrong, message in wrong:
        if is_wrong:
            raise LayoutError(message)


def _wrong_recompute(layout: Layout) -> list[tuple[bool, str]]:
    """What of recompute and of activations on the host is not traced."""
    modules, apart = layout.recompute_modules, layout.tp * layout.pp * layout.cp > 1
    return [
        (
            layout.recompute_span > 1,
            f"recompute_span = {layout.recompute_span} is not traced; use 1",
        ),
        (
            modules not in ((), ("mlp",), ("moe",)),
            f"recompute of {'+'.join(modules)} is not traced; use mlp or moe",
        ),
        (
            apart and (bool(modules) or layout.offload_activations),
            "modules and offload of activations are not traced beside tp, pp and cp; use 1 of each",
        ),
    ]


def _wrong_pieces(scenario: Scenario, layout: Layout) -> list[tuple[bool, str]]:
    """What of a loss that runs piece by piece is not traced."""
    pieces, model = scenario.framework.kernels.loss_chunks, scenario.model
    if pieces == 1:
        return []
    return [
        (
            layout.tp * layout.pp * layout.cp * layout.ep > 1 or scenario.workload.adapted,
            f"a loss in {pieces} pieces is not traced beside tp, pp, cp, ep and adapters; use dp "
            "alone",
        ),
        (
            not layout.shards_states,
            f"a loss in {pieces} pieces is not traced with zero_stage = 0, where torch does not "
            "let the head's weights be kept apart; use 1, 2 or 3",
        ),
        (
            not model.output_head or bool(model.logits_softcap),
            f"a loss in {pieces} pieces is traced of plain logits alone; use a model with a head "
            "and without soft caps",
        ),
    ]


def _wrong_adapters(scenario: Scenario, layout: Layout) -> list[tuple[bool, str]]:
    """What of adapters and frozen parts is not traced."""
    workload, model = scenario.workload, scenario.model
    if not workload.adapted:
        return []
    return [
        (
            layout.tp * layout.pp * layout.cp * layout.ep > 1,
            f"{layout} is not traced with adapters and frozen parts; use dp alone",
        ),
        (
            model.experts is not None or model.latent_attention is not None,
            "adapters are not traced beside experts and latent projections; use a dense model",
        ),
        (
            model.tied_embeddings and model.output_head,
            f"frozen parts of {model.name}, whose embedding and head are one tensor, are not "
            "traced; use a model that has two",
        ),
        (
            workload.lora_dropout > 0,
            f"lora_dropout = {workload.lora_dropout:g} is not traced; use 0",
        ),
        (
            workload.base_format not in ("computed", "nf4"),
            f"base_format = {workload.base_format} is not traced; use computed or nf4",
        ),
        (
            workload.base_format == "nf4" and workload.compute_bytes != 2,
            "a base in 4 bits is traced with 16-bit products alone; use bf16",
        ),
    ]


def _wrong_experts(scenario: Scenario, layout: Layout) -> list[tuple[bool, str]]:
    """What of expert parallelism is not traced."""
    if layout.ep == 1:
        return []
    experts = scenario.model.experts
    count, top_k = (experts.num_experts, experts.top_k) if experts else (0, 0)
    shards = (layout.dp_shard or layout.dp) * layout.cp
    rows = layout.micro_batch * scenario.workload.sequence_length // layout.cp // layout.tp
    return [
        (not count, f"ep = {layout.ep}: {scenario.model.name} has no experts; use ep = 1"),
        (
            not layout.shards_states,
            f"ep = {layout.ep} is not traced with zero_stage = 0, for which FSDP2 has no second "
            "mesh; use 1, 2 or 3",
        ),
        (
            layout.tp > 1 and not layout.sequence_parallel,
            f"ep = {layout.ep} beside tp = {layout.tp} is traced with sequence parallelism alone; "
            "switch it on",
        ),
        (
            count % layout.ep > 0 or shards * layout.tp % layout.ep > 0,
            f"ep = {layout.ep} must divide num_experts = {count} and the {shards * layout.tp} "
            "ranks that shard, those of tp included; change it",
        ),
        (
            bool(count) and rows * top_k % count > 0,
            f"{rows} tokens of a rank times {top_k} do not spread evenly over {count} experts, "
            "as traces take them to; change the sequence or micro-batch",
        ),
    ]


def _rings(model: Model) -> bool:
    """Whether torch's ring attention runs a model."""
    plain = model.latent_attention is None and not model.attention_sinks
    return model.kind == "decoder" and plain and model.position != "alibi"


def _layers(scenario: Scenario, layout: Layout, stage: int) -> tuple[int, int, int]:
    """First layer of a stage, dense layers before its expert layers, and all its layers."""
    stages = Stages.every(scenario, layout)
    layers = [
        (block, count)
        for block, count in zip(stages.blocks, stages.counts, strict=True)
        if block.kind == "layer"
    ]
    before = int(sum(np.sum(count[:stage]) for _, count in layers))
    dense = int(sum(count[stage] for block, count in layers if not block.dispatch_top_k))
    total = int(sum(count[stage] for _, count in layers))
    return before, dense if dense < total else 0, total


def requests_of(scenario: Scenario, layout: Layout) -> list[dict[str, Any]]:
    """What a worker is asked about each pipeline stage, with all its layers."""
    requests = []
    for stage in range(layout.pp):
        _check(scenario, layout, stage)
        chunks = _chunks(scenario, layout, stage, _layers(scenario, layout, stage)[2])
        requests.append(_request(scenario, layout, stage, "fused", chunks))
    return requests


def _chunks(scenario: Scenario, layout: Layout, stage: int, depth: int) -> list[tuple[int, int]]:
    """First layer and number of layers of every chunk of a stage.

    A chunk is a stage of a pipeline as long as all chunks; a single one is traced at `depth`.
    """
    if layout.vpp == 1:
        return [(_layers(scenario, layout, stage)[0], depth)]
    longer = layout.replaced(pp=layout.pp * layout.vpp, vpp=1, schedule="1f1b")
    chunk_list = []
    for number in range(layout.vpp):
        first, _, count = _layers(scenario, longer, layout.chunk(stage, number))
        chunk_list.append((first, count))
    return chunk_list


def _request(
    scenario: Scenario,
    layout: Layout,
    stage: int,
    optimizer: str,
    chunks: list[tuple[int, int]],
) -> dict[str, Any]:
    return {
        "model": scenario.model.model_dump(),
        "layout": layout.model_dump(),
        "workload": scenario.workload.model_dump(),
        "stage": stage,
        "optimizer": optimizer,
        "chunks": chunks,
        "numbers": _numbers(scenario),
    }


def _numbers(scenario: Scenario) -> dict[str, Any]:
    """Formats of weights, reductions and moments, as `planner.validate.sharding.numbers`."""
    states, kernels = scenario.framework.states(scenario.workload.precision), scenario.framework
    in_blocks = scenario.workload.optimizer == "adam-8bit"
    return {
        "weight_bytes": int(states.master_bytes),
        "reduce_bytes": int(states.reduce_bytes),
        "moment_bytes": 1 if in_blocks else int(states.moment_bytes),
        "in_backward": kernels.kernels.optimizer_in_backward,
        "loss_chunks": kernels.kernels.loss_chunks,
    }


# --- depth -----------------------------------------------------------------------------------


def _extended(
    low: dict[str, Any], high: dict[str, Any], depths: tuple[int, ...], count: int
) -> dict[str, Any]:
    """Both answers continued linearly to `count` layers."""
    steps = (count - depths[1]) / (depths[1] - depths[0])

    def line(a: int, b: int) -> int:
        return round(b + (b - a) * steps)

    def parts(a: dict[str, int], b: dict[str, int]) -> dict[str, int]:
        names = sorted({*a, *b})
        return {name: line(a.get(name, 0), b.get(name, 0)) for name in names}

    low_counts = {(c["name"], c["group"]): c for c in low["collectives"]}
    return {
        **high,
        "states": parts(low["states"], high["states"]),
        "start_of_backward": parts(low["start_of_backward"], high["start_of_backward"]),
        "loss": parts(low["loss"], high["loss"]),
        # phases of layers between the ends exist only at the larger depth; they lie between
        "peaks": {
            phase: parts(low["peaks"][phase], peak)
            for phase, peak in high["peaks"].items()
            if phase in low["peaks"]
        },
        "collectives": [
            {
                **c,
                "count": line(low_counts[c["name"], c["group"]]["count"], c["count"]),
                "bytes": line(low_counts[c["name"], c["group"]]["bytes"], c["bytes"]),
            }
            for c in high["collectives"]
        ],
    }


def _trace(
    scenario: Scenario,
    layout: Layout,
    stage: int,
    depths: tuple[int, ...],
    count: int,
    result: dict[str, Any],
) -> Trace:
    phases = {phase: sum(parts.values()) for phase, parts in result["peaks"].items()}
    phase = max(phases, key=lambda name: phases[name])
    states = result["states"]
    return Trace(
        model=scenario.model.name,
        layout=layout,
        stage=stage,
        num_layers=count,
        depths=depths,
        torch=result["torch"],
        parameters_bytes=states["parameters"],
        gradients_bytes=states["gradients"],
        optimizer_states_bytes=states["optimizer_states"],
        start_of_backward_bytes=result["start_of_backward"],
        peak_bytes=phases[phase],
        peak_phase=phase,
        peak_parts_bytes=result["peaks"][phase],
        phases_bytes=phases,
        loss_parts_bytes=result["loss"],
        collectives=tuple(Collective(**item) for item in result["collectives"]),
    )
