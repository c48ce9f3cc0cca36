"""Recurrent layers in plans: against steps in float64, and at all levels."""

from __future__ import annotations

import io
from collections.abc import Iterator
from typing import Any

import pytest
import torch
from torch import Tensor, nn

import jit_passes
from jit_passes import _C
from jit_passes.graph.view import GraphView
from jit_passes.targets import X86
from tests.advice import traced_branches
from tests.compare import sqnr
from tests.plans import plan_of, plans_in, traced
from tests.processor import needs_vnni
from tests.quantizing import seeded
from tests.x86.operators.test_floats import kinds_of
from tests.x86.program.test_state import mutate, restored

Q = torch.ops.jit_passes
GATES = {"lstm": 4, "gru": 3, "rnn_tanh": 1, "rnn_relu": 1}
SCHEMES = [
    ("per_tensor_affine", "fbgemm"),
    ("per_token_affine", "pytorch"),
    ("per_token_symmetric", "pytorch"),
]
EXACT = 100.0  # dB: float32 against float64, no code differs
FLIPPED = 40.0  # dB, where a state next to a tie got the other code


@pytest.fixture(autouse=True)
def settings_of_before() -> Iterator[None]:
    before = _C.x86_level(), torch.get_num_threads()
    yield
    _C.set_x86_level(before[0])
    torch.set_num_threads(before[1])


def on_grid(x: Tensor, scheme: str, form: str) -> Tensor:
    """Quantize and dequantize as the model runs, in float32."""
    scale, zero = Q.choose_qparams(x, 0, 255, scheme, form)
    codes = Q.quantize_dynamic(x, scale, zero, 0, 255, torch.uint8)
    return Q.dequantize_dynamic(codes, scale, zero)


class Scan(nn.Module):
    """A recurrent layer on int8 weights whose input is quantized as it comes."""

    def __init__(
        self, kind: str, inputs: int, hidden: int, layers: int = 1, both: bool = False,
        batch_first: bool = False, bias: bool = True, scheme: int = 0,
    ) -> None:  # fmt: skip
        super().__init__()
        self.kind, self.layers, self.directions = kind, layers, 1 + both
        self.options = (bias, layers, 0.0, False, both, batch_first)
        self.batch_first, self.hidden, self.bias = batch_first, hidden, bias
        self.scheme, self.form = SCHEMES[scheme]
        rows = GATES[kind] * hidden
        for i in range(layers * self.directions):
            width = inputs if i < self.directions else self.directions * hidden
            for name, columns in (("ih", width), ("hh", hidden)):
                codes = torch.randint(-127, 128, (rows, columns), dtype=torch.int8)
                self.register_buffer(f"codes_{name}_{i}", codes)
                scales = (torch.rand(rows) + 0.5) / 100 / columns**0.5
                self.register_buffer(f"scales_{name}_{i}", scales.double())
                self.register_buffer(f"bias_{name}_{i}", torch.randn(rows) / 4)
        self.register_buffer("zeros", torch.zeros(rows, dtype=torch.long))

    def weight(self, name: str, i: int) -> Tensor:
        codes, scales = getattr(self, f"codes_{name}_{i}"), getattr(self, f"scales_{name}_{i}")
        return Q.dequantize_per_channel(codes, scales, self.zeros, 0)

    def forward(self, x: Tensor, *states: Tensor) -> tuple[Tensor, ...]:
        scale, zero = Q.choose_qparams(x, 0, 255, self.scheme, self.form)
        codes = Q.quantize_dynamic(x, scale, zero, 0, 255, torch.uint8)
        x = Q.dequantize_dynamic(codes, scale, zero)
        weights: list[Tensor] = []
        for i in range(self.layers * self.directions):
            weights += [self.weight(name, i) for name in ("ih", "hh")]
            if self.bias:
                weights += [getattr(self, f"bias_{name}_{i}") for name in ("ih", "hh")]
        given: Any = list(states) if self.kind == "lstm" else states[0]
        return getattr(torch, self.kind)(x, given, weights, *self.options)

    def states(self, *rows: int) -> list[Tensor]:
        count = 2 if self.kind == "lstm" else 1
        return [
            torch.randn(self.layers * self.directions, *rows, self.hidden) for _ in range(count)
        ]

    def slow(self, x: Tensor, *states: Tensor) -> list[Tensor]:
        """Return all results, by steps in float64; a state is on a grid of its row."""
        x = x.transpose(0, 1) if self.batch_first else x
        last: list[list[Tensor]] = [[] for _ in states]
        for layer in range(self.layers):
            given, ways = on_grid(x.float(), self.scheme, self.form).double(), []
            for way in range(self.directions):
                i = layer * self.directions + way
                of_input, of_state = (self.weight(name, i).double() for name in ("ih", "hh"))
                zero = torch.zeros(len(of_input)).double()
                biases = [getattr(self, f"bias_{n}_{i}").double() if self.bias else zero
                          for n in ("ih", "hh")]  # fmt: skip
                now, found = [state[i].double() for state in states], []
                gates = given @ of_input.T + biases[0]
                for step in gates.flip(0) if way else gates:
                    coded = [on_grid(h.float(), self.scheme, self.form) for h in now[0]]
                    now = self.next(step, torch.stack(coded).double() @ of_state.T + biases[1], now)
                    found.append(now[0])
                ways.append(torch.stack(found[::-1] if way else found))
                for all_last, state in zip(last, now, strict=True):
                    all_last.append(state)
            x = torch.cat(ways, -1)
        x = x.transpose(0, 1) if self.batch_first else x
        return [x, *(torch.stack(all_last) for all_last in last)]

    def next(self, x: Tensor, p: Tensor, now: list[Tensor]) -> list[Tensor]:
        if self.kind == "lstm":
            i, f, g, o = (x + p).chunk(4, -1)
            memory = f.sigmoid() * now[1] + i.sigmoid() * g.tanh()
            return [o.sigmoid() * memory.tanh(), memory]
        if self.kind == "gru":
            (rx, zx, nx), (rp, zp, np) = x.chunk(3, -1), p.chunk(3, -1)
            z, n = (zx + zp).sigmoid(), (nx + (rx + rp).sigmoid() * np).tanh()
            return [(1 - z) * n + z * now[0]]
        return [(x + p).tanh() if self.kind == "rnn_tanh" else (x + p).relu()]


