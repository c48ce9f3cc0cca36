"""ResNet-18 and ResNet-50 (He et al., 2015, https://arxiv.org/abs/1512.03385)."""

# PyTorch declares that calling a module returns Any.
# mypy: disable-error-code="no-any-return"

from __future__ import annotations

import torch
from torch import Tensor, nn


class BasicBlock(nn.Module):
    """Two 3x3 convolutions with a shortcut."""

    expansion = 1

    def __init__(self, in_channels: int, channels: int, stride: int) -> None:
        super().__init__()
        self.conv1 = nn.Conv2d(in_channels, channels, 3, stride, padding=1, bias=False)
        self.bn1 = nn.BatchNorm2d(channels)
        self.relu = nn.ReLU(inplace=True)
        self.conv2 = nn.Conv2d(channels, channels, 3, padding=1, bias=False)
        self.bn2 = nn.BatchNorm2d(channels)
        self.downsample = _shortcut(in_channels, channels * self.expansion, stride)

    def forward(self, x: Tensor) -> Tensor:
        out = self.relu(self.bn1(self.conv1(x)))
        out = self.bn2(self.conv2(out))
        if self.downsample is not None:
            x = self.downsample(x)
        out += x
        return self.relu(out)


class Bottleneck(nn.Module):
    """1x1, 3x3, 1x1 convolutions with a shortcut; the stride is on the 3x3 (ResNet v1.5)."""

    expansion = 4

    def __init__(self, in_channels: int, channels: int, stride: int) -> None:
        super().__init__()
        out_channels = channels * self.expansion
        self.conv1 = nn.Conv2d(in_channels, channels, 1, bias=False)
        self.bn1 = nn.BatchNorm2d(channels)
        self.conv2 = nn.Conv2d(channels, channels, 3, stride, padding=1, bias=False)
        self.bn2 = nn.BatchNorm2d(channels)
        self.conv3 = nn.Conv2d(channels, out_channels, 1, bias=False)
        self.bn3 = nn.BatchNorm2d(out_channels)
        self.relu = nn.ReLU(inplace=True)
        self.downsample = _shortcut(in_channels, out_channels, stride)

    def forward(self, x: Tensor) -> Tensor:
        out = self.relu(self.bn1(self.conv1(x)))
        out = self.relu(self.bn2(self.conv2(out)))
        out = self.bn3(self.conv3(out))
        if self.downsample is not None:
            x = self.downsample(x)
        out += x
        return self.relu(out)


class ResNet(nn.Module):
    """A residual network with four stages of ``block``."""

    def __init__(
        self, block: type[BasicBlock] | type[Bottleneck], depths: list[int], classes: int = 1000
    ) -> None:
        super().__init__()
        self.conv1 = nn.Conv2d(3, 64, 7, stride=2, padding=3, bias=False)
        self.bn1 = nn.BatchNorm2d(64)
        self.relu = nn.ReLU(inplace=True)
        self.maxpool = nn.MaxPool2d(3, stride=2, padding=1)
        self.layer1 = _stage(block, 64, 64, depths[0], stride=1)
        self.layer2 = _stage(block, 64 * block.expansion, 128, depths[1], stride=2)
        self.layer3 = _stage(block, 128 * block.expansion, 256, depths[2], stride=2)
        self.layer4 = _stage(block, 256 * block.expansion, 512, depths[3], stride=2)
        self.avgpool = nn.AdaptiveAvgPool2d((1, 1))
        self.fc = nn.Linear(512 * block.expansion, classes)
        for module in self.modules():
            if isinstance(module, nn.Conv2d):
                nn.init.kaiming_normal_(module.weight, mode="fan_out", nonlinearity="relu")

    def forward(self, x: Tensor) -> Tensor:
        x = self.maxpool(self.relu(self.bn1(self.conv1(x))))
        x = self.layer4(self.layer3(self.layer2(self.layer1(x))))
        return self.fc(torch.flatten(self.avgpool(x), 1))


def resnet18() -> ResNet:
    """ResNet-18: basic blocks, 2-2-2-2."""
    return ResNet(BasicBlock, [2, 2, 2, 2])


def resnet50() -> ResNet:
    """ResNet-50: bottleneck blocks, 3-4-6-3."""
    return ResNet(Bottleneck, [3, 4, 6, 3])


def _shortcut(in_channels: int, out_channels: int, stride: int) -> nn.Sequential | None:
    """The projection of a shortcut whose shape changes, else None."""
    if stride == 1 and in_channels == out_channels:
        return None
    return nn.Sequential(
        nn.Conv2d(in_channels, out_channels, 1, stride, bias=False), nn.BatchNorm2d(out_channels)
    )


def _stage(
    block: type[BasicBlock] | type[Bottleneck],
    in_channels: int,
    channels: int,
    depth: int,
    stride: int,
) -> nn.Sequential:
    """``depth`` blocks, the first of which changes the resolution and the width."""
    blocks: list[nn.Module] = [block(in_channels, channels, stride)]
    blocks += [block(channels * block.expansion, channels, 1) for _ in range(depth - 1)]
    return nn.Sequential(*blocks)
