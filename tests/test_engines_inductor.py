"""Inductor computes on integers what the capability of its target promises."""

from __future__ import annotations

from typing import Any

import pytest
import torch
from torch import Tensor, nn

import jit_passes
from tests.engines import apart, data, promised, quantized


@pytest.fixture(scope="module", autouse=True)
def patterns() -> None:
    """Skip without Inductor's patterns, which take seconds to import: not while collecting."""
    pytest.importorskip("torch._inductor.fx_passes.quantization")


class Sum(nn.Module):
    """A convolution that adds, a relu behind it, and a linear that reads a view."""

    def __init__(self) -> None:
        super().__init__()
        self.first, self.second = nn.Conv2d(4, 8, 3, padding=1), nn.Conv2d(8, 8, 3, padding=1)
        self.head = nn.Linear(8 * 16, 4)

    def forward(self, x: Tensor) -> Tensor:
        x = torch.relu(self.first(x))
        x = torch.relu(x + self.second(x))
        return self.head(nn.functional.max_pool2d(x, 2).flatten(1))


pytestmark = pytest.mark.skipif(
    not torch.cpu._is_vnni_supported(), reason="its patterns are for VNNI"
)


def compiled(model: torch.jit.ScriptModule, x: Tensor) -> tuple[Tensor, Any]:
    """Return the result of a compiled program, and how many operators Inductor has lowered."""
    from torch._dynamo.utils import counters

    program = jit_passes.to_exported_program(model, x).module()
    counters.clear()
    with torch._inductor.config.patch(freezing=True, compile_threads=1), torch.no_grad():
        return torch.compile(program)(x), counters["inductor"]


def test_inductor_keeps_what_coverage_promises() -> None:
    batches = data(2, 4, 8, 8)
    model = quantized(Sum(), batches, "inductor")
    found, counts = compiled(model, batches[0])
    convolutions = counts["qconv_unary_lower_count"] + counts["qconv2d_binary_lower_count"]
    assert counts["qconv2d_binary_lower_count"] == 1
    assert convolutions + counts["qlinear_unary_lower_count"] == promised(model) == 3
    assert found.std() > 0 and apart(found, model, batches[0]) < 1.01


def test_inductor_quantizes_inputs_as_it_runs() -> None:
    [x] = data(8, 16, count=1)
    model = quantized(nn.Linear(16, 8), [x], "inductor", mode="dynamic")
    found, counts = compiled(model, x)
    assert counts["qlinear_unary_lower_count"] == promised(model) == 1
    torch.testing.assert_close(found, model(x), rtol=1e-5, atol=1e-5)
