"""Step: build and shard a stage, run one training step on fake tensors, read its memory."""

import contextlib
import itertools
import json
from collections import Counter
from collections.abc import Iterator
from functools import partial
from typing import Any

import torch
from torch import Tensor
from torch.distributed.tensor.parallel import loss_parallel

from planner.describe.layout import Layout
from planner.describe.model.model import Model
from planner.describe.workload import Workload
from planner.validate.sharding import adapter, lowrank, models, passes, recorders, shard
from planner.validate.sharding.adapter import Region
from planner.validate.sharding.attention import fused_rms_norm
from planner.validate.trace.expected_collectives import axis_of

_RESIDENT = (
    "parameters",
    "gradients",
    "optimizer_states",
    "inputs",
    "receive_buffers",
    "unsharded_gradients",
)


class _Step:
    def __init__(self, request: dict[str, Any]) -> None:
        """`request` comes from `planner.validate.trace.stage_trace`."""
        self.model = Model.model_validate_json(json.dumps(request["model"]))
        self.layout = Layout.model_validate_json(json.dumps(request["layout"]))
        self.workload = Workload.model_validate_json(json.dumps(request["workload"]))
        self.options, self.kind = passes.StepOptions(**request["numbers"]), request["optimizer"]
        self.chunks = {
            self.layout.chunk(request["stage"], number): range(first, first + count)
            for number, (first, count) in enumerate(request["chunks"])
        }
        self.layers = [layer for layers in self.chunks.values() for layer in layers]
        self.num_stages = self.layout.pp * self.layout.vpp
        self.device, self.dtype = torch.device("cpu"), shard.compute_dtype(self.workload)
        self.timeline, self.recorder = recorders.StorageTimeline(), recorders.CollectiveRecorder()
        self.keys: dict[str, set[int]] = {name: set() for name in _RESIDENT}
        self.head_inputs: set[int] = set()
        self.recording = False
        self.starts: list[int] = []

    def build(self) -> None:
        """Build the sharded stages on meta, outside fake mode: meshes need real data."""
        self.meshes = shard.Meshes.of(self.layout)
        self.stages = {index: self._stage(index, layers) for index, layers in self.chunks.items()}
        self.modules = torch.nn.ModuleList(self.stages.values())

    def _stage(self, index: int, layers: range) -> models.Stage:
        with torch.device("meta"):
            stage = models.Stage(
                self.model,
                layers,
                first=index == 0,
                last=index == self.num_stages - 1,
                eager=self.workload.attention == "eager",
                kernel=fused_rms_norm,
            )
            stage.ends_in_stream = self.options.loss_chunks > 1
            stage.to(self.options.weight)
            if self.workload.adapted:
                lowrank.adapt(stage, self.workload, self.dtype)
        shard.apply(stage, self.layout, self.workload, self.meshes, reduce=self.options.reduce)
        after: models.Part = "head" if stage.last else "output"
        stage.marks = partial(self._mark, ["embedding", *layers, after])
        return stage

    def materialise(self) -> None:
        """Give the parameters fake storage, and make optimizer and inputs."""
        self.modules.to_empty(device="cpu")
        build = partial(passes.make_optimizer, kind=self.kind, options=self.options)
        if self.options.in_backward:
            self.optimizers = passes.in_backward(self.modules, build)
        else:
            self.optimizers = [build(passes.optimizer_groups(self.modules))]
        rows = self.workload.sequence_length // self.layout.cp
        shape = (self.layout.micro_batch, rows)
        self.rope = next(iter(self.stages.values())).tables(rows, self.device, self.dtype)
        for stage in self.stages.values():
            stage.default_rope = self.rope
        self.batches = [
            (self._inputs(shape), torch.zeros(shape, dtype=torch.long))
            for _ in range(self.layout.grad_accumulation)
        ]
        self.pipeline = None
        if self.meshes.pipeline is not None:
            examples = {
                index: passes.stage_tensors(
                    self.model, self.layout, self.workload, index, self.dtype
                )
                for index in self.stages
            }
            spread = (self.layout.schedule, self.num_stages, self.layout.grad_accumulation)
            mesh, stages = self.meshes.pipeline, dict(self.stages)
            self.pipeline = passes.Pipeline(stages, spread, self._loss, mesh, self.device, examples)

    def _inputs(self, shape: tuple[int, int]) -> Tensor:
        """Make token ids, or patches (one fewer: the class token is added later)."""
        vision = self.model.vision
        if vision is None:
            return torch.zeros(shape, dtype=torch.long)
        width = vision.num_channels * vision.patch_size**2
        return torch.zeros(shape[0], shape[1] - 1, width, dtype=self.dtype)

    def _place(self, part: models.Part) -> str:
        """Name of a part; layers count from the nearer end, so that depths can be compared."""
        if not isinstance(part, int):
            return part
        index, total = self.layers.index(part), len(self.layers)
        if index < 2:
            return f"layer {index}"
        return f"layer {index - total}" if index >= total - 2 else "layer between"

    def _enter(self, direction: recorders.Direction, part: str = "") -> None:
        self.timeline.phase = recorders.Phase(direction, part)

    def _mark(self, parts: list[models.Part], part: models.Part, x: Tensor) -> Tensor:
        """Set the phase when forward enters a part, and when backward leaves it."""
        self._enter(recorders.Direction.FORWARD, self._place(part))
        if self.recording and part == "head":
            self.head_inputs.add(self.timeline.watch(x))
        if x.requires_grad:
            before = self._place(parts[parts.index(part) - 1])

            def leave(_: Tensor) -> None:
                self._enter(recorders.Direction.BACKWARD, before)
                if part == "output":
                    self.starts.append(len(self.timeline.events))

            x.register_hook(leave)
        return x

    @contextlib.contextmanager
    def _communicating(self, region: Region, group: Any) -> Iterator[None]:
        if region is Region.REDUCE:
            gradients = adapter.unsharded_gradients(group)
            self.keys["unsharded_gradients"] |= {self.timeline.watch(g) for g in gradients}
            if self.options.loss_chunks > 1:
                # gradients of a chunk are freed once summed; of sums over micro-batches the
                # estimate counts both, as the stored traces do
                gradients.clear()
        with self.timeline.within(region):
            yield

    def _loss(self, logits: Tensor, labels: Tensor) -> Tensor:
        self._enter(recorders.Direction.FORWARD, "loss")
        loss = models.cross_entropy(logits, labels)

        def begin(_: Tensor) -> None:
            self._enter(recorders.Direction.BACKWARD, "loss")
            self.starts.append(len(self.timeline.events))

        loss.register_hook(begin)
        logits.register_hook(lambda _: self._enter(recorders.Direction.BACKWARD, "head"))
        return loss

    def _loss_of(self, stage: models.Stage, tokens: Tensor, labels: Tensor, reduce: bool) -> Tensor:
        """Compute the loss of a micro-batch; a chunked loss has already run its own backward."""
        if not stage.ends_in_stream:
            return self._loss(stage(tokens), labels)
        pieces, enter = (
            self.options.loss_chunks,
            partial(self._enter, recorders.Direction.FORWARD, "head"),
        )
        loss = passes.chunked_loss(stage, stage(tokens), labels, pieces, self._loss, enter, reduce)
        self._enter(recorders.Direction.BACKWARD, "head")
        return loss

    def _passes(self) -> None:
        parallel_loss = loss_parallel if self.layout.tp > 1 else contextlib.nullcontext
        if self.pipeline is not None:
            first, last = self.pipeline.first, self.pipeline.last
            tokens = torch.cat([pair[0] for pair in self.batches]) if first else None
            labels = torch.cat([pair[1] for pair in self.batches]) if last else None
            with parallel_loss():
                self.pipeline.step(tokens, labels)
            return
        (stage,) = self.stages.values()
        for number, (tokens, labels) in enumerate(self.batches):
            last = number == len(self.batches) - 1
            if not self.layout.shards_gradients:
                # unsharded gradients are summed, and reduced once
                stage.set_requires_gradient_sync(last)  # type: ignore[operator]
            if self.layout.zero_stage == 1:
                stage.set_reshard_after_backward(last)  # type: ignore[operator]
            reduces = self.layout.shards_gradients or last
            with parallel_loss():
                # the logits are not held during backward, as in torchtitan
                self._loss_of(stage, tokens, labels, reduces).backward()

    def run(self) -> None:
        """Run one step: forward, backward, update."""
        self._passes()
        self._enter(recorders.Direction.OPTIMIZER)
        self.timeline.moment("optimizer")
        if self.recording:
            self.keys["gradients"] |= {
                self.timeline.watch(p.grad) for p in self.modules.parameters() if p.grad is not None
            }
        self._update()
        self._enter(recorders.Direction.END)
        self.modules.zero_grad(set_to_none=True)

    def _update(self) -> None:
        for optimizer in self.optimizers:
            optimizer.step()

    def _warm_up(self) -> None:
        """Create what a first step leaves: optimizer states, pipeline buffers, head settings."""
        if self.pipeline is not None or self.options.loss_chunks > 1:
            self.run()
            return
        for param in self.modules.parameters():
            if param.requires_grad:
                param.grad = torch.empty_like(param)
        self._update()
        self.modules.zero_grad(set_to_none=True)

    def trace(self) -> None:
        """Record one step."""
        self._warm_up()
        for keys in self.keys.values():
            keys.clear()
        watch, follow = self.timeline.watch, self.keys
        with self.timeline, self.recorder:
            self.timeline.restart()
            self.starts.clear()
            follow["parameters"] |= {watch(p) for p in self.modules.parameters()}
            follow["optimizer_states"] |= {
                watch(value)
                for optimizer in self.optimizers
                for state in optimizer.state.values()
                for value in state.values()
                if isinstance(value, Tensor) and value.dim()  # the step counter is a scalar
            }
            if self.pipeline is not None:
                follow["receive_buffers"] |= {watch(b) for b in self.pipeline.receive_buffers()}
            inputs = [t for pair in self.batches for t in pair] + list(self.rope or ())
            follow["inputs"] |= {watch(tensor) for tensor in inputs}
            self.recording = True
            self.timeline.moment("start")
            self.run()
            self.timeline.moment("stop")

    def category(self, live: recorders.StorageEvent) -> str:
        """Category of a storage, from its use or from where it was allocated."""
        for name in _RESIDENT:
            if live.key in self.keys[name]:
                return name
        if live.region is not None:
            return live.region.value
        if live.phase.direction is recorders.Direction.FORWARD:
            ends = live.phase.part in ("head", "loss")
            return "logits" if ends or live.key in self.head_inputs else "activations"
        return "temporaries"

    def parts(self, until: int) -> dict[str, int]:
        """Bytes by category after a number of events."""
        sizes: Counter[str] = Counter()
        for live in self.timeline.live(until):
            sizes[self.category(live)] += live.bytes
        return dict(sorted(sizes.items()))

    def highest(self, names: tuple[str, ...], phase: recorders.Phase) -> int:
        """Number of events until the sum of categories `names` peaks in a phase."""
        sizes: dict[int, int] = {}
        allocations: dict[int, str] = {}
        total = best = 0
        where = self.timeline.moments["start"]
        for index, event in enumerate(self.timeline.events[: self.timeline.moments["stop"]]):
            if event.key not in allocations and event.bytes:
                allocations[event.key] = self.category(event)
            if allocations.get(event.key) in names:
                total += event.bytes - sizes.get(event.key, 0)
                sizes[event.key] = event.bytes
            if total > best and index >= where and phase == event.phase:
                best, where = total, index + 1
        return where


