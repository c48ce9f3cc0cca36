"""Large channels of what residual sums take, divided ahead of rounding and multiplied behind it."""

from __future__ import annotations

import math
from typing import Any

import pytest
import torch
from torch import Tensor, nn
from torch.nn import functional as F

import jit_passes
from jit_passes import GraphView
from jit_passes.configuration.stages import StageOptions
from jit_passes.stages.prepare import prepare_for
from jit_passes.stages.staged import Staged
from jit_passes.targets import X86, Reference

WIDTH, LARGE = 32, (3, 20)


class Block(nn.Module):
    """Two linears with a gelu, added to their input, and a layer norm behind the sum."""

    def __init__(self) -> None:
        super().__init__()
        self.up, self.down = nn.Linear(WIDTH, 2 * WIDTH), nn.Linear(2 * WIDTH, WIDTH)
        self.norm = nn.LayerNorm(WIDTH)
        with torch.no_grad():
            self.down.weight[[*LARGE]] *= 100
            self.down.bias[[*LARGE]] *= 100

    def forward(self, x: Tensor) -> Tensor:
        return self.norm(x + self.down(F.gelu(self.up(x))))


class Net(nn.Module):
    """Blocks between a layer norm and a linear, with axes moved ahead of the second sum."""

    def __init__(self) -> None:
        super().__init__()
        self.first, self.norm = nn.Linear(8, WIDTH), nn.LayerNorm(WIDTH)
        self.one, self.two = Block(), Block()
        self.last = nn.Linear(WIDTH, 8)

    def forward(self, x: Tensor) -> Tensor:
        y = self.one(self.norm(self.first(x)))
        z = self.two.down(F.gelu(self.two.up(y))).transpose(0, 1).transpose(0, 1)
        return self.last(self.two.norm(y + z))


def net() -> torch.jit.ScriptModule:
    torch.manual_seed(0)
    return torch.jit.script(Net().eval())


def batches(count: int, seed: int) -> list[Tensor]:
    generator = torch.Generator().manual_seed(seed)
    return [torch.randn(4, 6, 8, generator=generator) for _ in range(count)]


DATA, TEST = batches(4, 1), batches(1, 2)[0]


def products(model: torch.jit.ScriptModule) -> dict[str, Tensor]:
    """Return the constants that results of linears are multiplied by, by the linear's path."""
    return {
        node.name.partition(":")[0]: node.inputs[1].constant
        for node in GraphView.of(model).nodes
        if node.kind == "aten::mul"
        and isinstance(node.inputs[1].constant, Tensor)
        and node.inputs[1].constant.is_floating_point()
    }


def made(model: torch.jit.ScriptModule, **options: Any) -> torch.jit.ScriptModule:
    options = {"target": "reference", "mode": "static", "progress": False, **options}
    return jit_passes.quantize_script(model, DATA, **options)


def test_the_factors() -> None:
    """s_j = max(1, max|Y_j| / median), Y by the layers in double; codes of Y / s take one grid."""
    torch.manual_seed(0)
    double, model = Net().eval().double(), net()
    kept: list[Tensor] = []
    double.two.down.register_forward_hook(lambda layer, args, result: kept.append(result))
    with torch.no_grad():
        for batch in DATA:
            double(batch.double())
    largest = torch.cat(kept).abs().amax((0, 1))
    expected = (largest / largest.median()).clamp_min(1)
    quantized = made(model)
    found = products(quantized)
    assert found.keys() == {"one.down", "two.down"}
    torch.testing.assert_close(found["two.down"].double(), expected, rtol=1e-5, atol=0)
    assert set((found["two.down"] > 20).nonzero().flatten().tolist()) == {*LARGE}
    assert (found["two.down"] == 1).sum() >= WIDTH // 2


def test_the_function_stays() -> None:
    """The model with observers computes what the model does."""
    model, backend = net(), Reference()
    quantizer = backend.quantizer()
    staged = Staged(StageOptions(), model, DATA, False, quantizer, progress=False)
    prepared = prepare_for(model, backend, quantizer, change=staged.change)
    assert products(prepared).keys() == {"one.down", "two.down"}
    with torch.no_grad():
        torch.testing.assert_close(prepared(TEST), model(TEST), rtol=1e-4, atol=1e-5)


@pytest.mark.parametrize("target", ["reference", "stock"])
def test_the_error(target: str) -> None:
    """Small channels have steps as their ranges ask for, not as the largest one does."""
    model = net()
    with torch.no_grad():
        expected = model(TEST)
        errors = [
            float((made(model, target=target, smooth=smooth)(TEST) - expected).square().mean())
            for smooth in ("auto", None)
        ]
    assert 10 * math.log10(errors[1] / errors[0]) > 5


