"""Attention of grouped queries, and with a mask that may be there or not, for the target x86."""

from __future__ import annotations

import pytest
import torch
from torch import Tensor, nn
from torch.nn import functional as F

import jit_passes
from tests.compare import sqnr
from tests.plans import plans_in

HEADS, WIDTH = 8, 64


class Attention(nn.Module):
    """The operator alone, on two heads of keys and four of values."""

    def __init__(self, rank: int, causal: bool) -> None:
        super().__init__()
        self.causal = causal
        lead = [-1] * (rank - 3)
        self.keys, self.values = [*lead, 2, 7, 6], [*lead, 4, 7, 6]

    def forward(self, q: Tensor, k: Tensor, v: Tensor) -> Tensor:
        k, v = k.reshape(self.keys), v.reshape(self.values)
        return F.scaled_dot_product_attention(
            q, k, v, is_causal=self.causal, scale=0.3, enable_gqa=True
        )


@pytest.mark.parametrize("how", ["trace", "script"])
@pytest.mark.parametrize("causal", [False, True])
@pytest.mark.parametrize("lead", [(), (1,), (3,)], ids=str)
def test_formula(lead: tuple[int, ...], causal: bool, how: str) -> None:
    """Against PyTorch's operator."""
    torch.manual_seed(0)
    q = torch.randn(*lead, 8, 5, 6, dtype=torch.float64)
    k = torch.randn(*lead, 2, 7, 6, dtype=torch.float64)
    v = torch.randn(*lead, 4, 7, 6, dtype=torch.float64)
    net = Attention(q.dim(), causal).eval()
    model = torch.jit.script(net) if how == "script" else torch.jit.trace(net, (q, k, v))
    frozen = jit_passes.run_pass("freeze", model)
    result = jit_passes.run_pass("expand_attention", frozen)
    assert "scaled_dot_product_attention" not in str(result.graph)
    # Sums of seven numbers near 1.
    torch.testing.assert_close(result(q, k, v), net(q, k, v), rtol=0, atol=1e-14)


class Maybe(nn.Module):
    """Scripts leave it open whether there is a mask, and whether it is causal."""

    def forward(self, q: Tensor, k: Tensor, mask: Tensor | None, causal: bool) -> Tensor:
        y = F.scaled_dot_product_attention(q, k, k, mask, 0.0, causal and mask is None, scale=0.3)
        return F.scaled_dot_product_attention(y, k, k, mask, scale=0.3)


def test_a_mask_that_may_be_none() -> None:
    torch.manual_seed(0)
    q, k = torch.randn(2, 3, 5, 6), torch.randn(2, 3, 7, 6)
    visible = torch.rand(2, 1, 5, 7) < 0.5
    visible[0, 0, 0] = False
    net = Maybe()
    result = jit_passes.run_pass("expand_attention", torch.jit.script(net))
    assert "scaled_dot_product_attention" not in str(result.graph)
    added = torch.randn(2, 1, 5, 7)
    for mask, causal in ((None, False), (None, True), (visible, True), (added, False)):
        expected = net(q, k, mask, causal)
        torch.testing.assert_close(result(q, k, mask, causal), expected, rtol=0, atol=1e-5)


class Layer(nn.Module):
    """A layer of a decoder, whose queries share keys."""

    def __init__(self, key_heads: int, masked: bool) -> None:
        super().__init__()
        self.heads, self.key_heads, self.masked = HEADS, key_heads, masked
        self.size = WIDTH // HEADS
        self.norm = nn.LayerNorm(WIDTH)
        self.q = nn.Linear(WIDTH, WIDTH)
        self.k = nn.Linear(WIDTH, key_heads * self.size)
        self.v = nn.Linear(WIDTH, key_heads * self.size)
        self.out = nn.Linear(WIDTH, WIDTH)

    def forward(self, x: Tensor, mask: Tensor) -> Tensor:
        n, t, _ = x.shape
        y = self.norm(x)
        q = self.q(y).view(n, t, self.heads, self.size).transpose(1, 2)
        k = self.k(y).view(n, t, self.key_heads, self.size).transpose(1, 2)
        v = self.v(y).view(n, t, self.key_heads, self.size).transpose(1, 2)
        added = mask if self.masked else None
        y = F.scaled_dot_product_attention(q, k, v, added, enable_gqa=True)
        return x + self.out(y.transpose(1, 2).reshape(n, t, self.heads * self.size))


@pytest.mark.parametrize("masked", [False, True])
@pytest.mark.parametrize("key_heads", [1, 2, 8])
@pytest.mark.parametrize("how", ["trace", "script"])
@pytest.mark.parametrize("mode", ["static", "dynamic"])
def test_a_layer_is_one_plan(mode: str, how: str, key_heads: int, masked: bool) -> None:
    torch.manual_seed(0)
    net = Layer(key_heads, masked).eval()
    batches = [(torch.randn(2, 10, WIDTH), torch.randn(2, 1, 10, 10)) for _ in range(3)]
    model = torch.jit.script(net) if how == "script" else torch.jit.trace(net, batches[0])
    data = None if mode == "dynamic" else batches
    quantized = jit_passes.quantize_script(model, data, mode=mode, target="x86")
    reference = jit_passes.quantize_script(model, data, mode=mode, target="reference")
    assert len(plans_in(quantized)) == 1
    for batch, tokens in ((2, 10), (1, 7), (5, 33)):
        x = torch.randn(batch, tokens, WIDTH), torch.randn(batch, 1, tokens, tokens)
        expected = net(*x)
        assert sqnr(expected, quantized(*x)) > min(30, sqnr(expected, reference(*x)) - 1)
