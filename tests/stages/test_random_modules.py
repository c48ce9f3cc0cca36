"""Each option around calibration, on modules drawn at random: all convert, and all run."""

from __future__ import annotations

from typing import Any

import pytest
import torch
from torch import Tensor, nn

import jit_passes
from jit_passes.testing import random_modules
from tests.seeds import seeds

OPTIONS: list[dict[str, Any]] = [
    *({"weight_rounding": how} for how in ("gptq", "adaround", "gptq_sequential")),
    *({"equalize": by} for by in ("activations", "weights")),
    *({"bias_correction": how} for how in ("sequential", "fast", "statistics")),
    *({"smooth": strength} for strength in (0.5, "search")),
]


def name_of(options: dict[str, Any]) -> str:
    return "-".join(f"{name}-{value}" for name, value in options.items())


@pytest.mark.parametrize("options", OPTIONS, ids=name_of)
@pytest.mark.filterwarnings("ignore::jit_passes.JitPassesWarning")
def test_options_on_random_modules(options: dict[str, Any]) -> None:
    count = 0
    for drawn in random_modules(len(seeds(400)), 2900):
        model = torch.jit.script(drawn.module(training=False, dtype=torch.float32))
        data = [drawn.arguments(torch.float32) for _ in range(4)]
        how: dict[str, Any] = {"target": "reference", "progress": False}
        made = jit_passes.quantize_script(model, data, **how, **options)
        with torch.no_grad():
            made(*data[0])
        count += any(row.dtype != "float" for row in jit_passes.coverage(made))
    assert count > len(seeds(400)) / 2


class Loss(nn.Module):
    """A mean of all numbers behind layers whose channels are equalized."""

    def __init__(self) -> None:
        super().__init__()
        self.first, self.last = nn.Conv2d(3, 4, 3), nn.Conv2d(4, 2, 1)

    def forward(self, x: Tensor) -> Tensor:
        return self.last(torch.relu(self.first(x))).mean()


@pytest.mark.parametrize("by", ["activations", "weights"])
def test_a_mean_without_axes(by: str) -> None:
    model = torch.jit.script(Loss().eval())
    x = torch.randn(2, 3, 6, 6)
    equalized = jit_passes.equalize(model, None if by == "weights" else [x])
    with torch.no_grad():
        torch.testing.assert_close(equalized(x), model(x), rtol=1e-5, atol=1e-6)


class Rows(nn.Module):
    """A linear reads rows of an image, and a batch norm in front normalizes its channels."""

    def __init__(self) -> None:
        super().__init__()
        self.conv, self.norm = nn.Conv2d(3, 4, 3, padding=1), nn.BatchNorm2d(4)
        self.linear = nn.Linear(4, 5)

    def forward(self, x: Tensor) -> Tensor:
        return self.linear(torch.relu(self.norm(self.conv(x))))


@pytest.mark.parametrize("width", [4, 6])
def test_rows_are_no_channels(width: int) -> None:
    """Nothing is known of a row's numbers, so biases stay."""
    net = Rows()
    net.linear = nn.Linear(width, 5)
    net.norm.bias.data.fill_(2.0)
    model = torch.jit.script(net.eval())
    prepared = jit_passes.prepare(model, target="reference", mode="static")
    jit_passes.calibrate(prepared, [torch.randn(2, 3, 4, width)], progress=False)
    with pytest.warns(jit_passes.JitPassesWarning, match="changes no bias"):
        jit_passes.correct_bias(prepared)
