"""DenseNet-121 (Huang et al., 2016, https://arxiv.org/abs/1608.06993)."""

# PyTorch declares that calling a module returns Any.
# mypy: disable-error-code="no-any-return"

from __future__ import annotations

import torch
from torch import Tensor, nn


class DenseLayer(nn.Module):
    """BN-ReLU-conv1x1 bottleneck, then BN-ReLU-conv3x3 that adds ``growth`` channels."""

    def __init__(self, in_channels: int, growth: int, bottleneck: int) -> None:
        super().__init__()
        hidden = bottleneck * growth
        self.norm1 = nn.BatchNorm2d(in_channels)
        self.relu1 = nn.ReLU(inplace=True)
        self.conv1 = nn.Conv2d(in_channels, hidden, 1, bias=False)
        self.norm2 = nn.BatchNorm2d(hidden)
        self.relu2 = nn.ReLU(inplace=True)
        self.conv2 = nn.Conv2d(hidden, growth, 3, padding=1, bias=False)

    def forward(self, features: list[Tensor]) -> Tensor:
        out = self.conv1(self.relu1(self.norm1(torch.cat(features, 1))))
        return self.conv2(self.relu2(self.norm2(out)))


class DenseBlock(nn.Module):
    """Layers that each read the concatenation of everything before them."""

    def __init__(self, depth: int, in_channels: int, growth: int, bottleneck: int) -> None:
        super().__init__()
        self.layers = nn.ModuleList(
            DenseLayer(in_channels + index * growth, growth, bottleneck) for index in range(depth)
        )

    def forward(self, x: Tensor) -> Tensor:
        features = [x]
        for layer in self.layers:
            features.append(layer(features))
        return torch.cat(features, 1)


class Transition(nn.Sequential):
    """BN-ReLU-conv1x1 and a 2x2 average pool between dense blocks."""

    def __init__(self, in_channels: int, out_channels: int) -> None:
        super().__init__(
            nn.BatchNorm2d(in_channels),
            nn.ReLU(inplace=True),
            nn.Conv2d(in_channels, out_channels, 1, bias=False),
            nn.AvgPool2d(2, stride=2),
        )


class DenseNet(nn.Module):
    """A DenseNet-BC with dense blocks of the given depths."""

    def __init__(
        self,
        depths: tuple[int, ...],
        growth: int = 32,
        stem: int = 64,
        bottleneck: int = 4,
        classes: int = 1000,
    ) -> None:
        super().__init__()
        layers: list[nn.Module] = [
            nn.Conv2d(3, stem, 7, stride=2, padding=3, bias=False),
            nn.BatchNorm2d(stem),
            nn.ReLU(inplace=True),
            nn.MaxPool2d(3, stride=2, padding=1),
        ]
        channels = stem
        for index, depth in enumerate(depths):
            layers.append(DenseBlock(depth, channels, growth, bottleneck))
            channels += depth * growth
            if index + 1 < len(depths):
                layers.append(Transition(channels, channels // 2))
                channels //= 2
        layers.append(nn.BatchNorm2d(channels))
        self.features = nn.Sequential(*layers)
        self.classifier = nn.Linear(channels, classes)
        for module in self.modules():
            if isinstance(module, nn.Conv2d):
                nn.init.kaiming_normal_(module.weight)

    def forward(self, x: Tensor) -> Tensor:
        out = nn.functional.relu(self.features(x), inplace=True)
        out = nn.functional.adaptive_avg_pool2d(out, (1, 1))
        return self.classifier(torch.flatten(out, 1))


def densenet121() -> DenseNet:
    """DenseNet-121: dense blocks of 6, 12, 24 and 16 layers."""
    return DenseNet((6, 12, 24, 16))
