"""MobileNetV3-large (Howard et al., 2019, https://arxiv.org/abs/1905.02244)."""

# PyTorch declares that calling a module returns Any.
# mypy: disable-error-code="no-any-return"

from __future__ import annotations

from typing import NamedTuple

import torch
from torch import Tensor, nn


class BlockConfig(NamedTuple):
    """One row of table 1 of the paper."""

    kernel: int
    hidden: int
    out_channels: int
    squeeze: bool
    hardswish: bool
    stride: int


_LARGE = [
    BlockConfig(3, 16, 16, False, False, 1),
    BlockConfig(3, 64, 24, False, False, 2),
    BlockConfig(3, 72, 24, False, False, 1),
    BlockConfig(5, 72, 40, True, False, 2),
    BlockConfig(5, 120, 40, True, False, 1),
    BlockConfig(5, 120, 40, True, False, 1),
    BlockConfig(3, 240, 80, False, True, 2),
    BlockConfig(3, 200, 80, False, True, 1),
    BlockConfig(3, 184, 80, False, True, 1),
    BlockConfig(3, 184, 80, False, True, 1),
    BlockConfig(3, 480, 112, True, True, 1),
    BlockConfig(3, 672, 112, True, True, 1),
    BlockConfig(5, 672, 160, True, True, 2),
    BlockConfig(5, 960, 160, True, True, 1),
    BlockConfig(5, 960, 160, True, True, 1),
]


class SqueezeExcitation(nn.Module):
    """Channel attention: global pool, two 1x1 convolutions, hardsigmoid gate."""

    def __init__(self, channels: int, squeezed: int) -> None:
        super().__init__()
        self.avgpool = nn.AdaptiveAvgPool2d(1)
        self.fc1 = nn.Conv2d(channels, squeezed, 1)
        self.activation = nn.ReLU()
        self.fc2 = nn.Conv2d(squeezed, channels, 1)
        self.scale_activation = nn.Hardsigmoid()

    def forward(self, x: Tensor) -> Tensor:
        scale = self.fc2(self.activation(self.fc1(self.avgpool(x))))
        return self.scale_activation(scale) * x


class InvertedResidual(nn.Module):
    """Expand, depthwise, optional squeeze-and-excitation, project."""

    def __init__(self, in_channels: int, config: BlockConfig) -> None:
        super().__init__()
        hidden = config.hidden
        layers: list[nn.Module] = []
        if hidden != in_channels:
            layers.append(_conv_bn(in_channels, hidden, 1, hardswish=config.hardswish))
        layers.append(
            _conv_bn(
                hidden,
                hidden,
                config.kernel,
                stride=config.stride,
                groups=hidden,
                hardswish=config.hardswish,
            )
        )
        if config.squeeze:
            layers.append(SqueezeExcitation(hidden, make_divisible(hidden // 4)))
        layers.append(_conv_bn(hidden, config.out_channels, 1, activate=False))
        self.block = nn.Sequential(*layers)
        self.use_residual = config.stride == 1 and in_channels == config.out_channels

    def forward(self, x: Tensor) -> Tensor:
        out = self.block(x)
        if self.use_residual:
            out += x
        return out


class MobileNetV3(nn.Module):
    """MobileNetV3 with the blocks ``configs`` and a hidden classifier layer."""

    def __init__(self, configs: list[BlockConfig], last_hidden: int, classes: int = 1000) -> None:
        super().__init__()
        channels = 16
        layers: list[nn.Module] = [_conv_bn(3, channels, 3, stride=2, hardswish=True)]
        for config in configs:
            layers.append(InvertedResidual(channels, config))
            channels = config.out_channels
        layers.append(_conv_bn(channels, 6 * channels, 1, hardswish=True))
        self.features = nn.Sequential(*layers)
        self.avgpool = nn.AdaptiveAvgPool2d(1)
        self.classifier = nn.Sequential(
            nn.Linear(6 * channels, last_hidden),
            nn.Hardswish(inplace=True),
            nn.Dropout(0.2, inplace=True),
            nn.Linear(last_hidden, classes),
        )
        _initialise(self)

    def forward(self, x: Tensor) -> Tensor:
        return self.classifier(torch.flatten(self.avgpool(self.features(x)), 1))


def mobilenet_v3_large() -> MobileNetV3:
    """MobileNetV3-large of width 1.0."""
    return MobileNetV3(_LARGE, last_hidden=1280)


def make_divisible(channels: float, divisor: int = 8) -> int:
    """``channels`` rounded to a multiple of ``divisor``, never down by more than 10 %."""
    rounded = max(divisor, int(channels + divisor / 2) // divisor * divisor)
    return rounded + divisor if rounded < 0.9 * channels else rounded


def _conv_bn(
    in_channels: int,
    out_channels: int,
    kernel: int,
    *,
    stride: int = 1,
    groups: int = 1,
    hardswish: bool = False,
    activate: bool = True,
) -> nn.Sequential:
    """Convolution and BatchNorm, then in-place hardswish or ReLU if ``activate``."""
    padding = (kernel - 1) // 2
    layers: list[nn.Module] = [
        nn.Conv2d(in_channels, out_channels, kernel, stride, padding, groups=groups, bias=False),
        nn.BatchNorm2d(out_channels, eps=0.001, momentum=0.01),
    ]
    if activate:
        layers.append(nn.Hardswish(inplace=True) if hardswish else nn.ReLU(inplace=True))
    return nn.Sequential(*layers)


def _initialise(model: nn.Module) -> None:
    """Kaiming-normal convolutions and small-normal linears, as torchvision does."""
    for module in model.modules():
        if isinstance(module, nn.Conv2d):
            nn.init.kaiming_normal_(module.weight, mode="fan_out")
            if module.bias is not None:
                nn.init.zeros_(module.bias)
        elif isinstance(module, nn.Linear):
            nn.init.normal_(module.weight, 0.0, 0.01)
            nn.init.zeros_(module.bias)
