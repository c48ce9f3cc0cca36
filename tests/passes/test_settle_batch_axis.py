"""Scripted layers that take data with a batch and without one: one form of them, and one plan."""

from __future__ import annotations

from collections.abc import Callable

import pytest
import torch
from torch import Tensor, nn

import jit_passes
from jit_passes.passes.subject import wrap
from jit_passes.stages.normalize import NORMALIZE, normalize_training
from tests.compare import sqnr
from tests.plans import plans_in
from tests.processor import needs_vnni

WIDTH = 32


def encoder(**options: bool) -> nn.Module:
    layer = nn.TransformerEncoderLayer(WIDTH, 4, 64, dropout=0.0, **options)  # type: ignore[arg-type]
    return nn.TransformerEncoder(layer, 2, enable_nested_tensor=False)


class Decoder(nn.Module):
    """Attention to itself, and to what another model has made."""

    def __init__(self, *, batch_first: bool) -> None:
        super().__init__()
        layer = nn.TransformerDecoderLayer(WIDTH, 4, 64, dropout=0.0, batch_first=batch_first)
        self.layers = nn.TransformerDecoder(layer, 2)

    def forward(self, x: Tensor, memory: Tensor) -> Tensor:
        return self.layers(x, memory)


class Recurrent(nn.Module):
    def __init__(self, *, batch_first: bool) -> None:
        super().__init__()
        self.gru = nn.GRU(WIDTH, WIDTH, 2, batch_first=batch_first)
        self.out = nn.Linear(WIDTH, WIDTH)

    def forward(self, x: Tensor) -> Tensor:
        return x + self.out(self.gru(x)[0])


class Tail(nn.Module):
    """Operators that count axes from the front see those that the data have."""

    def __init__(self) -> None:
        super().__init__()
        self.encoder = encoder(batch_first=True)

    def forward(self, x: Tensor) -> tuple[Tensor, int, list[int], Tensor]:
        y = self.encoder(x)
        sizes: list[int] = y.size()
        return y.mean(0), y.dim(), sizes, torch.relu(y) * 2


MODELS: dict[str, Callable[[], nn.Module]] = {
    "encoder": lambda: encoder(batch_first=True),
    "encoder_of_sequences": lambda: encoder(batch_first=False),
    "encoder_norm_first": lambda: encoder(batch_first=True, norm_first=True),
    "decoder": lambda: Decoder(batch_first=True),
    "decoder_of_sequences": lambda: Decoder(batch_first=False),
    "recurrent": lambda: Recurrent(batch_first=True),
    "recurrent_of_sequences": lambda: Recurrent(batch_first=False),
}
# Sizes of x and, with another number of steps, of what a decoder attends to.
WITH_BATCH = ((2, 5), (1, 3), (3, 1))
WITHOUT = ((5,), (1,))


def made(name: str) -> tuple[nn.Module, torch.jit.ScriptModule]:
    torch.manual_seed(0)
    model = MODELS[name]().eval()
    return model, torch.jit.script(model)


def inputs(name: str, sizes: tuple[int, ...], seed: int = 0) -> tuple[Tensor, ...]:
    generator = torch.Generator().manual_seed(seed)
    count = 2 if name.startswith("decoder") else 1
    steps = 0 if len(sizes) == 1 or "sequences" in name else 1
    given = []
    for more in range(count):
        own = list(sizes)
        own[steps] += more
        given.append(torch.randn(*own, WIDTH, generator=generator))
    return tuple(given)


@pytest.mark.parametrize("name", MODELS)
def test_one_form(name: str) -> None:
    """Equal to the model for both ranks and other sizes; one branch is left, the last one."""
    model, script = made(name)
    normal = wrap(NORMALIZE.run(script._c, "forward").module)
    for sizes in (*WITH_BATCH, *WITHOUT):
        given = inputs(name, sizes)
        with torch.no_grad():
            torch.testing.assert_close(normal(*given), model(*given), rtol=1e-5, atol=1e-5)
    branches = [node for node in normal.graph.findAllNodes("prim::If") if moves_its_result(node)]
    assert len(branches) == 1


def moves_its_result(branch: torch._C.Node) -> bool:
    return any(
        node.kind() in ("aten::transpose", "aten::squeeze", "aten::unsqueeze")
        and "mask" not in next(node.inputs()).debugName()
        for block in branch.blocks()
        for node in block.nodes()
    )


