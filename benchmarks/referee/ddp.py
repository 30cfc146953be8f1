"""DDP: transformers' models in torch's DistributedDataParallel, real tensors, a group of one rank.

The reducer's buckets are made in C++, which takes no tensors without data; their size does not
depend on the number of ranks.
"""

# mypy: ignore-errors

from __future__ import annotations

import contextlib
from typing import Any

import torch
from torch import distributed
from torch.nn import functional
from torch.nn.parallel import DistributedDataParallel

from benchmarks.referee.deepspeed import NoProducts
from planner.validate.folder.huggingface import meta_model
from planner.validate.sharding.recorders import Direction, Phase, StorageTimeline

__all__ = ["run"]

_cross_entropy = functional.cross_entropy
_WARM_UP = 2
"""Steps until the moments exist and the reducer has ordered its buckets anew."""


def run(case: dict[str, Any]) -> dict[str, Any]:
    """Track a step: `outputs = model(**batch)` stays alive through backward; fused AdamW."""
    # CUDA's autocast runs the loss in fp32, the CPU's does not
    functional.cross_entropy = lambda logits, *rest, **named: _cross_entropy(
        logits.float(), *rest, **named
    )
    timeline = StorageTimeline()
    if not distributed.is_initialized():
        distributed.init_process_group("gloo", rank=0, world_size=1, store=distributed.HashStore())
    with NoProducts(), timeline:
        step = _step(case, timeline)
        for _ in range(_WARM_UP):
            step()
        timeline.moment("begin")
        step()
        timeline.moment("end")
    peaks = timeline.peaks(timeline.moments["begin"], timeline.moments["end"])
    return {"peak": max(size for size, _ in peaks.values()), "torch": torch.__version__}


def _step(case: dict[str, Any], timeline: StorageTimeline):
    layout, plain = case["layout"], meta_model(case)
    plain.to_empty(device="cpu")
    plain.tie_weights()
    if layout["recompute"] == "full":
        plain.gradient_checkpointing_enable()
    model = DistributedDataParallel(plain)
    optimizer = torch.optim.AdamW(model.parameters(), fused=True)
    shape = (layout["micro_batch"], case["sequence"])
    tokens, labels = (torch.zeros(shape, dtype=torch.long) for _ in range(2))
    kept: list[Any] = []

    def step() -> None:
        timeline.phase = Phase(Direction.FORWARD)
        mixed = case["precision"] == "bf16"
        with torch.autocast("cpu", torch.bfloat16) if mixed else contextlib.nullcontext():
            outputs = model(input_ids=tokens, labels=labels)
        # a loop's variable keeps its object until it is assigned again
        kept[:] = [outputs]
        timeline.phase = Phase(Direction.BACKWARD)
        outputs.loss.backward()
        timeline.phase = Phase(Direction.OPTIMIZER)
        optimizer.step()
        timeline.phase = Phase(Direction.END)
        optimizer.zero_grad(set_to_none=True)

    return step
