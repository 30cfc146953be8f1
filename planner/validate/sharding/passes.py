"""Passes: torch's pipeline schedules, loss chunked as in torchtitan 0.3, and AdamW."""

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor, nn
from torch.distributed.device_mesh import DeviceMesh
from torch.distributed.fsdp import FSDPModule
from torch.distributed.pipelining import (
    PipelineStage,
    Schedule1F1B,
    ScheduleDualPipeV,
    ScheduleGPipe,
    ScheduleInterleaved1F1B,
    ScheduleZBVZeroBubble,
)
from torch.distributed.tensor import DTensor

from planner.describe.layout import Layout
from planner.describe.model.model import Model
from planner.describe.workload import Workload
from planner.errors import LayoutError
from planner.validate.sharding import adapter
from planner.validate.sharding.models import Stage

_DTYPES = {4: torch.float32, 2: torch.bfloat16}
_BLOCK, _SMALLEST = 256, 4096


@dataclass(frozen=True, slots=True)
class StepOptions:
    """Bytes per element of AdamW's weights, reductions and moments, and options of the step."""

    weight_bytes: int = 4
    reduce_bytes: int = 4
    moment_bytes: int = 4
    """1: 8-bit blocks with one scale each."""
    in_backward: bool = False
    """True if each weight is updated in backward, as soon as its gradient is ready."""
    loss_chunks: int = 1
    """Chunks of the sequence that run head and loss, forward and backward, one by one."""

    @property
    def weight(self) -> torch.dtype:
        """Type of sharded weights."""
        return _DTYPES[self.weight_bytes]

    @property
    def reduce(self) -> torch.dtype:
        """Type in which gradients are reduced."""
        return _DTYPES[self.reduce_bytes]


class _Blockwise(torch.optim.Optimizer):
    """Adam with 8-bit moments; allocates nothing in the update, like bitsandbytes and torchao."""

    def __init__(self, params: Any) -> None:
        super().__init__(params, {"lr": 1e-3})

    @torch.no_grad()
    def step(self, closure: Any = None) -> None:  # type: ignore[override]
        """Create missing states, and update the weights in place."""
        del closure
        for group in self.param_groups:
            for param in group["params"]:
                if param.grad is not None:
                    if not self.state[param]:
                        self.state[param].update(_in_blocks(_local(param)))
                    _local(param).add_(_local(param.grad), alpha=-group["lr"])


def _local(value: Tensor) -> Tensor:
    return value.to_local() if isinstance(value, DTensor) else value


