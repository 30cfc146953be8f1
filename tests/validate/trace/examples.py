"""Modules that a user might bring, written for the tests."""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor, nn
from torch.nn import functional

GPT2 = {"depth": 12, "width": 768, "heads": 12, "vocabulary": 50257, "length": 1024}


class Bottleneck(nn.Module):
    """1x1, 3x3 and 1x1 convolutions beside a shortcut (arXiv:1512.03385, figure 5)."""

    def __init__(self, entering: int, width: int, stride: int) -> None:
        super().__init__()
        leaving = 4 * width
        self.conv1 = nn.Conv2d(entering, width, 1, bias=False)
        self.bn1 = nn.BatchNorm2d(width)
        self.conv2 = nn.Conv2d(width, width, 3, stride, 1, bias=False)
        self.bn2 = nn.BatchNorm2d(width)
        self.conv3 = nn.Conv2d(width, leaving, 1, bias=False)
        self.bn3 = nn.BatchNorm2d(leaving)
        self.relu = nn.ReLU(inplace=True)
        self.shortcut: nn.Module = nn.Identity()
        if stride > 1 or entering != leaving:
            self.shortcut = nn.Sequential(
                nn.Conv2d(entering, leaving, 1, stride, bias=False), nn.BatchNorm2d(leaving)
            )

    def forward(self, x: Tensor) -> Tensor:
        """The block."""
        y = self.relu(self.bn1(self.conv1(x)))
        y = self.relu(self.bn2(self.conv2(y)))
        return self.relu(self.bn3(self.conv3(y)) + self.shortcut(x))


class ResNet(nn.Module):
    """A residual network of bottlenecks (arXiv:1512.03385, table 1)."""

    def __init__(self, depths: tuple[int, ...] = (3, 4, 6, 3), width: int = 64) -> None:
        super().__init__()
        self.conv1 = nn.Conv2d(3, width, 7, 2, 3, bias=False)
        self.bn1 = nn.BatchNorm2d(width)
        self.relu = nn.ReLU(inplace=True)
        self.pool = nn.MaxPool2d(3, 2, 1)
        stages, entering = [], width
        for stage, depth in enumerate(depths):
            blocks = []
            for number in range(depth):
                stride = 2 if stage and not number else 1
                blocks.append(Bottleneck(entering, width * 2**stage, stride))
                entering = 4 * width * 2**stage
            stages.append(nn.Sequential(*blocks))
        self.stages = nn.ModuleList(stages)
        self.fc = nn.Linear(entering, 1000)

    def forward(self, x: Tensor) -> Tensor:
        """Logits of 1000 classes."""
        x = self.pool(self.relu(self.bn1(self.conv1(x))))
        for stage in self.stages:
            x = stage(x)
        logits: Tensor = self.fc(x.mean((2, 3)))
        return logits


class Layer(nn.Module):
    """A layer of GPT-2."""

    def __init__(self, width: int, heads: int) -> None:
        super().__init__()
        self.heads = heads
        self.norm1, self.norm2 = nn.LayerNorm(width), nn.LayerNorm(width)
        self.qkv, self.out = nn.Linear(width, 3 * width), nn.Linear(width, width)
        self.up, self.down = nn.Linear(width, 4 * width), nn.Linear(4 * width, width)

    def forward(self, x: Tensor) -> Tensor:
        """Attention and feed-forward, each beside the stream."""
        batch, length, width = x.shape
        parts = self.qkv(self.norm1(x)).split(width, 2)
        q, k, v = (
            p.view(batch, length, self.heads, width // self.heads).transpose(1, 2) for p in parts
        )
        y = functional.scaled_dot_product_attention(q, k, v, is_causal=True)
        x = x + self.out(y.transpose(1, 2).reshape(batch, length, width))
        added: Tensor = self.down(functional.gelu(self.up(self.norm2(x))))
        return x + added


class Gpt(nn.Module):
    """GPT-2 with its loss."""

    def __init__(
        self,
        depth: int,
        width: int,
        heads: int,
        vocabulary: int,
        length: int,
        loss_in_fp32: bool = False,
    ) -> None:
        super().__init__()
        self.loss_in_fp32 = loss_in_fp32
        self.tokens = nn.Embedding(vocabulary, width)
        self.positions = nn.Embedding(length, width)
        self.layers = nn.ModuleList([Layer(width, heads) for _ in range(depth)])
        self.norm = nn.LayerNorm(width)
        self.head = nn.Linear(width, vocabulary, bias=False)
        self.head.weight = self.tokens.weight

    def forward(self, tokens: Tensor, targets: Tensor) -> tuple[Tensor, Tensor]:
        """Logits and loss."""
        x = self.tokens(tokens) + self.positions(torch.arange(tokens.shape[1]))
        for layer in self.layers:
            x = layer(x)
        logits = self.head(self.norm(x))
        exact = logits.float() if self.loss_in_fp32 else logits
        return logits, functional.cross_entropy(exact.flatten(0, 1), targets.flatten())


def resnet() -> tuple[nn.Module, Any]:
    """ResNet-50 on pictures of 224 x 224."""
    return ResNet(), torch.empty(3, 224, 224)


def small_resnet() -> tuple[nn.Module, Any]:
    """A network of bottlenecks that trains on a CPU at once."""
    return ResNet((2, 2, 2, 2), 16), torch.empty(3, 64, 64)


def gpt2() -> tuple[nn.Module, Any]:
    """GPT-2 with sequences of 1024."""
    tokens = torch.empty(GPT2["length"], dtype=torch.long)
    return Gpt(**GPT2), (tokens, tokens)


def gpt2_with_exact_loss() -> tuple[nn.Module, Any]:
    """The same, whose loss is of fp32 logits, as torchtitan has it."""
    tokens = torch.empty(GPT2["length"], dtype=torch.long)
    return Gpt(**GPT2, loss_in_fp32=True), (tokens, tokens)


def small_gpt() -> tuple[nn.Module, Any]:
    """A small one."""
    tokens = torch.empty(64, dtype=torch.long)
    return Gpt(3, 64, 4, 512, 64), {"tokens": tokens, "targets": tokens}


class Encoder(nn.Module):
    """torch's own transformer encoder over embedded tokens."""

    def __init__(self, dropout: float = 0.0) -> None:
        super().__init__()
        self.embedding = nn.Embedding(1000, 128)
        layer = nn.TransformerEncoderLayer(128, 4, 512, dropout, batch_first=True)
        self.encoder = nn.TransformerEncoder(layer, 4)
        self.head = nn.Linear(128, 1000)

    def forward(self, tokens: Tensor) -> Tensor:
        """Loss of predicting the tokens themselves."""
        logits = self.head(self.encoder(self.embedding(tokens)))
        return functional.cross_entropy(logits.flatten(0, 1), tokens.flatten())


def encoder() -> tuple[nn.Module, Any]:
    """The encoder without dropout."""
    return Encoder(), torch.empty(128, dtype=torch.long)


def encoder_with_dropout() -> tuple[nn.Module, Any]:
    """The encoder with dropout."""
    return Encoder(0.1), torch.empty(128, dtype=torch.long)


def resnet_152() -> tuple[nn.Module, Any]:
    """ResNet-152 on pictures of 224 x 224."""
    return ResNet((3, 8, 36, 3)), torch.empty(3, 224, 224)
