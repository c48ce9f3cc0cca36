"""DS-CNN for keywords (Zhang et al., 2017, https://arxiv.org/abs/1711.07128), its small form."""

# PyTorch declares that calling a module returns Any.
# mypy: disable-error-code="no-any-return"

from __future__ import annotations

from torch import Tensor, nn

FRAMES, COEFFICIENTS = 49, 10  # a second of speech


class KeywordNet(nn.Module):
    """Coefficients `[batch, 1, 49, 10]` to scores of 12 words."""

    def __init__(self, words: int = 12, channels: int = 64) -> None:
        super().__init__()
        layers: list[nn.Module] = [
            *_layer(1, channels, (10, 4), stride=2, padding=(5, 1)),
        ]
        for _ in range(4):
            layers += _layer(channels, channels, (3, 3), padding=(1, 1), groups=channels)
            layers += _layer(channels, channels, (1, 1))
        self.features = nn.Sequential(*layers)
        self.classifier = nn.Linear(channels, words)

    def forward(self, x: Tensor) -> Tensor:
        return self.classifier(self.features(x).mean([2, 3]))


def _layer(
    ins: int, outs: int, kernel: tuple[int, int], stride: int = 1,
    padding: tuple[int, int] = (0, 0), groups: int = 1,
) -> list[nn.Module]:  # fmt: skip
    """Convolution, BatchNorm, ReLU."""
    convolution = nn.Conv2d(ins, outs, kernel, stride, padding, groups=groups, bias=False)
    return [convolution, nn.BatchNorm2d(outs), nn.ReLU(inplace=True)]
