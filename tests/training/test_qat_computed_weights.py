"""Weights that a model computes from its parameters train with quantization like others."""

from __future__ import annotations

import copy
import warnings
from collections.abc import Callable

import pytest
import torch
from torch import Tensor, nn
from torch.nn import functional as F
from torch.nn.utils import parametrizations, prune, spectral_norm, weight_norm

import jit_passes
from jit_passes import GraphView, JitPassesError, prepare_qat
from jit_passes.targets import PowerOfTwoQuantizer
from tests.advice import traced_branches
from tests.qat_nets import (
    METHODS,
    Model,
    batch,
    batches,
    makes_scales_positive,
    reloaded,
    seeded,
    sgd,
    steps_apart,
    train,
)

# Norms of weights branch by what they are given.
pytestmark = traced_branches

Make = Callable[[], nn.Module]


class Normed(nn.Module):
    """The operator of weight norm, in code that can be scripted."""

    def __init__(self) -> None:
        super().__init__()
        self.v = nn.Parameter(torch.randn(6, 3, 3, 3))
        self.g = nn.Parameter(torch.rand(6, 1, 1, 1) + 0.5)

    def weight(self) -> Tensor:
        return torch._weight_norm(self.v, self.g, 0)

    def forward(self, x: Tensor) -> Tensor:
        return F.conv2d(x, self.weight())


class Standardized(nn.Module):
    """A weight with a mean of 0 and a variance of 1."""

    def __init__(self) -> None:
        super().__init__()
        self.raw = nn.Parameter(torch.randn(6, 3, 3, 3))

    def weight(self) -> Tensor:
        w = self.raw - self.raw.mean([1, 2, 3], True)
        return w / (w.square().mean([1, 2, 3], True) + 1e-5).sqrt()

    def forward(self, x: Tensor) -> Tensor:
        return F.conv2d(x, self.weight())


class LowRank(nn.Module):
    """A frozen weight, and the product of two small matrices that trains: LoRA."""

    def __init__(self) -> None:
        super().__init__()
        self.w = nn.Parameter(torch.randn(6, 3), requires_grad=False)
        self.a, self.b = nn.Parameter(torch.randn(6, 2)), nn.Parameter(torch.randn(2, 3))
        self.bias = nn.Parameter(torch.randn(6))

    def weight(self) -> Tensor:
        return self.w + self.a @ self.b * 0.5

    def forward(self, x: Tensor) -> Tensor:
        return F.linear(x, self.weight(), self.bias * 2.0)


class Scaled(nn.Module):
    """A weight in the layout of matmul, times a gain."""

    def __init__(self) -> None:
        super().__init__()
        self.w = nn.Parameter(torch.randn(3, 6))
        self.gain = nn.Parameter(torch.rand(6) + 0.5)

    def weight(self) -> Tensor:
        return (self.w * self.gain).t()

    def forward(self, x: Tensor) -> Tensor:
        return x @ (self.w * self.gain)


class Chunk(nn.Module):
    """A part of a weight that is one tensor for several layers."""

    def __init__(self) -> None:
        super().__init__()
        self.w = nn.Parameter(torch.randn(12, 3))

    def weight(self) -> Tensor:
        return self.w.chunk(2)[1]

    def forward(self, x: Tensor) -> Tensor:
        return F.linear(x, self.weight())


def pruned() -> nn.Module:
    return prune.l1_unstructured(nn.Conv2d(3, 6, 3), "weight", 0.5)


def converged(layer: nn.Module) -> nn.Module:
    """Return a layer with a spectral norm whose vectors have been found, in training mode."""
    for _ in range(8):
        layer(batch(1, 3, 3, 3))
    return layer


WRITTEN: dict[str, Make] = {
    "weight_norm": Normed,
    "standardized": Standardized,
    "low_rank": LowRank,
    "scaled": Scaled,
    "chunk": Chunk,
}
HOOKED: dict[str, Make] = {
    "weight_norm_hook": lambda: weight_norm(nn.Conv2d(3, 6, 3)),
    "spectral_norm_hook": lambda: converged(spectral_norm(nn.Conv2d(3, 6, 3))),
    "pruned": pruned,
    "weight_norm_parametrization": lambda: parametrizations.weight_norm(nn.Conv2d(3, 6, 3)),
    "spectral_norm_parametrization": lambda: converged(
        parametrizations.spectral_norm(nn.Conv2d(3, 6, 3))
    ),
    "orthogonal": lambda: parametrizations.orthogonal(nn.Linear(3, 6)),
    "cayley": lambda: parametrizations.orthogonal(nn.Linear(3, 6), orthogonal_map="cayley"),
}
LINEARS = (
    "low_rank",
    "scaled",
    "chunk",
    "orthogonal",
    "cayley",
)  # which the batch norm of images is not for
CASES = [(name, "traced") for name in (*WRITTEN, *HOOKED)] + [(n, "scripted") for n in WRITTEN]