@pytest.mark.parametrize("name", MODELS)
@pytest.mark.parametrize("rank", [1, 4])
def test_other_ranks_are_errors(name: str, rank: int) -> None:
    _, script = made(name)
    normal = wrap(NORMALIZE.run(script._c, "forward").module)
    given = inputs(name, (3,) * (rank - 1)) if rank > 1 else (torch.randn(WIDTH),)
    for module in (script, normal):
        with pytest.raises((torch.jit.Error, RuntimeError), match="rror: "):
            module(*(given * 2 if name.startswith("decoder") and len(given) == 1 else given))


def test_two_ranks_are_an_error() -> None:
    _, script = made("decoder")
    normal = wrap(NORMALIZE.run(script._c, "forward").module)
    with pytest.raises(torch.jit.Error, match="expected `key` and `value` to be 3-D"):
        normal(torch.randn(2, 5, WIDTH), torch.randn(5, WIDTH))


@pytest.mark.parametrize("sizes", [*WITH_BATCH, *WITHOUT])
def test_behind_the_last_layer(sizes: tuple[int, ...]) -> None:
    torch.manual_seed(0)
    model = Tail().eval()
    normal = wrap(NORMALIZE.run(torch.jit.script(model)._c, "forward").module)
    x = torch.randn(*sizes, WIDTH)
    with torch.no_grad():
        expected, actual = model(x), normal(x)
    assert actual[1:3] == (expected[1], list(expected[2]))
    for a, b in ((actual[0], expected[0]), (actual[3], expected[3])):
        torch.testing.assert_close(a, b, rtol=1e-5, atol=1e-5)


@pytest.mark.parametrize("name", ["encoder", "decoder", "recurrent"])
@pytest.mark.parametrize("sizes", [(2, 5), (5,)])
def test_gradients(name: str, sizes: tuple[int, ...]) -> None:
    model, script = made(name)
    normal = wrap(normalize_training(script))
    found = []
    for module in (model, normal):
        given = [value.requires_grad_() for value in inputs(name, sizes)]
        module(*given).square().sum().backward()
        found.append([value.grad for value in given])
    for a, b in zip(*found, strict=True):
        torch.testing.assert_close(a, b, rtol=1e-4, atol=1e-4)


class TwoOrders(nn.Module):
    """Layers that have the batch on different axes of one tensor; a convolution reads the first."""

    def __init__(self) -> None:
        super().__init__()
        self.first, self.second = nn.GRU(6, 1, batch_first=True), nn.LSTM(6, 3)
        self.weight = nn.Parameter(torch.randn(1, 3))
        self.convolution = nn.Conv2d(3, 3, 1)

    def forward(self, x: Tensor) -> tuple[Tensor, Tensor]:
        y = self.first(x)[0]
        return self.convolution(y @ self.weight), self.second(x)[0] * 2


def test_two_orders() -> None:
    """One run finds the axis of both layers, though the one's answer is needed for the other's."""
    torch.manual_seed(0)
    model = TwoOrders().eval()
    normal = wrap(normalize_training(torch.jit.script(model)))
    branches = normal.graph.findAllNodes("prim::If")
    given = [str(value.type()) for node in branches for value in node.outputs()]
    assert given.count("Tensor") == 2  # in front of the convolution, and of what the model gives
    x = torch.randn(3, 6, 6)
    for wanted, given in zip(model(x), normal(x), strict=True):
        torch.testing.assert_close(given, wanted)


@needs_vnni
@pytest.mark.parametrize("mode", ["static", "dynamic"])
@pytest.mark.parametrize("name", MODELS)
def test_one_plan(name: str, mode: str) -> None:
    """All operators on integers, in one plan, which takes both ranks."""
    model, script = made(name)
    data = [inputs(name, (2, 5), seed) for seed in range(8)] if mode == "static" else None
    quantized = jit_passes.quantize_script(script, data, target="x86", mode=mode, progress=False)
    rows = jit_passes.coverage(quantized)
    assert all(row.dtype == "int8" for row in rows if row.kind == "linear")
    assert len(plans_in(quantized)) == 1
    for sizes in ((2, 5), (3, 7), (6,)):  # one token alone attends to itself, which no data showed
        given = inputs(name, sizes, seed=20)
        with torch.no_grad():
            assert sqnr(model(*given), quantized(*given)) > 25
