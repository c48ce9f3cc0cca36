"""EfficientNet-B0 (Tan and Le, 2019, https://arxiv.org/abs/1905.11946)."""

# PyTorch declares that calling a module returns Any.
# mypy: disable-error-code="no-any-return"

from __future__ import annotations

from typing import NamedTuple

import torch
from torch import Tensor, nn

_STEM, _HEAD = 32, 1280


class StageConfig(NamedTuple):
    """One row of table 1 of the paper."""

    expansion: int
    kernel: int
    stride: int
    out_channels: int
    blocks: int


_B0 = [
    StageConfig(1, 3, 1, 16, 1),
    StageConfig(6, 3, 2, 24, 2),
    StageConfig(6, 5, 2, 40, 2),
    StageConfig(6, 3, 2, 80, 3),
    StageConfig(6, 5, 1, 112, 3),
    StageConfig(6, 5, 2, 192, 4),
    StageConfig(6, 3, 1, 320, 1),
]


class SqueezeExcitation(nn.Module):
    """Channel attention: global pool, two 1x1 convolutions, sigmoid gate."""

    def __init__(self, channels: int, squeezed: int) -> None:
        super().__init__()
        self.avgpool = nn.AdaptiveAvgPool2d(1)
        self.fc1, self.fc2 = nn.Conv2d(channels, squeezed, 1), nn.Conv2d(squeezed, channels, 1)
        self.activation, self.scale_activation = nn.SiLU(inplace=True), nn.Sigmoid()

    def forward(self, x: Tensor) -> Tensor:
        scale = self.fc2(self.activation(self.fc1(self.avgpool(x))))
        return self.scale_activation(scale) * x


class MBConv(nn.Module):
    """Expand, depthwise, squeeze-and-excitation, project."""

    def __init__(self, in_channels: int, config: StageConfig, stride: int) -> None:
        super().__init__()
        hidden = in_channels * config.expansion
        layers: list[nn.Module] = []
        if config.expansion > 1:
            layers.append(_conv_bn(in_channels, hidden, 1))
        layers += [
            _conv_bn(hidden, hidden, config.kernel, stride=stride, groups=hidden),
            SqueezeExcitation(hidden, in_channels // 4),
            _conv_bn(hidden, config.out_channels, 1, activate=False),
        ]
        self.block = nn.Sequential(*layers)
        self.use_residual = stride == 1 and in_channels == config.out_channels

    def forward(self, x: Tensor) -> Tensor:
        out = self.block(x)
        if self.use_residual:
            out += x
        return out


class EfficientNet(nn.Module):
    """Stages of MBConv blocks; stochastic depth, which evaluation has none of, is left out."""

    def __init__(self, stages: list[StageConfig], classes: int = 1000) -> None:
        super().__init__()
        channels = _STEM
        layers: list[nn.Module] = [_conv_bn(3, channels, 3, stride=2)]
        for config in stages:
            for index in range(config.blocks):
                layers.append(MBConv(channels, config, config.stride if index == 0 else 1))
                channels = config.out_channels
        layers.append(_conv_bn(channels, _HEAD, 1))
        self.features = nn.Sequential(*layers)
        self.avgpool = nn.AdaptiveAvgPool2d(1)
        self.classifier = nn.Sequential(nn.Dropout(0.2, inplace=True), nn.Linear(_HEAD, classes))
        for module in self.modules():
            if isinstance(module, nn.Conv2d):
                nn.init.kaiming_normal_(module.weight, mode="fan_out")

    def forward(self, x: Tensor) -> Tensor:
        return self.classifier(torch.flatten(self.avgpool(self.features(x)), 1))


def efficientnet_b0() -> EfficientNet:
    """EfficientNet-B0."""
    return EfficientNet(_B0)


def _conv_bn(
    in_channels: int,
    out_channels: int,
    kernel: int,
    *,
    stride: int = 1,
    groups: int = 1,
    activate: bool = True,
) -> nn.Sequential:
    """Convolution and BatchNorm, then in-place SiLU if ``activate``."""
    padding = (kernel - 1) // 2
    layers: list[nn.Module] = [
        nn.Conv2d(in_channels, out_channels, kernel, stride, padding, groups=groups, bias=False),
        nn.BatchNorm2d(out_channels),
    ]
    return nn.Sequential(*layers, *([nn.SiLU(inplace=True)] if activate else []))
