"""Decoders as libraries write them: rotary embeddings, repeated keys, rows joined around layers."""

from __future__ import annotations

from typing import Any

import pytest
import torch
from torch import Tensor, nn
from torch.nn import functional as F

import jit_passes
from tests.compare import sqnr
from tests.plans import plans_in

WIDTH, HEADS, KEYS, SIZE = 64, 8, 2, 8


def rotate_half(x: Tensor) -> Tensor:
    half = x.shape[-1] // 2
    return torch.cat((-x[..., half:], x[..., :half]), dim=-1)


def repeat_keys(x: Tensor) -> Tensor:
    """Return [N, heads, T, D] of [N, key heads, T, D]."""
    n, heads, tokens, size = x.shape
    x = x[:, :, None, :, :].expand(n, heads, 4, tokens, size)
    return x.reshape(n, heads * 4, tokens, size)


class Norm(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.weight = nn.Parameter(1 + 0.1 * torch.randn(WIDTH))

    def forward(self, x: Tensor) -> Tensor:
        y = x.to(torch.float32)
        y = y * torch.rsqrt(y.pow(2).mean(-1, keepdim=True) + 1e-6)
        return self.weight * y.to(torch.float32)


class Llama(nn.Module):
    """A layer, with the angles of its positions."""

    def __init__(self, fused: bool) -> None:
        super().__init__()
        self.fused, self.heads, self.keys, self.size = fused, HEADS, KEYS, SIZE
        self.first, self.second = Norm(), Norm()
        self.q = nn.Linear(WIDTH, HEADS * SIZE, bias=False)
        self.k = nn.Linear(WIDTH, KEYS * SIZE, bias=False)
        self.v = nn.Linear(WIDTH, KEYS * SIZE, bias=False)
        self.out = nn.Linear(WIDTH, WIDTH, bias=False)
        self.gate, self.up = nn.Linear(WIDTH, 96), nn.Linear(WIDTH, 96)
        self.down = nn.Linear(96, WIDTH)
        self.register_buffer("steps", 10.0 ** -torch.arange(0, 1, 2 / SIZE))

    def forward(self, x: Tensor) -> Tensor:
        y = self.first(x)
        n, t, _ = y.shape
        q = self.q(y).view(n, t, self.heads, self.size).transpose(1, 2)
        k = self.k(y).view(n, t, self.keys, self.size).transpose(1, 2)
        v = self.v(y).view(n, t, self.keys, self.size).transpose(1, 2)
        angles = torch.arange(t).unsqueeze(1) * self.steps
        angles = torch.cat((angles, angles), -1).unsqueeze(0).unsqueeze(0)
        cos, sin = angles.cos(), angles.sin()
        q, k = q * cos + rotate_half(q) * sin, k * cos + rotate_half(k) * sin
        k, v = repeat_keys(k), repeat_keys(v)
        if self.fused:
            y = F.scaled_dot_product_attention(q, k, v)
        else:
            scores = q @ k.transpose(2, 3) * 0.35
            y = torch.softmax(scores, dim=-1, dtype=torch.float32) @ v
        y = y.transpose(1, 2).contiguous().flatten(2)
        x = x + self.out(y)
        y = self.second(x)
        return x + self.down(F.silu(self.gate(y)) * self.up(y))


def quantized(net: nn.Module, how: str, mode: str, data: list[Any], target: str) -> Any:
    model = torch.jit.script(net) if how == "script" else torch.jit.trace(net, data[0])
    given = None if mode == "dynamic" else data
    return jit_passes.quantize_script(model, given, mode=mode, target=target)


@pytest.mark.parametrize("fused", [True, False])
@pytest.mark.parametrize("how", ["trace", "script"])
@pytest.mark.parametrize("mode", ["static", "dynamic", "auto"])
def test_a_layer_of_llama_is_one_plan(mode: str, how: str, fused: bool) -> None:
    torch.manual_seed(0)
    net = Llama(fused).eval()
    data = [torch.randn(2, 12, WIDTH) for _ in range(4)]
    lowered = quantized(net, how, mode, data, "x86")
    reference = quantized(net, how, mode, data, "reference")
    assert len(plans_in(lowered)) == 1
    for n, t in ((2, 12), (1, 5), (3, 33)):
        x = torch.randn(n, t, WIDTH)
        with torch.no_grad():
            expected = net(x)
            assert sqnr(expected, lowered(x)) > max(sqnr(expected, reference(x)) - 2, 28)


class Rows(nn.Module):
    """As GPT-2 has its layers: over rows of a matrix."""

    def __init__(self) -> None:
        super().__init__()
        self.norm, self.a, self.b = nn.LayerNorm(WIDTH), nn.Linear(WIDTH, 96), nn.Linear(96, WIDTH)

    def forward(self, x: Tensor) -> Tensor:
        y = self.norm(x.unflatten(2, (4, 16)).flatten(2))  # so the graph knows of three axes
        n, t = y.shape[0], y.shape[1]
        y = self.a(y.view(-1, y.size(-1))).view(n, t, 96)
        y = F.gelu(y)
        n, t = y.shape[0], y.shape[1]
        return x + self.b(y.view(-1, y.size(-1))).view(n, t, 64)


class Lead(nn.Module):
    """Axes in front, however many, by slices of the list of sizes."""

    def __init__(self) -> None:
        super().__init__()
        self.norm, self.a, self.b = nn.LayerNorm(WIDTH), nn.Linear(WIDTH, 96), nn.Linear(96, WIDTH)

    def forward(self, x: Tensor) -> Tensor:
        lead = x.size()[:-1]
        y = self.a(self.norm(x)).view(list(lead) + [12, 8])  # noqa: RUF005  scripts have no star
        return x + self.b(F.gelu(y.transpose(-1, -2)).transpose(-1, -2).flatten(-2))


@pytest.mark.parametrize(("make", "how"), [(Rows, "trace"), (Rows, "script"), (Lead, "script")])
@pytest.mark.parametrize("mode", ["static", "dynamic"])
def test_other_axes_are_kept(mode: str, make: type[nn.Module], how: str) -> None:
    torch.manual_seed(0)
    net = make().eval()
    data = [torch.randn(2, 12, WIDTH) for _ in range(4)]
    lowered = quantized(net, how, mode, data, "x86")
    assert len(plans_in(lowered)) == 1
    for n, t in ((2, 12), (1, 5), (3, 33)):
        x = torch.randn(n, t, WIDTH)
        with torch.no_grad():
            assert sqnr(net(x), lowered(x)) > 35
