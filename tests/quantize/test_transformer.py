"""PyTorch's transformer modules, which inference without gradients computes by fused operators."""

from __future__ import annotations

import warnings
from collections.abc import Callable
from typing import Any

import pytest
import torch
from torch import Tensor, nn

import jit_passes
from jit_passes.stages.normalize import normalize
from tests.advice import nested_tensors, traced_branches
from tests.processor import decibels_here
from tests.qat_nets import makes_scales_positive
from tests.quantizing import seeded

pytestmark = [nested_tensors, traced_branches]
FUSED = (
    "_transformer_encoder_layer_fwd",
    "_native_multi_head_attention",
    "_nested_tensor_from_mask(",
)


class Attention(nn.Module):
    """Self-attention, with the weights where `need_weights`."""

    def __init__(self, **options: Any) -> None:
        super().__init__()
        self.attention = nn.MultiheadAttention(64, 4, **options)

    def forward(self, x: Tensor) -> Tensor:
        """Return the attended sequence alone."""
        return self.attention(x, x, x)[0]


class Padded(nn.Module):
    """An encoder that takes a padding mask."""

    def __init__(self) -> None:
        super().__init__()
        self.encoder = nn.TransformerEncoder(layer(), 2)

    def forward(self, x: Tensor, padding: Tensor) -> Tensor:
        """Return zeros where the sequence is padding."""
        return self.encoder(x, src_key_padding_mask=padding)


def layer(**options: Any) -> nn.TransformerEncoderLayer:
    """Return a layer with all its options at default but those."""
    return nn.TransformerEncoderLayer(64, 4, 128, **{"batch_first": True, **options})


MODELS: dict[str, tuple[Callable[[], nn.Module], int]] = {
    "layer": (layer, 4),
    "norm_first": (lambda: layer(norm_first=True, activation="gelu"), 4),
    "sequence_first": (lambda: layer(batch_first=False), 4),
    "encoder": (lambda: nn.TransformerEncoder(layer(), 2), 8),
    "padded": (Padded, 8),
    "attention": (lambda: Attention(batch_first=True), 2),
}


def example(name: str, dtype: torch.dtype = torch.float32) -> tuple[Tensor, ...]:
    """Return sequences, and what is padding in them."""
    x = torch.randn(4, 10, 64, dtype=dtype, generator=torch.Generator().manual_seed(1))
    padding = torch.arange(10) >= torch.tensor([[7], [10], [3], [10]])
    return (x, padding) if name == "padded" else (x,)


def build(name: str, dtype: torch.dtype = torch.float32) -> nn.Module:
    """Return the model for use, with biases and norms that are not 0 and 1."""
    torch.manual_seed(0)
    model = MODELS[name][0]().eval().to(dtype)
    with torch.no_grad():
        for parameter in model.parameters():
            if parameter.dim() == 1:
                parameter += 0.1 * torch.randn_like(parameter)
    return model


def compiled(model: nn.Module, how: str, inputs: tuple[Tensor, ...]) -> Any:
    """Return the model scripted, or traced without gradients."""
    with torch.no_grad():
        if how == "scripted":
            return torch.jit.script(model)
        return torch.jit.trace(model, inputs, check_trace=False)


def sqnr(expected: Tensor, actual: Tensor) -> float:
    """Return signal over error, in dB."""
    return float(10 * torch.log10(expected.square().sum() / (expected - actual).square().sum()))


ALL = pytest.mark.parametrize("name", MODELS)
BOTH = pytest.mark.parametrize("how", ["scripted", "traced"])


@ALL
@BOTH
def test_canonical_form_is_the_fast_path(name: str, how: str) -> None:
    """The canonical form computes as PyTorch's fused operators do, by operators that are not fused.

    Against PyTorch in double precision; values are about 1.
    """
    model, inputs = build(name, torch.float64), example(name, torch.float64)
    script = compiled(model, how, inputs)
    module = normalize(script._c).module
    text = str(module._get_method("forward").inlined_graph)
    assert not any(fused in text for fused in FUSED)
    with torch.no_grad():
        torch.testing.assert_close(
            module._get_method("forward")(*inputs), model(*inputs), rtol=0, atol=1e-13
        )


def check_linears(model: torch.jit.ScriptModule, count: int) -> None:
    """All linears of a lowered model are int8."""
    linears = [row for row in jit_passes.coverage(model) if row.kind == "linear"]
    assert [row.dtype for row in linears] == ["int8"] * count


@ALL
@BOTH
@pytest.mark.parametrize("target", ["stock", "x86"])
def test_all_linears_are_int8(name: str, how: str, target: str) -> None:
    """Packed input projections too; 30 dB were seen at the least, with layer norms in float."""
    model, inputs = build(name), example(name)
    with warnings.catch_warnings():
        warnings.simplefilter("error", jit_passes.JitPassesWarning)
        script = compiled(model, how, inputs)
        quantized = jit_passes.quantize_script(script, [inputs], mode="static", target=target)
    check_linears(quantized, MODELS[name][1])
    with torch.no_grad():
        floor = decibels_here(28) if target == "stock" else 28
        assert sqnr(model(*inputs), quantized(*inputs)) > floor


def check_formula(name: str, given: tuple[Any, ...]) -> None:
    """Compare the operator's formula with the operator, for these operands, in double precision."""
    operator = getattr(torch.ops.aten, name).default

    class Fused(nn.Module):
        def forward(self, x: Tensor) -> Any:
            return operator(*[x if operand is given[0] else operand for operand in given])

    with torch.no_grad():
        traced = torch.jit.trace(Fused(), given[0], check_trace=False)
        result = jit_passes.run_pass("avoid_fast_path", traced)
        assert name not in str(result.graph)
        torch.testing.assert_close(result(given[0]), operator(*given), rtol=0, atol=1e-13)