def test_sums_that_take_float() -> None:
    """On x86 a sum takes a result in float32, but not through a transpose."""
    rows = {row.name: row for row in jit_passes.coverage(made(net(), target="x86"))}
    scaled = {name for name, row in rows.items() if "divided" in row.remark}
    assert scaled == {"two.down:linear"}
    with torch.no_grad():
        expected = net()(TEST)
        own, other = (
            float((quantized(TEST) - expected).square().mean())
            for quantized in (
                made(net(), target=target, weight_rounding=None) for target in ("x86", "reference")
            )
        )
    assert own < 1.1 * other


@pytest.mark.parametrize(
    "options",
    [
        {"mode": "dynamic"},
        {"mode": "weight_only"},
        {"smooth": None},
        {"target": "fixed_point"},
        {"target": X86(integer_layer_norm=True)},
    ],
    ids=str,
)
def test_where_not(options: dict[str, Any]) -> None:
    """Results stay as they are where they are not rounded, or sums and products are on integers."""
    quantized = made(net(), **options)
    remarks = [row.remark for row in jit_passes.coverage(quantized)]
    assert not any("divided" in remark for remark in remarks)
    assert not products(quantized).keys() & {"one.down", "two.down"}


class Read(nn.Module):
    """A block whose sum a convolution reads too, or whose linear has a second reader."""

    def __init__(self, reader: str) -> None:
        super().__init__()
        self.reader = reader
        self.one = Block()
        self.last = nn.Conv1d(6, 6, 1)

    def forward(self, x: Tensor) -> Tensor:
        y = self.one.down(F.gelu(self.one.up(x)))
        z = x + y
        other = self.last(z) if self.reader == "sum" else torch.sigmoid(y)
        return self.one.norm(z) + other


@pytest.mark.parametrize("reader", ["sum", "linear"])
def test_other_readers(reader: str) -> None:
    torch.manual_seed(0)
    model = torch.jit.trace(Read(reader).eval(), torch.randn(2, 6, WIDTH))
    data = [torch.randn(2, 6, WIDTH) for _ in range(2)]
    options = {"target": "reference", "mode": "static", "progress": False}
    assert not products(jit_passes.quantize_script(model, data, **options))


@pytest.mark.filterwarnings("ignore:.*trace the model in float32")
def test_weights_of_other_types() -> None:
    """A linear in bfloat16 stays in float, so nothing is gained by rounding its weight anew."""
    torch.manual_seed(0)
    with torch.autocast("cpu", dtype=torch.bfloat16):
        model = torch.jit.trace(Net().eval(), TEST, check_trace=False)
    assert not products(made(model))


def test_rules_change_no_products() -> None:
    """A layer that a rule makes dynamic is scaled as others, so variants of a model are one graph.

    Without a rule, `auto` makes the linears of this net static too.
    """
    rules = [{"module": "one.down", "mode": "dynamic"}]
    config = {"version": 1, "rules": rules}
    for options in ({"config": config}, {"mode": "auto"}):
        assert products(made(net(), **options)).keys() == {"one.down", "two.down"}


def test_reports() -> None:
    """Coverage says so at the layer, and `compare` leaves out results that are others."""
    model = net()
    quantized = made(model)
    remarks = {row.name: row.remark for row in jit_passes.coverage(quantized)}
    assert "divided by up to 1" in remarks["one.down:linear"]
    assert remarks["one.up:linear"] == "the range of its result gives one:gelu the least error"
    compared = {row.name for row in jit_passes.compare(model, quantized, DATA).rows}
    assert "one.up:linear" in compared and "one.down:linear" not in compared


class Checked(nn.Module):
    """A model that may raise an error: such an operator has no result."""

    def __init__(self) -> None:
        super().__init__()
        self.net = Net()

    def forward(self, x: Tensor) -> Tensor:
        if x.shape[0] > 8:
            raise ValueError("too large a batch")
        return self.net(x)


def test_operators_without_a_result() -> None:
    torch.manual_seed(0)
    quantized = jit_passes.quantize_script(
        torch.jit.script(Checked().eval()), DATA, target="x86", mode="static", progress=False
    )
    assert products(quantized).keys() <= {"net.one.down", "net.two.down"}
    with pytest.raises(torch.jit.Error, match="too large a batch"):
        quantized(TEST.repeat(9, 1, 1))
