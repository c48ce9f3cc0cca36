"""NaNs and infinities that reach static places: plans give the codes that the reference gives."""

from __future__ import annotations

from collections.abc import Callable

import pytest
import torch
from torch import Tensor, nn
from torch.nn import functional as F

import jit_passes
from tests.compare import assert_codes
from tests.plans import last_step

BEFORE: dict[str, Callable[[Tensor], Tensor]] = {
    "nothing": lambda x: x,
    "relu": torch.relu,
    "clamp": lambda x: torch.clamp(x, 0.0, 6.0),
    "scaled relu": lambda x: torch.relu(x * 2.0),
    "gelu": F.gelu,
    "sum": lambda x: torch.relu(torch.cos(x) + x),
}


class Behind(nn.Module):
    """A linear behind a function in float, or a convolution."""

    def __init__(self, function: Callable[[Tensor], Tensor], channels: int) -> None:
        super().__init__()
        self.function = function
        self.layer = nn.Conv2d(channels, 8, 3, padding=1) if channels else nn.Linear(48, 8)

    def forward(self, x: Tensor) -> Tensor:
        return self.layer(self.function(x))


@pytest.mark.parametrize("channels", [0, 5], ids=["linear", "convolution"])
@pytest.mark.parametrize("name", BEFORE)
def test_codes_of_what_is_not_finite(name: str, channels: int) -> None:
    torch.manual_seed(0)
    x = torch.randn(2, channels, 9, 11) if channels else torch.randn(37, 48)
    model = torch.jit.trace(Behind(BEFORE[name], channels).eval(), x)
    bad, drawn = x.clone(), torch.rand_like(x)
    for low, value in ((0.0, torch.nan), (0.02, torch.inf), (0.04, -torch.inf)):
        bad[(drawn >= low) & (drawn < low + 0.02)] = value
    models = [
        jit_passes.quantize_script(model, [x], target=target, mode="static")
        for target in ("reference", "x86")
    ]
    results = [quantized(bad) for quantized in models]
    assert all(result.isfinite().all() for result in results) and results[0].std() > 0
    assert_codes(*results, last_step(models[0]))
