"""Weights that a scripted model casts to the dtype of what comes in."""

from __future__ import annotations

import pytest
import torch
from torch import Tensor, nn

import jit_passes
from jit_passes import _C
from tests.quantizing import seeded

pytestmark = pytest.mark.filterwarnings("ignore")  # PyTorch's, of its quantized tensors


class Casting(nn.Linear):
    """As timm's classifiers are scripted."""

    def forward(self, x: Tensor) -> Tensor:
        bias = self.bias.to(dtype=x.dtype) if self.bias is not None else None
        return nn.functional.linear(x, self.weight.to(dtype=x.dtype), bias=bias)


class Net(nn.Module):
    """A convolution, whose weight says the dtype of all that follows, and such a classifier."""

    def __init__(self) -> None:
        super().__init__()
        self.conv, self.norm, self.head = nn.Conv2d(3, 8, 3), nn.BatchNorm2d(8), Casting(8, 4)

    def forward(self, x: Tensor) -> Tensor:
        return self.head(torch.relu(self.norm(self.conv(x))).mean((2, 3)))


class Alone(nn.Module):
    """The caller says the dtype."""

    def __init__(self) -> None:
        super().__init__()
        self.head = Casting(8, 4)

    def forward(self, x: Tensor) -> Tensor:
        return self.head(x)


def images() -> Tensor:
    return torch.randn(2, 3, 9, 9)


@pytest.mark.parametrize("target", ["reference", "stock", "x86"])
def test_weights_are_constant(target: str) -> None:
    model = seeded(Net)
    x = images()
    quantized = jit_passes.quantize_script(
        torch.jit.script(model), [x, -x], target=target, progress=False
    )
    assert [row.dtype for row in jit_passes.coverage(quantized)] == ["int8", "int8"]
    with torch.no_grad():
        noise = (quantized(x) - model(x)).square().sum()
        assert 10 * (model(x).square().sum() / noise).log10() > 25


def test_in_training() -> None:
    """The parameters stay, and get scales."""
    script = torch.jit.script(seeded(Net).train())
    qat = jit_passes.prepare_qat(script, target="stock")
    assert [row.dtype for row in jit_passes.coverage(qat)] == ["int8", "int8"]
    qat(images()).square().sum().backward()
    gradient = qat.head.weight.grad
    assert gradient is not None and gradient.abs().sum() > 0
    assert dict(qat.named_parameters())["head.weight"].shape == (4, 8)


def test_a_dtype_that_nothing_tells() -> None:
    """The layer stays in float, with the reason, and the model goes on taking any dtype."""
    script = torch.jit.script(seeded(Alone))
    inspected = jit_passes.inspect(script, target="stock")
    (row,) = inspected
    assert row.dtype == "float" and "computed by the model" in row.reason
    normalized = jit_passes.Pipeline("normalize", ("freeze", "simplify")).run(script).module
    x = torch.randn(3, 8, dtype=torch.float64)
    with torch.no_grad():
        assert torch.equal(normalized(x), script(x)) and normalized(x).dtype == torch.float64


class Mixed(nn.Module):
    """Operators on whole numbers, truths and floats."""

    def __init__(self) -> None:
        super().__init__()
        self.scale = nn.Parameter(torch.ones(4))

    def forward(self, n: Tensor) -> tuple[Tensor, Tensor, Tensor, Tensor, Tensor]:
        scaled = n * self.scale
        floats = torch.sigmoid(n).flatten()
        truths = (scaled > 0).flip(0)
        _, part = scaled.t().chunk(2)
        return n.abs(), n.flatten() + floats, truths.t(), n.to(torch.float32).neg(), part.abs()


@pytest.mark.parametrize("dtype", [torch.int32, torch.int64])
def test_operators_that_compute_with_floats(dtype: torch.dtype) -> None:
    """The results tell, where the model takes whole numbers."""
    module = torch.jit.freeze(torch.jit.script(Mixed().eval()))
    told = _C.float_operators(module._c, "forward")
    graph = jit_passes.GraphView.of(module)
    makers = [value.producer for value in graph.outputs[0].producer.inputs]
    results = module(torch.ones(2, 4, dtype=dtype))
    found = [told[maker.index] for maker in makers]
    assert found == [result.is_floating_point() for result in results]
    assert found == [False, True, False, True, True]
