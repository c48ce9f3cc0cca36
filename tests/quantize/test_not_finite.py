"""NaNs and infinities: the codes of static places, and that a row of a batch spoils no other."""

from __future__ import annotations

import random
from collections.abc import Callable

import pytest
import torch
from torch import Tensor, nn
from torch.nn import functional as F

import jit_passes
from jit_passes.targets import Stock
from tests.advice import traced_branches
from tests.compare import assert_codes, sqnr
from tests.plans import last_step
from tests.quantizing import ENGINES
from tests.seeds import seeds

pytestmark = traced_branches

BEFORE: dict[str, Callable[[Tensor], Tensor]] = {
    "nothing": lambda x: x,
    "relu": torch.relu,
    "clamp": lambda x: torch.clamp(x, 0.0, 6.0),
    "scaled relu": lambda x: torch.relu(x * 2.0),
    "gelu": F.gelu,
    "sum": lambda x: torch.relu(torch.cos(x) + x),
}


class Behind(nn.Module):
    """A linear behind a function in float, or a convolution."""

    def __init__(self, function: Callable[[Tensor], Tensor], channels: int) -> None:
        super().__init__()
        self.function = function
        self.layer = nn.Conv2d(channels, 8, 3, padding=1) if channels else nn.Linear(48, 8)

    def forward(self, x: Tensor) -> Tensor:
        return self.layer(self.function(x))


@pytest.mark.parametrize("channels", [0, 5], ids=["linear", "convolution"])
@pytest.mark.parametrize("name", BEFORE)
def test_codes_of_what_is_not_finite(name: str, channels: int) -> None:
    torch.manual_seed(0)
    x = torch.randn(2, channels, 9, 11) if channels else torch.randn(37, 48)
    model = torch.jit.trace(Behind(BEFORE[name], channels).eval(), x)
    bad, drawn = x.clone(), torch.rand_like(x)
    for low, value in ((0.0, torch.nan), (0.02, torch.inf), (0.04, -torch.inf)):
        bad[(drawn >= low) & (drawn < low + 0.02)] = value
    codes = {"version": 1, "rules": [{"module": "layer", "output": {"dtype": "uint8"}}]}
    models = [
        jit_passes.quantize_script(model, [x], target=target, mode="static", config=codes)
        for target in ("reference", "x86")
    ]
    results = [quantized(bad) for quantized in models]
    assert all(result.isfinite().all() for result in results) and results[0].std() > 0
    assert_codes(*results, last_step(models[0]))


class Attention(nn.Module):
    """Self-attention, where a mask may hide all from a sample."""

    def __init__(self) -> None:
        super().__init__()
        self.attention = nn.MultiheadAttention(16, 2, batch_first=True)
        self.last = nn.Linear(16, 6)

    def forward(self, x: Tensor, hidden: Tensor) -> Tensor:
        return self.last(x + self.attention(x, x, x, key_padding_mask=hidden)[0])


