"""Plans that compute sizes: windows of padded images, crops, reshapes by what the model asks."""

from __future__ import annotations

import io
import random
from typing import Any

import pytest
import torch
from torch import Tensor, nn
from torch.nn import functional as F

import jit_passes
from tests.advice import traced_branches
from tests.compare import sqnr
from tests.plans import Grid, plan_of, plans_in, traced
from tests.seeds import seeds
from tests.x86.program.test_state import MUTATIONS, mutate, restored


class Windows(nn.Module):
    """Pads to a multiple of 4, computes within windows, puts them together and crops."""

    def __init__(self, spatial_mix: bool = False) -> None:
        super().__init__()
        self.first, self.last = nn.Conv2d(3, 16, 3, 1, 1), nn.Conv2d(16, 5, 1)
        self.within, self.spatial_mix = nn.Linear(16, 16), spatial_mix
        self.mix = nn.Linear(16, 16)

    def forward(self, x: Tensor) -> Tensor:
        x = self.first(x).permute(0, 2, 3, 1)
        b, h, w, c = x.shape
        x = F.pad(x, (0, 0, 0, (4 - w % 4) % 4, 0, (4 - h % 4) % 4))
        hp, wp = x.shape[1], x.shape[2]
        y = x.reshape(b, hp // 4, 4, wp // 4, 4, c).permute(0, 1, 3, 2, 4, 5).reshape(-1, 16, c)
        y = F.relu(self.within(y))
        if self.spatial_mix:
            y = self.mix(y.transpose(1, 2)).transpose(1, 2)
        y = y.reshape(b, hp // 4, wp // 4, 4, 4, c).permute(0, 1, 3, 2, 4, 5).reshape(b, hp, wp, c)
        return self.last(y[:, :h, :w].permute(0, 3, 1, 2).contiguous())


class Decoder(nn.Module):
    """Resizes and pads what it has to the size of a skip, which may be the smaller one."""

    def __init__(self) -> None:
        super().__init__()
        self.down, self.deep = nn.Conv2d(3, 8, 3, 2, 1), nn.Conv2d(8, 8, 3, 1, 1)
        self.skip, self.last = nn.Conv2d(3, 8, 1), nn.Conv2d(8, 4, 1)

    def forward(self, x: Tensor, other: Tensor) -> Tensor:
        y = F.relu(self.deep(F.relu(self.down(x))))
        y = F.interpolate(y, size=(x.shape[2], x.shape[3]), mode="nearest")
        skip = self.skip(other)
        dy, dx = skip.shape[2] - y.shape[2], skip.shape[3] - y.shape[3]
        y = F.pad(y, [dx // 2, dx - dx // 2, dy // 2, dy - dy // 2])
        return self.last(y + skip)


class Signal(nn.Module):
    """Pads to a multiple of many samples, and rounds up by a negative divisor."""

    def __init__(self) -> None:
        super().__init__()
        self.first, self.last = nn.Conv1d(1, 4, 3, 1, 1), nn.Conv1d(4, 2, 8, 8)
        self.mid = nn.Conv1d(4, 4, 3, 1, 1)  # which cannot pad by so many itself

    def forward(self, x: Tensor) -> Tensor:
        y = self.first(x)
        y = self.mid(F.pad(y, [0, (1 << 16) - y.shape[2] % (1 << 16)]))
        y = y[:, :, : 0 - (x.shape[2] // -8) * 8]
        return self.last(y)


class Tokens(nn.Module):
    """Sizes of an input that holds whole numbers, which no operator of the plan reads."""

    def __init__(self) -> None:
        super().__init__()
        self.embedding, self.qkv = nn.Embedding(20, 16), nn.Linear(16, 16)
        self.last = nn.Linear(16, 3)

    def forward(self, ids: Tensor) -> Tensor:
        b, t = ids.shape[0], ids.shape[1]
        x = self.qkv(self.embedding(ids)).view(b, t, 4, 4).transpose(1, 2)
        return self.last(x.transpose(1, 2).reshape(b, t, 16))


def images(*sizes: tuple[int, ...]) -> list[tuple[Tensor, ...]]:
    generator = torch.Generator().manual_seed(0)
    return [(torch.randn(size, generator=generator),) for size in sizes]


def forms(model: nn.Module, args: tuple[Tensor, ...]) -> dict[str, Any]:
    return {
        "traced": torch.jit.trace(model, args, check_trace=False),
        "scripted": torch.jit.script(model),
    }


def in_plans(
    model: nn.Module, form: str, mode: str, data: list[Any], more: list[Any], plans: int = 1
) -> Any:
    """Return the lowered model, which has so many plans and is near to float on all inputs."""
    calls = [x if isinstance(x, tuple) else (x,) for x in data]
    script = forms(model, calls[0])[form]
    quantized = jit_passes.quantize_script(script, calls, mode=mode, target="x86")
    assert len(plans_in(quantized)) == plans
    for args in (*calls, *(x if isinstance(x, tuple) else (x,) for x in more)):
        assert sqnr(model(*args), quantized(*args)) > 20
    return quantized


@pytest.mark.parametrize("mode", ["static", "auto"])
@pytest.mark.parametrize("mix", [False, True])
@pytest.mark.parametrize("form", ["traced", "scripted"])
def test_windows_are_one_plan(form: str, mix: bool, mode: str) -> None:
    """Of all sizes, whatever the data had; the same numbers as the reference model."""
    torch.manual_seed(0)
    model = Windows(mix).eval()
    data = images((2, 3, 9, 13), (1, 3, 8, 12), (3, 3, 10, 7))
    others = images((4, 3, 5, 18), (1, 3, 1, 1))
    quantized = in_plans(model, form, mode, data, others)
    prepared = jit_passes.prepare(forms(model, data[0])[form], mode=mode, target="x86")
    jit_passes.calibrate(prepared, data)
    reference = jit_passes.convert(prepared)
    buffer = io.BytesIO()
    torch.jit.save(quantized, buffer)
    buffer.seek(0)
    loaded = torch.jit.load(buffer)
    for (x,) in (*data, *others):
        assert sqnr(reference(x), quantized(x)) > 30
        assert torch.equal(loaded(x), quantized(x))
    empty = torch.randn(0, 3, 9, 13)
    assert quantized(empty).shape == (0, 5, 9, 13)


@pytest.mark.parametrize("form", ["traced", "scripted"])
def test_paddings_that_cut_off(form: str) -> None:
    torch.manual_seed(0)
    model = Decoder().eval()
    generator = torch.Generator().manual_seed(1)
    pairs = [
        tuple(torch.randn(2, 3, *size, generator=generator) for size in sizes)
        for sizes in (((9, 13), (9, 13)), ((8, 12), (11, 13)), ((9, 13), (7, 16)), ((9, 9), (5, 4)))
    ]
    quantized = in_plans(model, form, "static", pairs, [])
    wrong = (torch.randn(2, 3, 9, 9), torch.randn(2, 3, 0, 4))
    with pytest.raises(RuntimeError):
        quantized(*wrong)


@pytest.mark.parametrize("form", ["traced", "scripted"])
def test_long_paddings_and_negative_divisors(form: str) -> None:
    torch.manual_seed(0)
    data = [torch.randn(2, 1, 60_001), torch.randn(1, 1, 65_000)]
    more = [torch.randn(1, 1, 16_000), torch.randn(1, 1, 13)]
    in_plans(Signal().eval(), form, "static", data, more)


@pytest.mark.parametrize("form", ["traced", "scripted"])
def test_sizes_of_whole_numbers(form: str) -> None:
    torch.manual_seed(0)
    data = [torch.randint(0, 20, (2, 5)), torch.randint(0, 20, (3, 4))]
    more = [torch.randint(0, 20, (1, 7)), torch.randint(0, 20, (2, 5)).int()]
    quantized = in_plans(Tokens().eval(), form, "dynamic", data, more)
    taken = plans_in(quantized)[0].__getstate__()[0][0][0][1]
    # The tokens themselves, where the graph does not tell that these are sizes of the embedding.
    assert taken == (1 if form == "traced" else 2)


class Clipped(nn.Module):
    """Sizes of a result in front of its clip, which is never there by itself."""

    def __init__(self) -> None:
        super().__init__()
        self.first, self.last = nn.Conv2d(3, 8, 3, 2, 1), nn.Linear(4, 3)

    def forward(self, x: Tensor) -> Tensor:
        y = self.first(x)
        z = F.relu(y)
        return self.last(z.reshape(y.shape[0], y.shape[2] * y.shape[3] * 2, 4))


@pytest.mark.parametrize("form", ["traced", "scripted"])
def test_sizes_in_front_of_a_clip(form: str) -> None:
    torch.manual_seed(0)
    data = [torch.randn(2, 3, 9, 12), torch.randn(1, 3, 7, 7)]
    in_plans(Clipped().eval(), form, "static", data, [torch.randn(3, 3, 8, 11)])


class Between(nn.Module):
    """Operators in float between two plans, of which one needs a size of the other."""

    def __init__(self) -> None:
        super().__init__()
        self.first, self.mid = nn.Conv2d(3, 8, 3, 2, 1), nn.Conv2d(8, 8, 1)
        self.last, self.side = nn.Linear(4, 3), nn.Conv2d(8, 1, 1)

    def forward(self, x: Tensor) -> Tensor:
        y = F.relu(self.first(x))
        z = F.relu(self.mid(torch.logcumsumexp(y.unflatten(1, (2, 4)), 2).flatten(1, 2)))
        z = self.last(z.reshape(y.shape[0], y.shape[2] * y.shape[3] * 2, 4))
        return torch.logcumsumexp(z, 1).mean(1) + torch.logcumsumexp(self.side(y), 1).mean((2, 3))


@pytest.mark.parametrize("form", ["traced", "scripted"])
def test_sizes_of_codes_of_another_plan(form: str) -> None:
    """Codes come in as they are, not as they were in front of quantize, which nobody else has."""
    torch.manual_seed(0)
    data = [torch.randn(2, 3, 9, 12), torch.randn(1, 3, 7, 7)]
    more = [torch.randn(3, 3, 8, 11)]
    quantized = in_plans(Between().eval(), form, "static", data, more, plans=2)
    assert [row.bits for row in jit_passes.coverage(quantized)] == ["w8a8"] * 4


class ByValue(nn.Module):
    """A size that depends on what a tensor holds."""

    def __init__(self) -> None:
        super().__init__()
        self.first, self.last = nn.Linear(8, 16), nn.Linear(4, 3)

    def forward(self, x: Tensor, parts: Tensor) -> Tensor:
        return self.last(self.first(x).reshape(x.shape[0], int(parts.item()), 4))


class Halves(ByValue):
    """A size that depends on another one's value."""

    def forward(self, x: Tensor, parts: Tensor) -> Tensor:
        k = int(parts.item())
        y = self.first(x).reshape(x.shape[0], k, 16 // k).transpose(1, 2)
        return self.last(y.reshape(x.shape[0], 4, 4))


@traced_branches
def test_sizes_by_value() -> None:
    """A size that follows from all others is in the plan; others stay outside."""
    torch.manual_seed(0)
    data = [(torch.randn(64, 8), torch.tensor(4)), (torch.randn(99, 8), torch.tensor(4))]
    in_plans(ByValue().eval(), "scripted", "static", data, [])
    others = [(torch.randn(9, 8), torch.tensor(k)) for k in (2, 8, 16)]
    in_plans(Halves().eval(), "scripted", "static", data, others, plans=2)


class Summed(nn.Module):
    """The size of a result that is part of a sum in the plan, which may broadcast; and a token."""

    def __init__(self) -> None:
        super().__init__()
        self.first, self.other = nn.Linear(8, 16), nn.Linear(8, 16)
        self.last = nn.Linear(8, 3)
        self.token = nn.Parameter(torch.randn(1, 1, 16))

    def forward(self, x: Tensor) -> Tensor:
        y = self.first(x)
        z = torch.relu(y + self.other(x * 0.5))
        z = torch.cat([self.token.expand(x.shape[0], 1, 16), z], 1)
        return self.last(z.reshape(y.shape[0], 1 + y.shape[1], 2, 8))


@pytest.mark.parametrize("form", ["traced", "scripted"])
def test_sizes_of_a_part_of_a_sum(form: str) -> None:
    """The region computes the sizes, and has a copy of the constant."""
    torch.manual_seed(0)
    model = Summed().eval()
    data = [torch.randn(2, 5, 8), torch.randn(3, 4, 8)]
    in_plans(model, form, "static", data, [torch.randn(1, 9, 8)])
    prepared = jit_passes.prepare(forms(model, (data[0],))[form], mode="static", target="x86")
    jit_passes.calibrate(prepared, data)
    reference = jit_passes.convert(prepared)
    (region,) = jit_passes.partition(reference, "x86").regions
    assert "aten::size" in str(region.module.graph) and "aten::expand" in str(region.module.graph)


class Asked(nn.Module):
    """Values between two layers that others ask for their shapes alone: of 6 axes, and of none."""

    def __init__(self) -> None:
        super().__init__()
        self.first, self.last = nn.Linear(16, 16), nn.Linear(16, 8)

    def forward(self, x: Tensor) -> tuple[Tensor, Tensor]:
        y = self.first(x)
        parts = y.view(x.size(0), 2, 2, 2, 2, 16).permute(0, 3, 1, 4, 2, 5)
        one = torch.sigmoid(torch.amax(y, [0, 1, 2]))
        sizes = torch.zeros(parts.size(0) + 1, parts.size(5), parts.dim(), one.dim() + 1)
        return self.last(parts.flatten(1, 4) * one), sizes


@pytest.mark.parametrize("mode", ["static", "dynamic"])
@pytest.mark.parametrize("form", ["traced", "scripted"])
def test_shapes_of_any_number_of_axes(form: str, mode: str) -> None:
    torch.manual_seed(0)
    model, x = Asked().eval(), torch.randn(3, 16, 16)
    found = jit_passes.quantize_script(forms(model, (x,))[form], [(x,)], mode=mode, target="x86")
    assert len(plans_in(found)) == 1
    with torch.no_grad():
        for given in (x, x[:1], torch.randn(5, 16, 16)):
            (y, sizes), (found_y, found_sizes) = model(given), found(given)
            assert sqnr(y, found_y) > 28
            assert found_sizes.shape == sizes.shape


def test_results_of_one_number() -> None:
    """A caller may write to an expanded constant: the next call gives the constant again."""

    class Spread(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.number = nn.Parameter(torch.tensor([0.5]), requires_grad=False)

        def forward(self, x: Tensor) -> tuple[Tensor, Tensor]:
            spread = self.number.expand(x.shape[0], 1)
            return F.relu(x) + spread, spread

    plan = plan_of(traced(Spread().eval(), torch.randn(4, 8)))
    x = torch.ones(1, 8)
    plan.run([x])[1].add_(1)
    total, spread = plan.run([x])
    assert torch.equal(total, torch.full((1, 8), 1.5))
    assert torch.equal(spread, torch.full((1, 1), 0.5))


@pytest.mark.parametrize("form", ["traced", "scripted"])
def test_the_token_of_a_class(form: str) -> None:
    """The token is repeated for each image within the plan."""

    class Classifier(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.patches, self.token = nn.Conv2d(3, 16, 4, 4), nn.Parameter(torch.randn(1, 1, 16))
            self.norm, self.mlp = nn.LayerNorm(16), nn.Linear(16, 16)
            self.head = nn.Linear(16, 5)

        def forward(self, x: Tensor) -> Tensor:
            x = self.patches(x).flatten(2).transpose(1, 2)
            x = torch.cat([self.token.expand(x.shape[0], -1, -1), x], dim=1)
            x = x + self.mlp(self.norm(x))
            return self.head(x[:, 0])

    torch.manual_seed(0)
    model = Classifier().eval()
    data = [torch.randn(2, 3, 16, 16), torch.randn(3, 3, 16, 16)]
    for mode in ("static", "auto"):
        in_plans(model, form, mode, data, [torch.randn(1, 3, 16, 16)])


class Sized(nn.Module):
    """A chain of operators whose options follow from sizes, on codes or on float32."""

    def __init__(self, seed: int, codes: bool) -> None:
        super().__init__()
        self.seed, self.codes = seed, codes
        self.grid, self.last = Grid(0.031, 131), Grid(0.063, 77)

    def forward(self, x: Tensor, other: Tensor) -> Any:
        draw = random.Random(self.seed)
        later = draw.random() < 0.5  # quantized behind what moves it
        if self.codes:
            x, other = self.grid(x), self.grid(other)
            values = [x + x, other] if later else [x, other]
        else:
            values = [F.hardswish(x), F.hardswish(other)]
        for _ in range(draw.randint(1, 5)):
            like = draw.choice(values)
            values.append(self.moved(draw, values[-1] if draw.random() < 0.7 else values[0], like))
        results = values[2:][-2:]
        if self.codes and later:
            return tuple(self.last(value) for value in results)
        return tuple(F.relu(value) for value in results)

    @staticmethod
    def moved(draw: random.Random, x: Tensor, like: Tensor) -> Tensor:
        rank, axis = x.dim(), draw.randrange(x.dim())
        size, wanted = x.shape[axis], like.shape[draw.randrange(like.dim())]
        kind = draw.choice(["multiple", "crop", "front", "behind", "rows", "cut", "expand", "flat"])
        none = [0, 0] * (rank - 1 - axis)
        if kind == "multiple" and rank < 5:
            return F.pad(x, [*none, 0, (3 - size % 3) % 3])
        if kind == "crop" and rank < 5:  # or padded
            difference = wanted - size
            return F.pad(x, [*none, difference // 2, difference - difference // 2])
        if kind == "front":
            return x.narrow(axis, 0, size // 2 + size % 2)
        if kind == "behind":
            return x[(slice(None),) * axis + (slice(size // 3, wanted),)]
        if kind == "cut" and rank < 5:
            x = F.pad(x, [*none, 0, size % 2])
            sizes = [*x.shape[:axis], (size + 1) // 2, 2, *x.shape[axis + 1 :]]
            return x.reshape(sizes)
        if kind == "expand" and rank < 5:
            return x.unsqueeze(axis).expand(*x.shape[:axis], wanted, *x.shape[axis:])
        if kind == "rows" and rank > 1:
            return x.reshape(x.shape[0] * x.shape[1], *x.shape[2:])
        return x.reshape(x.shape[0], -1) if rank > 1 else x.reshape(-1, 1)


@pytest.mark.parametrize("codes", [True, False])
@pytest.mark.parametrize("seed", seeds(150))
def test_sizes_of_all_kinds(seed: int, codes: bool) -> None:
    """The numbers of the graph, for sizes that it was not traced with."""
    torch.manual_seed(seed)
    rank = random.Random(seed).choice([2, 3, 4])
    whole = [
        ((3, 7, 5, 4), (2, 4, 6, 8)),
        ((2, 4, 6, 5), (5, 3, 4, 3)),
        ((1, 9, 8, 2), (1, 2, 9, 9)),
    ]
    shapes = [tuple(shape[:rank] for shape in pair) for pair in whole]
    x, other = (torch.randn(shape) for shape in shapes[0])
    model = Sized(seed, codes)
    region = traced(model, x, other)
    plan = plan_of(region)
    for pair in shapes:
        inputs = [torch.randn(shape) for shape in pair]
        try:
            expected = region(*inputs)
        except RuntimeError:  # a slice of nothing, or a reshape that does not fit
            with pytest.raises(RuntimeError):
                plan.run(inputs)
            continue
        for got, want in zip(plan.run(inputs), expected, strict=True):
            assert torch.equal(got, want)


def plan_with_numbers() -> Any:
    torch.manual_seed(0)
    model = Windows().eval()
    (x,) = images((2, 3, 9, 13))[0]
    traced = torch.jit.trace(model, x, check_trace=False)
    quantized = jit_passes.quantize_script(traced, [x], mode="static", target="x86")
    return plans_in(quantized)[0]


def test_mutated_states() -> None:
    (x,) = images((2, 3, 9, 13))[0]
    plan = plan_with_numbers()
    assert plan.__getstate__()[0][0][0][0] == 3, "the format with numbers"
    refused, ran = mutate(plan, x, MUTATIONS)
    assert refused > 300 and ran > 30


SIZE, SUM = 1, 2  # how a number is made


@pytest.mark.parametrize(
    ("numbers", "message"),
    [
        ([SUM, 0, 0], "number 0 is made of none"),
        ([99, 0, 0], "number 0 is made of none"),
        ([SIZE, 1 << 20, 0], "which is none"),
        ([SIZE, -1, 0], "which is none"),
        ([0, 1, 0, *(n for i in range(300) for n in (SUM, i, i))], "lies deeper than 256"),
        ([0, 1, 0], "number [0-9]+ of 1"),
    ],
)
def test_wrong_numbers(numbers: list[int], message: str) -> None:
    lists, scales, operators = plan_with_numbers().__getstate__()[0]
    with pytest.raises(RuntimeError, match=message):
        restored(([*lists[:3], numbers], scales, operators))


def test_wrong_places() -> None:
    """An attribute that is none, one that the model cannot compute, a size that comes too late."""
    lists, scales, operators = plan_with_numbers().__getstate__()[0]

    def with_computed(kind: str, computed: list[int]) -> Any:
        changed = [
            (texts, [*parts[:3], computed] if texts[0] == kind else parts, tensors)
            for texts, parts, tensors in operators
        ]
        return restored((lists, scales, changed))

    with pytest.raises(RuntimeError, match="it computes its attribute 9"):
        with_computed("reshape", [9, 0])
    with pytest.raises(RuntimeError, match="it computes its attribute 0"):
        with_computed("permute", [0, 0])
    last = max(parts[1][0] for _, parts, _ in operators)
    late = ([*lists[:3], [SIZE, last, 0] * (len(lists[3]) // 3)], scales, operators)
    with pytest.raises(RuntimeError, match="which is not computed before it"):
        restored(late)


def test_numbers_that_do_not_fit() -> None:
    """A product that leaves 64 bits, and a division by 0, are errors of the call."""
    lists, scales, operators = plan_with_numbers().__getstate__()[0]
    (x,) = images((2, 3, 9, 13))[0]
    count = len(lists[3]) // 3
    large = [0, 1 << 62, 0, 4, 0, 0] + [4, 0, 0] * (count - 2)
    with pytest.raises(RuntimeError, match="a number that is too large"):
        restored(([*lists[:3], large], scales, operators)).run([x])
    by_zero = [0, 0, 0] + [5, 0, 0] * (count - 1)
    with pytest.raises(RuntimeError, match="divided by 0"):
        restored(([*lists[:3], by_zero], scales, operators)).run([x])
