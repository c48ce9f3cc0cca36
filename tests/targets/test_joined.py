"""Operators that are computed as one: selection, the reference model and plans have one answer."""

from __future__ import annotations

from collections.abc import Callable

import pytest
import torch
from torch import Tensor, nn

import jit_passes
from jit_passes import GraphView
from jit_passes.targets import resolve_target
from jit_passes.targets.integer_operators import UnitFinder
from tests.compare import sqnr
from tests.plans import plans_in

Function = Callable[["Layers", Tensor, Tensor], Tensor]


class Layers(nn.Module):
    """A function of the results of two convolutions, in front of a third."""

    def __init__(self, function: Function, channels: int) -> None:
        super().__init__()
        self.a, self.b, self.c = (nn.Conv2d(3, 4, 3, padding=1) for _ in range(3))
        self.norm = nn.BatchNorm2d(8).eval()
        self.last, self.function = nn.Conv2d(channels, 2, 1), function

    def forward(self, x: Tensor, y: Tensor) -> Tensor:
        return self.last(self.function(self, x, y))


# By case: the function, the channels that it gives, and the units between input and last layer.
CASES: dict[str, tuple[Function, int, str]] = {
    "clip": (lambda n, x, y: n.a(x).relu(), 4, "conv2d relu"),
    "clip beside another reader": (
        lambda n, x, y: torch.cat([(z := n.a(x)).clamp(-0.5, 0.5), z.sigmoid()], 1), 8,
        "conv2d, clamp, sigmoid, cat",
    ),
    "clip without 0": (lambda n, x, y: n.a(x).clamp(0.1, 0.5), 4, "conv2d, clamp"),
    "table": (
        lambda n, x, y: n.a(x).sigmoid().mul(0.5).tanh(), 4, "conv2d, sigmoid mul tanh"
    ),
    "table of two readers": (
        lambda n, x, y: (z := n.a(x).sigmoid()).tanh() * z.square(), 4,
        "conv2d, sigmoid tanh square mul",
    ),
    "tables of two tensors": (
        lambda n, x, y: n.a(x).sigmoid() * n.b(y).tanh(), 4, "conv2d, sigmoid, conv2d, tanh, mul"
    ),
    "sum": (lambda n, x, y: n.a(x) + n.b(y).relu(), 4, "conv2d add, conv2d relu"),
    "sum of two layers": (lambda n, x, y: n.a(x) + n.b(y), 4, "conv2d, conv2d add"),
    "sum beside another reader": (
        lambda n, x, y: torch.cat([(z := n.a(x)) + n.b(y).relu(), z], 1), 8,
        "conv2d, conv2d relu, add, cat",
    ),
    "sum behind a move": (
        lambda n, x, y: n.a(x).transpose(2, 3) + n.b(y).sigmoid(), 4,
        "conv2d, transpose, conv2d, sigmoid, add",
    ),
    "parts": (
        lambda n, x, y: n.norm(torch.cat([n.a(x), n.b(y).sigmoid()], 1)), 8,
        "conv2d, conv2d, sigmoid, cat batch_norm",
    ),
    "parts of parts": (
        lambda n, x, y: torch.cat([torch.cat([n.a(x), n.b(y).sigmoid()], 1), n.c(x).tanh()], 1),
        12, "conv2d, conv2d, sigmoid, cat cat, conv2d, tanh",
    ),
    "parts beside another reader": (
        lambda n, x, y: n.norm(z := torch.cat([n.a(x), n.b(y).sigmoid()], 1)) * z.mean(1, True),
        8, "conv2d, conv2d, sigmoid, cat, batch_norm, mean, mul",
    ),
    "parts along another axis": (
        lambda n, x, y: torch.cat([torch.cat([n.a(x), n.b(y).sigmoid()], 1)] * 2, 2), 8,
        "conv2d, conv2d, sigmoid, cat, cat",
    ),
}  # fmt: skip


@pytest.mark.parametrize("name", CASES)
def test_one_answer(name: str) -> None:
    """A result that selection leaves in float is within a unit, and a unit is one operator."""
    function, channels, expected = CASES[name]
    torch.manual_seed(0)
    x, y = torch.randn(2, 2, 3, 8, 8)
    model = torch.jit.trace(Layers(function, channels).eval(), (x, y))
    prepared = jit_passes.prepare(model, target="x86", mode="static")
    reference = jit_passes.convert(jit_passes.calibrate(prepared, [(x, y)], progress=False))
    found = UnitFinder(GraphView.of(reference), resolve_target("x86")).read().found
    assert not found.floats
    units = [" ".join(node.kind.removeprefix("aten::") for node in unit) for unit in found.units]
    assert units == [*expected.split(", "), "conv2d"]
    lowered = jit_passes.lower(reference)
    (plan,) = plans_in(lowered)
    *lines, _ = str(plan).splitlines()
    kinds = [line.partition(" = ")[2].partition("(")[0] for line in lines]
    assert len(units) == sum(kind not in ("input", "quantize") for kind in kinds), plan
    with torch.no_grad():
        assert sqnr(lowered(x, y), model(x, y)) > 25
