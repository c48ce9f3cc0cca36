"""Errors of prepare_qat and of models that train."""

from __future__ import annotations

import copy
import io
import warnings
from collections.abc import Callable
from typing import Any

import pytest
import torch
from torch import Tensor, nn

import jit_passes
from jit_passes import JitPassesError, JitPassesWarning
from jit_passes.targets import PowerOfTwoQuantizer
from jit_passes.training import optimizers
from jit_passes.training.parameters import quantization_parameters
from jit_passes.training.prepare import prepare_qat
from jit_passes.training.switches import disable_observers, freeze_statistics, scale_corrections
from tests.processor import BITS
from tests.qat_nets import (
    METHODS,
    Net,
    Plain,
    batch,
    batches,
    compiled,
    makes_scales_positive,
    parameter_of,
    seeded,
    sgd,
    state_of,
    train,
)

IMAGES = (4, 3, 8, 8)


class NoWeights(nn.Module):
    """A parameter, and nothing that it is a weight of."""

    def __init__(self) -> None:
        super().__init__()
        self.slope = nn.Parameter(torch.ones(1))

    def forward(self, x: Tensor) -> Tensor:
        return torch.relu(x) * self.slope


def scripted() -> Any:
    return compiled(seeded(Plain), batch(*IMAGES))


def calibrated() -> Any:
    model = scripted().eval()
    return jit_passes.prepare(model)


def frozen() -> Any:
    return torch.jit.freeze(scripted().eval())


MODELS: dict[str, tuple[Callable[[], Any], str]] = {
    "eager": (lambda: seeded(Plain), "eager module.*torch.jit.script"),
    "no_module": (lambda: 3, "ScriptModule is needed, got int"),
    "frozen": (frozen, "no parameters to train.*before freezing"),
    "no_weights": (lambda: torch.jit.script(NoWeights()), "nothing can be quantized.*convolution"),
    "prepared": (calibrated, "prepared already.*float model"),
    "twice": (lambda: prepare_qat(scripted()), "qat already.*go on with training"),
    "int8": (lambda: jit_passes.quantize_script(scripted().eval(), batches(1, *IMAGES)),
             "lowered already|no parameters"),
}  # fmt: skip

OPTIONS: dict[str, tuple[dict[str, Any], str]] = {
    "one_bit": ({"bits": 1}, "2 to 16|at least 2"),
    "seventeen_bits": ({"bits": 17}, "2 to 16|at most 16"),
    "bits_as_text": ({"bits": "8"}, "bits"),
    "bits_as_float": ({"bits": 8.0}, "bits"),
    "bits_as_bool": ({"bits": True}, "bits"),
    "bits_of_what": ({"bits": {"wieght": 8}}, "weight, input, output or bias, not of 'wieght'"),
    "first_last_bits": ({"first_last_bits": 99}, "2 to 16|at most 16"),
    "method": ({"fake_quantizer": "lsqq"}, "no training method 'lsqq'.*lsq"),
    "method_of_what": ({"fake_quantizer": 3}, "no training method 3"),
    "target": ({"target": "gpu9"}, "gpu9"),
    "no_method": ({"method": "backward"}, "no method 'backward'"),
    "config": ({"config": {"version": 1, "rule": []}}, "rule"),
    "not_lsq": (
        {"quantizer": PowerOfTwoQuantizer(), "fake_quantizer": "lsq"}, "power of two"
    ),
    "strict": (
        {
            "config": {"version": 1, "global": {"weight": {"bits": 16}}},
            "strict": True,
            "target": "stock",
        },
        "strict",
    ),
}  # fmt: skip


@pytest.mark.parametrize("name", MODELS)
def test_models(name: str) -> None:
    make, message = MODELS[name]
    with pytest.raises(JitPassesError, match=f"(?s){message}"):
        prepare_qat(make())


@pytest.mark.parametrize("name", OPTIONS)
def test_options(name: str) -> None:
    """The error says what was expected, and the caller's model is as it was."""
    options, message = OPTIONS[name]
    model = scripted()
    graph, state, mode = str(model.graph), state_of(model), model.training
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", JitPassesWarning)
        with pytest.raises(JitPassesError, match=f"(?s){message}"):
            prepare_qat(model, **options)
    assert (str(model.graph), model.training) == (graph, mode)
    assert list(state) == list(model.state_dict())
    assert all(torch.equal(value, model.state_dict()[n]) for n, value in state.items())


def test_switches_want_a_prepared_model() -> None:
    for function in (freeze_statistics, scale_corrections, quantization_parameters):
        with pytest.raises(JitPassesError, match="prepare_qat"):
            function(scripted())


@pytest.mark.parametrize("method", METHODS)
def test_convert_before_training(method: str) -> None:
    model = prepare_qat(scripted(), fake_quantizer=method)
    with pytest.raises(JitPassesError, match=r"(?s)not trained.*training mode"):
        jit_passes.convert(model)


