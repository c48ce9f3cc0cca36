"""U-Net (Ronneberger et al., 2015, https://arxiv.org/abs/1505.04597).

Padded convolutions with BatchNorm, as nearly all of today's U-Nets have, so that input and
output have the same size; 32 base channels instead of 64 keep a run on two cores short.
"""

# PyTorch declares that calling a module returns Any.
# mypy: disable-error-code="no-any-return"

from __future__ import annotations

import torch
from torch import Tensor, nn


class DoubleConv(nn.Sequential):
    """Two 3x3 convolutions, each with BatchNorm and in-place ReLU."""

    def __init__(self, in_channels: int, out_channels: int) -> None:
        super().__init__(
            nn.Conv2d(in_channels, out_channels, 3, padding=1, bias=False),
            nn.BatchNorm2d(out_channels),
            nn.ReLU(inplace=True),
            nn.Conv2d(out_channels, out_channels, 3, padding=1, bias=False),
            nn.BatchNorm2d(out_channels),
            nn.ReLU(inplace=True),
        )


class Up(nn.Module):
    """Transposed convolution, concatenation with the skip, two convolutions.

    Or, for engines without transposed convolutions, nearest neighbours and a 1x1 convolution.
    """

    def __init__(self, in_channels: int, out_channels: int, transposed: bool) -> None:
        super().__init__()
        self.upsample = (
            nn.ConvTranspose2d(in_channels, out_channels, 2, stride=2)
            if transposed
            else nn.Sequential(nn.Upsample(scale_factor=2), nn.Conv2d(in_channels, out_channels, 1))
        )
        self.conv = DoubleConv(2 * out_channels, out_channels)

    def forward(self, x: Tensor, skip: Tensor) -> Tensor:
        return self.conv(torch.cat((skip, self.upsample(x)), dim=1))


class UNet(nn.Module):
    """A four-level U-Net."""

    def __init__(self, classes: int = 2, base: int = 32, transposed: bool = True) -> None:
        super().__init__()
        self.stem = DoubleConv(3, base)
        self.down1 = DoubleConv(base, 2 * base)
        self.down2 = DoubleConv(2 * base, 4 * base)
        self.down3 = DoubleConv(4 * base, 8 * base)
        self.down4 = DoubleConv(8 * base, 16 * base)
        self.pool = nn.MaxPool2d(2)
        self.up4 = Up(16 * base, 8 * base, transposed)
        self.up3 = Up(8 * base, 4 * base, transposed)
        self.up2 = Up(4 * base, 2 * base, transposed)
        self.up1 = Up(2 * base, base, transposed)
        self.head = nn.Conv2d(base, classes, 1)
        for module in self.modules():
            if isinstance(module, nn.Conv2d):
                nn.init.kaiming_normal_(module.weight, nonlinearity="relu")

    def forward(self, x: Tensor) -> Tensor:
        level1 = self.stem(x)
        level2 = self.down1(self.pool(level1))
        level3 = self.down2(self.pool(level2))
        level4 = self.down3(self.pool(level3))
        out = self.up4(self.down4(self.pool(level4)), level4)
        out = self.up3(out, level3)
        out = self.up2(out, level2)
        return self.head(self.up1(out, level1))
