"""Trace: exact bytes and collectives of one rank; deep stages are extended from two depths."""

from contextlib import nullcontext
from dataclasses import asdict, dataclass
from typing import Any

import numpy as np

from planner.cost.scenario import Scenario
from planner.cost.shards.stages import Stages
from planner.describe.layout import Layout
from planner.validate.trace.expected_collectives import Collective
from planner.validate.trace.limits import check_traceable
from planner.validate.trace.tracer import Tracer

_DEPTHS = (4, 6)
"""Numbers of layers at which deeper stages are traced: below four, other phases hold the peak."""


@dataclass(frozen=True, slots=True)
class Trace:
    """Memory and collectives of one rank of a stage in one step."""

    model: str
    layout: Layout
    stage: int
    num_layers: int
    depths: tuple[int, ...]
    """Numbers of layers that were traced; two if the result is extrapolated."""
    torch: str
    parameters_bytes: int
    gradients_bytes: int
    optimizer_states_bytes: int
    start_of_backward_bytes: dict[str, int]
    """Live bytes by category at the start of the backward pass with the most activations."""
    peak_bytes: int
    peak_phase: str
    peak_parts_bytes: dict[str, int]
    phases_bytes: dict[str, int]
    loss_parts_bytes: dict[str, int]
    """Live bytes by category at the peak of the loss's backward; empty without a head."""
    collectives: tuple[Collective, ...]

    def as_dict(self) -> dict[str, Any]:
        """Return data that JSON can hold."""
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
    """Trace one rank of a pipeline stage: the first of the stage, whose shards are largest."""
    check_traceable(scenario, layout, stage)
    _, dense, count = _layers(scenario, layout, stage)
    depths: tuple[int, ...] = tuple(dense + depth for depth in _DEPTHS)
    partly = layout.recompute_layers > 0 or layout.recompute_every > 1
    if full_depth or partly or count <= depths[-1] or layout.vpp > 1:
        depths = (count,)
    with Tracer() if tracer is None else nullcontext(tracer) as worker:
        answers = [
            worker.ask(_request(scenario, layout, stage, depth, optimizer)) for depth in depths
        ]
    result = answers[0]
    if len(depths) > 1:
        result = _extrapolate(answers, (count - depths[1]) / (depths[1] - depths[0]))
    phases = {phase: sum(parts.values()) for phase, parts in result["peaks"].items()}
    phase = max(phases, key=lambda name: phases[name])
    return Trace(
        model=scenario.model.name,
        layout=layout,
        stage=stage,
        num_layers=count,
        depths=depths,
        torch=result["torch"],
        **{f"{name}_bytes": size for name, size in result["states"].items()},
        start_of_backward_bytes=result["start_of_backward"],
        peak_bytes=phases[phase],
        peak_phase=phase,
        peak_parts_bytes=result["peaks"][phase],
        phases_bytes=phases,
        loss_parts_bytes=result["loss"],
        collectives=tuple(Collective(**item) for item in result["collectives"]),
    )


def _layers(scenario: Scenario, layout: Layout, stage: int) -> tuple[int, int, int]:
    """First layer of a stage, number of dense layers before expert layers, number of layers."""
    stages = Stages.of_pipeline(scenario, layout)
    layers = [
        (block, count)
        for block, count in zip(stages.blocks, stages.counts, strict=True)
        if block.kind == "layer"
    ]
    before = int(sum(np.sum(count[:stage]) for _, count in layers))
    dense = int(sum(count[stage] for block, count in layers if not block.dispatch_top_k))
    total = int(sum(count[stage] for _, count in layers))
    return before, dense if dense < total else 0, total


def _chunks(scenario: Scenario, layout: Layout, stage: int, depth: int) -> list[tuple[int, int]]:
    """First layer and number of layers of every chunk; a stage's only chunk has `depth` layers."""
    if layout.vpp == 1:
        return [(_layers(scenario, layout, stage)[0], depth)]
    longer = layout.replaced(pp=layout.pp * layout.vpp, vpp=1, schedule="1f1b")
    numbers = [layout.chunk(stage, number) for number in range(layout.vpp)]
    return [_layers(scenario, longer, number)[::2] for number in numbers]


def _request(
    scenario: Scenario, layout: Layout, stage: int, depth: int, optimizer: str
) -> dict[str, Any]:
    framework, workload = scenario.framework, scenario.workload
    states = framework.states(workload.precision)
    in_blocks = workload.optimizer == "adam-8bit"
    return {
        "model": scenario.model.model_dump(),
        "layout": layout.model_dump(),
        "workload": workload.model_dump(),
        "stage": stage,
        "optimizer": optimizer,
        "chunks": _chunks(scenario, layout, stage, depth),
        "numbers": {
            "weight_bytes": int(states.master_bytes),
            "reduce_bytes": int(states.reduce_bytes),
            "moment_bytes": 1 if in_blocks else int(states.moment_bytes),
            "in_backward": framework.kernels.optimizer_in_backward,
            "loss_chunks": framework.kernels.loss_chunks,
        },
    }


def _extrapolate(answers: list[dict[str, Any]], steps: float) -> dict[str, Any]:
    low, high = answers

    def line(a: int, b: int) -> int:
        return round(b + (b - a) * steps)

    def parts(a: dict[str, int], b: dict[str, int]) -> dict[str, int]:
        return {name: line(a.get(name, 0), b.get(name, 0)) for name in sorted({*a, *b})}

    low_counts = {(c["name"], c["group"]): c for c in low["collectives"]}
    pairs = [(low_counts[c["name"], c["group"]], c) for c in high["collectives"]]
    return {
        **{name: parts(low[name], high[name]) for name in ("states", "start_of_backward", "loss")},
        "torch": high["torch"],
        # the phase of middle layers exists only at the larger depth; its peak lies between others
        "peaks": {
            phase: parts(low["peaks"][phase], peak)
            for phase, peak in high["peaks"].items()
            if phase in low["peaks"]
        },
        "collectives": [
            {**c, **{name: line(before[name], c[name]) for name in ("count", "bytes")}}
            for before, c in pairs
        ],
    }
