"""Prepared models while they train: gradients, batch norms, switches, resuming."""

from __future__ import annotations

import copy
import io
import math
from collections.abc import Callable
from typing import Any

import pytest
import torch
from torch import Tensor, nn
from torch.nn import functional as F

import jit_passes
from jit_passes.targets import Stock
from jit_passes.training.parameters import model_parameters, quantization_parameters
from jit_passes.training.prepare import prepare_qat
from jit_passes.training.switches import (
    disable_fake_quantize,
    disable_observers,
    enable_fake_quantize,
    enable_observers,
    freeze_statistics,
    unfreeze_statistics,
)
from tests.qat_nets import (
    METHODS,
    ORIGINS,
    Model,
    Net,
    batch,
    batches,
    compiled,
    makes_scales_positive,
    nodes_of,
    parameter_of,
    reloaded,
    seeded,
    sgd,
    state_of,
    train,
)

pytestmark = makes_scales_positive

IMAGES = (4, 3, 8, 8)


# Gradients -------------------------------------------------------------------


class Scaled(torch.autograd.Function):
    """The identity, whose gradient is multiplied."""

    @staticmethod
    def forward(ctx: Any, x: Tensor, factor: float) -> Tensor:
        ctx.factor = factor
        return x.clone()

    @staticmethod
    def backward(ctx: Any, gradient: Tensor) -> tuple[Tensor, None]:
        return gradient * ctx.factor, None


def straight(x: Tensor, rounded: Tensor) -> Tensor:
    """`rounded` with the gradient of x."""
    return x + (rounded - x).detach()


def along(parameter: Tensor, x: Tensor, axis: int | None) -> Tensor:
    return parameter if axis is None else parameter.reshape(-1, *[1] * (x.dim() - axis - 1))


def lsq(x: Tensor, scale: Tensor, low: int, high: int, axis: int | None, count: float) -> Tensor:
    """The paper's equations, with autograd's gradient of clamp, which is 1 at the ends."""
    s = along(Scaled.apply(scale, 1 / math.sqrt(count * high)), x, axis)
    v = x / s
    inside = (v > low) & (v < high)
    v = torch.where(inside, v, v.detach().clamp(low, high))
    return straight(v, v.round()) * s


def tqt(x: Tensor, threshold: Tensor, low: int, high: int, axis: int | None, _: float) -> Tensor:
    bits = math.ceil(math.log2(max(-low, high + 1)))
    s = along(torch.exp2(straight(threshold, threshold.ceil()) - bits), x, axis)
    v = straight(x / s, (x / s).round())
    inside = (v >= low) & (v <= high)
    return torch.where(inside, v, v.detach().clamp(low, high)) * s


FORMULAS: dict[str, tuple[Callable[..., Tensor], str]] = {
    "lsq": (lsq, "scale"),
    "tqt": (tqt, "log2_threshold"),
}


def by_hand(p: dict[str, Tensor], x: Tensor, method: str, training: bool) -> Tensor:
    """Net in eager operators and double."""
    formula, end = FORMULAS[method]
    inputs = (-128, 127), (0, 255)

    def activation(x: Tensor, name: str, signed: bool) -> Tensor:
        return formula(x, p[f"{name}_{end}"], *inputs[not signed], None, x[0].numel())

    def weight(values: Tensor, layer: str) -> Tensor:
        return formula(values, p[f"{layer}.weight_{end}"], -127, 127, 0, values[0].numel())

    def convolution(x: Tensor, layer: str, norm: str) -> Tensor:
        """With the batch norm behind it: as it trains, or folded in use."""
        w, bias = p[f"{layer}.weight"], p.get(f"{layer}.bias")
        gamma, beta = p[f"{norm}.weight"], p[f"{norm}.bias"]
        mean, var = p[f"{norm}.running_mean"].clone(), p[f"{norm}.running_var"].clone()
        factor = gamma * (var + 1e-5).rsqrt()
        shift = beta + ((0 if bias is None else bias) - mean) * factor
        factor = factor.float().double()  # as the operator has it, or ties would round otherwise
        if not training:
            return F.conv2d(x, weight(w * factor.reshape(-1, 1, 1, 1), layer), shift, padding=1)
        factor = torch.where(factor == 0, 1, factor).reshape(-1, 1, 1, 1)
        x = F.conv2d(x, weight(w * factor, layer) / factor, bias, padding=1)
        return F.batch_norm(x, mean, var, gamma, beta, True)

    x = activation(x, "conv1.input", True)
    x = activation(torch.relu(convolution(x, "conv1", "bn1")), "conv1.output", False)
    y = activation(convolution(x, "conv2", "bn2"), "conv2.output", True)
    y = activation(torch.relu(y + x), "output", False).mean((2, 3))
    y = activation(y, "fc.input", False)
    return activation(F.linear(y, weight(p["fc.weight"], "fc"), p["fc.bias"]), "fc.output", True)


