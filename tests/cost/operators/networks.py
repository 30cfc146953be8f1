"""The convolutional networks of the catalogue as torch modules, written after their papers."""

from __future__ import annotations

import itertools
from collections.abc import Sequence

import pytest

pytest.importorskip("torch", reason="torch builds the networks")

import torch
from torch import nn


class Bottleneck(nn.Module):
    """Three convolutions and what goes around them (He et al. 2015, arXiv:1512.03385, figure 5)."""

    def __init__(self, entering: int, width: int, strides: tuple[int, int]) -> None:
        super().__init__()
        leaving, (one, three) = 4 * width, strides
        self.layers = nn.Sequential(
            nn.Conv2d(entering, width, 1, one, bias=False),
            nn.BatchNorm2d(width),
            nn.ReLU(inplace=True),
            nn.Conv2d(width, width, 3, three, 1, bias=False),
            nn.BatchNorm2d(width),
            nn.ReLU(inplace=True),
            nn.Conv2d(width, leaving, 1, bias=False),
            nn.BatchNorm2d(leaving),
        )
        stride = one * three
        self.around: nn.Module = nn.Identity()
        if entering != leaving or stride > 1:
            projection = nn.Conv2d(entering, leaving, 1, stride, bias=False)
            self.around = nn.Sequential(projection, nn.BatchNorm2d(leaving))
        self.last = nn.ReLU(inplace=True)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        """The block's output."""
        found = self.layers(x)
        found += self.around(x)
        return self.last(found)  # type: ignore[no-any-return]


def resnet(*, late: bool) -> nn.Module:
    """ResNet-50; `late`: moves by two in the 3 x 3 convolution (v1.5)."""
    layers: list[nn.Module] = [
        nn.Conv2d(3, 64, 7, 2, 3, bias=False),
        nn.BatchNorm2d(64),
        nn.ReLU(inplace=True),
        nn.MaxPool2d(3, 2, 1),
    ]
    entering = 64
    for width, count, stride in ((64, 3, 1), (128, 4, 2), (256, 6, 2), (512, 3, 2)):
        for number in range(count):
            step = stride if number == 0 else 1
            layers.append(Bottleneck(entering, width, (1, step) if late else (step, 1)))
            entering = 4 * width
    return nn.Sequential(*layers, nn.AdaptiveAvgPool2d(1), nn.Flatten(), nn.Linear(2048, 1000))


def _block(entering: int, leaving: int, stride: int = 1) -> nn.Sequential:
    return nn.Sequential(
        nn.Conv3d(entering, leaving, 3, stride, 1, bias=False),
        nn.InstanceNorm3d(leaving, affine=True),
        nn.ReLU(),
    )


class UNet(nn.Module):
    """The 3D U-Net of MLPerf training: five levels, joined across."""

    def __init__(self, widths: Sequence[int] = (32, 64, 128, 256, 320)) -> None:
        super().__init__()
        first, last = widths[0], widths[-1]
        self.first = nn.Sequential(_block(1, first), _block(first, first))
        pairs = [*itertools.pairwise(widths), (last, last)]
        self.down = nn.ModuleList(nn.Sequential(_block(i, o, 2), _block(o, o)) for i, o in pairs)
        ways = [(last, last), *((o, i) for i, o in reversed(pairs[:-1]))]
        self.up = nn.ModuleList(nn.ConvTranspose3d(i, o, 2, 2) for i, o in ways)
        self.after = nn.ModuleList(nn.Sequential(_block(2 * o, o), _block(o, o)) for _, o in ways)
        self.last = nn.Conv3d(first, 3, 1)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        """Classes of every place."""
        x = self.first(x)
        seen = [x]
        for down in self.down:
            x = down(x)
            seen.append(x)
        for up, after, skip in zip(self.up, self.after, reversed(seen[:-1]), strict=True):
            x = after(torch.cat((up(x), skip), dim=1))
        return self.last(x)  # type: ignore[no-any-return]


def cosmoflow() -> nn.Module:
    """CosmoFlow of MLPerf HPC: five convolutions, three fully connected layers."""
    layers: list[nn.Module] = []
    entering = 4
    for number in range(5):
        leaving = 32 << number
        layers += [nn.Conv3d(entering, leaving, 3, 1, 1), nn.LeakyReLU(0.3), nn.MaxPool3d(2, 2)]
        entering = leaving
    for inputs, outputs in ((512 * 4**3, 128), (128, 64)):
        layers += [nn.Flatten(), nn.Linear(inputs, outputs), nn.LeakyReLU(0.3), nn.Dropout(0.5)]
    return nn.Sequential(*layers, nn.Linear(64, 4), nn.Tanh())
