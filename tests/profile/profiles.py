"""Models to profile, and quantizing them with a profile or with data."""

from __future__ import annotations

import io
import warnings
from collections.abc import Callable
from dataclasses import replace

import torch
from torch import Tensor, nn

import jit_passes
from jit_passes import JitPassesWarning, Profile
from jit_passes.observers import Observer
from jit_passes.profile.probes import Probes
from jit_passes.quantizer import BackendQuantizer, QuantizationSpec
from jit_passes.stages.module import Report
from jit_passes.stages.normalize import normalize
from jit_passes.targets import resolve_target

Batch = tuple[object, ...]
Batches = list[Batch]


class Plain(nn.Module):
    """Convolutions with batch norm, a residual, a linear."""

    def __init__(self) -> None:
        super().__init__()
        self.conv, self.norm = nn.Conv2d(3, 8, 3, padding=1), nn.BatchNorm2d(8)
        self.again, self.head = nn.Conv2d(8, 8, 3, padding=1), nn.Linear(8, 4)

    def forward(self, x: Tensor) -> Tensor:
        y = torch.relu(self.norm(self.conv(x)))
        y = torch.relu(self.again(y) + y)
        return self.head(y.mean([2, 3]))


class Control(nn.Module):
    """A branch not always taken, one never, and a loop, all reading values from outside."""

    def __init__(self) -> None:
        super().__init__()
        self.stem, self.rare = nn.Conv2d(3, 4, 3, padding=1), nn.Conv2d(4, 4, 1)
        self.never, self.body = nn.Conv2d(4, 4, 1), nn.Conv2d(4, 4, 1)
        self.side = nn.Conv2d(3, 4, 1)

    def forward(self, x: Tensor, n: int) -> Tensor:
        y = torch.sigmoid(self.stem(x))
        if n > 1:
            y = torch.relu(self.rare(y)) + torch.relu(self.side(x))
        if n > 100:
            y = self.never(y)
        z = y
        for _ in range(n):
            z = torch.relu(self.body(z)) + self.side(x)
        return z


class InPlace(nn.Module):
    """Values that are written, through views too, between the operators that read them."""

    def __init__(self) -> None:
        super().__init__()
        self.first, self.second = nn.Conv2d(3, 4, 1), nn.Conv2d(4, 4, 1)

    def forward(self, x: Tensor) -> Tensor:
        y = self.first(x)
        before = self.second(y)
        y[:, 0] = 3.0 * x[:, 0]
        after = torch.relu_(self.second(y))
        y.mul_(2.0)
        return before + self.second(y) + after


class Integers(nn.Module):
    """Indices, comparisons and counts between floats."""

    def __init__(self) -> None:
        super().__init__()
        self.embed, self.linear = nn.Embedding(10, 6), nn.Linear(6, 6)

    def forward(self, tokens: Tensor) -> tuple[Tensor, Tensor]:
        y = self.linear(self.embed(tokens % 10))
        best = torch.argmax(y, -1)
        return self.linear(torch.relu(y) * (tokens > 3).unsqueeze(-1)), best


class Transformer(nn.Module):
    """One layer of attention, masked with an infinity."""

    def __init__(self) -> None:
        super().__init__()
        self.norm, self.qkv = nn.LayerNorm(8), nn.Linear(8, 24)
        self.out, self.up, self.down = nn.Linear(8, 8), nn.Linear(8, 16), nn.Linear(16, 8)

    def forward(self, x: Tensor) -> Tensor:
        q, k, v = self.qkv(self.norm(x)).chunk(3, -1)
        mask = torch.ones(x.size(1), x.size(1)).triu(1) > 0
        scores = (q @ k.transpose(-1, -2) / 8**0.5).masked_fill(mask, float("-inf"))
        x = x + self.out(torch.softmax(scores, -1) @ v)
        return x + self.down(torch.nn.functional.gelu(self.up(self.norm(x))))


def images(seed: int, count: int = 4) -> Batches:
    """Images of growing contrast, so that each batch widens the ranges."""
    g = torch.Generator().manual_seed(seed)
    return [(torch.randn(2, 3, 6, 6, generator=g) * (i + 1),) for i in range(count)]


def tokens(seed: int) -> Batches:
    """Numbers of words, of several lengths."""
    g = torch.Generator().manual_seed(seed)
    return [(torch.randint(0, 99, (2, 3 + i), generator=g),) for i in range(4)]


def sequences(seed: int) -> Batches:
    """Sequences of several lengths."""
    g = torch.Generator().manual_seed(seed)
    return [(torch.randn(2, 3 + i, 8, generator=g),) for i in range(4)]


MODELS: dict[str, tuple[Callable[[], nn.Module], Callable[[int], Batches]]] = {
    "plain": (Plain, images),
    "control": (Control, lambda seed: [(*b, i) for i, b in enumerate(images(seed))]),
    "in_place": (InPlace, images),
    "integers": (Integers, tokens),
    "transformer": (Transformer, sequences),
}


def scripted(net: Callable[[], nn.Module]) -> torch.jit.ScriptModule:
    """A model with equal weights in each call."""
    torch.manual_seed(0)
    return torch.jit.script(net().eval())


def script_of(name: str) -> torch.jit.ScriptModule:
    """A model of this file by its name."""
    return scripted(MODELS[name][0])


def profile_of(name: str, **options: object) -> Profile:
    """Its profile."""
    return jit_passes.profile(script_of(name), MODELS[name][1](0), **options)


def saved(module: torch.jit.ScriptModule) -> bytes:
    """The file."""
    buffer = io.BytesIO()
    torch.jit.save(module, buffer)
    return buffer.getvalue()


def observe_with(observer: Observer) -> BackendQuantizer:
    """A target's quantizer with another observer of activations."""
    return BackendQuantizer(resolve_target("x86"), activation=QuantizationSpec(observer=observer))


def anonymous(prepared: torch.jit.ScriptModule) -> torch.jit.ScriptModule:
    """The model without the note where its ranges came from, data or a profile."""
    report = Report.read(prepared)
    assert report is not None and report.made.keys() & {"batches", "profile"}
    made = {name: value for name, value in report.made.items() if name == "quantizer"}
    replace(report, made=made).write(prepared._c)
    return prepared


def finish(prepared: torch.jit.ScriptModule) -> tuple[bytes, bytes]:
    """Files of the reference and the lowered model."""
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", JitPassesWarning)
        reference = jit_passes.convert(anonymous(prepared))
        return saved(reference), saved(jit_passes.lower(reference))


def hash_of(script: torch.jit.ScriptModule, method: str = "forward") -> str:
    """Of the normalized graph."""
    return Probes.of(normalize(script._c, method).module, method).hash
