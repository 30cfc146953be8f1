"""Chunked loss: head and loss run on one chunk of the sequence after the other.

The calls of FSDP are those of torchtitan 0.3 (components/loss.py, ChunkedLossWrapper): the head's
weights are gathered once for all pieces, its gradient is summed over them and reduced after the
last one, the gradient of the stream is gathered in fp32.
"""

# torch leaves some of its functions untyped
# mypy: disable-error-code="no-untyped-call"

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor
from torch.distributed.fsdp import FSDPModule

from planner.validate.sharding.models import Stage

__all__ = ["chunked_loss"]


class _PrecomputedGradient(torch.autograd.Function):
    """A loss whose gradient of the stream is already computed."""

    @staticmethod
    def forward(ctx: Any, stream: Tensor, gradient: Tensor) -> Tensor:
        """Return a zero loss, and save the gradient."""
        ctx.save_for_backward(gradient)
        return stream.new_zeros(())

    @staticmethod
    def backward(ctx: Any, _: Tensor) -> tuple[Tensor, None]:
        """Return the saved gradient."""
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
    """Run head and `loss` on `count` chunks of the normed stream, forward and backward.

    `enter` is called before each chunk; `reduce` reduces the head's gradient. The stream's
    backward starts from the returned loss.
    """
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
