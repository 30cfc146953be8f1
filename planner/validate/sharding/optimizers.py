"""Optimizers: AdamW with the formats of weights, gradient reductions and moments."""

# torch leaves some of its functions untyped
# mypy: disable-error-code="no-untyped-call"

from __future__ import annotations

from collections.abc import Callable
from dataclasses import asdict, dataclass
from typing import Any

import torch
from torch import Tensor, nn
from torch.distributed.tensor import DTensor

__all__ = ["Numbers", "in_backward", "make_optimizer"]

_DTYPES = {4: torch.float32, 2: torch.bfloat16}
_BLOCK, _SMALLEST = 256, 4096


@dataclass(frozen=True, slots=True)
class Numbers:
    """Number formats of AdamW's weights, reductions and moments, in bytes per element."""

    weight_bytes: int = 4
    reduce_bytes: int = 4
    moment_bytes: int = 4
    """1: in blocks with a scale each."""
    in_backward: bool = False
    """Whether a weight is updated as soon as its gradient is there."""
    loss_chunks: int = 1
    """Pieces of the sequence that pass head and loss, forward and backward, one by one."""

    @property
    def weight(self) -> torch.dtype:
        """Type of sharded weights."""
        return _DTYPES[self.weight_bytes]

    @property
    def reduce(self) -> torch.dtype:
        """Type in which gradients are reduced."""
        return _DTYPES[self.reduce_bytes]

    def as_dict(self) -> dict[str, Any]:
        """JSON-able form."""
        return asdict(self)


class _Blockwise(torch.optim.Optimizer):
    """Adam with moments in 8-bit blocks of 256, as in bitsandbytes and torchao.

    Its update allocates nothing, as their fused kernels, but computes another result.
    """

    def __init__(self, params: Any) -> None:
        super().__init__(params, {"lr": 1e-3})

    @torch.no_grad()
    def step(self, closure: Any = None) -> None:  # type: ignore[override]
        """Make the states, update in place."""
        del closure
        for group in self.param_groups:
            for param in group["params"]:
                if param.grad is None:
                    continue
                if not self.state[param]:
                    self.state[param].update(_in_blocks(_local(param)))
                _local(param).add_(_local(param.grad), alpha=-group["lr"])


def _local(value: Tensor) -> Tensor:
    return value.to_local() if isinstance(value, DTensor) else value


def _in_blocks(param: Tensor) -> dict[str, Tensor]:
    """Two moments of a tensor: 8-bit blocks with scales, or fp32 for small tensors."""
    if param.numel() < _SMALLEST:
        return {name: torch.zeros_like(param, dtype=torch.float32) for name in ("m", "v")}
    blocks = -(-param.numel() // _BLOCK)
    states: dict[str, Tensor] = {}
    for name in ("m", "v"):
        states[name] = torch.zeros_like(param, dtype=torch.uint8)
        states[f"{name}_scales"] = torch.zeros(blocks, device=param.device)
    return states


def make_optimizer(params: Any, kind: str, numbers: Numbers) -> torch.optim.Optimizer:
    """AdamW, fused or not, with moments in a number format."""
    if numbers.moment_bytes == 1:
        return _Blockwise(params)
    optimizer = torch.optim.AdamW(params, fused=kind == "fused", foreach=kind == "foreach")
    if numbers.moment_bytes != numbers.weight_bytes:
        optimizer.register_step_pre_hook(_narrow)
    return optimizer


def _narrow(optimizer: Any, args: Any, kwargs: Any) -> None:
    """Make moments in bf16 before Adam makes them (torchtitan, fused_opt_states_bf16)."""
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
    """Give every parameter an optimizer that updates it in backward and frees its gradient.

    Source: torchtune, create_optim_in_bwd_wrapper.
    """
    optimizers = []
    for param in module.parameters():
        if not param.requires_grad:
            continue
        optimizer = build([param])
        optimizers.append(optimizer)

        def update(_: Tensor, optimizer: torch.optim.Optimizer = optimizer) -> None:
            optimizer.step()
            optimizer.zero_grad(set_to_none=True)

        param.register_post_accumulate_grad_hook(update)
    return optimizers