@pytest.mark.parametrize("method", FORMULAS)
@pytest.mark.parametrize("training", [True, False])
@pytest.mark.parametrize("zero", [False, True], ids=["", "zero_gamma"])
def test_gradients_are_the_papers(method: str, training: bool, zero: bool) -> None:
    """Of all parameters of a net, against the formulas in double.

    The model is made double, so nothing but a tie can differ: 1e-6 of the largest. A gamma of 0 has
    a factor of 1 in training.
    """
    eager = seeded(Net)
    if zero:
        eager.bn1.weight.data[2] = 0
        eager.bn2.weight.data[:3] = 0
    x = batch(*IMAGES)
    config = {"version": 1, "global": {"bias": {"dtype": "float"}}}
    target = Stock(reduce_range=False)
    options = {"fake_quantizer": method, "target": target, "config": config}
    model = prepare_qat(compiled(eager, x), **options).train()
    model(x)
    # In double, but for what quantizes, in float32: scales that have few digits keep it exact.
    model.double()
    model.train(training)
    x = batch(*IMAGES, seed=1).double()
    state = {n: v.detach().clone() for n, v in model.state_dict().items()}
    p = {n: v.requires_grad_() if n in dict(model.named_parameters()) else v
         for n, v in state.items()}  # fmt: skip
    expected = by_hand(p, x, method, training)
    found = model(x)
    assert (found - expected).abs().max() <= 1e-6 * expected.abs().max()
    direction = batch(*expected.shape, seed=2).double()
    (expected * direction).sum().backward()
    (found * direction).sum().backward()
    for name, parameter in model.named_parameters():
        wanted = p[name].grad
        assert wanted is not None, name
        assert parameter.grad is not None, name
        largest = wanted.abs().max()
        near = (parameter.grad - wanted).abs().max() <= 1e-5 * largest + 1e-9
        assert near, (name, wanted.flatten()[:4], parameter.grad.flatten()[:4])


# Batch norms -----------------------------------------------------------------


def test_running_statistics_are_those_of_float() -> None:
    """Of the same results of the convolutions: quantization off."""
    x = batch(*IMAGES)
    eager = seeded(Net).train()
    model = prepare_qat(compiled(eager, x)).train()
    model(x)  # scales begin
    model.load_state_dict(eager.state_dict(), strict=False)
    disable_fake_quantize(model)
    for x in batches(3, *IMAGES):
        assert torch.allclose(model(x), eager(x), atol=1e-6)
    for name, value in eager.state_dict().items():
        assert torch.allclose(model.state_dict()[name], value, atol=1e-6), name


@pytest.mark.parametrize("origin", ["scripted", "scripted_and_loaded", "traced_in_training"])
def test_frozen_statistics(origin: str) -> None:
    """Training does what eval does, and statistics stand still; gammas go on training."""
    x = batch(*IMAGES)
    model = prepare_qat(compiled(seeded(Net), x, origin)).train()
    train(model, batches(2, *IMAGES))
    freeze_statistics(model)
    state = state_of(model)
    first = model(x)
    assert torch.equal(first, model.eval()(x))
    model.train()(x).sum().backward()
    assert parameter_of(model, "bn1.weight").grad is not None
    for name, value in model.state_dict().items():
        if "running" in name:
            assert torch.equal(value, state[name]), name
    unfreeze_statistics(model)
    assert not torch.equal(model(x), first)
    assert not torch.equal(model.state_dict()["bn1.running_mean"], state["bn1.running_mean"])