@pytest.mark.parametrize("method", ["lsq", "lsq_plus", "tqt", "moving_average"])
def test_eval_before_training(method: str) -> None:
    """The interpreter of PyTorch hands the error on as ours, with its message alone."""
    model = prepare_qat(scripted(), fake_quantizer=method).eval()
    for run in (model, torch.jit.script(Calls(model)).eval(), reloaded(model)):
        with pytest.raises(
            JitPassesError, match=r"^[^\n]*'x -> conv:conv2d'[^\n]*training mode"
        ) as e:
            run(batch(*IMAGES))
        assert isinstance(e.value, ValueError)


class Calls(nn.Module):
    """A model within another one."""

    def __init__(self, inner: torch.jit.ScriptModule) -> None:
        super().__init__()
        self.inner = inner

    def forward(self, x: Tensor) -> Tensor:
        return self.inner(x)


def reloaded(model: torch.jit.ScriptModule) -> torch.jit.ScriptModule:
    buffer = io.BytesIO()
    torch.jit.save(model, buffer)
    buffer.seek(0)
    return torch.jit.load(buffer)


def test_other_errors_of_models_stay_what_they_are() -> None:
    """Errors that PyTorch or a script raises stay as they are."""
    model = prepare_qat(scripted()).train()
    with pytest.raises(RuntimeError, match="to have 3 channels") as caught:
        model(torch.zeros(1, 5, 8, 8))
    assert not isinstance(caught.value, JitPassesError)
    with pytest.raises(torch.jit.Error, match="on purpose"):
        torch.jit.script(Raises())(torch.zeros(1))


class Raises(nn.Module):
    def forward(self, x: Tensor) -> Tensor:
        if x.numel() > 0:
            raise ValueError("on purpose")
        return x


@pytest.mark.parametrize("target", ["x86", "stock"])
def test_activations_of_few_bits(target: str) -> None:
    """The message says which bits the target has there, and where fewer can be."""
    bits = BITS if target == "stock" else 8
    words = (
        rf"nothing can be quantized: its input is to be uint8 \[0, 15\], .*give it {bits} bits, or "
        rf"take the target 'reference'.*bits=\{{'weight': 4, 'input': {bits}\}}"
    )
    with warnings.catch_warnings():
        warnings.simplefilter("error", JitPassesWarning)  # the error says all of it
        with pytest.raises(JitPassesError, match=words):
            prepare_qat(scripted(), bits=4, target=target)
    trained = prepare_qat(scripted(), bits={"weight": 4, "input": bits}, target=target)
    assert {row.bits for row in jit_passes.coverage(trained).int8} == {f"w4a{bits}"}


@makes_scales_positive
def test_an_optimizer_that_was_built_too_early() -> None:
    model = scripted()
    optimizer = sgd(model)
    prepared = prepare_qat(model).train()
    with pytest.warns(JitPassesWarning, match="build it after prepare_qat") as caught:
        train(prepared, batches(4, *IMAGES), optimizer)
    assert len([w for w in caught if w.category is JitPassesWarning]) == 1
    optimizers._watched.clear()
    prepared = prepare_qat(scripted()).train()
    with warnings.catch_warnings():
        warnings.simplefilter("error", JitPassesWarning)
        train(prepared, batches(4, *IMAGES))


@pytest.mark.parametrize("value", [float("nan"), float("-inf")])
@pytest.mark.parametrize("method", ["lsq", "lsq_plus", "tqt"])
def test_a_scale_that_is_no_number(method: str, value: float) -> None:
    """The error names it, before anything is computed with it."""
    model = prepare_qat(scripted(), fake_quantizer=method).train()
    model(batch(*IMAGES))
    end = "log2_threshold" if method == "tqt" else "scale"
    for name, place in (("conv.weight", "conv.weight"), ("conv.input", "x -> conv:conv2d")):
        broken = copy.deepcopy(model)
        parameter_of(broken, f"{name}_{end}").data.fill_(value)
        for mode in (True, False):
            with pytest.raises((ValueError, RuntimeError), match=place):
                broken.train(mode)(batch(*IMAGES))


@pytest.mark.parametrize("method", ["lsq", "lsq_plus"])
@pytest.mark.parametrize("value", [0.0, -0.02])
def test_a_scale_that_is_not_positive(
    method: str, value: float, capfd: pytest.CaptureFixture[str]
) -> None:
    """The scale is put back, told and counted, and training goes on."""
    model = prepare_qat(scripted(), fake_quantizer=method).train()
    model(batch(*IMAGES))
    assert scale_corrections(model) == 0
    scale = parameter_of(model, "conv.weight_scale")
    scale.data[:2] = value
    with warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("always")
        y = model(batch(*IMAGES))
    told = " ".join(str(w.message) for w in caught) + capfd.readouterr().err
    assert "2 of 6 scales of 'conv.weight" in told
    assert y.isfinite().all()
    assert (scale > 0).all()
    assert scale_corrections(model) == 2
    if value:
        assert torch.allclose(scale[:2], torch.tensor(-value))
    y.sum().backward()
    assert scale.grad is not None and scale.grad.isfinite().all()
    model(batch(*IMAGES))
    assert scale_corrections(model) == 2


