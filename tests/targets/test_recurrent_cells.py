"""LSTM, GRU and RNN cells in the mode dynamic: PyTorch's own way to the bit, and the reference."""

from __future__ import annotations

import io
from typing import Any

import pytest
import torch
from torch import Tensor, nn
from torch.ao.quantization import MinMaxObserver, PerChannelMinMaxObserver, QConfig
from torch.ao.quantization import default_dynamic_quant_observer as activation

import jit_passes
from jit_passes.graph.view import GraphView
from jit_passes.targets import Stock
from tests.processor import HIGHEST, bits_here, decibels_here, highest, needs_vnni
from tests.quantizing import seeded
from tests.targets.test_recurrent import (
    HIDDEN,
    INPUT,
    assert_but_flipped,
    dequantized,
    quantized_as_kernels_do,
    sqnr,
)

pytestmark = pytest.mark.filterwarnings("ignore")  # PyTorch's, of its quantized tensors
CELLS: list[tuple[str, dict[str, Any]]] = [
    ("LSTMCell", {}),
    ("LSTMCell", {"bias": False}),
    ("GRUCell", {}),
    ("GRUCell", {"bias": False}),
    ("RNNCell", {}),
    ("RNNCell", {"nonlinearity": "relu"}),
]
IDS = ["-".join((kind, *map(str, options.values()))) for kind, options in CELLS]


class OneStep(nn.Module):
    """A step, whose state the caller has."""

    def __init__(self, kind: str, options: dict[str, Any]) -> None:
        super().__init__()
        self.cell = getattr(nn, kind)(INPUT, HIDDEN, **options)


class LstmStep(OneStep):
    """With two states."""

    def forward(self, x: Tensor, h: Tensor, c: Tensor) -> tuple[Tensor, Tensor]:
        return self.cell(x, (h, c))


class Step(OneStep):
    """With one."""

    def forward(self, x: Tensor, h: Tensor, c: Tensor) -> Tensor:
        return self.cell(x, h) + 0 * c


class Loop(nn.Module):
    """All steps of a sequence, in a loop."""

    def __init__(self, kind: str, options: dict[str, Any]) -> None:
        super().__init__()
        self.cell = getattr(nn, kind)(INPUT, HIDDEN, **options)
        self.head = nn.Linear(HIDDEN, 8)


class LstmLoop(Loop):
    """With two states."""

    def forward(self, x: Tensor) -> Tensor:
        h = c = torch.zeros(x.shape[1], self.cell.hidden_size)
        for t in range(x.shape[0]):
            h, c = self.cell(x[t], (h, c))
        return self.head(h)


class CellLoop(Loop):
    """With one."""

    def forward(self, x: Tensor) -> Tensor:
        h = torch.zeros(x.shape[1], self.cell.hidden_size)
        for t in range(x.shape[0]):
            h = self.cell(x[t], h)
        return self.head(h)


def step_of(kind: str, options: dict[str, Any]) -> nn.Module:
    return seeded(lambda: (LstmStep if kind == "LSTMCell" else Step)(kind, options))


def kind_of(kind: str, options: dict[str, Any]) -> str:
    plain = f"rnn_{options.get('nonlinearity', 'tanh')}_cell"
    return {"LSTMCell": "lstm_cell", "GRUCell": "gru_cell"}.get(kind, plain)


def batch(rows: int = 5) -> tuple[Tensor, Tensor, Tensor]:
    return torch.randn(rows, INPUT), torch.rand(rows, HIDDEN) - 0.3, torch.randn(rows, HIDDEN)


