"""Plans that compute numbers of sizes, as 1 / sqrt(width), and take the shape of other values."""

from __future__ import annotations

import io
import math
from typing import Any

import pytest
import torch
from torch import Tensor, nn
from torch.nn import functional as F

import jit_passes
from jit_passes.graph.view import GraphView
from tests.advice import traced_branches
from tests.compare import sqnr
from tests.plans import plan_of, plans_in, scripted
from tests.x86.building.test_numbers import SUM
from tests.x86.program.test_state import MUTATIONS, mutate, restored

HEADS, WIDTH = 4, 32


class Attention(nn.Module):
    """Attention of words whose number of axes no graph tells; its scale is written in one way."""

    def __init__(self, way: str) -> None:
        super().__init__()
        self.words, self.way, self.heads = nn.Embedding(50, WIDTH), way, HEADS
        self.q, self.k, self.v, self.out = (nn.Linear(WIDTH, WIDTH) for _ in range(4))

    def split(self, x: Tensor) -> Tensor:
        return x.reshape(x.size(0), x.size(1), self.heads, -1).transpose(1, 2)

    def forward(self, ids: Tensor) -> Tensor:
        x = self.words(ids)
        q, k, v = self.split(self.q(x)), self.split(self.k(x)), self.split(self.v(x))
        if self.way == "fused":
            mixed = F.scaled_dot_product_attention(q, k, v)
        elif self.way == "causal":
            mixed = F.scaled_dot_product_attention(q, k, v, is_causal=True)
        else:
            mixed = torch.matmul(torch.softmax(self.scores(q, k), -1), v)
        return self.out(mixed.transpose(1, 2).reshape(x.shape)) + x

    def scores(self, q: Tensor, k: Tensor) -> Tensor:
        k = k.transpose(-2, -1)
        if self.way == "power":
            return q @ k * q.size(-1) ** -0.5
        if self.way == "root":
            return q @ k / math.sqrt(q.size(-1))
        if self.way == "inverse":
            return q @ k * (1.0 / math.sqrt(k.size(-2)))
        return (q / q.size(-1) ** 0.25) @ (k / k.size(2) ** 0.25)


@traced_branches
@pytest.mark.parametrize("mode", ["auto", "static"])
@pytest.mark.parametrize("form", ["scripted", "traced"])
@pytest.mark.parametrize("way", ["fused", "causal", "power", "root", "inverse", "both"])
def test_scales_of_attention(way: str, form: str, mode: str) -> None:
    """One plan, which a file keeps, for other sizes too.

    Two where the mask of a script hangs on the second size of what a layer gives, which may be its
    features.
    """
    torch.manual_seed(0)
    model = Attention(way).eval()
    data = [torch.randint(50, (2, 7)), torch.arange(50).view(50, 1)]
    made = torch.jit.script(model) if form == "scripted" else torch.jit.trace(model, data[0])
    quantized = jit_passes.quantize_script(made, data, target="x86", mode=mode, progress=False)
    assert len(plans_in(quantized)) == 1 + (way == "causal" and form == "scripted")
    buffer = io.BytesIO()
    torch.jit.save(quantized, buffer)
    buffer.seek(0)
    loaded = torch.jit.load(buffer)
    with torch.no_grad():
        for sizes in ((2, 7), (1, 1), (3, 12)):
            ids = torch.randint(50, sizes)
            assert sqnr(model(ids), quantized(ids)) > 25
            assert torch.equal(loaded(ids), quantized(ids))


Eight = tuple[Tensor, Tensor, Tensor, Tensor, Tensor, Tensor, Tensor, Tensor]


class Scaled(nn.Module):
    """Products and quotients with powers of a size, in float32."""

    def forward(self, x: Tensor, other: Tensor) -> Eight:
        x, other = F.hardswish(x), F.hardswish(other)
        n, m = x.size(-1), other.size(0)
        return (
            x * n**-0.5,
            x / math.sqrt(n),
            x * (1 / math.sqrt(float(m))),
            x / m,
            x * (2.5 / n) * (n / 4),
            other * (3 * m + 1) ** 0.5,
            other + n**-1.5,
            other * math.sqrt(math.sqrt(n) * 9.0),
        )


def test_powers_of_sizes() -> None:
    """The bits of PyTorch, but for the last one of a number that it rounds in double first."""
    shapes = [((4, 6), (3, 5)), ((2, 3, 7), (9, 2)), ((1, 1), (1, 1))]
    region = scripted(Scaled())
    plan = plan_of(region)
    names = [texts[0] for texts, _, _ in plan.__getstate__()[0][2]]
    assert names.count("power") == 9 and "constant" not in names
    for pair in shapes:
        inputs = [torch.randn(shape) for shape in pair]
        for got, want in zip(plan.run(inputs), region(*inputs), strict=True):
            assert got.shape == want.shape
            assert torch.allclose(got, want, rtol=2.0**-22, atol=0)