@pytest.mark.parametrize("origin", ["scripted", "traced_in_training", "traced_and_loaded"])
def test_modes_change_nothing_else(origin: str) -> None:
    """Momentum, eps and the probability of dropout after many switches, in the graph and in use."""
    eager = seeded(Net(dropout=0.5))
    eager.bn1.momentum, eager.bn1.eps = 0.25, 1e-3
    x = batch(*IMAGES)
    model = prepare_qat(compiled(eager, x, origin))

    def constants() -> list[Any]:
        return [
            [i.toIValue() for i in node.inputs() if i.node().kind() == "prim::Constant"]
            for kind in ("jit_passes::deferred_batch_norm", "aten::dropout")
            for node in nodes_of(model, kind)
        ]

    before = constants()
    assert [0.25, 1e-3, True] in before and [0.5] in before, before
    for _ in range(10):
        model.train()
        model.eval()
    assert constants() == before
    model.train()
    mean = model.state_dict()["bn1.running_mean"]
    old = mean.clone()
    disable_fake_quantize(model)
    model(x)
    seen = F.conv2d(x, parameter_of(model, "conv1.weight"), padding=1).mean((0, 2, 3))
    assert torch.allclose(mean, 0.75 * old + 0.25 * seen, atol=1e-5)
    assert not torch.equal(model(x), model(x)), "dropout does something"
    model.eval()
    assert torch.equal(model(x), model(x))


class Residual(nn.Module):
    """A branch whose last batch norm starts as zeros."""

    def __init__(self) -> None:
        super().__init__()
        self.conv = nn.Conv2d(3, 3, 3, padding=1, bias=False)
        self.bn = nn.BatchNorm2d(3)

    def forward(self, x: Tensor) -> Tensor:
        return torch.relu(x + self.bn(self.conv(x)))


@pytest.mark.parametrize(
    ("method", "shifted"), [*((method, True) for method in METHODS), ("lsq_plus", False)]
)
def test_zero_gammas_train(method: str, shifted: bool) -> None:
    """The first batch behind one is a number for each channel, or all zeros."""
    eager = seeded(Residual)
    eager.bn.weight.data.zero_()
    if not shifted:
        eager.bn.bias.data.zero_()
    x = batch(*IMAGES)
    model = prepare_qat(compiled(eager, x), fake_quantizer=method).train()
    for steps in (0, 4):
        train(model, batches(steps, *IMAGES), sgd(model, 0.05))
        model(x)
        for name, value in model.state_dict().items():
            assert value.double().isfinite().all(), name
        reference = jit_passes.convert(model)
        model.eval()
        assert (reference(x) - model(x)).abs().max() <= 0.03 * model(x).abs().max()
        model.train()
    moved = parameter_of(model, "bn.weight") != 0
    # The least of these numbers is at the end of LSQ+'s grid, where no gradient passes.
    least = parameter_of(model, "bn.bias").argmin()
    assert moved.all() or (
        method == "lsq_plus" and shifted and moved.sum() == 2 and not moved[least]
    )
    assert parameter_of(model, "conv.weight").grad.abs().sum() > 0


class Normed(nn.Module):
    """A weighted operator, a batch norm behind it, and what comes in between."""

    def __init__(self, norm: nn.Module, order: str = "norm", linear: bool = False) -> None:
        super().__init__()
        self.layer = nn.Linear(6, 4) if linear else nn.Conv2d(3, 4, 3)
        self.between = nn.ReLU() if order == "relu_first" else nn.Identity()
        self.norm = norm
        self.second = nn.BatchNorm2d(4) if order == "two" else None

    def forward(self, x: Tensor) -> Tensor:
        x = self.between(self.layer(x))
        if self.second is not None:
            return self.norm(x) + self.second(x)
        return torch.relu(self.norm(x))


NORMS: dict[str, tuple[Callable[[], nn.Module], bool]] = {
    "plain": (lambda: Normed(nn.BatchNorm2d(4)), True),
    "not_affine": (lambda: Normed(nn.BatchNorm2d(4, affine=False)), True),
    "no_statistics": (lambda: Normed(nn.BatchNorm2d(4, track_running_stats=False)), False),
    "no_momentum": (lambda: Normed(nn.BatchNorm2d(4, momentum=None)), True),
    "linear": (lambda: Normed(nn.BatchNorm1d(4), linear=True), True),
    "relu_first": (lambda: Normed(nn.BatchNorm2d(4), "relu_first"), False),
    "two": (lambda: Normed(nn.BatchNorm2d(4), "two"), False),
    "instance": (lambda: Normed(nn.InstanceNorm2d(4)), False),
}


