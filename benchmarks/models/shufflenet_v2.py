"""ShuffleNetV2 x1.0 (Ma et al., 2018, https://arxiv.org/abs/1807.11164)."""

# PyTorch declares that calling a module returns Any.
# mypy: disable-error-code="no-any-return"

from __future__ import annotations

import torch
from torch import Tensor, nn


def channel_shuffle(x: Tensor, groups: int) -> Tensor:
    """Interleave the channels of ``groups`` equal groups."""
    batch, channels, height, width = x.size()
    x = x.view(batch, groups, channels // groups, height, width)
    x = torch.transpose(x, 1, 2).contiguous()
    return x.view(batch, channels, height, width)


class ShuffleUnit(nn.Module):
    """Two branches, concatenated and shuffled.

    With stride 1 the input is split between an identity and a convolutional branch; with
    stride 2 both branches see the whole input and downsample it.
    """

    def __init__(self, in_channels: int, out_channels: int, stride: int) -> None:
        super().__init__()
        self.stride = stride
        half = out_channels // 2
        self.branch1: nn.Module = nn.Identity()
        if stride > 1:
            self.branch1 = nn.Sequential(
                *_depthwise(in_channels, stride), *_pointwise(in_channels, half)
            )
        self.branch2 = nn.Sequential(
            *_pointwise(in_channels if stride > 1 else half, half),
            *_depthwise(half, stride),
            *_pointwise(half, half),
        )

    def forward(self, x: Tensor) -> Tensor:
        if self.stride == 1:
            identity, rest = x.chunk(2, dim=1)
            out = torch.cat((identity, self.branch2(rest)), dim=1)
        else:
            out = torch.cat((self.branch1(x), self.branch2(x)), dim=1)
        return channel_shuffle(out, 2)


class ShuffleNetV2(nn.Module):
    """ShuffleNetV2 with three stages of the given depths and widths."""

    def __init__(
        self, depths: list[int], widths: list[int], last_channels: int, classes: int = 1000
    ) -> None:
        super().__init__()
        channels = 24
        self.conv1 = nn.Sequential(
            nn.Conv2d(3, channels, 3, stride=2, padding=1, bias=False),
            nn.BatchNorm2d(channels),
            nn.ReLU(inplace=True),
        )
        self.maxpool = nn.MaxPool2d(3, stride=2, padding=1)
        units: list[nn.Module] = []
        for depth, width in zip(depths, widths, strict=True):
            units.append(ShuffleUnit(channels, width, stride=2))
            units += [ShuffleUnit(width, width, stride=1) for _ in range(depth - 1)]
            channels = width
        self.stages = nn.Sequential(*units)
        self.conv5 = nn.Sequential(*_pointwise(channels, last_channels))
        self.fc = nn.Linear(last_channels, classes)

    def forward(self, x: Tensor) -> Tensor:
        x = self.conv5(self.stages(self.maxpool(self.conv1(x))))
        return self.fc(x.mean([2, 3]))


def shufflenet_v2_x1_0() -> ShuffleNetV2:
    """ShuffleNetV2 of width 1.0: stages of 116, 232 and 464 channels."""
    return ShuffleNetV2([4, 8, 4], [116, 232, 464], last_channels=1024)


def _depthwise(channels: int, stride: int) -> list[nn.Module]:
    """Depthwise 3x3 convolution and BatchNorm, without an activation."""
    return [
        nn.Conv2d(channels, channels, 3, stride, padding=1, groups=channels, bias=False),
        nn.BatchNorm2d(channels),
    ]


def _pointwise(in_channels: int, out_channels: int) -> list[nn.Module]:
    """1x1 convolution, BatchNorm, in-place ReLU."""
    return [
        nn.Conv2d(in_channels, out_channels, 1, bias=False),
        nn.BatchNorm2d(out_channels),
        nn.ReLU(inplace=True),
    ]