class Shaped(nn.Module):
    """Reshapes and expansions to all sizes of another value, of as many axes as come."""

    def forward(self, x: Tensor, other: Tensor) -> tuple[Tensor, Tensor]:
        x, other = F.hardswish(x), F.hardswish(other)
        same = x.reshape(other.shape)
        return F.relu(same), F.relu(same.unsqueeze(0).expand(other.unsqueeze(0).size()))


def test_all_sizes_of_a_value() -> None:
    """One plan for any number of axes; elements that do not fit are an error of the call."""
    region = scripted(Shaped())
    plan = plan_of(region)
    for pair in (((6, 4), (2, 3, 4)), ((2, 3, 4), (24,)), ((5,), (5, 1)), ((0, 3), (3, 0))):
        inputs = [torch.randn(shape) for shape in pair]
        for got, want in zip(plan.run(inputs), region(*inputs), strict=True):
            assert torch.equal(got, want)
    with pytest.raises(RuntimeError, match="reshape"):
        plan.run([torch.randn(6, 4), torch.randn(5, 5)])


def test_numbers_that_follow_from_sizes() -> None:
    """`ValueView.from_sizes` of floats, and of the tensors that a trace has for numbers."""

    class Net(nn.Module):
        def forward(self, x: Tensor, scale: float) -> Tensor:
            return x * x.size(1) ** -0.5 * (scale * x.size(0))

    def found(module: torch.jit.ScriptModule) -> dict[str, bool]:
        graph = GraphView.of(module._c, "forward")
        kinds = ("aten::pow", "prim::NumToTensor", "aten::size", "aten::mul")
        return {
            node.kind: node.output.from_sizes
            for node in graph.nodes
            if node.kind in kinds and not (node.output.is_tensor and node.kind == "aten::mul")
        }

    script = torch.jit.script(Net())
    assert found(script) == {"aten::size": True, "aten::pow": True, "aten::mul": False}

    class Traced(nn.Module):
        def forward(self, x: Tensor) -> Tensor:
            return x * x.size(1) ** -0.5

    traced = torch.jit.trace(Traced(), torch.randn(2, 3))
    assert found(traced) == {"aten::size": True, "prim::NumToTensor": True, "aten::pow": True}


def test_powers_of_differences_of_sizes() -> None:
    """Of numbers below 0 too, where the power is whole; the root of a square has no sign."""

    class Differences(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.first, self.last = nn.Linear(16, 16), nn.Linear(16, 8)

        def forward(self, x: Tensor) -> Tensor:
            y = self.first(x)
            n = y.size(1) - 5
            y = torch.where(y > n, torch.tanh(y), y * 0.1) + n
            return self.last(y * (n - 1) ** 2 + y / (n - 9) + y * ((n - 9) ** 2) ** 0.5)

    torch.manual_seed(0)
    model = Differences().eval()
    data = torch.randn(3, 5, 16)
    found = jit_passes.quantize_script(
        torch.jit.script(model), [data], mode="dynamic", target="x86"
    )
    with torch.no_grad():
        for tokens in (5, 3, 4, 7):
            x = torch.randn(3, tokens, 16)
            assert sqnr(model(x), found(x)) > 28, tokens


def plan_with_powers() -> Any:
    """A plan whose numbers are powers, and all sizes of a value."""

    class Both(nn.Module):
        def forward(self, x: Tensor, other: Tensor) -> Tensor:
            x, other = F.hardswish(x), F.hardswish(other)
            return F.relu(x.reshape(other.shape) * x.size(1) ** -0.5)

    return plan_of(scripted(Both()))


def test_mutated_states() -> None:
    """Each is an error, or a plan that runs; none is a crash."""
    refused, ran = mutate(plan_with_powers(), [torch.randn(6, 4), torch.randn(2, 12)], MUTATIONS)
    assert refused > 100 and ran > 30


def test_all_sizes_in_the_place_of_one() -> None:
    """As an operand of a sum, and as one of several attributes."""
    lists, scales, operators = plan_with_powers().__getstate__()[0]
    numbers = lists[3]
    with pytest.raises(RuntimeError, match="is made of none"):
        restored(([*lists[:3], [*numbers, SUM, 0, 0]], scales, operators))
    (place,) = (parts[3][1] for texts, parts, _ in operators if texts[0] == "reshape")

    def changed(kind: str, parts: list[list[int]]) -> list[list[int]]:
        return [*parts[:3], [0, place]] if kind == "power" else parts

    others = [(texts, changed(texts[0], parts), tensors) for texts, parts, tensors in operators]
    with pytest.raises(RuntimeError, match="one attribute for all sizes"):
        restored((lists, scales, others))


def test_powers_of_numbers_below_zero() -> None:
    """An error of the call: there is no root."""

    class Difference(nn.Module):
        def forward(self, x: Tensor, other: Tensor) -> Tensor:
            return F.relu(F.hardswish(x) * (x.size(0) - other.size(0)) ** 0.5 + F.hardswish(other))

    plan = plan_of(scripted(Difference()))
    plan.run([torch.randn(3, 4), torch.randn(1, 4)])
    with pytest.raises(RuntimeError, match=r"takes the power 0\.5 of -1, which is below 0"):
        plan.run([torch.randn(1, 4), torch.randn(2, 4)])
