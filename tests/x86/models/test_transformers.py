"""Attention as PyTorch writes it, for the target x86."""

from __future__ import annotations

import io
from collections.abc import Callable
from typing import Any

import pytest
import torch
from torch import Tensor, nn
from torch.nn import functional as F

import jit_passes
from jit_passes.targets import X86
from tests.advice import traced_branches
from tests.compare import sqnr
from tests.plans import Grid, plan_of, traced
from tests.x86.models.test_plan import assert_equal
from tests.x86.program.test_state import restored

WIDTH, HEADS, TOKENS = 64, 4, 10


class Block(nn.Module):
    """A layer of a transformer with positions, as people write it."""

    def __init__(self, form: str, **options: Any) -> None:
        super().__init__()
        self.form, self.options = form, options
        self.pos = nn.Parameter(torch.randn(1, TOKENS, WIDTH) * 0.1)
        self.qkv, self.out = nn.Linear(WIDTH, 3 * WIDTH), nn.Linear(WIDTH, WIDTH)
        self.norm = nn.LayerNorm(WIDTH)

    def attend(self, x: Tensor) -> Tensor:
        b, t, c = x.shape
        heads = [b, t, HEADS, c // HEADS]
        if self.form in ("unbind", "einsum"):
            parts = self.qkv(x).reshape(b, t, 3, HEADS, WIDTH // HEADS).permute(2, 0, 3, 1, 4)
            q, k, v = parts.unbind(0)
        else:
            q, k, v = (p.reshape(heads).swapaxes(1, 2) for p in self.qkv(x).chunk(3, 2))
        if self.form == "einsum":
            scores = torch.einsum("b h i d, b h j d -> b h i j", q, k) * 0.25
            y = torch.einsum("bhij,bhjd->bhid", torch.softmax(scores, -1), v)
        else:
            y = F.scaled_dot_product_attention(q, k, v, **self.options)
        return self.out(y.transpose(1, 2).reshape(b, t, c))

    def forward(self, x: Tensor) -> Tensor:
        return self.attend(self.norm(x + self.pos))


class Scripted(nn.Module):
    """Views of parts that the model splits off, as nanoGPT has them."""

    def __init__(self, is_causal: bool = False) -> None:
        super().__init__()
        self.heads, self.width, self.is_causal = HEADS, WIDTH, is_causal
        self.norm = nn.LayerNorm(WIDTH)
        self.qkv, self.out = nn.Linear(WIDTH, 3 * WIDTH), nn.Linear(WIDTH, WIDTH)

    def forward(self, x: Tensor) -> Tensor:
        x = self.norm(x)
        b, t, c = x.shape
        q, k, v = self.qkv(x).split(self.width, dim=2)
        q = q.view(b, t, self.heads, c // self.heads).transpose(1, 2)
        k = k.view(b, t, self.heads, c // self.heads).transpose(1, 2)
        v = v.view(b, t, self.heads, c // self.heads).transpose(1, 2)
        y = F.scaled_dot_product_attention(q, k, v, is_causal=self.is_causal, scale=0.2)
        return self.out(y.transpose(1, 2).contiguous().view(b, t, c))


class SelfAttention(nn.Module):
    """PyTorch's module."""

    def __init__(self) -> None:
        super().__init__()
        self.attention = nn.MultiheadAttention(WIDTH, HEADS, batch_first=True)

    def forward(self, x: Tensor) -> Tensor:
        return self.attention(x, x, x, need_weights=False)[0]


def layer() -> nn.Module:
    return nn.TransformerEncoderLayer(WIDTH, HEADS, 128, batch_first=True)


def encoder() -> nn.Module:
    return nn.TransformerEncoder(layer(), 3, enable_nested_tensor=False)


# With a floor of the signal-to-noise ratio; 27 to 40 dB were seen.
MODELS: dict[str, tuple[Callable[[], nn.Module], str, int]] = {
    "unbind": (lambda: Block("unbind"), "trace", 30),
    "einsum": (lambda: Block("einsum"), "trace", 30),
    "given scale": (lambda: Block("unbind", scale=0.3), "trace", 30),
    "views": (Scripted, "script", 30),
    "attention": (SelfAttention, "trace", 25),
    "layer": (layer, "trace", 30),
    "encoder": (encoder, "trace", 25),
}


def compiled(net: nn.Module, how: str) -> Any:
    with torch.no_grad():
        x = torch.randn(4, TOKENS, WIDTH)
        return torch.jit.script(net) if how == "script" else torch.jit.trace(net, x)


def decibels(expected: Tensor, actual: Tensor) -> float:
    return float(10 * torch.log10(expected.square().sum() / (expected - actual).square().sum()))


@pytest.mark.parametrize("name", MODELS)
def test_models(name: str) -> None:
    """All products on integers, in one region; other batch sizes; saved and loaded."""
    torch.manual_seed(0)
    make, how, floor = MODELS[name]
    net = make().eval()
    data = [torch.randn(4, TOKENS, WIDTH) for _ in range(4)]
    model = compiled(net, how)
    lowered = jit_passes.quantize_script(
        model, data, mode="static", target=X86(integer_layer_norm=True)
    )
    rows = jit_passes.coverage(lowered)
    assert len(rows.int8) == len(rows)
    assert {"matmul", "linear"} <= {row.kind for row in rows}
    assert str(lowered.graph).count("prim::CallMethod") == 1
    assert "matmul" not in str(lowered.graph)
    assert "aten::softmax" not in str(lowered.graph)
    buffer = io.BytesIO()
    torch.jit.save(lowered, buffer)
    buffer.seek(0)
    loaded = torch.jit.load(buffer)
    for batch in (4, 1, 7):
        x = torch.randn(batch, TOKENS, WIDTH)
        with torch.no_grad():
            assert decibels(net(x), lowered(x)) > floor
        assert torch.equal(loaded(x), lowered(x))


def test_other_targets_keep_it() -> None:
    """In float the fused operator is faster; PyTorch's modules become it."""
    torch.manual_seed(0)
    data = [torch.randn(4, TOKENS, WIDTH)]
    for make in (lambda: Block("unbind"), SelfAttention):
        model = compiled(make().eval(), "trace")
        assert "scaled_dot_product_attention" in str(jit_passes.normalized_graph(model).nodes)
        lowered = jit_passes.quantize_script(model, data, mode="static", target="stock")
        assert str(lowered.graph).count("scaled_dot_product_attention") == 1


VISIBLE = torch.ones(TOKENS, TOKENS).tril().bool()
MASKS: dict[str, dict[str, Any]] = {
    "bool": {"attn_mask": VISIBLE},
    "floats": {"attn_mask": torch.zeros(TOKENS, TOKENS).masked_fill(~VISIBLE, -float("inf"))},
    "large numbers": {"attn_mask": torch.zeros(TOKENS, TOKENS).masked_fill(~VISIBLE, -1e9)},
    "a query without keys": {"attn_mask": VISIBLE & (torch.arange(TOKENS) != 3)[:, None]},
    "causal": {"is_causal": True},
}


@pytest.mark.parametrize("kind", MASKS)
def test_masks(kind: str) -> None:
    """All is one region; a later token has no part in the result of an earlier one."""
    torch.manual_seed(0)
    net = Block("unbind", **MASKS[kind]).eval()
    data = [torch.randn(4, TOKENS, WIDTH) for _ in range(4)]
    model = compiled(net, "trace")
    lowered = jit_passes.quantize_script(model, data, target="x86", mode="static")
    rows = jit_passes.coverage(lowered)
    assert [row.kind for row in rows.int8].count("matmul") == 2
    assert str(lowered.graph).count("prim::CallMethod") == 1
    assert "aten::softmax" not in str(lowered.graph) and "matmul" not in str(lowered.graph)
    for batch in (4, 1, 7):
        x = torch.randn(batch, TOKENS, WIDTH)
        with torch.no_grad():
            expected, got = net(x), lowered(x)
        assert decibels(expected, got) > 25
        x[:, 6:] += 1
        assert torch.equal(lowered(x)[:, :6], got[:, :6])


def test_causal_attention_of_any_length() -> None:
    """The mask follows the number of tokens that come in."""

    torch.manual_seed(0)
    net = Scripted(is_causal=True).eval()
    model = torch.jit.script(net)
    data = [torch.randn(2, tokens, WIDTH) for tokens in (10, 7, 12)]
    lowered = jit_passes.quantize_script(model, data, target="x86", mode="static")
    assert "aten::softmax" not in str(lowered.graph) and "matmul" not in str(lowered.graph)
    for tokens in (10, 1, 33):
        x = torch.randn(3, tokens, WIDTH)
        with torch.no_grad():
            assert decibels(net(x), lowered(x)) > 25


REFUSED = {
    "dropping": ({"dropout_p": 1e-30}, "it drops weights"),
}


@pytest.mark.parametrize("kind", REFUSED)
def test_refusals(kind: str) -> None:
    """The module stays in float, the report says why, and the rest is on integers."""
    torch.manual_seed(0)
    options, reason = REFUSED[kind]
    net = Block("unbind", **options).eval()
    data = [torch.randn(4, TOKENS, WIDTH) for _ in range(4)]
    model = compiled(net, "trace")
    lowered = jit_passes.quantize_script(model, data, mode="static", target="x86")
    rows = {row.kind: row for row in jit_passes.coverage(lowered)}
    assert reason in rows["scaled_dot_product_attention"].reason
    assert rows["linear"].dtype == "int8"
    inspected = {row.kind: row for row in jit_passes.inspect(model, mode="static", target="x86")}
    assert reason in inspected["aten::scaled_dot_product_attention"].reason
    with torch.no_grad():
        assert decibels(net(data[0]), lowered(data[0])) > 30


@pytest.mark.parametrize("causal", [False, True])
@pytest.mark.parametrize("scale", [None, 0.7])
@pytest.mark.parametrize(
    "shapes", [((2, 4, 10, 16),) * 3, ((3, 5, 8), (3, 7, 8), (3, 7, 6))], ids=str
)
def test_formula(scale: float | None, shapes: tuple[tuple[int, ...], ...], causal: bool) -> None:
    """In double precision, against PyTorch's operator; queries and keys of other numbers too."""
    torch.manual_seed(0)
    q, k, v = (torch.randn(shape, dtype=torch.float64) for shape in shapes)

    class Attention(nn.Module):
        def forward(self, q: Tensor, k: Tensor, v: Tensor) -> Tensor:
            q = q.reshape(-1, *shapes[0][1:])  # by which its features are known
            return F.scaled_dot_product_attention(q, k, v, is_causal=causal, scale=scale)

    net = Attention()
    result = jit_passes.run_pass(
        "expand_attention",
        jit_passes.run_pass("canonicalize_synonyms", torch.jit.trace(net, (q, k, v))),
    )
    assert "scaled_dot_product_attention" not in str(result.graph)
    torch.testing.assert_close(result(q, k, v), net(q, k, v), rtol=0, atol=1e-13)


class Unbound(nn.Module):
    """Scales are powers of two."""

    def __init__(self, axis: int) -> None:
        super().__init__()
        self.axis, self.x, self.y = axis, Grid(0.25, 77), Grid(2.0, 130)

    def forward(self, x: Tensor) -> Tensor:
        a, b, c = self.x(x).unbind(self.axis)
        return self.y(self.y(a * b) + c)


@pytest.mark.parametrize("axis", [0, 2, -1])
def test_unbind_is_exact(axis: int) -> None:
    torch.manual_seed(0)
    shape = [4, 5, 6, 7]
    shape[axis] = 3
    x = torch.randn(shape) * 20
    region = traced(Unbound(axis), x)
    assert_equal(region, x)
    plan = plan_of(region)
    shape[axis] = 4
    with pytest.raises(RuntimeError, match=r"splits axis .* into 3 parts"):
        plan.run([torch.randn(shape)])


def test_hostile_parts() -> None:
    """Parts whose axis goes are of size 1."""
    region = traced(Unbound(0), torch.randn(3, 4))
    lists, scales, operators = plan_of(region).__getstate__()[0]
    changed = [
        (a, [b[0], b[1], [*b[2][:4], 2]] if a[0] == "part" else b, c) for a, b, c in operators
    ]
    assert changed != operators
    with pytest.raises(RuntimeError, match="not a plan"):
        restored((lists, scales, changed))


class Counted(nn.Module):
    """Sizes are asked for one by one, and multiply to all that the layer gives, or do not."""

    def __init__(self, form: str) -> None:
        super().__init__()
        self.norm, self.form = nn.LayerNorm(16), form
        self.linear, self.out = nn.Linear(16, 48), nn.Linear(16, 16)

    def forward(self, x: Tensor) -> Tensor:
        y = self.linear(self.norm(x))
        if self.form == "split":
            q, k, v = y.split(16, dim=y.dim() - 1)
        else:
            q, k, v = y.chunk(3, -1)
        if self.form == "axes":  # of four there are
            sizes = [x.size(0), x.size(1) * x.size(2), 4, 4]
        else:
            sizes = [x.size(0), x.size(1), 4, x.size(2) // 4]
        q, k, v = (part.view(sizes).transpose(1, 2) for part in (q, k, v))
        weights = (q @ k.transpose(2, 3) / 2).softmax(-1)
        return self.out((weights @ v).transpose(1, 2).flatten(2))


@pytest.mark.parametrize("form", ["split", "chunk", "axes"])
@pytest.mark.parametrize("mode", ["static", "dynamic"])
def test_sizes_one_by_one(form: str, mode: str) -> None:
    """As nanoGPT has its attention, traced; images have an axis more, and are no sequences."""
    torch.manual_seed(0)
    x = torch.randn(2, 3, 5, 16) if form == "axes" else torch.randn(2, 7, 16)
    layer = Counted(form).eval()
    script = torch.jit.trace(layer, x, check_trace=False)
    quantized = jit_passes.quantize_script(
        script, [x] if mode == "static" else None, mode=mode, target="x86"
    )
    if form != "axes":
        assert len(jit_passes.coverage(quantized).int8) == (4 if mode == "static" else 2)
        assert str(quantized.graph).count("prim::CallMethod") == 1
    for batch in (2, 1, 4):
        given = torch.randn(batch, *x.shape[1:])
        with torch.no_grad():
            assert sqnr(layer(given), quantized(given)) > 25


@traced_branches
@pytest.mark.parametrize("norm_first", [False, True])
@pytest.mark.parametrize("layers", [2, 3])
def test_traced_with_gradients(layers: int, norm_first: bool) -> None:
    """Attention is written out then, with sizes one by one, and all layers are one plan."""
    torch.manual_seed(0)
    layer = nn.TransformerEncoderLayer(32, 4, 64, batch_first=True, norm_first=norm_first)
    encoder = nn.TransformerEncoder(layer, layers, enable_nested_tensor=False).eval()
    x = torch.randn(4, 6, 32)
    model = torch.jit.trace(encoder, x, check_trace=False)
    quantized = jit_passes.quantize_script(model, [x], mode="static", target="x86")
    assert all(row.dtype == "int8" for row in jit_passes.coverage(quantized))
    assert str(quantized.graph).count("prim::CallMethod") == 1
    for given in (x, torch.randn(1, 9, 32)):
        with torch.no_grad():
            assert sqnr(encoder(given), quantized(given)) > 25


class Squeezed(nn.Module):
    """An axis of channels is taken away: the second one with a batch, the first one without."""

    def __init__(self) -> None:
        super().__init__()
        self.one, self.two = nn.Conv1d(4, 4, 3), nn.Conv1d(4, 1, 3)

    def forward(self, x: Tensor) -> Tensor:
        return self.two(self.one(x)).squeeze(1) * 2


@pytest.mark.parametrize("target", ["x86", "reference"])
def test_axes_of_one_with_a_batch_and_without(target: str) -> None:
    torch.manual_seed(0)
    layer = Squeezed().eval()
    quantized = jit_passes.quantize_script(
        torch.jit.script(layer), [torch.randn(2, 4, 20)], target=target
    )
    for shape in ((2, 4, 20), (1, 4, 20), (4, 20)):
        given = torch.randn(shape)
        with torch.no_grad():
            assert quantized(given).shape == layer(given).shape
            assert sqnr(layer(given), quantized(given)) > 20
