"""ConvNeXt (Liu et al., 2022, https://arxiv.org/abs/2201.03545) with torchvision's layers.

Gains of the layer norms and factors of the blocks are drawn as they are after training, where both
differ from channel to channel; a new network has factors of 1e-6, and so no blocks to speak of.
"""

# PyTorch declares that calling a module returns Any.
# mypy: disable-error-code="no-any-return"

from __future__ import annotations

import torch
from torch import Tensor, nn
from torch.nn import functional as F

CHANNELS, BLOCKS = (96, 192, 384, 768), (3, 3, 9, 3)


class ChannelNorm(nn.LayerNorm):
    """Layer norm over the channels of ``[batch, channels, height, width]``."""

    def forward(self, input: Tensor) -> Tensor:
        x = input.permute(0, 2, 3, 1)
        x = F.layer_norm(x, self.normalized_shape, self.weight, self.bias, self.eps)
        return x.permute(0, 3, 1, 2)


class Block(nn.Module):
    """A depthwise convolution, and two linear layers for each pixel, added to the input."""

    def __init__(self, channels: int) -> None:
        super().__init__()
        self.depthwise = nn.Conv2d(channels, channels, 7, padding=3, groups=channels)
        self.norm = nn.LayerNorm(channels, eps=1e-6)
        self.mlp = nn.Sequential(
            nn.Linear(channels, 4 * channels), nn.GELU(), nn.Linear(4 * channels, channels)
        )
        self.factor = nn.Parameter(torch.empty(channels, 1, 1).uniform_(0.1, 1))

    def forward(self, x: Tensor) -> Tensor:
        y = self.mlp(self.norm(self.depthwise(x).permute(0, 2, 3, 1)))
        return x + self.factor * y.permute(0, 3, 1, 2)


class ConvNeXt(nn.Module):
    """Images ``[batch, 3, height, width]`` to logits ``[batch, 1000]``."""

    def __init__(self) -> None:
        super().__init__()
        layers: list[nn.Module] = [
            nn.Conv2d(3, CHANNELS[0], 4, 4),
            ChannelNorm(CHANNELS[0], eps=1e-6),
        ]
        for stage, (channels, blocks) in enumerate(zip(CHANNELS, BLOCKS, strict=True)):
            if stage:
                before = CHANNELS[stage - 1]
                layers += [ChannelNorm(before, eps=1e-6), nn.Conv2d(before, channels, 2, 2)]
            layers += [Block(channels) for _ in range(blocks)]
        self.features = nn.Sequential(*layers, nn.AdaptiveAvgPool2d(1))
        self.head = nn.Sequential(
            ChannelNorm(CHANNELS[-1], eps=1e-6), nn.Flatten(1), nn.Linear(CHANNELS[-1], 1000)
        )
        for module in self.modules():
            if isinstance(module, nn.Conv2d | nn.Linear):
                nn.init.normal_(module.weight, std=module.weight[0].numel() ** -0.5)
                nn.init.normal_(module.bias, std=0.1)
            elif isinstance(module, nn.LayerNorm):
                nn.init.uniform_(module.weight, 0.5, 1.5)
                nn.init.normal_(module.bias, std=0.2)

    def forward(self, x: Tensor) -> Tensor:
        return self.head(self.features(x))
