"""Signal processing within a model stays in float: filters that nobody has learned."""

from __future__ import annotations

import io
import warnings
from collections.abc import Callable
from typing import Any

import pytest
import torch
from torch import Tensor, nn
from torch.nn import functional as F

import jit_passes
from jit_passes import JitPassesWarning
from tests.advice import nested_tensors
from tests.compare import sqnr
from tests.quantizing import seeded

TARGETS = ("reference", "stock", "x86")
RATE = 16000


def filterbank(bins: int, bands: int) -> Tensor:
    """Return triangles [bins, bands] side by side."""
    place, centre = torch.linspace(0, 1, bins)[:, None], torch.linspace(0, 1, bands + 2)[None]
    return (1 - (place - centre[:, 1:-1]).abs() * (bands + 1)).clamp(0)


def fourier(size: int) -> Tensor:
    """Return windowed cosines and sines [size + 2, 1, size]."""
    angles = 2 * torch.pi * torch.arange(size // 2 + 1)[:, None] * torch.arange(size)[None] / size
    return (torch.cat([angles.cos(), angles.sin()]) * torch.hann_window(size))[:, None]


def sounds(seed: int) -> Tensor:
    """Return a second of eight tones of all volumes, [8, RATE], with a little noise."""
    generator = torch.Generator().manual_seed(seed)
    pitch, volume = torch.rand(2, 8, 1, generator=generator)
    tone = torch.sin(2 * torch.pi * pitch * 3000 * torch.arange(RATE) / RATE)
    return volume * tone + 0.003 * torch.randn(8, RATE, generator=generator)


class LogMel(nn.Module):
    """A logarithmic spectrum by mel bands, and a small net that reads it; it gives both."""

    def __init__(self) -> None:
        super().__init__()
        self.register_buffer("window", torch.hann_window(400))
        self.register_buffer("filters", filterbank(201, 40))
        self.conv, self.head = nn.Conv1d(40, 32, 3, padding=1), nn.Linear(32, 4)

    def forward(self, x: Tensor) -> tuple[Tensor, Tensor]:
        spectrum = torch.stft(x, 400, 160, 400, self.window, return_complex=True)
        power = spectrum.abs().square().transpose(-1, -2)
        mel = torch.log(torch.matmul(power, self.filters).transpose(-1, -2) + 1e-6)
        return mel, self.head(torch.relu(self.conv(mel)).mean(2))


def script(model: nn.Module) -> torch.jit.ScriptModule:
    return torch.jit.script(model.eval())


def dtypes(model: torch.jit.ScriptModule) -> dict[str, str]:
    return {row.name: row.dtype for row in jit_passes.coverage(model)}


@pytest.fixture(scope="module")
def log_mel() -> torch.jit.ScriptModule:
    return script(seeded(LogMel))


@pytest.mark.parametrize("target", TARGETS)
def test_a_filterbank_in_front_of_a_logarithm(log_mel: torch.jit.ScriptModule, target: str) -> None:
    """Its bands are those of the float model; the net behind loses what its own 8 bits cost."""
    data = [sounds(seed) for seed in range(6)]
    given: dict[str, Any] = {"target": target, "progress": False, "strict": True}
    with warnings.catch_warnings():
        warnings.simplefilter("error", JitPassesWarning)
        quantized = jit_passes.quantize_script(log_mel, data, **given)
    (mel, result), (wanted_mel, wanted) = quantized(data[0]), log_mel(data[0])
    assert torch.equal(mel, wanted_mel)
    assert sqnr(wanted, result) > 35
    assert dtypes(quantized) == {"linear": "float", "conv:conv1d": "int8", "head:linear": "int8"}
    row = jit_passes.coverage(quantized)[0]
    assert row.reason == (
        "'log' depends on it, before anything learned; a rule with a mode quantizes it"
    )
    told = {row.name: row.reason for row in jit_passes.inspect(log_mel, target=target)}
    assert told["linear"] == row.reason


class FromTheLeft(nn.Module):
    """The filterbank as the first factor, [bands, bins], as most tools store it."""

    def __init__(self) -> None:
        super().__init__()
        self.register_buffer("filters", filterbank(33, 12).T.contiguous())
        self.head = nn.Linear(12, 4)

    def forward(self, power: Tensor) -> tuple[Tensor, Tensor]:
        mel = torch.log(self.filters @ power + 1e-6)
        return mel, self.head(mel.transpose(1, 2))


@pytest.mark.parametrize("traced", [False, True], ids=["scripted", "traced"])
@pytest.mark.parametrize("target", TARGETS)
def test_the_filterbank_on_the_left(target: str, traced: bool) -> None:
    data = [torch.rand(2, 33, 40) ** 8 for _ in range(4)]
    net = seeded(FromTheLeft).eval()
    model = torch.jit.trace(net, data[0]) if traced else torch.jit.script(net)
    quantized = jit_passes.quantize_script(model, data, target=target, progress=False)
    (mel, result), (wanted_mel, wanted) = quantized(data[0]), model(data[0])
    assert torch.equal(mel, wanted_mel) and sqnr(wanted, result) > 30
    assert dtypes(quantized)["head:linear"] == "int8"


@pytest.mark.parametrize("mode", ["static", "dynamic"])
def test_a_mode_for_all_is_a_warning(log_mel: torch.jit.ScriptModule, mode: str) -> None:
    """The warning names the operator, and the rule for float, which ends the warning."""
    data = [sounds(0)]
    given: dict[str, Any] = {"target": "stock", "progress": False, "mode": mode}
    with pytest.warns(JitPassesWarning, match="signal processing is put on integers") as caught:
        quantized = jit_passes.quantize_script(log_mel, data, **given)
    text = str(caught[0].message)
    assert "linear: 'log' depends on it" in text and "'conv:conv1d'" not in text
    assert "{value: 'linear', keep_float: true}" in text
    assert dtypes(quantized)["linear"] == "int8"
    for rule, dtype in (({"keep_float": True}, "float"), ({"mode": mode}, "int8")):
        config = {"version": 1, "rules": [{"value": "linear", **rule}]}
        with warnings.catch_warnings():
            warnings.simplefilter("error", JitPassesWarning)
            found = jit_passes.quantize_script(log_mel, data, config=config, **given)
        assert dtypes(found)["linear"] == dtype


def test_training_is_a_warning(log_mel: torch.jit.ScriptModule) -> None:
    with pytest.warns(JitPassesWarning, match=r"(?s)signal processing .* linear: 'log' depends"):
        jit_passes.prepare_qat(log_mel, target="stock")


@pytest.mark.parametrize("rule", [{"mode": "static"}, {"mode": "dynamic"}, {"keep_float": False}])
def test_a_rule_wins(log_mel: torch.jit.ScriptModule, rule: dict[str, Any]) -> None:
    config = {"version": 1, "rules": [{"op": "linear", **rule}]}
    with warnings.catch_warnings():
        warnings.simplefilter("error", JitPassesWarning)
        prepared = jit_passes.prepare(log_mel, target="stock", config=config)
    row = jit_passes.coverage(prepared)[0]
    assert (row.dtype, row.mode) == ("int8", rule.get("mode", "static"))


def test_without_data(log_mel: torch.jit.ScriptModule) -> None:
    """The mode dynamic, which linears have then, is not for these; weights alone are harmless."""
    with pytest.warns(JitPassesWarning, match="1 operator stays in float without data, 'conv:"):
        quantized = jit_passes.quantize_script(log_mel, target="stock")
    assert dtypes(quantized)["linear"] == "float"
    with warnings.catch_warnings():
        warnings.simplefilter("error", JitPassesWarning)
        small = jit_passes.quantize_script(log_mel, mode="weight_only", target="stock")
    assert sqnr(log_mel(sounds(1))[0], small(sounds(1))[0]) > 50


# ------------------------------------------------------------------ how fixed filters are stored


class Filters(nn.Module):
    """A Fourier transform and bands as products, and a net; filters are stored in one of the ways.

    Args:
        store: "buffer"; "fixed", a parameter that needs no gradient; "learned", one that does;
            "attribute".
        steep: what reads the bands.
        again: whether a cosine transform reads that.
    """

    def __init__(
        self, store: str, steep: Callable[[Tensor], Tensor] = torch.log, again: bool = False
    ) -> None:
        super().__init__()
        self.steep, self.again = steep, again
        cosines = torch.cos(torch.pi / 16 * (torch.arange(16)[:, None] + 0.5) * torch.arange(16))
        tensors = {"basis": fourier(64), "filters": filterbank(33, 16), "cosines": cosines}
        for name, tensor in tensors.items():
            if store == "buffer":
                self.register_buffer(name, tensor)
            elif store == "attribute":
                setattr(self, name, tensor)
            else:
                setattr(self, name, nn.Parameter(tensor, requires_grad=store == "learned"))
        self.conv, self.head = nn.Conv1d(16, 8, 3, padding=1), nn.Linear(8, 4)

    def forward(self, x: Tensor) -> Tensor:
        real, imaginary = F.conv1d(x, self.basis, stride=16).chunk(2, 1)
        power = (real * real + imaginary * imaginary).transpose(1, 2)
        y = self.steep(torch.matmul(power, self.filters) + 1e-6)
        y = y @ self.cosines if self.again else y
        return self.head(torch.relu(self.conv(y.transpose(1, 2))).mean(2))


def floats_of(model: torch.jit.ScriptModule) -> list[str]:
    """Return the names of operators with weights that stay in float for their own good."""
    quantized = jit_passes.prepare(model, target="x86", strict=True)
    return [row.name for row in jit_passes.coverage(quantized).float]


def traced(model: nn.Module, x: Tensor) -> torch.jit.ScriptModule:
    return torch.jit.trace(model.eval(), x)


def loaded(model: nn.Module, x: Tensor) -> torch.jit.ScriptModule:
    buffer = io.BytesIO()
    torch.jit.save(traced(model, x), buffer)
    buffer.seek(0)
    return torch.jit.load(buffer)


def frozen(model: nn.Module, x: Tensor) -> torch.jit.ScriptModule:
    return torch.jit.freeze(traced(model, x))


WAVE = torch.randn(2, 1, 800, generator=torch.Generator().manual_seed(0))
STEEP: list[Callable[[Tensor], Tensor]] = [
    torch.log, torch.log10, torch.log1p, torch.sqrt, lambda y: y**0.3, lambda y: y / y.amax(),
]  # fmt: skip


@pytest.mark.parametrize("form", [traced, loaded, frozen])
@pytest.mark.parametrize("store", ["buffer", "fixed", "attribute"])
def test_however_filters_are_stored(store: str, form: Any) -> None:
    assert floats_of(form(seeded(lambda: Filters(store)), WAVE)) == ["conv1d", "linear"]


@pytest.mark.parametrize("steep", STEEP)
def test_what_reads_the_filters(steep: Callable[[Tensor], Tensor]) -> None:
    assert floats_of(traced(Filters("fixed", steep), WAVE)) == ["conv1d", "linear"]


def test_buffers_whatever_reads_them() -> None:
    """The cosine transform is behind the logarithm, and its matrix a buffer or a parameter."""
    found = floats_of(traced(Filters("buffer", again=True), WAVE))
    assert found == ["conv1d", "linear", "linear#1"]
    assert floats_of(traced(Filters("fixed", again=True), WAVE)) == ["conv1d", "linear"]


@pytest.mark.parametrize("form", [traced, loaded])
def test_learned_filters_are_quantized(form: Any) -> None:
    assert floats_of(form(Filters("learned"), WAVE)) == []


@nested_tensors
def test_buffers_that_are_no_plain_tensors() -> None:
    """A sparse or a nested one is in nobody's way."""

    class Odd(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.register_buffer("sparse", torch.eye(4).to_sparse())
            self.register_buffer("nested", torch.nested.nested_tensor([torch.ones(2)]))
            self.layer = nn.Linear(4, 4, bias=False)

        def forward(self, x: Tensor) -> Tensor:
            return torch.log(self.layer(x).exp() + 1)

    assert floats_of(script(Odd())) == []


def test_products_of_computed_matrices() -> None:
    """A covariance in front of a logarithm, of what a convolution reads too."""

    class Covariance(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.first, self.second = nn.Conv1d(8, 8, 1), nn.Conv1d(8, 8, 1)

        def forward(self, x: Tensor) -> tuple[Tensor, Tensor]:
            return self.first(x), self.second(torch.log(x @ x.transpose(1, 2) + 100.0))

    model, x = Covariance(), torch.randn(2, 8, 8)
    quantized = jit_passes.quantize_script(traced(model, x), [x], target="x86", progress=False)
    assert dtypes(quantized)["matmul"] == "float"


# ---------------------------------------------------------------------------- behind learned layers


class Around(nn.Module):
    """A product by a buffer between two convolutions, or behind them."""

    def __init__(self, function: Callable[[Tensor, Tensor], Tensor], last: bool = True) -> None:
        super().__init__()
        self.function = function
        self.first = nn.Conv2d(3, 8, 3, padding=1)
        self.last = nn.Conv2d(8, 4, 1) if last else nn.Identity()
        self.register_buffer("kernel", torch.ones(8, 1, 2, 2) / 4)

    def forward(self, x: Tensor) -> Tensor:
        return self.last(self.function(torch.relu(self.first(x)), self.kernel))


def blur(x: Tensor, kernel: Tensor) -> Tensor:
    return F.conv2d(x, kernel, stride=2, groups=8)


def test_a_buffer_between_layers_is_quantized() -> None:
    """A blur, as in anti-aliased networks; not where it is the last or a logarithm reads it."""
    x = torch.randn(2, 3, 8, 8)
    assert floats_of(traced(Around(blur), x)) == []
    assert floats_of(traced(Around(blur, last=False), x)) == ["conv2d"]
    assert floats_of(traced(Around(lambda x, k: torch.log1p(blur(x, k))), x)) == ["conv2d"]


# ------------------------------------------------------------------------------- ordinary networks


def swish(x: Tensor) -> Tensor:
    return x / (1 + torch.exp(-x))


def generalized_mean(x: Tensor) -> Tensor:
    return x.clamp_min(1e-6).pow(3).mean([2, 3], keepdim=True).pow(1 / 3)


def unit(x: Tensor) -> Tensor:
    return x / x.norm(dim=1, keepdim=True)


def root_mean_square(x: Tensor) -> Tensor:
    return x * torch.rsqrt(x.square().mean(1, keepdim=True) + 1e-6)


class Ordinary(nn.Module):
    """Layers that have learned, and a function written by hand around and between them."""

    def __init__(self, function: Callable[[Tensor], Tensor], bias: bool) -> None:
        super().__init__()
        self.function = function
        self.first, self.second = nn.Conv2d(3, 8, 3, bias=bias), nn.Conv2d(8, 8, 1, bias=bias)
        self.norm = nn.BatchNorm2d(8)
        self.register_buffer("deviation", torch.tensor([0.2, 0.3, 0.2]).reshape(1, 3, 1, 1))

    def forward(self, x: Tensor) -> Tensor:
        x = (x - 0.5) / self.deviation
        y = self.function(self.norm(self.first(unit(x))))
        return self.function(self.second(y))


@pytest.mark.parametrize("form", [traced, frozen])
@pytest.mark.parametrize("bias", [True, False])
@pytest.mark.parametrize("function", [swish, generalized_mean, unit, root_mean_square])
def test_learned_layers_are_quantized(
    function: Callable[[Tensor], Tensor], bias: bool, form: Any
) -> None:
    """Functions behind them are steep too; a norm is folded, so it shows as a bias."""
    assert floats_of(form(Ordinary(function, bias), torch.randn(2, 3, 8, 8))) == []