@pytest.mark.parametrize("method", METHODS)
def test_empty_batches(method: str) -> None:
    """In eval mode, in training, as the first one too: nothing begins, nothing breaks."""
    model = prepare_qat(scripted(), fake_quantizer=method).train()
    empty = torch.zeros(0, 3, 8, 8)
    y = model(empty)
    assert y.shape == (0, 4)
    y.sum().backward()
    begins = next(v for n, v in model.state_dict().items() if n.startswith("conv.input_"))
    assert begins.isinf().all()
    with pytest.raises(JitPassesError, match="not trained"):
        jit_passes.convert(model)
    model.zero_grad()
    model(batch(*IMAGES))
    state = state_of(model)
    model(empty).sum().backward()
    assert model.eval()(empty).shape == (0, 4)
    for name, value in model.state_dict().items():
        assert torch.equal(value, state[name]), name
    for name, parameter in model.named_parameters():
        assert parameter.grad is None or not parameter.grad.any(), name


@pytest.mark.parametrize("method", METHODS)
@pytest.mark.parametrize("value", [float("nan"), float("inf")])
def test_numbers_that_are_none_in_the_first_batch(method: str, value: float) -> None:
    """No range holds them: the error names the value, and scales have not begun."""
    model = prepare_qat(scripted(), fake_quantizer=method).train()
    x = batch(*IMAGES)
    x[0, 0, 0, 0] = value
    with pytest.raises((ValueError, RuntimeError), match="x -> conv:conv2d"):
        model(x)
    begins = next(v for n, v in model.state_dict().items() if n.startswith("conv.input_"))
    assert begins.isinf().all()
    assert model(batch(*IMAGES)).isfinite().all(), "it trains after that"


@pytest.mark.parametrize("method", METHODS)
@pytest.mark.parametrize("what", ["weight", "running_var"])
def test_a_batch_norm_that_diverged(method: str, what: str) -> None:
    """The error names the weights in front of it, also when nothing is observed any more."""
    model = prepare_qat(compiled(seeded(Net), batch(*IMAGES)), fake_quantizer=method).train()
    model(batch(*IMAGES))
    model.state_dict()[f"bn1.{what}"][1] = float("nan")
    said = r"batch norm behind 'conv1\.weight -> .* by nan: training has diverged"
    with pytest.raises((ValueError, RuntimeError), match=said):
        model(batch(*IMAGES))
    disable_observers(model)
    with pytest.raises((ValueError, RuntimeError), match=said):
        model(batch(*IMAGES))


def test_a_range_that_is_infinite() -> None:
    """Weights are finite, but not times what their batch norm will scale them by."""
    model = prepare_qat(compiled(seeded(Net), batch(*IMAGES)), fake_quantizer="moving_average")
    model.train()(batch(*IMAGES))
    model.state_dict()["bn1.weight"][1] = 1e38
    model.state_dict()["conv1.weight"][1] *= 1e4
    with pytest.raises((ValueError, RuntimeError), match=r"range of .*'conv1\.weight -> .* inf\]"):
        model(batch(*IMAGES))


class Bytes(nn.Module):
    """Takes images of bytes."""

    def __init__(self) -> None:
        super().__init__()
        self.conv = nn.Conv2d(3, 4, 3)

    def forward(self, x: Tensor) -> Tensor:
        return self.conv(x.float() / 255)


def test_integers() -> None:
    """A model that converts them trains; others say which tensor they need in float."""
    x = torch.randint(0, 256, IMAGES, dtype=torch.uint8)
    model = prepare_qat(torch.jit.script(seeded(Bytes))).train()
    model(x).sum().backward()
    reference = jit_passes.convert(model)
    assert (reference(x) - model.eval()(x)).abs().max() < 0.05
    model = prepare_qat(scripted()).train()
    with pytest.raises(RuntimeError, match=r"floating-point|float"):
        model(x)


def test_a_net_of_bad_shape_says_what_torch_says() -> None:
    model = prepare_qat(compiled(seeded(Net), batch(*IMAGES))).train()
    with pytest.raises(RuntimeError, match="channels"):
        model(batch(2, 5, 8, 8))


def test_a_deep_copy_trains() -> None:
    """copy.deepcopy makes parameters that are no leaves; training is of the copy's, as ever."""
    original = scripted()
    model = copy.deepcopy(original)
    assert not any(parameter.is_leaf for parameter in model.parameters())
    before = {name: value.clone() for name, value in model.named_parameters()}
    qat = prepare_qat(model)
    optimizer = torch.optim.SGD(qat.parameters(), lr=0.1)
    qat.train()(batch(*IMAGES)).square().mean().backward()
    optimizer.step()
    for name, parameter in model.named_parameters():
        assert parameter.is_leaf and parameter is not before[name]
    assert any(not torch.equal(v, before[n]) for n, v in model.named_parameters())
    assert all(torch.equal(v, before[n]) for n, v in original.named_parameters())
    assert all(parameter.grad is None for parameter in original.parameters())