def mask_of(kind: str) -> tuple[Tensor | None, int | None]:
    """Return a mask as the operators take it, and its type."""
    causal = torch.ones(10, 10, dtype=torch.bool).triu(1)
    padding = torch.arange(10) >= torch.tensor([[7], [10], [3], [10]])
    floats = torch.zeros(4, 10).masked_fill(padding, float("-inf"))
    both = causal.view(1, 1, 10, 10) | padding.view(4, 1, 1, 10)
    return {
        "none": (None, None),
        "causal": (causal, 0),
        "padding": (padding, 1),
        "floats": (floats, 1),
        "both": (both.expand(4, 4, 10, 10), 2),
    }[kind]


MASKS = pytest.mark.parametrize("kind", ["none", "causal", "padding", "floats", "both"])


@MASKS
@pytest.mark.parametrize("norm_first", [False, True])
@pytest.mark.parametrize("gelu", [False, True])
def test_formula_of_layer(kind: str, norm_first: bool, gelu: bool) -> None:
    """All that the operator's flags say."""
    net = layer().double().requires_grad_(False)
    part, (x,) = net.self_attn, example("", torch.float64)
    projections = (part.in_proj_weight, part.in_proj_bias, part.out_proj.weight, part.out_proj.bias)
    norms = (net.norm1.weight, net.norm1.bias, net.norm2.weight, net.norm2.bias)
    linears = (net.linear1.weight, net.linear1.bias, net.linear2.weight, net.linear2.bias)
    given = (x, 64, 4, *projections, gelu, norm_first, 0.1, *norms, *linears, *mask_of(kind))
    check_formula("_transformer_encoder_layer_fwd", given)


@MASKS
@pytest.mark.parametrize("average", [False, True])
def test_formula_of_attention(kind: str, average: bool) -> None:
    """With the weights that it returns."""
    part, (x,) = layer().double().requires_grad_(False).self_attn, example("", torch.float64)
    weights = (part.in_proj_weight, part.in_proj_bias, part.out_proj.weight, part.out_proj.bias)
    mask, mask_type = mask_of(kind)
    given = (x, x, x, 64, 4, *weights, mask, True, average, mask_type)
    check_formula("_native_multi_head_attention", given)


@makes_scales_positive
@BOTH
def test_qat_trains(how: str) -> None:
    """All parameters get gradients, the loss falls, and the trained model converts to int8."""
    model, (x,) = build("encoder"), example("encoder")
    # Tracing takes the path of evaluation, in which dropout is off.
    script = compiled(model, how, (x,))
    trained = jit_passes.prepare_qat(script).train()
    optimizer = torch.optim.Adam(trained.parameters(), 1e-3)
    target, losses = x.flip(1), []
    for _ in range(20):
        optimizer.zero_grad()
        loss = (trained(x) - target).square().mean()
        loss.backward()
        losses.append(loss.item())
        assert all(p.grad is not None for p in trained.parameters())
        optimizer.step()
    assert losses[-1] < 0.9 * losses[0]
    trained.eval()
    converted = jit_passes.lower(jit_passes.convert(trained))
    check_linears(converted, 8)
    with torch.no_grad():
        assert sqnr(trained(x), converted(x)) > 30


class InBlocks(nn.Module):
    """Attention in a loop, linears around it, and a branch of convolutions beside it."""

    def __init__(self) -> None:
        super().__init__()
        self.embed, self.mix, self.head = nn.Linear(12, 16), nn.Linear(16, 16), nn.Linear(16, 5)
        self.conv, self.beside = nn.Conv1d(7, 7, 3, padding=1), nn.Linear(12, 16)

    def forward(self, x: Tensor, count: int) -> Tensor:
        y = self.embed(x)
        for _ in range(count):
            y = self.mix(nn.functional.scaled_dot_product_attention(y, y, y))
        if count > 1:
            y = y + self.conv(self.beside(x).relu())
        return self.head(y)


def test_linears_beside_attention_in_blocks() -> None:
    """Values go on where they leave a block and where a round hands them to the next."""
    x = [torch.randn(2, 7, 12, generator=torch.Generator().manual_seed(i)) for i in range(3)]
    given: dict[str, Any] = {"target": "stock", "progress": False}
    looped = jit_passes.quantize_script(
        torch.jit.script(seeded(InBlocks)), [(b, 2) for b in x], **given
    )
    found = {row.name: row.mode for row in jit_passes.coverage(looped).int8}
    assert found == {
        "embed:linear": "dynamic",
        "mix:linear": "dynamic",
        "head:linear": "dynamic",
        "conv:conv1d": "static",
        "beside:linear": "static",
    }
    # nn.TransformerEncoderLayer in a script: a branch on whether its fast path would do.
    layer = nn.TransformerEncoderLayer(16, 2, 32, batch_first=True)
    stack = nn.Sequential(nn.Linear(12, 16), nn.TransformerEncoder(layer, 2), nn.Linear(16, 4))
    encoder = jit_passes.quantize_script(torch.jit.script(stack.eval()), x, **given)
    linears = [row for row in jit_passes.coverage(encoder) if row.kind == "linear"]
    assert len(linears) == 10 and {row.mode for row in linears} == {"dynamic"}