def near(found: list[Tensor], wanted: list[Tensor], rows: int, ties: bool = False) -> None:
    """Check sequences, which lie along an axis of the first result.

    One of 16 may have a state that got the other code; all of them where there are `ties`.
    """
    assert [tuple(a.shape) for a in found] == [tuple(b.shape) for b in wanted]
    assert all(a.dtype == torch.float32 for a in found)
    for i, (a, b) in enumerate(zip(found, wanted, strict=True)):
        axis = rows if i == 0 else 1
        each = zip(a.unbind(axis), b.unbind(axis), strict=True)
        noise = sorted(sqnr(*pair) for pair in each)
        others = noise[1 + len(noise) // 16 :]
        assert noise[0] > FLIPPED and (ties or not others or others[0] > EXACT)


def planned(scan: Scan, x: Tensor, states: list[Tensor]) -> Any:
    plan = plan_of(traced(scan, x, *states))
    assert {"linear_dynamic", "recurrent"} <= {*kinds_of(plan)}
    return plan


@pytest.mark.parametrize("kind", GATES)
@pytest.mark.parametrize("hidden", [1, 5, 16, 24, 67])
def test_one_layer(kind: str, hidden: int) -> None:
    """Units that are no multiple of anything; any number of rows and steps; all ways to find grids.

    On a symmetric grid the outermost number is a tie, and so is any that is alone.
    """
    torch.manual_seed(hidden)
    for scheme in range(len(SCHEMES) - (hidden == 1)):
        scan = Scan(kind, 7, hidden, scheme=scheme, bias=scheme != 1)
        plan = planned(scan, torch.randn(2, 3, 7), scan.states(3))
        for steps, rows in ((1, 1), (2, 5), (9, 1), (4, 8), (3, 13), (2, 70)):
            x, states = torch.randn(steps, rows, 7), scan.states(rows)
            near(plan.run([x, *states]), scan.slow(x, *states), 1, ties=scheme == 2)


@pytest.mark.parametrize("kind", GATES)
def test_layers_and_directions(kind: str) -> None:
    torch.manual_seed(0)
    for layers, both, batch_first in ((2, True, False), (3, False, True), (1, True, True)):
        scan = Scan(kind, 11, 20, layers, both, batch_first, scheme=1)
        plan = planned(scan, torch.randn(4, 4, 11), scan.states(4))
        for a, b in ((4, 4), (1, 3), (6, 2)):
            x, states = torch.randn(a, b, 11), scan.states(a if batch_first else b)
            near(plan.run([x, *states]), scan.slow(x, *states), 0 if batch_first else 1)


@pytest.mark.parametrize("kind", GATES)
def test_levels_and_threads_give_the_same_bits(kind: str) -> None:
    """Where each step is a phase, and where all are one."""
    torch.manual_seed(0)
    for hidden, rows in ((40, 3), (144, 9), (24, 80)):
        scan = Scan(kind, 16, hidden, 1, True)
        x, states = torch.randn(6, rows, 16), scan.states(rows)
        state = planned(scan, x, states).__getstate__()[0]
        found = {}
        for level in _C.x86_levels():
            _C.set_x86_level(level)
            for threads in (1, 2, 3, 8):
                torch.set_num_threads(threads)
                plan = restored(state)
                found[level, threads] = plan.run([x, *states])
                again = plan.run([x, *states])
                assert all(map(torch.equal, again, found[level, threads]))
        first, *others = found.values()
        assert first[0].std() > 0
        assert all(all(map(torch.equal, other, first)) for other in others)


@pytest.mark.parametrize("kind", GATES)
def test_numbers_that_are_not_finite(kind: str) -> None:
    """A row has no numbers from the step on that reads one; others have theirs."""
    torch.manual_seed(0)
    scan = Scan(kind, 6, 17, scheme=1)
    x, states = torch.randn(5, 3, 6), scan.states(3)
    plan = planned(scan, x, states)
    (clean, *_) = plan.run([x, *states])
    for bad in (float("nan"), float("inf"), -float("inf")):
        broken = x.clone()
        broken[2, 1, 4] = bad
        y, *last = plan.run([broken, *states])
        assert y[2:, 1].isnan().all() and torch.equal(y[:2], clean[:2])
        assert torch.equal(y[:, [0, 2]], clean[:, [0, 2]])
        assert all(part[0, 1].isnan().all() for part in last)
        before = [state.clone() for state in states]
        before[0][0, 2, 3] = bad
        assert plan.run([x, *before])[0][:, 2].isnan().all()


def test_large_states() -> None:
    """States of the caller that no layer would give: grids follow them."""
    torch.manual_seed(0)
    for kind in GATES:
        scan = Scan(kind, 6, 32)
        x, states = torch.randn(4, 3, 6), [1e3 * state for state in scan.states(3)]
        near(planned(scan, x, states).run([x, *states]), scan.slow(x, *states), 1)


def test_what_does_not_fit() -> None:
    scan = Scan("lstm", 6, 8)
    x, states = torch.randn(4, 3, 6), scan.states(3)
    plan = planned(scan, x, states)
    with pytest.raises(RuntimeError, match="takes states of the shape 1 3 8, and got 1 2 8"):
        plan.run([x, states[0][:, :2], states[1]])
    with pytest.raises(RuntimeError, match="takes one step at least"):
        plan.run([x[:0], *states])
    with pytest.raises(RuntimeError, match="takes 6 features"):
        plan.run([x[..., :5], *states])
    assert [part.shape for part in plan.run([x[:, :0], *(s[:, :0] for s in states)])] == [
        (4, 0, 8), (1, 0, 8), (1, 0, 8)
    ]  # fmt: skip


def test_states() -> None:
    """A plan that is saved and loaded gives the same bits; a changed state is refused, or runs."""
    torch.manual_seed(0)
    scan = Scan("gru", 5, 12, 2, True)
    x, states = torch.randn(4, 3, 5), scan.states(3)
    plan = planned(scan, x, states)
    expected = plan.run([x, *states])
    assert all(map(torch.equal, restored(plan.__getstate__()[0]).run([x, *states]), expected))
    refused, ran = mutate(plan, [x, *states], 600)
    assert refused > 100 and ran > 30


def test_a_profile_has_a_row_for_each_layer() -> None:
    """However many steps there are."""
    scan = Scan("lstm", 8, 200)
    x, states = torch.randn(30, 5, 8), scan.states(5)
    rows = [row for row in planned(scan, x, states).profile([x, *states]) if row[1] == "recurrent"]
    ((_, _, sizes, products, nanoseconds),) = rows
    assert sizes == [30, 5, 400] and products == 30 * 5 * 4 * 200 * 200 and nanoseconds > 0


class Tagger(nn.Module):
    """An embedding, two layers, and a linear for each word."""

    def __init__(self) -> None:
        super().__init__()
        self.words = nn.Embedding(50, 24)
        self.lstm = nn.LSTM(24, 30, 2, bidirectional=True, batch_first=True)
        self.gru = nn.GRU(60, 20, batch_first=True)
        self.tags = nn.Linear(20, 7)

    def forward(self, words: Tensor) -> tuple[Tensor, Tensor]:
        y, (h, _) = self.lstm(self.words(words))
        return self.tags(torch.relu(self.gru(y)[0])), h[-1]


@traced_branches
@needs_vnni
@pytest.mark.parametrize("script", [True, False])
def test_a_tagger(script: bool) -> None:
    """Layers, and what lies between them and behind them, are one plan; from a file too."""
    model, words = seeded(Tagger), torch.randint(0, 50, (3, 8))
    made = torch.jit.script(model) if script else torch.jit.trace(model, words)
    quantized = jit_passes.quantize_script(made, mode="dynamic", target=X86())
    rows = {row.kind: row.dtype for row in jit_passes.coverage(quantized)}
    assert rows["lstm"] == rows["gru"] == rows["linear"] == "int8"
    kinds = [node.kind for node in GraphView.of(quantized).nodes]
    assert not any("lstm" in kind or "gru" in kind or "linear" in kind for kind in kinds)
    assert script or kinds.count("prim::CallMethod") == 1
    file = io.BytesIO()
    torch.jit.save(quantized, file)
    loaded = torch.jit.load(io.BytesIO(file.getvalue()))
    for shape in ((3, 8), (1, 1), (5, 21)):
        words = torch.randint(0, 50, shape)
        with torch.no_grad():
            found, wanted = quantized(words), model(words)
        assert all(sqnr(a, b) > 30 for a, b in zip(found, wanted, strict=True))
        assert all(map(torch.equal, loaded(words), found))


class Reader(nn.Module):
    """Lines of text: convolutions, and a layer that reads columns."""

    def __init__(self) -> None:
        super().__init__()
        first, second = nn.Conv2d(1, 8, 3, padding=1), nn.Conv2d(8, 16, 3, padding=1)
        self.features = nn.Sequential(first, nn.ReLU(), nn.MaxPool2d(2), second)
        self.lstm = nn.LSTM(16 * 4, 20, 2, bidirectional=True, batch_first=True)
        self.letters = nn.Linear(40, 30)

    def forward(self, x: Tensor) -> Tensor:
        columns = self.features(x).permute(0, 3, 1, 2).flatten(2)
        return self.letters(self.lstm(columns)[0])


@traced_branches
@needs_vnni
@pytest.mark.parametrize("script", [True, False])
def test_behind_convolutions(script: bool) -> None:
    """One plan: the zeros that a layer begins with ask the model's input for the batch."""
    model, data = seeded(Reader), [torch.randn(2, 1, 8, 24) for _ in range(4)]
    made = torch.jit.script(model) if script else torch.jit.trace(model, data[0])
    quantized = jit_passes.quantize_script(made, data, target=X86(), progress=False)
    assert all(row.dtype == "int8" for row in jit_passes.coverage(quantized))
    assert len(plans_in(quantized)) == 1
    for shape in ((2, 1, 8, 24), (1, 1, 8, 11), (5, 1, 8, 40)):
        x = torch.randn(shape)
        with torch.no_grad():
            assert sqnr(quantized(x), model(x)) > 25
    with pytest.raises(RuntimeError, match="takes 64 features"):
        quantized(torch.randn(1, 1, 12, 24))