@pytest.mark.parametrize(("kind", "options"), [row for row in CELLS if "bias" not in row[1]])
@pytest.mark.parametrize("per_channel", [True, False])
def test_equals_quantize_dynamic(kind: str, options: dict[str, Any], per_channel: bool) -> None:
    """Weights and grids are PyTorch's, for 7 bits, which PyTorch's cells always take."""
    model = step_of(kind, options)
    grid: dict[str, Any] = {"dtype": torch.qint8, "quant_min": -127, "quant_max": 127}
    observer = (
        PerChannelMinMaxObserver.with_args(**grid, ch_axis=0, qscheme=torch.per_channel_symmetric)
        if per_channel
        else MinMaxObserver.with_args(**grid, qscheme=torch.per_tensor_symmetric)
    )
    spec = {getattr(nn, kind): QConfig(activation=activation, weight=observer)}
    torchs = torch.ao.quantization.quantize_dynamic(model, spec)
    config = {"version": 1, "global": {"weight": {"channelwise": per_channel}}}
    ours = jit_passes.quantize_script(
        torch.jit.script(model), target=Stock(reduce_range=True), config=config
    )
    for rows in (1, 5):
        x = batch(rows)
        found, wanted = ours(*x), torchs(*x)
        pairs = zip(found, wanted, strict=True) if kind == "LSTMCell" else [(found, wanted)]
        # The gates of a GRU are computed in place there, where vectors end at other elements.
        step = 4 * 2.0**-23 if kind == "GRUCell" else 0.0
        assert all(float((a - b).abs().max()) <= step for a, b in pairs)
        with torch.no_grad():
            assert not torch.equal(torch.cat(tuple(found)), torch.cat(tuple(model(*x))))


@pytest.mark.parametrize(("kind", "options"), CELLS, ids=IDS)
def test_close_to_float_and_to_the_reference(kind: str, options: dict[str, Any]) -> None:
    """The reference has weights and the input on their grids; kernels have the state too."""
    model = step_of(kind, options)
    script, (x, h, c) = torch.jit.script(model), batch()
    with torch.no_grad():
        expected = model(x, h, c)

        def on_grids(x: Tensor, top: int, form: str) -> Any:
            return dequantized(model, True)(quantized_as_kernels_do(x, top, form), h, c)

        reference = jit_passes.quantize_script(script, target="reference")
        assert sqnr(reference(x, h, c), on_grids(x, 255, "pytorch")) > 110
        for target in ("stock", "x86"):
            stock = target == "stock"
            converted = jit_passes.convert(jit_passes.prepare(script, target=target))
            top = HIGHEST if stock else 255
            lowered = jit_passes.lower(converted)
            (row,) = jit_passes.coverage(lowered)
            assert (row.dtype, row.mode) == ("int8", "dynamic"), row
            assert row.bits == (bits_here("w8a8") if stock else "w8a8")
            assert row.kind == kind_of(kind, options) and "recurrent" in row.why
            kinds = [node.kind for node in GraphView.of(lowered).nodes]
            if stock:
                assert kinds.count("quantized::linear_dynamic") == 2
                assert not any(kind.startswith("jit_passes::") for kind in kinds)
            assert not any(kind.endswith("_cell") for kind in kinds)
            floor = decibels_here(36) if stock else 36
            assert sqnr(lowered(x, h, c), expected) > floor
            # Only the state is on a grid beyond what the reference model has.
            assert sqnr(converted(x, h, c), on_grids(x, top, "fbgemm")) > 110
            assert sqnr(lowered(x, h, c), converted(x, h, c)) > floor + 2


@pytest.mark.parametrize(("kind", "options"), CELLS, ids=IDS)
def test_traced_as_scripted(kind: str, options: dict[str, Any]) -> None:
    """A trace has the two linears and the gates, as PyTorch composes a cell of them."""
    model, x = step_of(kind, options), batch()
    scripts = torch.jit.script(model), torch.jit.trace(model, x)
    both = [jit_passes.quantize_script(script, target="stock") for script in scripts]
    rows = [jit_passes.coverage(lowered) for lowered in both]
    assert [row.kind for row in rows[0]] == [kind_of(kind, options)]
    assert [(row.kind, row.mode) for row in rows[1]] == [("linear", "dynamic")] * 2
    for rows_of_input in (5, 2):
        x = batch(rows_of_input)
        assert sqnr(both[0](*x), both[1](*x)) > 130


class Clamped(nn.Module):
    """Writes to a state that the cell gave, and that it reads in the next step."""

    def __init__(self) -> None:
        super().__init__()
        self.cell = nn.LSTMCell(INPUT, HIDDEN)

    def forward(self, x: Tensor) -> Tensor:
        h = c = torch.zeros(x.shape[1], self.cell.hidden_size)
        for t in range(x.shape[0]):
            h, c = self.cell(x[t], (h, c))
            c.clamp_(-0.2, 0.2)
        return h + c


