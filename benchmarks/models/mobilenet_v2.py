"""MobileNetV2 (Sandler et al., 2018, https://arxiv.org/abs/1801.04381)."""

# PyTorch declares that calling a module returns Any.
# mypy: disable-error-code="no-any-return"

from __future__ import annotations

import torch
from torch import Tensor, nn

# (expansion, output channels, number of blocks, stride of the first block), table 2 of the paper.
_STAGES = [
    (1, 16, 1, 1),
    (6, 24, 2, 2),
    (6, 32, 3, 2),
    (6, 64, 4, 2),
    (6, 96, 3, 1),
    (6, 160, 3, 2),
    (6, 320, 1, 1),
]


class ConvBNReLU6(nn.Sequential):
    """Convolution, BatchNorm, in-place ReLU6."""

    def __init__(
        self, in_channels: int, out_channels: int, kernel: int = 3, stride: int = 1, groups: int = 1
    ) -> None:
        super().__init__(
            nn.Conv2d(
                in_channels,
                out_channels,
                kernel,
                stride,
                padding=(kernel - 1) // 2,
                groups=groups,
                bias=False,
            ),
            nn.BatchNorm2d(out_channels),
            nn.ReLU6(inplace=True),
        )


class InvertedResidual(nn.Module):
    """Expand, depthwise, project; the projection has no activation."""

    def __init__(self, in_channels: int, out_channels: int, stride: int, expansion: int) -> None:
        super().__init__()
        hidden = in_channels * expansion
        layers: list[nn.Module] = []
        if expansion != 1:
            layers.append(ConvBNReLU6(in_channels, hidden, kernel=1))
        layers += [
            ConvBNReLU6(hidden, hidden, stride=stride, groups=hidden),
            nn.Conv2d(hidden, out_channels, 1, bias=False),
            nn.BatchNorm2d(out_channels),
        ]
        self.conv = nn.Sequential(*layers)
        self.use_residual = stride == 1 and in_channels == out_channels

    def forward(self, x: Tensor) -> Tensor:
        if self.use_residual:
            return x + self.conv(x)
        return self.conv(x)


class MobileNetV2(nn.Module):
    """MobileNetV2 of width 1.0."""

    def __init__(self, classes: int = 1000) -> None:
        super().__init__()
        channels = 32
        layers: list[nn.Module] = [ConvBNReLU6(3, channels, stride=2)]
        for expansion, out_channels, depth, first_stride in _STAGES:
            for index in range(depth):
                stride = first_stride if index == 0 else 1
                layers.append(InvertedResidual(channels, out_channels, stride, expansion))
                channels = out_channels
        layers.append(ConvBNReLU6(channels, 1280, kernel=1))
        self.features = nn.Sequential(*layers)
        self.classifier = nn.Sequential(nn.Dropout(0.2), nn.Linear(1280, classes))
        _initialise(self)

    def forward(self, x: Tensor) -> Tensor:
        x = nn.functional.adaptive_avg_pool2d(self.features(x), (1, 1))
        return self.classifier(torch.flatten(x, 1))


def _initialise(model: nn.Module) -> None:
    """Kaiming-normal convolutions and a small-normal classifier, as torchvision does."""
    for module in model.modules():
        if isinstance(module, nn.Conv2d):
            nn.init.kaiming_normal_(module.weight, mode="fan_out")
        elif isinstance(module, nn.Linear):
            nn.init.normal_(module.weight, 0.0, 0.01)
            nn.init.zeros_(module.bias)
