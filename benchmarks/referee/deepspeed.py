"""DeepSpeed: its engine around a Hugging Face model, real tensors, one rank of a fake group."""

# mypy: ignore-errors

from __future__ import annotations

import gc
import os
from typing import Any

os.environ |= {"DS_ACCELERATOR": "cpu", "LOCAL_RANK": "0", "DEEPSPEED_LOG_LEVEL": "error"}

import deepspeed
import torch
from deepspeed.comm import torch as communication
from torch.utils._python_dispatch import TorchDispatchMode

from planner.validate.folder.huggingface import meta_model
from planner.validate.sharding import adapter
from planner.validate.sharding.recorders import Direction, Phase, StorageTimeline

__all__ = ["NoProducts", "run"]

# DeepSpeed's shared-memory collectives would wait for ranks that do not exist
communication.build_shm_op = lambda: None


def run(case: dict[str, Any]) -> dict[str, Any]:
    """Track a step of `engine(...)`, `engine.backward`, `engine.step`; `outputs` stays alive."""
    layout = case["layout"]
    with adapter.fake_world(0, layout["dp"]), NoProducts():
        engine = _engine(case)
        shape = (layout["micro_batch"], case["sequence"])
        tokens, labels = (torch.zeros(shape, dtype=torch.long) for _ in range(2))
        outputs = None
        timeline = StorageTimeline()

        def phase(direction: Direction) -> None:
            timeline.phase = Phase(direction)

        def step() -> None:
            nonlocal outputs
            for _ in range(layout["grad_accumulation"]):
                phase(Direction.FORWARD)
                outputs = engine(input_ids=tokens, labels=labels)
                phase(Direction.BACKWARD)
                engine.backward(outputs.loss)
                timeline.moment("reduced")
                phase(Direction.OPTIMIZER)
                engine.step()

        # the first step creates the optimizer's moments
        step()
        outputs = None
        gc.collect()
        with timeline:
            for thing in gc.get_objects():
                # the engine keeps shapes of its parameters as tensors without data
                if isinstance(thing, torch.Tensor) and not thing.is_meta:
                    timeline.watch(thing)
            timeline.moment("begin")
            step()
            timeline.moment("end")
        return _readout(engine, timeline)


class NoProducts(TorchDispatchMode):
    """Return zeros for matrix products: only sizes matter, and 16-bit ones are slow on a CPU."""

    def __torch_dispatch__(self, func, types, args=(), kwargs=None):
        if func in (torch.ops.aten.mm.default, torch.ops.aten.addmm.default):
            left, right = args[-2:]
            return left.new_zeros(left.shape[0], right.shape[1])
        return func(*args, **(kwargs or {}))


def _engine(case: dict[str, Any]) -> Any:
    """Make the engine with `deepspeed.initialize`, configured as `planner emit` writes it."""
    model = meta_model(case)
    model.to_empty(device="cpu")
    with torch.no_grad():
        for tensor in (*model.parameters(), *model.buffers()):
            tensor.zero_()
    model.tie_weights()
    if case["layout"]["recompute"] == "full":
        model.gradient_checkpointing_enable()
    optimizer = torch.optim.AdamW(model.parameters(), fused=True)
    engine, *_ = deepspeed.initialize(model=model, optimizer=optimizer, config=case["engine"])
    return engine


def _readout(engine: Any, timeline: StorageTimeline) -> dict[str, Any]:
    moments = timeline.moments
    peaks = timeline.peaks(moments["begin"], moments["end"])
    phase = max(peaks, key=lambda name: peaks[name][0])
    return {
        "peak": peaks[phase][0],
        "phase": str(phase),
        "phases": {str(name): size for name, (size, _) in peaks.items()},
        "resident": sum(live.bytes for live in timeline.live(moments["begin"])),
        "torch": torch.__version__,
        "deepspeed": deepspeed.__version__,
    }