def _in_blocks(param: Tensor) -> dict[str, Tensor]:
    """Make both moments of a tensor: 8-bit blocks with scales, or fp32 for small tensors."""
    if param.numel() < _SMALLEST:
        return {name: torch.zeros_like(param, dtype=torch.float32) for name in ("m", "v")}
    blocks = -(-param.numel() // _BLOCK)
    states: dict[str, Tensor] = {}
    for name in ("m", "v"):
        states[name] = torch.zeros_like(param, dtype=torch.uint8)
        states[f"{name}_scales"] = torch.zeros(blocks, device=param.device)
    return states


def make_optimizer(params: Any, kind: str, options: StepOptions) -> torch.optim.Optimizer:
    """Make AdamW, fused or foreach, with moments in the format of `options`."""
    if options.moment_bytes == 1:
        return _Blockwise(params)
    optimizer = torch.optim.AdamW(params, fused=kind == "fused", foreach=kind == "foreach")
    if options.moment_bytes != options.weight_bytes:
        optimizer.register_step_pre_hook(_narrow)
    return optimizer


def _narrow(optimizer: Any, args: Any, kwargs: Any) -> None:
    """Create the moments in bf16 before Adam creates them (torchtitan, fused_opt_states_bf16)."""
    del args, kwargs
    for group in optimizer.param_groups:
        for param in group["params"]:
            state = optimizer.state[param]
            if param.grad is not None and not state:
                state["step"] = torch.zeros((), dtype=torch.float32)
                state["exp_avg"] = torch.zeros_like(param, dtype=torch.bfloat16)
                state["exp_avg_sq"] = torch.zeros_like(param, dtype=torch.bfloat16)


def in_backward(
    module: nn.Module, build: Callable[[Any], torch.optim.Optimizer]
) -> list[torch.optim.Optimizer]:
    """Update each parameter in backward, and free its gradient, as torchtune does."""
    optimizers = []
    for param in [p for p in module.parameters() if p.requires_grad]:
        optimizer = build([param])
        optimizers.append(optimizer)

        def update(_: Tensor, optimizer: torch.optim.Optimizer = optimizer) -> None:
            optimizer.step()
            optimizer.zero_grad(set_to_none=True)

        param.register_post_accumulate_grad_hook(update)
    return optimizers


def optimizer_groups(module: nn.Module) -> list[dict[str, Any]]:
    """Group parameters by mesh and placement, which one fused update cannot mix."""
    groups: dict[Any, list[nn.Parameter]] = {}
    for param in module.parameters():
        if not param.requires_grad:
            continue
        key = (getattr(param, "device_mesh", None), str(getattr(param, "placements", "")))
        groups.setdefault(key, []).append(param)
    return [{"params": params} for params in groups.values()]


class _PrecomputedGradient(torch.autograd.Function):
    """Loss whose gradient for the residual stream is already computed."""

    @staticmethod
    def forward(ctx: Any, stream: Tensor, gradient: Tensor) -> Tensor:
        ctx.save_for_backward(gradient)
        return stream.new_zeros(())

    @staticmethod
    def backward(ctx: Any, _: Tensor) -> tuple[Tensor, None]:
        return ctx.saved_tensors[0], None


def chunked_loss(
    stage: Stage,
    stream: Tensor,
    labels: Tensor,
    count: int,
    loss: Callable[[Tensor, Tensor], Tensor],
    enter: Callable[[], None],
    reduce: bool,
) -> Tensor:
    """Run head and `loss` forward and backward, chunk by chunk; the layers' backward remains."""
    head = stage.head
    assert head is not None
    pieces = [p.contiguous().detach().requires_grad_() for p in stream.chunk(count, 1)]
    targets = [p.contiguous() for p in labels.chunk(count, 1)]
    gradient = torch.zeros_like(stream, dtype=torch.float32)
    groups = [head] if isinstance(head, FSDPModule) else []
    for group in groups:
        group.set_reshard_after_forward(False)
        group.set_reshard_after_backward(False)
        group.set_requires_gradient_sync(False, recurse=False)
        group.unshard()
    rows = stream.shape[1] // count
    for number, (piece, target) in enumerate(zip(pieces, targets, strict=True)):
        for group in groups:
            group.set_requires_gradient_sync(reduce and number == count - 1, recurse=False)
        enter()
        logits = head(piece)
        loss(logits, target).backward()
        assert piece.grad is not None
        gradient[:, number * rows : (number + 1) * rows] = piece.grad.float()
        piece.grad = None
    for group in groups:
        group.set_reshard_after_forward(True)
        group.set_reshard_after_backward(True)
        group.set_requires_gradient_sync(reduce, recurse=False)
        group.reshard()
    return _PrecomputedGradient.apply(stream, gradient.to(stream.dtype))


SCHEDULES: dict[str, Callable[..., Any]] = {
    "gpipe": ScheduleGPipe,
    "1f1b": Schedule1F1B,
    "none": Schedule1F1B,
    "interleaved-1f1b": ScheduleInterleaved1F1B,
    "zero-bubble-v": ScheduleZBVZeroBubble,
    "dualpipe-v": ScheduleDualPipeV,
}
"""torch's schedules by the planner's names."""


def stage_tensors(
    model: Model, layout: Layout, workload: Workload, index: int, dtype: torch.dtype
) -> tuple[Tensor, Tensor]:
    """Make an example input and output of a stage: token ids, residual stream or logits."""
    if model.vision is not None or model.pooler:
        raise LayoutError(
            f"pp = {layout.pp} is not traced with patches or a pooler; use pp = 1 for {model.name}"
        )
    rows = workload.sequence_length // layout.cp
    local = rows // layout.tp if layout.sequence_parallel else rows
    stream = torch.empty(
        layout.micro_batch, local, model.hidden_size, dtype=dtype, requires_grad=True
    )
    tokens = torch.zeros((layout.micro_batch, rows), dtype=torch.long)
    logits = torch.empty(layout.micro_batch, rows, model.vocab_size // layout.tp, dtype=dtype)
    return (
        tokens if index == 0 else stream,
        logits if index == layout.pp * layout.vpp - 1 else stream,
    )


class Pipeline:
    """Stages of one rank (one per chunk) under their schedule."""

    def __init__(
        self,
        stages: dict[int, nn.Module],
        spread: tuple[str, int, int],
        loss: Callable[[Tensor, Tensor], Tensor],
        mesh: DeviceMesh,
        device: torch.device,
        examples: dict[int, tuple[Tensor, Tensor]] | None = None,
    ) -> None:
        """`spread`: schedule, total number of stages, number of micro-batches."""
        schedule, total, micro_batches = spread
        if schedule not in SCHEDULES:
            names = ", ".join(name for name in SCHEDULES if name != "none")
            raise LayoutError(f"schedule {schedule} is not traced; use one of {names}")
        self.first, self.last = 0 in stages, total - 1 in stages
        self._stages = []
        for index, stage in stages.items():
            inputs, outputs = examples[index] if examples else (None, None)
            shapes: Any = {"input_args": inputs, "output_args": outputs}
            part = PipelineStage(stage, index, total, device, group=mesh.get_group(), **shapes)
            self._stages.append(part)
        self._schedule = SCHEDULES[schedule](
            self._stages if len(stages) > 1 else self._stages[0], micro_batches, loss_fn=loss
        )

    def receive_buffers(self) -> list[Tensor]:
        """List the receive buffers: one activation and one gradient per micro-batch."""
        return [buffer for stage in self._stages for buffer in adapter.receive_buffers(stage)]

    def step(self, inputs: Tensor | None, labels: Tensor | None) -> list[Tensor]:
        """Run all micro-batches forward and backward. Returns their losses on the last stage."""
        losses: list[Tensor] = []
        target = {"target": labels, "losses": losses} if self.last else {}
        # outputs are dropped at once, as in torchtitan
        self._schedule.step(*([inputs] if self.first else []), **target, return_outputs=False)
        return losses