@pytest.mark.parametrize("name", NORMS)
@pytest.mark.parametrize("origin", ["scripted", "traced_in_training", "traced_in_eval"])
@pytest.mark.parametrize("method", ["lsq", "moving_average"])
def test_kinds_of_batch_norm(name: str, origin: str, method: str) -> None:
    """Batch norms train as in float, freeze, and convert; where they fold, they are gone then."""
    make, folds = NORMS[name]
    shape = (5, 6) if name == "linear" else IMAGES
    eager, x = seeded(make()), batch(*shape)
    model = prepare_qat(compiled(eager, x, origin), fake_quantizer=method).train()
    if name == "linear":  # a script does not say that the linear reads a matrix
        folds = origin != "scripted"
    assert bool(nodes_of(model, "jit_passes::deferred_batch_norm")) == folds
    train(model, batches(3, *shape))
    freeze_statistics(model)
    train(model, batches(1, *shape))
    model.eval()
    expected = model(x)
    assert expected.isfinite().all()
    reference = jit_passes.convert(model)
    found = nodes_of(reference, "aten::batch_norm") + nodes_of(reference, "aten::instance_norm")
    assert bool(found) != folds
    # A step of the convolution, times what a float normalization makes of it.
    assert (reference(x) - expected).abs().max() <= 0.15 * expected.abs().max()


# Switches --------------------------------------------------------------------


@pytest.mark.parametrize("origin", ORIGINS)
@pytest.mark.parametrize("method", METHODS)
def test_without_fake_quantization_it_is_float(origin: str, method: str) -> None:
    """To 1e-6, and observers go on: the scales begin."""
    x = batch(*IMAGES)
    model = prepare_qat(compiled(seeded(Net), x, origin), fake_quantizer=method)
    float_model = seeded(Net)  # what was traced in training mode has no eval mode
    disable_fake_quantize(model)
    assert torch.allclose(model.eval()(x), float_model.eval()(x), atol=1e-6)
    begins = [n for n in model.state_dict() if n.startswith("conv1.input_")]
    assert all(not model.state_dict()[n].isfinite().any() for n in begins if "offset" not in n)
    model.train()(x)
    float_model.load_state_dict(model.state_dict(), strict=False)  # the batch norms' statistics
    assert all(model.state_dict()[n].isfinite().all() for n in begins)
    enable_fake_quantize(model)
    model.eval()
    quantized = model(x)
    assert not torch.allclose(quantized, float_model.eval()(x), atol=1e-6)
    disable_fake_quantize(model)
    assert torch.allclose(model(x), float_model.eval()(x), atol=1e-6)


def test_ranges_stand_still() -> None:
    x = batch(*IMAGES)
    options = {"fake_quantizer": "moving_average", "target": "stock"}
    model = prepare_qat(compiled(seeded(Net), x), **options).train()
    model(x)
    ranges = [n for n in model.state_dict() if n.endswith("put_range")]
    assert len(ranges) == 6
    for switch, moves in ((disable_observers, False), (enable_observers, True)):
        switch(model)
        before = state_of(model)
        model(5 * x)
        changed = [n for n in ranges if not torch.equal(before[n], model.state_dict()[n])]
        assert changed == (ranges if moves else []) or (moves and len(changed) >= 3)


def test_scales_do_not_begin_without_observers() -> None:
    model = prepare_qat(compiled(seeded(Net), batch(*IMAGES))).train()
    disable_observers(model)
    with pytest.raises(jit_passes.JitPassesError, match="has no scale yet"):
        model(batch(*IMAGES))


def test_switches_are_saved() -> None:
    x = batch(*IMAGES)
    model = prepare_qat(compiled(seeded(Net), x)).train()
    model(x)
    for switch in (disable_fake_quantize, disable_observers, freeze_statistics):
        switch(model)
    loaded = reloaded(model)
    fresh = prepare_qat(compiled(seeded(Net), x)).train()
    fresh.load_state_dict(model.state_dict())
    names = ("fake_quantize_enabled", "observer_enabled", "statistics_frozen")
    for other in (loaded, fresh):
        state = other.state_dict()
        assert [bool(state[name]) for name in names] == [False, False, True]
        assert torch.equal(other(x), model(x))
    enable_fake_quantize(loaded)
    assert not torch.equal(loaded(x), model(x))


