"""Inductor computes on integers what the capability of its target promises."""

from __future__ import annotations

from typing import Any

import pytest
import torch
from torch import Tensor, nn

import jit_passes
from jit_passes.export.aoti import has_int8_patterns
from jit_passes.report.conformance.engines import Inductor
from jit_passes.report.conformance.subject import Subject
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


class Kept(nn.Module):
    """Sums of linears with an argument, a copy of it, a part of it, and two constants."""

    def __init__(self) -> None:
        super().__init__()
        self.linears = nn.ModuleList(nn.Linear(16, 16) for _ in range(5))
        self.places = nn.Parameter(torch.randn(8, 16))

    def forward(self, x: Tensor) -> list[Tensor]:
        y = x[4:12]
        others = [x[:8], x[:8].clone(), x[8:], self.places, self.places * 2]
        results: list[Tensor] = []
        for k, linear in enumerate(self.linears):
            results.append(torch.add(others[k], linear(y), alpha=1.0))
        return results


class Times(nn.Module):
    """Sums in which a factor stands before a linear and a convolution."""

    def __init__(self) -> None:
        super().__init__()
        self.linear, self.conv = nn.Linear(16, 16), nn.Conv2d(4, 4, 1)

    def forward(self, x: Tensor) -> tuple[Tensor, Tensor]:
        y = torch.add(torch.tanh(x), self.linear(x), alpha=3)
        image = x.unflatten(1, (4, 2, 2))
        return y, torch.tanh(torch.add(image, self.conv(image), alpha=3))


class Residuals(nn.Module):
    """A sum with the argument, one with a sum, and a layer norm that reads floats."""

    def __init__(self) -> None:
        super().__init__()
        self.norms = nn.ModuleList(nn.LayerNorm(16) for _ in range(3))
        self.linears = nn.ModuleList(nn.Linear(16, 16) for _ in range(3))

    def forward(self, x: Tensor) -> Tensor:
        for norm, linear in zip(self.norms, self.linears, strict=False):
            x = x + linear(torch.nn.functional.gelu(norm(x)))
        return x


pytestmark = [
    pytest.mark.skipif(not torch.cpu._is_vnni_supported(), reason="its patterns are for VNNI"),
    pytest.mark.skipif(
        not has_int8_patterns(), reason="this torch has left its int8 patterns to torchao"
    ),
    # Of Inductor's own code.
    pytest.mark.filterwarnings("ignore:To copy construct from a tensor:UserWarning"),
]


def compiled(model: torch.jit.ScriptModule, x: Tensor) -> tuple[Any, Any]:
    """Return the result of a compiled program, and how many operators Inductor has lowered.

    The program is called twice, with equal arguments, which it must leave as they are.
    """
    from torch._dynamo.utils import counters

    program = jit_passes.to_exported_program(model, x).module()
    counters.clear()
    given = x.clone()
    with torch._inductor.config.patch(freezing=True, compile_threads=1), torch.no_grad():
        run = torch.compile(program)
        run(given)
        found = run(given)
    assert torch.equal(given, x)
    return found, counters["inductor"]


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


@pytest.mark.parametrize("mode", ["static", "dynamic"])
def test_arguments_and_constants_are_there_after_a_call(mode: str) -> None:
    """Inductor adds a linear to the other operand in place, whatever that is."""
    [x] = data(16, 16, count=1)
    torch.manual_seed(0)
    model = quantized(Kept(), [x], "inductor", mode=mode)
    found, counts = compiled(model, x)
    assert counts["qlinear_unary_lower_count"] == promised(model) == 5
    torch.testing.assert_close(found, model(x), rtol=1e-5, atol=1e-5)


def test_factors_of_sums_count() -> None:
    """Inductor leaves the factor out of a sum with an operator on integers."""
    [x] = data(8, 16, count=1)
    torch.manual_seed(0)
    model = quantized(Times(), [x], "inductor")
    found, _ = compiled(model, x)
    assert promised(model) == 2
    torch.testing.assert_close(found, model(x), rtol=1e-5, atol=1e-5)


def test_sums_in_float_are_part_of_linears() -> None:
    """No result is rounded that floats alone read; a sum with the argument stays apart."""
    batches = data(8, 16)
    torch.manual_seed(0)
    network = Residuals()
    model = quantized(network, batches, "inductor")
    assert len(jit_passes.encodings_of(model).activations) == promised(model) == 3
    found, counts = compiled(model, batches[0])
    assert (counts["qlinear_unary_lower_count"], counts["qlinear_binary_lower_count"]) == (1, 2)
    torch.testing.assert_close(found, model(batches[0]), rtol=1e-4, atol=1e-4)


class Added(nn.Module):
    """A sum of an argument with a linear of another one."""

    def __init__(self) -> None:
        super().__init__()
        self.linear = nn.Linear(16, 16)

    def forward(self, x: Tensor, y: Tensor) -> Tensor:
        return x + self.linear(y)


def test_conformance_leaves_arguments_as_they_are() -> None:
    """Other engines read them too, also of models that are not for Inductor."""
    x, y = data(8, 16, count=2)
    given = x.clone()
    model = quantized(Added(), [(x, y)], "openvino")
    Inductor(Subject.of(model, "forward"))(((x, y), {}))
    assert torch.equal(x, given)
