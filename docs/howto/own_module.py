"""A torch module of one's own, for `planner plan docs/howto/own_module.py:build -m polaris -n 2`.

`build` returns the module and one sample of what its forward takes: a tensor, a tuple of tensors
(by position) or a dictionary (by name), none with a dimension for the batch. It is called with
torch's default device set to `meta`, so that no size of a module needs memory.
"""

import torch
from torch import nn
from torch.nn import functional


class Block(nn.Module):
    """A layer: attention and a feed-forward, each added to what entered."""

    def __init__(self, width: int, heads: int) -> None:
        super().__init__()
        self.heads = heads
        self.before_attention, self.before_mlp = nn.LayerNorm(width), nn.LayerNorm(width)
        self.qkv, self.out = nn.Linear(width, 3 * width), nn.Linear(width, width)
        self.mlp = nn.Sequential(
            nn.Linear(width, 4 * width), nn.GELU(), nn.Linear(4 * width, width)
        )

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        """(batch, length, width) to the same."""
        shape = (*x.shape[:2], self.heads, -1)
        parts = self.qkv(self.before_attention(x)).chunk(3, dim=-1)
        q, k, v = (part.view(shape).transpose(1, 2) for part in parts)
        mixed = functional.scaled_dot_product_attention(q, k, v)
        x = x + self.out(mixed.transpose(1, 2).reshape(x.shape))
        return x + self.mlp(self.before_mlp(x))


class Forecast(nn.Module):
    """Predicts the next values of a series, and returns its loss."""

    def __init__(self, channels: int = 64, width: int = 1024, depth: int = 24) -> None:
        super().__init__()
        self.enter = nn.Linear(channels, width)
        # equal blocks in a list are found, counted and sharded one by one
        self.blocks = nn.ModuleList([Block(width, heads=16) for _ in range(depth)])
        self.leave = nn.Linear(width, channels)

    def forward(self, series: torch.Tensor, following: torch.Tensor) -> torch.Tensor:
        """The loss: one number, from which backward starts."""
        x = self.enter(series)
        for block in self.blocks:
            x = block(x)
        return functional.mse_loss(self.leave(x), following)


def build() -> tuple[nn.Module, dict[str, torch.Tensor]]:
    """The module, and one sample: 512 steps of 64 channels, and those that follow."""
    series = torch.empty(512, 64)
    return Forecast(), {"series": series, "following": series}