# Resuming --------------------------------------------------------------------

OPTIMIZERS: dict[str, Callable[[Model], torch.optim.Optimizer]] = {
    "sgd": sgd,
    "adam": lambda model: torch.optim.Adam(
        [
            {"params": model_parameters(model), "lr": 1e-2},
            {"params": quantization_parameters(model), "lr": 1e-3},
        ]
    ),
}


@pytest.mark.parametrize(
    ("how", "optimizer", "method"),
    [
        ("file", "sgd", "lsq"),
        ("state", "adam", "lsq"),
        ("file", "adam", "tqt"),
        ("state", "sgd", "lsq_plus"),
        ("state", "sgd", "moving_average"),
    ],
)
def test_training_resumes_to_the_bit(how: str, optimizer: str, method: str) -> None:
    x, data = batch(*IMAGES), batches(6, *IMAGES)
    make = OPTIMIZERS[optimizer]
    model = prepare_qat(compiled(seeded(Net), x), fake_quantizer=method).train()
    one = make(model)
    train(model, data[:3], one)
    file = io.BytesIO()
    torch.save({"model": model.state_dict(), "optimizer": one.state_dict()}, file)
    file.seek(0)
    saved = torch.load(file, weights_only=True)
    if how == "file":
        resumed = reloaded(model)
    else:
        resumed = prepare_qat(compiled(seeded(Net, seed=3), x), fake_quantizer=method).train()
        resumed.load_state_dict(saved["model"])
    assert resumed.training
    other = make(resumed)
    other.load_state_dict(saved["optimizer"])
    assert train(model, data[3:], one) == train(resumed, data[3:], other)
    for name, value in model.state_dict().items():
        assert torch.equal(value, resumed.state_dict()[name]), name


# Precision and threads -------------------------------------------------------


@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float16], ids=str)
@pytest.mark.parametrize("method", METHODS)
def test_autocast(method: str, dtype: torch.dtype) -> None:
    x = batch(*IMAGES)
    model = prepare_qat(compiled(seeded(Net), x), fake_quantizer=method).train()
    optimizer = sgd(model)
    for _ in range(3):
        optimizer.zero_grad()
        with torch.autocast("cpu", dtype=dtype):
            y = model(x)
        assert y.dtype == dtype
        y.float().square().mean().backward()
        optimizer.step()
    for name, parameter in model.named_parameters():
        assert parameter.dtype == torch.float32
        assert parameter.grad is not None and parameter.grad.isfinite().all(), name
    model.eval()
    with torch.autocast("cpu", dtype=dtype):
        low = model(x).float()
    assert (low - model(x)).abs().max() <= 0.1 * low.abs().max()


@pytest.mark.parametrize("method", METHODS)
def test_same_bits_again(method: str) -> None:
    """One seed gives equal bits, with one thread as with two."""
    threads = torch.get_num_threads()
    results = []
    try:
        for count in (1, 2, 2):
            torch.set_num_threads(count)
            torch.manual_seed(0)
            model = prepare_qat(
                compiled(seeded(Net(dropout=0.3)), batch(*IMAGES)), fake_quantizer=method
            )
            losses = train(model.train(), batches(3, 4, 3, 16, 16))
            results.append((losses, state_of(model)))
    finally:
        torch.set_num_threads(threads)
    assert results[1][0] == results[2][0]
    for name, value in results[1][1].items():
        assert torch.equal(value, results[2][1][name]), name
    # Convolutions may add up in another order with another number of threads.
    assert results[0][0] == pytest.approx(results[1][0], rel=1e-3)


def test_deepcopies_train_apart() -> None:
    """A copy of the model, as averaging of weights makes one."""
    x = batch(*IMAGES)
    model = prepare_qat(compiled(seeded(Net), x)).train()
    train(model, batches(1, *IMAGES))
    copied = copy.deepcopy(model)
    assert torch.equal(copied.eval()(x), model.eval()(x))
    before = copied(x)
    train(model.train(), batches(1, *IMAGES))
    assert torch.equal(copied(x), before)
    assert jit_passes.convert(copied)