class Net(nn.Module):
    """A layer with a computed weight, a batch norm where wanted, and a plain layer."""

    def __init__(self, layer: nn.Module, norm: bool = False) -> None:
        super().__init__()
        images = isinstance(layer, nn.Conv2d | Normed | Standardized)
        self.first = layer
        self.norm = nn.BatchNorm2d(6) if norm else nn.Identity()
        self.last = nn.Conv2d(6, 4, 1) if images else nn.Linear(6, 4)

    def forward(self, x: Tensor) -> Tensor:
        return self.last(torch.relu(self.norm(self.first(x))))


def net(name: str, norm: bool = False) -> tuple[Net, Tensor]:
    """Return a module in eval mode, and what it takes."""
    with torch.random.fork_rng(devices=[]), warnings.catch_warnings():
        warnings.simplefilter("ignore")  # weight norm as a hook is deprecated
        torch.manual_seed(5)
        eager = Net({**WRITTEN, **HOOKED}[name](), norm)
    shape = (4, 3, 8, 8) if isinstance(eager.last, nn.Conv2d) else (16, 3)
    return eager.eval(), batch(*shape)


def compiled(eager: nn.Module, x: Tensor, origin: str) -> Model:
    """Compile it in eval mode: a spectral norm in training mode changes with each call."""
    if origin == "scripted":
        return torch.jit.script(eager)
    return torch.jit.trace(eager, x, check_trace=False)


def effective(layer: nn.Module) -> Tensor:
    """Return the weight that a layer computes with, [out, in, ...]."""
    return (layer.weight() if callable(layer.weight) else layer.weight).detach()


@makes_scales_positive
@pytest.mark.parametrize("method", METHODS)
@pytest.mark.parametrize(
    ("name", "origin", "norm"),
    [(*case, False) for case in CASES]
    + [(*case, True) for case in CASES if case[0] not in LINEARS],
)
def test_the_computed_weight_is_quantized(name: str, origin: str, method: str, norm: bool) -> None:
    """In training and in the int8 model, which agree to within two steps, as plain weights do."""
    eager, x = net(name, norm)
    model = compiled(eager, x, origin)
    prepared = prepare_qat(model, fake_quantizer=method)
    assert not jit_passes.coverage(prepared).float
    assert sum(name.startswith("first.weight_") for name in added(prepared, model)) == 1
    before = {n: p.detach().clone() for n, p in prepared.named_parameters() if p.requires_grad}
    train(prepared.train(), batches(3, *x.shape), sgd(prepared, 1e-3))
    still = [n for n, p in prepared.named_parameters() if n in before and torch.equal(p, before[n])]
    assert not still  # what the weight is computed from has a gradient, and so has its scale
    prepared = reloaded(prepared).eval()
    expected = prepared(x).detach()
    assert float(expected.abs().max()) > 0.05
    reference = jit_passes.convert(prepared)
    lowered = jit_passes.lower(reference)
    assert steps_apart(expected, reference(x)) <= 2.01
    assert steps_apart(expected, lowered(x)) <= 2.01
    rows = jit_passes.coverage(lowered)
    assert [row.dtype for row in rows] == ["int8", "int8"]


def added(prepared: Model, model: Model) -> list[str]:
    """Return the names that preparing has added to a state dict."""
    return sorted(prepared.state_dict().keys() - model.state_dict().keys())


@pytest.mark.parametrize(("name", "origin"), CASES)
def test_the_scale_begins_with_the_computed_weight(name: str, origin: str) -> None:
    """In closed form: with powers of two, that of three deviations, from parameters as they are.

    A threshold t of TQT has the scale 2^ceil(log2 t) / 128, and begins with
    t = |mean| + 3 sigma of the weight.
    """
    eager, x = net(name)
    model = compiled(eager, x, origin)
    quantizer = PowerOfTwoQuantizer()
    prepared = prepare_qat(model, quantizer, fake_quantizer="tqt")
    weight = effective(eager.first).detach().double()
    expected = (weight.mean().abs() + 3 * weight.std(correction=0)).log2()
    begun = dict(prepared.named_parameters())["first.weight_log2_threshold"].detach()
    assert float(begun) == pytest.approx(float(expected), abs=1e-5)


