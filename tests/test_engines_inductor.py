"""Inductor computes on integers what the capability of its target promises."""

from __future__ import annotations

import pytest
import torch
from torch import Tensor, nn

import jit_passes
from tests.engines import apart, data, promised, quantized

pytest.importorskip("torch._inductor.fx_passes.quantization")


class Sum(nn.Module):
    """A convolution that adds, a relu behind it, and a linear."""

    def __init__(self) -> None:
        super().__init__()
        self.first, self.second = nn.Conv2d(4, 8, 3, padding=1), nn.Conv2d(8, 8, 3, padding=1)
        self.head = nn.Linear(8, 4)

    def forward(self, x: Tensor) -> Tensor:
        x = torch.relu(self.first(x))
        x = torch.relu(x + self.second(x))
        return self.head(x.mean((2, 3)))


@pytest.mark.skipif(not torch.cpu._is_vnni_supported(), reason="its patterns are for VNNI")
def test_inductor_keeps_what_coverage_promises() -> None:
    from torch._dynamo.utils import counters

    batches = data(2, 4, 8, 8)
    model = quantized(Sum(), batches, "inductor")
    program = jit_passes.to_exported_program(model, batches[0]).module()
    counters.clear()
    with torch._inductor.config.patch(freezing=True, compile_threads=1), torch.no_grad():
        found = torch.compile(program)(batches[0])
    counts = counters["inductor"]
    convolutions = counts["qconv_unary_lower_count"] + counts["qconv2d_binary_lower_count"]
    assert counts["qconv2d_binary_lower_count"] == 1
    assert convolutions + counts["qlinear_unary_lower_count"] == promised(model) == 3
    assert found.std() > 0 and apart(found, model, batches[0]) < 1.01
