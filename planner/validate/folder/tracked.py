"""Tracked: one training step on tensors without data, under a process group of one rank."""

# torch and the code that uses it are largely untyped
# mypy: ignore-errors

import contextlib
from collections.abc import Callable
from dataclasses import asdict, dataclass, field
from typing import Any

import torch
from torch import nn

from planner.validate.sharding import adapter, recorders


@dataclass
class Job:
    """A sharded model with storage, its optimizer, and the forward pass of one micro-batch."""

    model: nn.Module
    optimizer: torch.optim.Optimizer
    forward: Callable[[], Any]
    """Run forward and return the objects that stay alive through backward, the loss first."""
    passes: int = 1
    around: Callable[[], contextlib.AbstractContextManager[None]] = contextlib.nullcontext
    """Context of a forward and backward pass."""
    batch: list[torch.Tensor] = field(default_factory=list)
    before: Callable[[bool], None] = lambda last: None
    """Called before each pass, with True for the last pass of the step."""


class Tracked:
    """Peak memory and collectives of a step."""

    def __init__(self, job: Job) -> None:
        self.job, self.timeline = job, recorders.StorageTimeline()
        self.kept: Any = None

    def run(self) -> dict[str, Any]:
        """Track one step after the optimizer states exist; return the figures."""
        job, timeline = self.job, self.timeline
        for param in job.model.parameters():
            if param.requires_grad:
                param.grad = torch.empty_like(param)
        job.optimizer.step()
        job.optimizer.zero_grad(set_to_none=True)
        with timeline, recorders.CollectiveRecorder() as self.collectives:
            timeline.restart()
            self._watch()
            timeline.phase = recorders.Phase(recorders.Direction.FORWARD)
            timeline.moment("begin")
            for left in reversed(range(job.passes)):
                job.before(left == 0)
                self._pass()
            timeline.phase = recorders.Phase(recorders.Direction.OPTIMIZER)
            job.optimizer.step()
            timeline.phase = recorders.Phase(recorders.Direction.END)
            job.optimizer.zero_grad(set_to_none=True)
            timeline.moment("end")
        return self._readout()

    def _pass(self) -> None:
        self.timeline.phase = recorders.Phase(recorders.Direction.FORWARD)
        with self.job.around():
            # a loop's variables keep their objects alive until they are assigned again
            self.kept = self.job.forward()
            loss = self.kept[0] if isinstance(self.kept, tuple) else self.kept
            self.timeline.phase = recorders.Phase(recorders.Direction.BACKWARD)
            loss.backward()

    def _watch(self) -> None:
        job, states = self.job, self.job.optimizer.state.values()
        moments = [value for state in states for value in state.values() if torch.is_tensor(value)]
        for tensor in (*job.model.parameters(), *moments, *job.batch, *job.model.buffers()):
            self.timeline.watch(tensor)

    def _readout(self) -> dict[str, Any]:
        timeline, moments = self.timeline, self.timeline.moments
        peaks = timeline.peaks(moments["begin"], moments["end"])
        phase = max(peaks, key=lambda name: peaks[name][0])
        return {
            "peak": peaks[phase][0],
            "phase": str(phase),
            "phases": {str(name): size for name, (size, _) in peaks.items()},
            "collectives": [asdict(item) for item in self.collectives.operations()],
            "torch": torch.__version__,
        }


def measure(build: Callable[[], Callable[[], Job]], ranks: int) -> dict[str, Any]:
    """Track one step: `build` shards a model on meta; the function that it returns adds storage."""
    with contextlib.ExitStack() as stack:
        stack.enter_context(adapter.fake_world(0, ranks))
        materialise = build()
        stack.enter_context(adapter.quiet_propagation())
        stack.enter_context(adapter.fake_mode())
        return Tracked(materialise()).run()
