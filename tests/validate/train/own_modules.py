"""Own modules: torch's tutorial model, the lecture's MLP, and blocks with residuals and gates."""

from __future__ import annotations

import torch
from torch import Tensor, nn
from torch.nn import functional


class ToyModel(nn.Module):
    """The model of torch's tutorials on tensor and pipeline parallelism."""

    def __init__(self) -> None:
        super().__init__()
        self.net1 = nn.Linear(10, 10)
        self.relu = nn.ReLU()
        self.net2 = nn.Linear(10, 5)

    def forward(self, x: Tensor) -> Tensor:
        """Two layers with a ReLU between them."""
        result: Tensor = self.net2(self.relu(self.net1(x)))
        return result


class Gated(nn.Module):
    """A feed-forward with a gate and a residual."""

    def __init__(self, width: int, inner: int) -> None:
        super().__init__()
        self.norm = nn.LayerNorm(width)
        self.gate, self.up = nn.Linear(width, inner), nn.Linear(width, inner)
        self.down = nn.Linear(inner, width)

    def forward(self, x: Tensor) -> Tensor:
        """Add the gated branch."""
        y = self.norm(x)
        result: Tensor = x + self.down(functional.silu(self.gate(y)) * self.up(y))
        return result


def toy() -> tuple[nn.Module, Tensor]:
    """The tutorial's model."""
    return ToyModel(), torch.empty(10)


def mlp() -> tuple[nn.Module, Tensor]:
    """The lecture's MLP: square matrices of 64, each with an activation."""
    layers = [(nn.Linear(64, 64, bias=False), nn.GELU()) for _ in range(4)]
    return nn.Sequential(*(part for pair in layers for part in pair)), torch.empty(64)


def odd() -> tuple[nn.Module, Tensor]:
    """Three layers: a pair and a layer whose columns are gathered."""
    return nn.Sequential(*mlp()[0][:5]), torch.empty(64)


def gated() -> tuple[nn.Module, Tensor]:
    """Blocks with gates between a projection and a head of 10 classes."""
    blocks = nn.Sequential(*(Gated(64, 192) for _ in range(2)))
    return nn.Sequential(nn.Linear(32, 64), blocks, nn.Linear(64, 10)), torch.empty(32)


def conv() -> tuple[nn.Module, Tensor]:
    """Convolutions only, which tensor parallelism leaves whole."""
    parts = (nn.Conv2d(3, 8, 3), nn.ReLU(), nn.Conv2d(8, 8, 3), nn.Flatten())
    return nn.Sequential(*parts), torch.empty(3, 16, 16)


class Skip(nn.Module):
    """Two layers, the second of which sees the input again."""

    def __init__(self) -> None:
        super().__init__()
        self.one, self.two = nn.Linear(8, 8), nn.Linear(8, 8)

    def forward(self, x: Tensor) -> Tensor:
        """The input crosses both layers."""
        result: Tensor = self.two(self.one(x)) + x
        return result


def skip() -> tuple[nn.Module, Tensor]:
    """A module without a cut point."""
    return Skip(), torch.empty(8)
