"""Quantizing from several threads at once, and calling one quantized model from many."""

from __future__ import annotations

from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from typing import Any

import pytest
import torch
from torch import Tensor, nn

import jit_passes

THREADS, ROUNDS = 8, 6


class Net(nn.Module):
    """A convolution, a norm that folds, a sum, attention by hand, linears."""

    def __init__(self, width: int) -> None:
        super().__init__()
        self.conv, self.norm = nn.Conv2d(3, width, 3, padding=1), nn.BatchNorm2d(width)
        self.other = nn.Conv2d(width, width, 3, padding=1)
        self.up, self.down = nn.Linear(width, 2 * width), nn.Linear(2 * width, 5)

    def forward(self, x: Tensor) -> Tensor:
        """Return [N, 5]."""
        x = torch.relu(self.norm(self.conv(x)))
        x = torch.relu(self.other(x) + x).mean((2, 3))
        return self.down(torch.relu(self.up(x)))


def net(width: int) -> torch.jit.ScriptModule:
    torch.manual_seed(width)
    return torch.jit.script(Net(width).eval())


def images(batch: int) -> Tensor:
    return torch.rand(batch, 3, 8, 8, generator=torch.Generator().manual_seed(batch))


QUANTIZE: dict[str, Callable[[torch.jit.ScriptModule], torch.jit.ScriptModule]] = {
    target: lambda model, target=target: jit_passes.quantize_script(  # type: ignore[misc]
        model, [images(4)], target=target, mode="static", progress=False
    )
    for target in ("stock", "x86", "reference")
} | {
    "dynamic": lambda model: jit_passes.quantize_script(model, target="stock", mode="dynamic"),
    "weight_only": lambda model: jit_passes.quantize_script(model, mode="weight_only"),
}
# Weights of convolutions alone stay in float, with a warning.
pytestmark = pytest.mark.filterwarnings("ignore::jit_passes.JitPassesWarning")
everywhere = pytest.mark.parametrize("how", QUANTIZE)


def at_once(function: Callable[[int], Any], count: int) -> list[Any]:
    with ThreadPoolExecutor(THREADS) as pool:
        return list(pool.map(function, range(count)))


@everywhere
@pytest.mark.parametrize("shared", [False, True], ids=["own_model", "one_model"])
def test_quantizing(how: str, shared: bool) -> None:
    """The results of threads are those of one, for models of their own and for the same one."""
    widths = [8, 8] if shared else [8, 11]
    models = {width: net(width) for width in widths}
    alone = {width: QUANTIZE[how](model)(images(3)) for width, model in models.items()}

    def quantize(number: int) -> tuple[int, Tensor]:
        width = widths[number % 2]
        return width, QUANTIZE[how](models[width])(images(3))

    for width, result in at_once(quantize, 2 * ROUNDS):
        assert torch.equal(result, alone[width])


@everywhere
def test_calling(how: str) -> None:
    """Batches of many sizes; the first calls, in which PyTorch still optimizes the graph, too."""
    quantized = QUANTIZE[how](net(8))
    with torch.no_grad():
        found = at_once(lambda number: quantized(images(1 + number % 5)), 10 * THREADS)
        alone = [quantized(images(1 + number % 5)) for number in range(5)]
    for number, result in enumerate(found):
        torch.testing.assert_close(result, alone[number % 5], rtol=1e-6, atol=1e-6)


def test_passes_and_rules() -> None:
    """A rule that is registered is used by all, and their models stay apart."""
    model = net(8)
    graphs = at_once(lambda _: str(jit_passes.normalized_graph(model)), 2 * THREADS)
    inspected = at_once(lambda _: str(jit_passes.inspect(model)), 2 * THREADS)
    assert len(set(map(len, graphs))) == 1 and len(set(inspected)) == 1