class Kept(nn.Module):
    """Writes to a state between where it is put into a list and where the cell reads that."""

    def __init__(self) -> None:
        super().__init__()
        self.cell = nn.LSTMCell(INPUT, HIDDEN)

    def forward(self, x: Tensor, h: Tensor, c: Tensor) -> Tensor:
        cell, states = self.cell, [h, c]
        h.mul_(0.5)
        x = x.clone()
        x.add_(0.25)
        h, c = torch._VF.lstm_cell(
            x, states, cell.weight_ih, cell.weight_hh, cell.bias_ih, cell.bias_hh
        )
        return h + c


@pytest.mark.parametrize("target", ["reference", "stock", "x86"])
def test_states_that_are_written(target: str) -> None:
    """A write to a result is no obstacle; one that a rule cannot follow leaves a float cell."""
    model = seeded(Clamped)
    quantized = jit_passes.quantize_script(torch.jit.script(model), target=target, progress=False)
    (row,) = jit_passes.coverage(quantized)
    assert row.dtype == "int8", row
    x = torch.randn(6, 4, INPUT)
    with torch.no_grad():
        assert sqnr(quantized(x), model(x)) > 26
    script = torch.jit.script(seeded(Kept))
    quantized = jit_passes.quantize_script(script, target=target, progress=False)
    args = (torch.randn(4, INPUT), torch.rand(4, HIDDEN), torch.randn(4, HIDDEN))
    with torch.no_grad():
        wanted = script(*(value.clone() for value in args))
        assert sqnr(quantized(*(value.clone() for value in args)), wanted) > 26
    assert {row.dtype for row in jit_passes.coverage(quantized)} == {"int8"}


@pytest.mark.parametrize("target", ["reference", "stock", "x86"])
@pytest.mark.parametrize(("kind", "options"), CELLS, ids=IDS)
def test_in_loops(kind: str, options: dict[str, Any], target: str) -> None:
    """Cells in loops, with and without data, from files too, for other lengths."""
    made = LstmLoop if kind == "LSTMCell" else CellLoop
    model = seeded(lambda: made(kind, options))
    script = torch.jit.script(model)
    shapes = ((6, 4), (9, 1), (1, 7))
    floor = decibels_here(26) if target == "stock" else 26
    data = [torch.randn(*shape, INPUT) for shape in 8 * shapes]
    for given in (None, data):
        quantized = jit_passes.quantize_script(script, given, target=target, progress=False)
        assert [row.mode for row in jit_passes.coverage(quantized)] == ["dynamic", "dynamic"]
        buffer = io.BytesIO()
        torch.jit.save(quantized, buffer)
        buffer.seek(0)
        loaded = torch.jit.load(buffer)
        for shape in shapes:
            x = torch.randn(*shape, INPUT)
            with torch.no_grad():
                assert sqnr(quantized(x), model(x)) > floor
                assert torch.equal(loaded(x), quantized(x))


def test_weights_of_4_bits_and_modes_that_cells_have_not() -> None:
    model = step_of("GRUCell", {})
    script, x = torch.jit.script(model), batch()

    def quantized(rule: dict[str, Any], target: str) -> Any:
        config = {
            "version": 1,
            "global": {"mode": "dynamic"},
            "rules": [{"op": "gru_cell", **rule}],
        }
        return jit_passes.quantize_script(script, target=target, config=config)

    with torch.no_grad():
        for target in ("stock", "reference"):
            small = quantized({"weight": {"bits": 4}}, target)
            bits = jit_passes.coverage(small)[0].bits
            assert bits == ("w4a8" if target == "reference" else bits_here("w4a8"))
            assert 12 < sqnr(small(*x), model(*x)) < 30
    with pytest.warns(jit_passes.JitPassesWarning, match="no weight_only form of it"):
        assert jit_passes.coverage(quantized({"mode": "weight_only"}, "stock"))[0].dtype == "float"


PLAIN: list[dict[str, Any]] = [
    {},
    {"nonlinearity": "relu", "bias": False, "batch_first": True},
    {"num_layers": 2, "bidirectional": True, "dropout": 0.5},
]


EIGHT = pytest.param("stock_8_bits", marks=needs_vnni)


class Plain(nn.Module):
    """An RNN, all that it gives."""

    def __init__(self, options: dict[str, Any]) -> None:
        super().__init__()
        self.rnn = nn.RNN(INPUT, HIDDEN, **options)

    def forward(self, x: Tensor, h: Tensor) -> tuple[Tensor, Tensor]:
        return self.rnn(x, h)


