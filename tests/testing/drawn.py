"""Modules that were drawn at random, and that a pass failed on; generators draw others since."""

from __future__ import annotations

import inspect

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from jit_passes.testing.check import RandomModule


class FormulasOfSizes(nn.Module):
    """Formulas of sizes that lead nowhere left nodes behind."""

    def __init__(self) -> None:
        super().__init__()
        self.table1 = nn.Embedding(4, 5)

    def forward(self, x0: Tensor, x1: Tensor) -> list[Tensor]:
        v2 = x0 + self.table1(torch.arange(x0.size(-2)) % 4)
        parts6 = {"a": v2, "b": v2 - v2.mean(-1, keepdim=True)}
        parts6.update({"a": parts6["b"]})
        v7 = torch.cat(list(parts6.values()), 1)
        v8 = v7.permute(2, 1, 0).permute(2, 1, 0).reshape(v7.shape)
        return [v8, v8]


class MaskOfImages(nn.Module):
    """The mask of causal attention was made for images with a batch axis."""

    def __init__(self) -> None:
        super().__init__()
        self.conv1 = nn.Conv2d(2, 2, 3, stride=1, padding="same", groups=2)
        self.act3 = nn.ReLU6()
        self.weight8 = nn.Parameter(torch.randn(2, 4, 1) * 0.5)
        self.bias9 = nn.Parameter(torch.randn(2))
        self.weight14 = nn.Parameter(torch.randn(1, 2, 2, 1) * 0.5)
        self.bias15 = nn.Parameter(torch.randn(1))

    def forward(self, x0: Tensor, missing: Tensor | None = None):  # type: ignore[no-untyped-def]
        v2 = self.conv1(x0)
        v4 = self.act3(v2)
        v5 = F.scaled_dot_product_attention(v2, v2, v2, is_causal=True)
        v7 = v4
        if missing is not None:
            v7 = v4 * missing.mean()
        v10 = torch.conv1d(v7, self.weight8, -self.bias9, 2, [1])  # noqa: F841
        v11 = torch.clamp(v2, -1.5, 2.5)
        v16 = torch.conv2d(v11, self.weight14, self.bias15 + 1, padding=[1])
        return {"a": v16, "b": v5}


class RankOfAnother(nn.Module):
    """A rank that was written down told of another one, in a second run."""

    def __init__(self) -> None:
        super().__init__()
        self.layers1 = nn.Sequential(
            nn.Conv2d(4, 4, 3, padding=1), nn.BatchNorm2d(4), nn.Hardtanh()
        )
        self.conv3 = nn.ConvTranspose2d(4, 2, 2, stride=2, padding=1, dilation=2)
        self.norm5 = nn.BatchNorm2d(2)
        self.linear11 = nn.Linear(9, 3)
        self.weight14 = nn.Parameter(torch.randn(9, 1))
        self.bias15 = nn.Parameter(torch.randn(1))

    def forward(self, x0: Tensor, extra: Tensor | None = None):  # type: ignore[no-untyped-def]
        v2 = self.layers1(x0)
        v4 = self.conv3(v2)
        v6 = self.norm5(v4)
        v8 = self.linear11(v6)  # noqa: F841
        v12 = torch.add(v4 * 1.5, v4)  # noqa: F841
        v13 = F.linear(v6, self.weight14.t() * 2, self.bias15)
        v17, v18 = v13, v13.permute(3, 1, 2, 0).permute(3, 1, 2, 0).reshape(v13.shape)
        for _ in range(2):
            v17, v18 = v18, v17
        return [v2, v6, v18, v4, v13]


def drawn(kind: type[nn.Module], index: int, *sizes: tuple[int, ...]) -> RandomModule:
    """The module under its old number, which decides on frontend, weights and inputs."""
    values = torch.Generator().manual_seed(index)
    inputs = tuple(torch.randn(size, generator=values, dtype=torch.float64) for size in sizes)
    return RandomModule(0, index, inspect.getsource(kind), inputs, ("forward",), kind)


FAILED = [
    drawn(FormulasOfSizes, 4175, (3, 3, 5), (3, 3, 5)),
    drawn(MaskOfImages, 6564, (2, 4, 6)),
    drawn(RankOfAnother, 17178, (2, 4, 5, 5), (2,)),
]
