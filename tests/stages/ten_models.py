"""Ten small models of different kinds, with batches of different numbers."""

from __future__ import annotations

from collections.abc import Callable

import torch
from torch import Tensor, nn

from jit_passes.observers import methods
from tests.profile.profiles import MODELS as SOME
from tests.profile.profiles import Batches, images, scripted, sequences

# Tests register others.
OWN = {n: kind for n, kind in methods().items() if kind.__module__.startswith("jit_passes.")}
ALONE = "output_error", "observe_moving_average"


class Depthwise(nn.Module):
    """An inverted residual with a squeeze."""

    def __init__(self) -> None:
        super().__init__()
        self.wide, self.deep = nn.Conv2d(3, 6, 1), nn.Conv2d(6, 6, 3, padding=1, groups=6)
        self.squeeze, self.narrow = nn.Linear(6, 6), nn.Conv2d(6, 3, 1)

    def forward(self, x: Tensor) -> Tensor:
        y = nn.functional.hardswish(self.deep(nn.functional.relu6(self.wide(x))))
        y = y * torch.sigmoid(self.squeeze(y.mean((2, 3)))).unsqueeze(-1).unsqueeze(-1)
        return x + self.narrow(y)


class Dense(nn.Module):
    """Concatenations, whose parts share a range."""

    def __init__(self) -> None:
        super().__init__()
        self.first, self.second = nn.Conv2d(3, 4, 3, padding=1), nn.Conv2d(7, 4, 3, padding=1)

    def forward(self, x: Tensor) -> Tensor:
        y = torch.cat((x, torch.relu(self.first(x))), 1)
        return torch.cat((y, torch.relu(self.second(y))), 1)


class Upward(nn.Module):
    """A transposed convolution behind a pool."""

    def __init__(self) -> None:
        super().__init__()
        self.down, self.up = nn.Conv2d(3, 4, 3, padding=1), nn.ConvTranspose2d(4, 3, 2, 2)

    def forward(self, x: Tensor) -> Tensor:
        return self.up(nn.functional.max_pool2d(torch.relu(self.down(x)), 2)) + x


class Recurrent(nn.Module):
    """An LSTM and a linear."""

    def __init__(self) -> None:
        super().__init__()
        self.lstm, self.head = nn.LSTM(8, 6, batch_first=True), nn.Linear(6, 4)

    def forward(self, x: Tensor) -> Tensor:
        y, _ = self.lstm(x)
        return self.head(torch.tanh(y[:, -1]))


class Towers(nn.Module):
    """Two inputs, and a product of both."""

    def __init__(self) -> None:
        super().__init__()
        self.left, self.right = nn.Linear(8, 6), nn.Linear(8, 6)

    def forward(self, x: Tensor, y: Tensor) -> Tensor:
        return torch.relu(self.left(x)) @ torch.relu(self.right(y)).transpose(-1, -2)


def pairs(seed: int) -> Batches:
    return [(*x, 2 * x[0]) for x in sequences(seed)]


TEN: dict[str, tuple[Callable[[], nn.Module], Callable[[int], Batches]]] = {
    **SOME,
    "depthwise": (Depthwise, images),
    "dense": (Dense, images),
    "upward": (Upward, images),
    "recurrent": (Recurrent, sequences),
    "towers": (Towers, pairs),
}


def script_of(name: str) -> torch.jit.ScriptModule:
    """One of the ten by its name."""
    return scripted(TEN[name][0])


def batches_of(name: str) -> Batches:
    """Seven batches."""
    make = TEN[name][1]
    return [*make(1), *make(2)][:7]


def configurations(number: int) -> dict[str, object]:
    """Static configurations of a method of each kind, other ones for other numbers.

    Histograms are searched by seven methods, and ranges of `min_max` read by three. The average or
    the sums, in turns, are the third: over ten numbers all methods come.
    """
    kinds: dict[str, list[str]] = {}
    for method, observer in sorted(OWN.items()):
        kind = method if observer.weighs_inputs else observer.op
        kinds.setdefault(kind, []).append(method)
    found: dict[str, object] = {}
    del kinds[ALONE[number % len(ALONE)]]
    for several in kinds.values():
        method = several[number % len(several)]
        places = ("weight",) if OWN[method].weighs_inputs else ("input", "output")
        options = {place: {"calibration": method} for place in places}
        found[method] = {"version": 1, "global": {"mode": "static", **options}}
    return found