def _collectives(step: _Step) -> list[dict[str, Any]]:
    rows = []
    for item in step.recorder.operations():
        if len(item.ranks) > 1:  # a group of one rank sends nothing
            stride = min(b - a for a, b in itertools.pairwise(item.ranks))
            group = axis_of(step.layout, len(item.ranks), stride)
            row = {"name": item.name, "group": group, "count": item.count, "bytes": item.bytes}
            rows.append(row)
    return rows


def measure(request: dict[str, Any], *, is_fake: bool = True) -> dict[str, Any]:
    """Measure bytes and collectives of one rank, on fake tensors or the rank's own on the CPU."""
    step = _Step(request)
    rank = request["stage"] * step.layout.dp * step.layout.cp * step.layout.tp
    with contextlib.ExitStack() as stack:
        if is_fake:
            stack.enter_context(adapter.fake_world(rank, step.layout.world))
        step.build()
        stack.enter_context(adapter.quiet_propagation())
        stack.enter_context(adapter.communication_region(step._communicating))
        if is_fake:
            stack.enter_context(adapter.static_pipeline())
            stack.enter_context(adapter.fake_mode())
        step.materialise()
        step.trace()
        return _readout(step)


def _readout(step: _Step) -> dict[str, Any]:
    moments = step.timeline.moments
    resident = step.parts(moments["optimizer"])
    peaks = step.timeline.peaks(moments["start"], moments["stop"])
    # a step starts many backward passes: take the one with the most activations
    starts = [step.parts(start) for start in step.starts]
    loss = recorders.Phase(recorders.Direction.BACKWARD, "loss")
    return {
        "states": {name: resident.get(name, 0) for name in _RESIDENT[:3]},
        "start_of_backward": max(starts, key=lambda parts: parts.get("activations", 0)),
        "loss": (
            step.parts(step.highest(("logits", "temporaries"), loss)) if loss in peaks else {}
        ),
        "peaks": {str(phase): step.parts(where) for phase, (_, where) in peaks.items()},
        "collectives": _collectives(step),
    }
