"""Differences of PyTorch's engine QNNPACK from the others."""

from __future__ import annotations

import pytest
import torch
from torch import Tensor, nn

import jit_passes
from jit_passes.targets import Stock

pytestmark = pytest.mark.skipif(
    "qnnpack" not in torch.backends.quantized.supported_engines, reason="no engine qnnpack"
)


class Gated(nn.Module):
    """An activation of a convolution's result, which is read elsewhere too."""

    def __init__(self, activation: nn.Module) -> None:
        super().__init__()
        self.first = nn.Conv2d(3, 8, 3)
        self.activation = activation
        self.second = nn.Conv2d(8, 4, 3)

    def forward(self, x: Tensor) -> Tensor:
        y = self.first(x)
        return self.second(self.activation(y) * y)


CASES = {
    "relu6": (nn.ReLU6(), "aten::clamp"),
    "hardtanh": (nn.Hardtanh(-0.5, 0.5), "aten::clamp"),
    "sigmoid": (nn.Sigmoid(), "quantized::sigmoid"),
    "hardswish": (nn.Hardswish(), "aten::hardswish"),
    "hardsigmoid": (nn.Hardsigmoid(), "aten::hardsigmoid"),
}


@pytest.mark.parametrize("layout", [torch.contiguous_format, torch.channels_last])
@pytest.mark.parametrize("name", CASES)
def test_activations(
    name: str, layout: torch.memory_format, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Its clamp takes the default layout only, its sigmoid one scale; those that end the process
    for an empty batch stay float.
    """
    monkeypatch.setattr(torch.backends.quantized, "engine", "qnnpack")
    torch.manual_seed(0)
    activation, kind = CASES[name]
    batches = [torch.randn(2, 3, 8, 8).mul(3).contiguous(memory_format=layout) for _ in range(4)]
    script = torch.jit.script(Gated(activation).eval())
    prepared = jit_passes.prepare(script, target=Stock("qnnpack"))
    jit_passes.calibrate(prepared, batches, progress=False)
    reference = jit_passes.convert(prepared)
    lowered = jit_passes.lower(reference)
    kinds = [node.kind() for node in lowered.graph.nodes()]
    assert kind in kinds
    assert kinds.count("quantized::conv2d") == 2
    with torch.no_grad():
        expected, found = reference(batches[0]), lowered(batches[0])
        error = (expected - found).norm() / expected.norm()
        assert error < 0.01, "40 dB: few values are a step apart"
