"""A depthwise-separable 1-d convolution network for audio features.

The block is QuartzNet's (Kriman et al., 2019, https://arxiv.org/abs/1910.10261), time-channel
separable convolutions with residuals, at a size that runs in milliseconds on two cores.
"""

# PyTorch declares that calling a module returns Any.
# mypy: disable-error-code="no-any-return"

from __future__ import annotations

from torch import Tensor, nn

FEATURES = 64
FRAMES = 1000


class SeparableBlock(nn.Module):
    """``repeats`` depthwise + pointwise convolutions with a pointwise residual."""

    def __init__(self, in_channels: int, out_channels: int, kernel: int, repeats: int) -> None:
        super().__init__()
        layers: list[nn.Module] = []
        channels = in_channels
        for index in range(repeats):
            if index > 0:
                layers.append(nn.ReLU(inplace=True))
            layers += _separable(channels, out_channels, kernel)
            channels = out_channels
        self.body = nn.Sequential(*layers)
        self.residual = nn.Sequential(
            nn.Conv1d(in_channels, out_channels, 1, bias=False), nn.BatchNorm1d(out_channels)
        )
        self.relu = nn.ReLU(inplace=True)

    def forward(self, x: Tensor) -> Tensor:
        out = self.body(x)
        out += self.residual(x)
        return self.relu(out)


class DepthwiseSeparableAudioNet(nn.Module):
    """Features ``[batch, 64, frames]`` to per-frame logits ``[batch, tokens, frames / 2]``."""

    def __init__(self, tokens: int = 29, repeats: int = 2) -> None:
        super().__init__()
        self.stem = nn.Sequential(
            *_separable(FEATURES, 256, 33, stride=2),
            nn.ReLU(inplace=True),
        )
        self.blocks = nn.Sequential(
            SeparableBlock(256, 256, 33, repeats),
            SeparableBlock(256, 256, 39, repeats),
            SeparableBlock(256, 384, 51, repeats),
            SeparableBlock(384, 384, 63, repeats),
        )
        self.head = nn.Sequential(
            nn.Conv1d(384, 512, 1, bias=False),
            nn.BatchNorm1d(512),
            nn.ReLU(inplace=True),
            nn.Conv1d(512, tokens, 1),
        )
        for module in self.modules():
            if isinstance(module, nn.Conv1d):
                nn.init.xavier_uniform_(module.weight)

    def forward(self, x: Tensor) -> Tensor:
        return self.head(self.blocks(self.stem(x)))


def _separable(
    in_channels: int, out_channels: int, kernel: int, stride: int = 1
) -> list[nn.Module]:
    """Depthwise convolution over time, pointwise convolution over channels, BatchNorm."""
    padding = kernel // 2
    return [
        nn.Conv1d(
            in_channels, in_channels, kernel, stride, padding, groups=in_channels, bias=False
        ),
        nn.Conv1d(in_channels, out_channels, 1, bias=False),
        nn.BatchNorm1d(out_channels),
    ]
