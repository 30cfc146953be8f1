"""Optimizers: bytes of states per parameter, without the master copy."""

from dataclasses import dataclass

from planner.describe.framework.traits import States
from planner.describe.workload import OptimizerName

SMALLEST_IN_BLOCKS = 4096
"""Elements below which a tensor keeps fp32 moments under an 8-bit optimizer (bitsandbytes
0.50, optim/optimizer.py: min_8bit_size; torchao 0.18, optim/adam.py: _new_buffer)."""

_IN_BLOCKS = 2.0 + 8.0 / 256
"""Two moments of one byte, each with an fp32 scale per block of 256 (Dettmers et al. 2021,
arXiv:2110.02861)."""


@dataclass(frozen=True, slots=True)
class Optimizer:
    """States of one optimizer per parameter."""

    moments: int = 0
    """First moments of the gradient, or momentum, in the framework's format."""
    squares: int = 0
    """Second moments of the gradient, in the framework's format."""
    own_bytes: float = 0.0
    """States in the optimizer's own formats [B/parameter]."""
    in_blocks: bool = False
    """True if its own states are block-wise 8-bit, except for small tensors."""
    paged: bool = False
    """True if states are in paged memory that host and device share."""


OPTIMIZERS: dict[OptimizerName, Optimizer] = {
    "adam": Optimizer(moments=1, squares=1),
    "adamw": Optimizer(moments=1, squares=1),
    "sgd": Optimizer(),
    "sgd-momentum": Optimizer(moments=1),
    "adafactor": Optimizer(),
    "adam-8bit": Optimizer(own_bytes=_IN_BLOCKS, in_blocks=True),
    "muon": Optimizer(moments=1),
    "lion": Optimizer(moments=1),
    "paged-adamw": Optimizer(own_bytes=8.0, paged=True),
    "paged-adam-8bit": Optimizer(own_bytes=_IN_BLOCKS, in_blocks=True, paged=True),
}
"""Adam keeps two moments, Lion one (Chen et al. 2023, arXiv:2302.06675). Adafactor's row and column
moments, and the second moments that Muon keeps for vectors, embedding and head, are counted per
tensor. Paged optimizers are those of bitsandbytes; their 32-bit states are always fp32."""


def moment_bytes(optimizer: OptimizerName, states: States) -> float:
    """Optimizer states without the master copy [B/parameter].

    Counted: moments in the framework's formats; 8-bit moments with their scales. Left out: states
    counted per tensor. Definition.
    """
    record = OPTIMIZERS[optimizer]
    second = record.squares * states.second_moment_bytes
    return record.moments * states.moment_bytes + second + record.own_bytes