@pytest.mark.parametrize(("name", "origin"), CASES)
def test_without_quantization_it_is_the_model(name: str, origin: str) -> None:
    """To the bit of a kernel, and what is left of training is the float model."""
    eager, x = net(name, norm=name in ("weight_norm", "weight_norm_parametrization"))
    model = compiled(eager, x, origin)
    prepared = prepare_qat(model)
    prepared.train()(x)
    prepared.eval()
    jit_passes.disable_fake_quantize(prepared)
    expected = prepared(x)
    torch.testing.assert_close(jit_passes.strip(prepared)[0](x), expected, rtol=1e-5, atol=1e-5)
    if isinstance(eager.norm, nn.Identity):
        torch.testing.assert_close(expected, model(x), rtol=1e-6, atol=1e-6)


@pytest.mark.parametrize("name", ["weight_norm", "standardized", "spectral_norm_hook"])
def test_slots(name: str) -> None:
    """Constant after training, whatever computes them: equal to the bit, and no slot is lost."""
    eager, x = net(name)
    model = compiled(eager, x, "traced")
    prepared = jit_passes.quantize_slots(model, recipe="graffitist")
    train(prepared.train(), [x], sgd(prepared, 1e-3))
    converted = jit_passes.convert(prepared.eval())
    assert torch.equal(converted(x), prepared(x))
    assert not jit_passes.coverage(converted).float


class Twice(nn.Module):
    """A weight that is computed at each call of a shared module."""

    def __init__(self) -> None:
        super().__init__()
        self.layer = parametrizations.weight_norm(nn.Conv2d(4, 4, 3, padding=1))

    def forward(self, x: Tensor) -> Tensor:
        return self.layer(torch.relu(self.layer(x)))


def test_a_shared_module_has_one_scale() -> None:
    """As with a plain weight: it is computed once, and an int8 model holds it once."""
    x = batch(2, 4, 6, 6)
    prepared = prepare_qat(torch.jit.trace(seeded(Twice).eval(), x), target="reference")
    assert str(prepared.graph).count("aten::_weight_norm") == 1
    scales = [name for name, _ in prepared.named_parameters() if "weight_scale" in name]
    assert scales == ["layer.weight_scale"]
    train(prepared.train(), [x])
    reference = jit_passes.convert(prepared.eval())
    assert steps_apart(prepared(x), reference(x)) <= 2.01
    assert str(reference.graph).count("Char(4, 4, 3, 3") == 1


def test_a_product_of_parameters_is_no_layer() -> None:
    """Reports count what computes on inputs, after training as before it."""
    eager, _ = net("low_rank")
    prepared = prepare_qat(torch.jit.script(eager))
    names = ["first:linear", "last:linear"]
    assert [row.name for row in jit_passes.coverage(prepared)] == names
    kinds = [n.kind for n in GraphView.of(prepared, parameters=True).nodes]
    assert "aten::matmul" not in kinds
    assert [row.name for row in jit_passes.coverage(torch.jit.script(eager))] == names


def test_weights_that_change_as_the_model_runs() -> None:
    """A spectral norm in training mode writes to its vectors: the reason says what to do."""
    eager, x = net("spectral_norm_parametrization")
    model = torch.jit.trace(eager.train(), x, check_trace=False)
    prepared = prepare_qat(model)
    (row,) = jit_passes.coverage(prepared).float[-1:]
    assert row.reason.endswith("in training mode, script or trace it in eval mode")


def test_weights_in_another_dtype() -> None:
    """A trace under autocast casts them, which is no reason to call model.float()."""
    eager, x = net("low_rank")
    with torch.autocast("cpu", dtype=torch.bfloat16):
        model = torch.jit.trace(eager, x, check_trace=False)
    with pytest.raises(JitPassesError, match="trace the model in float32, without autocast"):
        prepare_qat(model)


class Biased(nn.Module):
    """Attention with a bias that is a parameter."""

    def __init__(self, computed: bool) -> None:
        super().__init__()
        self.heads = nn.Linear(8, 24)
        self.table = nn.Parameter(torch.randn(5, 5))
        self.computed = computed

    def forward(self, x: Tensor) -> Tensor:
        q, k, v = self.heads(x).chunk(3, -1)
        bias = self.table * 2.0 if self.computed else self.table
        return F.scaled_dot_product_attention(q, k, v, bias)


@pytest.mark.parametrize("computed", [False, True])
@pytest.mark.parametrize("origin", ["scripted", "traced"])
def test_biases_of_attention_train(computed: bool, origin: str) -> None:
    """Biases are no constants of the graph: with quantization off, gradients are the model's."""
    x = batch(2, 5, 8)
    eager = seeded(Biased(computed))
    model = compiled(copy.deepcopy(eager), x, origin)
    prepared = prepare_qat(model, target="x86").train()
    jit_passes.disable_fake_quantize(prepared)
    prepared(x).square().sum().backward()
    eager(x).square().sum().backward()
    assert eager.table.grad is not None
    found = dict(prepared.named_parameters())["table"].grad
    torch.testing.assert_close(found, eager.table.grad, rtol=1e-5, atol=1e-6)