def plain_by_hand(
    rnn: nn.RNN, x: Tensor, h: Tensor, top: int, by_row: bool
) -> tuple[Tensor, Tensor]:
    """Step by step: what a layer reads is quantized as a whole, its state in each step."""
    function, linear = getattr(torch, rnn.nonlinearity), nn.functional.linear
    x, last = x.transpose(0, 1) if rnn.batch_first else x, []
    for layer in range(rnn.num_layers):
        ways = []
        for way in range(1 + rnn.bidirectional):
            suffix = f"_l{layer}" + "_reverse" * way
            of_input, of_state = (getattr(rnn, f"weight_{k}{suffix}") for k in ("ih", "hh"))
            biases = [getattr(rnn, f"bias_{k}{suffix}") if rnn.bias else None for k in ("ih", "hh")]
            steps = linear(quantized_as_kernels_do(x, top), of_input, biases[0])
            state, found = h[len(last)], []
            for step in steps.flip(0) if way else steps:
                rows = state.split(1) if by_row else [state]
                grid = torch.cat([quantized_as_kernels_do(row, top) for row in rows])
                state = function(step + linear(grid, of_state, biases[1]))
                found.append(state)
            last.append(state)
            ways.append(torch.stack(found[::-1] if way else found))
        x = torch.cat(ways, 2)
    return x.transpose(0, 1) if rnn.batch_first else x, torch.stack(last)


@pytest.mark.parametrize("options", PLAIN, ids=str)
@pytest.mark.parametrize("target", [EIGHT, "stock_7_bits", "x86", "reference"])
def test_plain_layers(options: dict[str, Any], target: Any) -> None:
    """Equal to steps by hand with the dialect's operators, from a file too; near to float."""
    model = seeded(lambda: Plain(options))
    script = torch.jit.script(model)
    reduced = target == "stock_7_bits"
    made = Stock(reduce_range=reduced) if target.startswith("stock") else target
    quantized = jit_passes.quantize_script(script, target=made, mode="dynamic")
    (row,) = jit_passes.coverage(quantized)
    assert (row.dtype, row.mode, row.bits) == ("int8", "dynamic", "w8a7" if reduced else "w8a8")
    x = torch.randn(7, 3, INPUT)
    ways = 1 + options.get("bidirectional", False)
    h = torch.randn(
        options.get("num_layers", 1) * ways, 7 if "batch_first" in options else 3, HIDDEN
    )
    with torch.no_grad():
        found, wanted = quantized(x, h), model(x, h)
        less = 6 if reduced else 0
        assert sqnr(found, wanted) > 30 - less
        if target == "reference":
            return
        on_grids = dequantized(model, True).rnn
        by_hand = plain_by_hand(on_grids, x, h, highest(reduced), by_row=target == "x86")
        assert_but_flipped(found[0], by_hand[0], 0 if "batch_first" in options else 1)
        assert_but_flipped(found[1], by_hand[1], 1)
        kinds = {node.kind for node in GraphView.of(quantized).nodes}
        assert not any(
            kind.startswith(("jit_passes", "aten::rnn", "aten::linear")) for kind in kinds
        )
        file = io.BytesIO()
        torch.jit.save(quantized, file)
        loaded = torch.jit.load(io.BytesIO(file.getvalue()))
        assert all(torch.equal(a, b) for a, b in zip(loaded(x, h), found, strict=True))
        for steps, batch in ((1, 3), (4, 3)):  # other sizes
            other = torch.randn(steps, batch, INPUT).transpose(0, int("batch_first" in options))
            assert sqnr(quantized(other, h[:, :batch]), model(other, h[:, :batch])) > 25 - less


def test_plain_layers_of_packed_sequences() -> None:
    """Plain layers stay in float, and say why."""

    class Packed(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.rnn = nn.RNN(INPUT, HIDDEN)

        def forward(self, x: Tensor, lengths: Tensor) -> Tensor:
            return self.rnn(nn.utils.rnn.pack_padded_sequence(x, lengths))[1]

    model = torch.jit.script(seeded(Packed))
    with pytest.warns(jit_passes.JitPassesWarning):
        quantized = jit_passes.quantize_script(model, target="stock", mode="dynamic")
    (row,) = jit_passes.coverage(quantized)
    assert row.dtype == "float" and "packed sequence" in row.reason
    x, lengths = torch.randn(7, 3, INPUT), torch.tensor([7, 4, 2])
    assert torch.equal(quantized(x, lengths), model(x, lengths))