class Tagger(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.steps = nn.LSTM(16, 12, batch_first=True, bidirectional=True)
        self.last = nn.Linear(24, 5)

    def forward(self, x: Tensor) -> Tensor:
        return self.last(self.steps(x)[0])


def draw_net(random_: random.Random) -> tuple[nn.Module, Tensor]:
    """A net whose samples do not know of each other, and a batch."""
    kind = random_.choice(["tokens", "images", "signals", "steps"])
    if kind == "steps":
        return Tagger().eval(), torch.randn(5, 4, 16)
    layers: list[nn.Module] = []
    for _ in range(random_.choice([1, 2, 3])):
        if kind == "tokens":
            layers.append(nn.Linear(16, 16))
            layers += [nn.LayerNorm(16)] if random_.random() < 0.4 else []
        else:
            groups = random_.choice([1, 2, 8])
            image = kind == "images"
            if random_.random() < 0.2:
                layers.append((nn.ConvTranspose2d if image else nn.ConvTranspose1d)(8, 8, 3, 2))
            else:
                conv = nn.Conv2d if image else nn.Conv1d
                layers.append(conv(8, 8, 3, padding=1, groups=groups))
            layers += [nn.GroupNorm(2, 8)] if random_.random() < 0.3 else []
        layers.append(random_.choice([nn.ReLU, nn.Sigmoid, nn.GELU, nn.Identity, nn.Hardswish])())
    shape = {"tokens": (5, 3, 16), "images": (5, 8, 6, 7), "signals": (5, 8, 40)}[kind]
    return nn.Sequential(*layers).eval(), torch.randn(shape)


TARGETS = ("reference", "x86", "stock")
RUNS = [(target, mode) for target in TARGETS for mode in ("auto", "static", "dynamic")]
RUNS.append(("stock", "weight_only"))


@pytest.mark.filterwarnings("ignore:nothing was quantized")
@pytest.mark.parametrize("seed", seeds(24, few=8))
def test_a_sample_spoils_no_other(seed: int) -> None:
    """The others have the bits that they have without it, if all of it is NaN."""
    random_ = random.Random(seed)
    torch.manual_seed(seed)
    net, x = draw_net(random_)
    script = torch.jit.script(net) if seed % 2 else torch.jit.trace(net, x)
    others = [0, 1, 3, 4]
    for target, mode in RUNS:
        quantized = jit_passes.quantize_script(script, [x], target=target, mode=mode)
        bad = x.clone()
        bad[2] = torch.nan
        found, alone = quantized(bad)[others], quantized(bad[others])
        assert torch.allclose(found, alone, rtol=1e-5, atol=1e-6), (target, mode)
        for value in (torch.nan, torch.inf, -torch.inf):
            bad = x.clone()
            bad[2].view(-1)[random_.randrange(bad[2].numel())] = value
            found, wanted = quantized(bad), script(bad)
            assert wanted[others].isfinite().all()
            assert sqnr(wanted[others], found[others]) > 15, (target, mode, value)
            if mode == "dynamic":
                assert found[2][wanted[2].isnan()].isnan().all()


@pytest.mark.parametrize("traced", [False, True], ids=["scripted", "traced"])
def test_a_sample_that_attends_to_nothing(traced: bool) -> None:
    torch.manual_seed(0)
    x, hidden = torch.randn(4, 6, 16), torch.zeros(4, 6, dtype=torch.bool)
    net = Attention().eval()
    if traced:
        model = torch.jit.trace(net, (x, hidden), check_trace=False)
    else:
        model = torch.jit.script(net)
    blind = hidden.clone()
    blind[2] = True
    wanted, others = model(x, blind), [0, 1, 3]
    assert wanted.flatten(1).isnan().any(1).tolist() == [False, False, True, False]
    for target, mode in RUNS:
        quantized = jit_passes.quantize_script(model, [(x, hidden)], target=target, mode=mode)
        found = quantized(x, blind)
        assert sqnr(wanted[others], found[others]) > 20, (target, mode)
        if mode == "dynamic":
            assert found[2].isnan().all()


class Streamed(nn.Module):
    """A recurrent layer with its state, in either order of axes."""

    def __init__(self, layer: type[nn.RNNBase], batch_first: bool) -> None:
        super().__init__()
        self.layer = layer(8, 12, 2, batch_first=batch_first)

    def forward(self, x: Tensor, h: Tensor, c: Tensor) -> list[Tensor]:
        if isinstance(self.layer, nn.LSTM):
            y, (h, c) = self.layer(x, (h, c))
            return [y, h, c]
        y, h = self.layer(x, h)
        return [y, h]


@pytest.mark.parametrize("engine", ENGINES)
@pytest.mark.parametrize("batch_first", [False, True])
@pytest.mark.parametrize("layer", [nn.LSTM, nn.GRU])
def test_states_on_engines(
    layer: type[nn.RNNBase], batch_first: bool, engine: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A NaN in the input or in a state is NaN in all results of its sample, and there alone."""
    monkeypatch.setattr(torch.backends.quantized, "engine", engine)
    torch.manual_seed(0)
    x, h, c = torch.randn(4, 5, 8), torch.randn(2, 4, 12), torch.randn(2, 4, 12)
    x = x if batch_first else x.transpose(0, 1)
    model = torch.jit.trace(Streamed(layer, batch_first).eval(), (x, h, c))
    quantized = jit_passes.quantize_script(model, mode="dynamic", target=Stock(engine))
    wanted = quantized(x, h, c)
    for place in (x, h, c) if layer is nn.LSTM else (x, h):
        bad = [v.clone() if v is place else v for v in (x, h, c)]
        samples = 0 if place is x and batch_first else 1
        bad[[v is place for v in (x, h, c)].index(True)].select(samples, 2)[0, 3] = torch.nan
        for i, (found, right) in enumerate(zip(quantized(*bad), wanted, strict=True)):
            axis = 0 if i == 0 and batch_first else 1
            assert found.select(axis, 2).isnan().all()
            others = torch.tensor([0, 1, 3])
            assert sqnr(right.index_select(axis, others), found.index_select(axis, others)) > 30


@pytest.mark.parametrize("engine", ENGINES)
@pytest.mark.parametrize("shape", [(16,), (6, 16), (2, 3, 16)], ids=len)
def test_rows_on_engines(
    shape: tuple[int, ...], engine: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Finite numbers whose sum is not are as good as others."""
    monkeypatch.setattr(torch.backends.quantized, "engine", engine)
    torch.manual_seed(0)
    model = nn.Sequential(nn.Linear(16, 8), nn.ReLU()).eval()
    quantized = jit_passes.quantize_script(
        torch.jit.script(model), mode="dynamic", target=Stock(engine)
    )
    x = torch.randn(shape)
    assert_rows(quantized, x)
    large = (1 + torch.rand(shape)) * 2e37
    assert not large.sum().isfinite()
    if engine != "onednn":  # its products overflow by themselves from 1e37
        with torch.no_grad():
            assert sqnr(model(large), quantized(large)) > 30


@pytest.mark.parametrize("shape", [(32,), (6, 32), (2, 3, 32)], ids=len)
def test_rows_of_weights_in_groups(shape: tuple[int, ...]) -> None:
    torch.manual_seed(0)
    model = torch.jit.script(nn.Sequential(nn.Linear(32, 8), nn.ReLU()).eval())
    config = {"global": {"mode": "dynamic", "weight": {"bits": 4, "group_size": 32}}}
    for target in TARGETS:
        quantized = jit_passes.quantize_script(model, target=target, config={"version": 1} | config)
        assert_rows(quantized, torch.randn(shape))


def assert_rows(quantized: torch.jit.ScriptModule, x: Tensor) -> None:
    """Check that a number of the last row that is not finite makes that row NaN, and no other."""
    for value in (torch.nan, torch.inf, -torch.inf):
        bad = x.clone()
        bad[..., 3].view(-1)[-1] = value
        rows = quantized(bad).reshape(-1, 8)
        assert rows[-1].isnan().all()
        assert torch.allclose(rows[:-1], quantized(x).reshape(-1, 8)[:-1], atol=0.05)
