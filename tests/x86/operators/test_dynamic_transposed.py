"""Dynamic transposed convolutions in plans: against a slow one, and the reference model."""

from __future__ import annotations

import random
from typing import Any

import pytest
import torch
from torch import Tensor, nn
from torch.nn import functional as F

import jit_passes
from tests.compare import sqnr
from tests.plans import plan_of, traced
from tests.seeds import seeds
from tests.x86.lowering.test_fused import kernels
from tests.x86.operators.test_dynamic import BEHIND_OTHERS, EXACT, close
from tests.x86.operators.test_dynamic_convolution import FORMS, Dynamic, forms
from tests.x86.operators.test_floats import kinds_of
from tests.x86.operators.test_transposed import draw_layer, fewest
from tests.x86.program.test_state import mutate, restored

KIND = "transposed_convolution_dynamic"


def slow(net: Dynamic, x: Tensor) -> Tensor:
    """Return the result in float64, of integers that are exact there."""
    codes, scale, zero = net.codes(x)
    layer: Any = net.layer.layer
    dims = len(layer.kernel_size)
    function = getattr(F, f"conv_transpose{dims}d")
    options = (layer.stride, layer.padding, layer.output_padding, layer.groups, layer.dilation)
    sums = function(codes.double() - zero.double(), net.layer.codes.double(), None, *options)
    trailing = (-1, *(1,) * dims)
    scales = net.layer.scales.float().double().repeat(layer.groups).reshape(trailing)
    result = sums * scale.double() * scales
    return result if layer.bias is None else result + layer.bias.reshape(trailing)


@forms
@pytest.mark.parametrize("seed", seeds(16, few=8))
def test_one_layer(seed: int, form: tuple[str, str]) -> None:
    """Any window, stride, padding and groups; inputs with a batch, without one, and of none."""
    torch.manual_seed(seed)
    draw = random.Random(seed)
    layer = draw_layer(draw, draw.choice([1, 2, 2, 3]))
    size = [n + draw.randint(0, 6) for n in fewest(layer)]
    channels = layer.in_channels
    net = Dynamic(layer, form)
    plan = plan_of(traced(net, torch.randn(2, channels, *size)))
    assert kinds_of(plan) == ["input", KIND]
    dims = len(size)
    for batch in ((2,), (1,), ()):
        for scale, middle in ((1.0, 0.0), (1e-3, 5e-3), (1e4, -1e4)):
            x = scale * torch.randn(*batch, channels, *size) + middle
            last = x.movedim(-dims - 1, -1).contiguous().movedim(-1, -dims - 1)
            for given in (x, last):
                (found,) = plan.run([given])
                close(found, slow(net, x), EXACT)
                close(found, net(x), 1e-5)  # float32 of hundreds of products
    none = x.new_zeros(0, channels, *size)
    assert plan.run([none])[0].shape == net(none).shape


def test_results_that_no_tap_reaches() -> None:
    """Results hold the bias, and the operand that is added."""
    torch.manual_seed(0)
    net = Dynamic(nn.ConvTranspose2d(3, 5, 1, 3))
    plan, x = plan_of(traced(net, torch.randn(1, 3, 4, 4))), torch.randn(2, 3, 6, 5)
    (found,) = plan.run([x])
    close(found, slow(net, x), EXACT)
    assert torch.equal(found[:, :, 1, 1], net.layer.layer.bias.expand(2, 5))


class Decoder(nn.Module):
    """Readers of one value, functions and a sum behind transposed convolutions."""

    def __init__(self) -> None:
        super().__init__()
        self.down = nn.Conv2d(3, 12, 3, 2, 1)
        self.up, self.side = nn.ConvTranspose2d(12, 12, 4, 2, 1), nn.ConvTranspose2d(12, 12, 2, 2)
        self.skip, self.last = nn.Conv2d(3, 12, 1), nn.ConvTranspose2d(12, 5, 3, 1, 1)

    def forward(self, x: Tensor) -> Tensor:
        y = F.relu(self.down(x))
        y = F.silu(self.up(y)) + self.side(y)
        return self.last(self.skip(x) + y)


def test_a_decoder() -> None:
    """One plan without data, as the reference computes it; a function is part of its layer."""
    torch.manual_seed(0)
    model, x = torch.jit.script(Decoder().eval()), torch.randn(2, 3, 24, 20)
    lowered = jit_passes.quantize_script(model, mode="dynamic", target="x86")
    assert {row.mode for row in jit_passes.coverage(lowered)} == {"dynamic"}
    assert not {n.kind for n in jit_passes.GraphView.of(lowered).nodes if "aten::" in n.kind}
    reference = jit_passes.convert(jit_passes.prepare(model, mode="dynamic", target="x86"))
    (region,) = jit_passes.partition(reference, "x86").regions
    names = kernels(plan_of(region.module), x)
    assert sum(name.startswith("dynamic transposed") for name in names) == 3
    assert "function" not in names and any(name.endswith("+ add") for name in names)
    for batch in (x, x[:1, :, :14, :18], 3 * x + 1):
        close(lowered(batch), reference(batch), BEHIND_OTHERS)
        assert sqnr(lowered(batch), model(batch)) > 30


def test_threads_and_states() -> None:
    torch.manual_seed(0)
    net, x = Dynamic(nn.ConvTranspose2d(24, 40, 4, 2, 1), FORMS[1]), torch.randn(2, 24, 17, 19)
    plan = plan_of(traced(net, x))
    before = torch.get_num_threads()
    try:
        torch.set_num_threads(1)
        (expected,) = plan.run([x])
        for number in (2, 5):
            torch.set_num_threads(number)
            assert torch.equal(plan.run([x])[0], expected)
    finally:
        torch.set_num_threads(before)
    state = plan.__getstate__()[0]  # of weights that are packed
    assert torch.equal(restored(state).run([x])[0], expected)
    refused, ran = mutate(plan, x, 200)
    assert refused > 20 and ran > 0
