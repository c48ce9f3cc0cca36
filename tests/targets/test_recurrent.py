"""LSTM and GRU in the mode dynamic: reference, PyTorch's kernels, files, and PyTorch's own way."""

from __future__ import annotations

import copy
import io
import warnings
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import Tensor, nn
from torch.ao.quantization import MinMaxObserver, PerChannelMinMaxObserver, QConfig
from torch.ao.quantization import default_dynamic_quant_observer as activation
from torch.nn.utils.rnn import PackedSequence, pack_padded_sequence, pad_packed_sequence

import jit_passes
from jit_passes.graph.view import GraphView
from jit_passes.targets import Stock
from tests.compare import leaves
from tests.processes import run_fresh
from tests.processor import HIGHEST, REDUCED, VNNI, bits_here, decibels_here, highest
from tests.quantizing import seeded

pytestmark = pytest.mark.filterwarnings("ignore")  # PyTorch's, of its quantized tensors
INPUT, HIDDEN = 16, 24

LAYERS: list[tuple[str, dict[str, Any]]] = [
    ("LSTM", {}),
    ("LSTM", {"batch_first": True, "bias": False}),
    ("LSTM", {"num_layers": 2, "bidirectional": True, "batch_first": True}),
    ("LSTM", {"num_layers": 3, "dropout": 0.5}),
    ("GRU", {}),
    ("GRU", {"bidirectional": True, "bias": False}),
    ("GRU", {"num_layers": 2, "batch_first": True}),
]
IDS = [f"{kind}-{'-'.join(options)}" for kind, options in LAYERS]
TARGETS = ("reference", "stock", "x86")


class Layer(nn.Module):
    """A recurrent layer; returns all that it does."""

    def __init__(self, kind: str, options: dict[str, Any]) -> None:
        super().__init__()
        self.rnn = getattr(nn, kind)(INPUT, HIDDEN, **options)

    def forward(self, x: Tensor) -> Any:
        return self.rnn(x)


def sqnr(found: Any, wanted: Any) -> float:
    """Of all results together, in dB."""
    pairs = zip(leaves(found), leaves(wanted), strict=True)
    both = [(a.detach().double(), b.detach().double()) for (_, a), (_, b) in pairs]
    noise = sum(float((a - b).square().sum()) for a, b in both)
    signal = sum(float(b.square().sum()) for _, b in both)
    return float(10 * torch.tensor(signal / noise).log10()) if noise else 200.0


def assert_but_flipped(found: Tensor, wanted: Tensor, axis: int) -> None:
    """Check sequences, which lie along an axis: a state of one may have got the next code.

    One on the border of two codes does so by its last bit, and what comes behind it differs too.
    States in float give 50 to 60 dB, in every sequence.
    """
    pairs = zip(found.unbind(axis), wanted.unbind(axis), strict=True)
    worst, *others = sorted(sqnr(*pair) for pair in pairs)
    assert worst > 40 and min(others) > 100


def layer_of(kind: str, options: dict[str, Any]) -> nn.Module:
    return seeded(lambda: Layer(kind, options))


def dequantized(module: nn.Module, per_channel: bool) -> nn.Module:
    """Return a copy whose matrices are on the grid of their codes, in float."""
    made = copy.deepcopy(module)
    with torch.no_grad():
        for weight in made.parameters():
            if weight.dim() == 2:
                largest = weight.abs().amax(1, keepdim=True) if per_channel else weight.abs().max()
                step = (largest * 2 / 254).clamp_min(torch.finfo(torch.float32).eps)
                weight.copy_((weight / step).round().clamp(-127, 127) * step)
    return made


def quantized_as_kernels_do(x: Tensor, top: int = 255, form: str = "fbgemm") -> Tensor:
    """Quantize and dequantize with the parameters that the value has: the dialect's operators."""
    ops = torch.ops.jit_passes
    scale, zero = ops.choose_qparams(x, 0, top, "per_tensor_affine", form)
    codes = ops.quantize_dynamic(x, scale, zero, 0, top, torch.uint8)
    return ops.dequantize_dynamic(codes, scale, zero)


def lstm_by_hand(rnn: nn.LSTM, x: Tensor, top: int) -> Tensor:
    """One LSTM layer after the other, step by step, where inputs of both products are quantized.

    `x` is [tokens, batch, input]. Input of a layer: as a whole. State: in each step.
    """
    for layer in range(rnn.num_layers):
        of_input, of_state = (getattr(rnn, f"weight_{k}_l{layer}") for k in ("ih", "hh"))
        biases = [getattr(rnn, f"bias_{k}_l{layer}") for k in ("ih", "hh")]
        gates = nn.functional.linear(quantized_as_kernels_do(x, top), of_input, biases[0])
        hidden = memory = torch.zeros(x.shape[1], rnn.hidden_size)
        found = []
        for step in gates:
            state = nn.functional.linear(quantized_as_kernels_do(hidden, top), of_state, biases[1])
            i, f, g, o = (step + state).chunk(4, 1)
            memory = f.sigmoid() * memory + i.sigmoid() * g.tanh()
            hidden = o.sigmoid() * memory.tanh()
            found.append(hidden)
        x = torch.stack(found)
    return x


@pytest.mark.parametrize("per_channel", [True, False])
@pytest.mark.parametrize("layers", [1, 2])
@pytest.mark.parametrize("reduced", REDUCED)
def test_the_kernel_by_hand(reduced: bool, layers: int, per_channel: bool) -> None:
    """The kernel quantizes more than the reference: inputs of later layers, and states."""
    model = layer_of("LSTM", {"num_layers": layers})
    config = {"version": 1, "global": {"weight": {"channelwise": per_channel}}}
    x = torch.randn(9, 4, INPUT)
    with torch.no_grad():
        options: dict[str, Any] = {"config": config, "target": Stock(reduce_range=reduced)}
        lowered = jit_passes.quantize_script(torch.jit.script(model), **options)
        wanted = lstm_by_hand(dequantized(model, per_channel).rnn, x, highest(reduced))
        assert_but_flipped(lowered(x)[0], wanted, 1)


@pytest.mark.parametrize(("kind", "options"), LAYERS, ids=IDS)
def test_close_to_float_and_to_the_reference(kind: str, options: dict[str, Any]) -> None:
    """The reference has weights and the first input on their grids, and states in float."""
    model = layer_of(kind, options)
    script = torch.jit.script(model)
    x = torch.randn(7, 7, INPUT)
    with torch.no_grad():
        expected = model(x)
        reference = jit_passes.quantize_script(script, target="reference")
        on_grids = dequantized(model, True)(quantized_as_kernels_do(x))
        assert sqnr(reference(x), on_grids) > 110
        on_grids = dequantized(model, True)(quantized_as_kernels_do(x, HIGHEST))
        for target in ("stock", "x86"):
            converted = jit_passes.convert(jit_passes.prepare(script, target=target))
            assert sqnr(converted(x), on_grids) > 110
            lowered = jit_passes.lower(converted)
            (row,) = jit_passes.coverage(lowered)
            assert (row.dtype, row.bits, row.mode) == ("int8", bits_here("w8a8"), "dynamic"), row
            assert row.kind == kind.lower() and "recurrent" in row.why
            kinds = {node.kind for node in GraphView.of(lowered).nodes}
            in_plan = target == "x86" and VNNI  # without it, the kernels of PyTorch have 7 bits
            assert (f"aten::quantized_{kind.lower()}" in kinds) is not in_plan
            assert f"aten::{kind.lower()}" not in kinds
            assert not any(kind.startswith("jit_passes::") for kind in kinds)
            assert sqnr(lowered(x), converted(x)) > decibels_here(48)
            assert sqnr(lowered(x), expected) > decibels_here(36)
            for shape in ((1, 1, INPUT), (3, 11, INPUT), (5, INPUT)):  # the last without a batch
                y = torch.randn(shape)
                assert sqnr(lowered(y), model(y)) > decibels_here(34)


@pytest.mark.parametrize("per_channel", [True, False])
@pytest.mark.parametrize(("kind", "options"), [LAYERS[2], LAYERS[6]], ids=["lstm", "gru"])
def test_equals_quantize_dynamic(kind: str, options: dict[str, Any], per_channel: bool) -> None:
    """Weights and kernels are PyTorch's, for 7 bits, which PyTorch's way always takes."""
    model = layer_of(kind, options)
    grid: dict[str, Any] = {"dtype": torch.qint8, "quant_min": -127, "quant_max": 127}
    if per_channel:
        observer = PerChannelMinMaxObserver.with_args(
            **grid, ch_axis=0, qscheme=torch.per_channel_symmetric
        )
    else:
        observer = MinMaxObserver.with_args(**grid, qscheme=torch.per_tensor_symmetric)
    spec = {getattr(nn, kind): QConfig(activation=activation, weight=observer)}
    torchs = torch.ao.quantization.quantize_dynamic(model, spec)
    config = {"version": 1, "global": {"weight": {"channelwise": per_channel}}}
    ours = jit_passes.quantize_script(
        torch.jit.script(model), target=Stock(reduce_range=True), config=config
    )
    x = torch.randn(6, 5, INPUT)
    assert torch.equal(ours(x)[0], torchs(x)[0])
    plain = torch.ao.quantization.quantize_dynamic(model, {getattr(nn, kind)})
    best = jit_passes.quantize_script(torch.jit.script(model), target="stock")
    gain = 3 if VNNI else -0.5  # dB, of the eighth bit
    with torch.no_grad():
        assert sqnr(best(x), model(x)) > sqnr(plain(x), model(x)) + gain


class Packed(nn.Module):
    """Sequences of several lengths."""

    def __init__(self, kind: str) -> None:
        super().__init__()
        self.rnn = getattr(nn, kind)(INPUT, HIDDEN, 2, bidirectional=True, batch_first=True)

    def forward(self, x: Tensor, lengths: Tensor) -> Tensor:
        packed = pack_padded_sequence(x, lengths, batch_first=True, enforce_sorted=False)
        return pad_packed_sequence(self.rnn(packed)[0], batch_first=True)[0]


class Given(nn.Module):
    """A sequence that the caller packs, and states that the caller has."""

    def __init__(self) -> None:
        super().__init__()
        self.rnn = nn.LSTM(INPUT, HIDDEN)

    def forward(self, x: PackedSequence, state: tuple[Tensor, Tensor]) -> tuple[Tensor, Tensor]:
        y, (h, _) = self.rnn(x, state)
        return y.data, h


@pytest.mark.parametrize("kind", ["LSTM", "GRU"])
@pytest.mark.parametrize("target", TARGETS)
def test_packed_sequences(kind: str, target: str) -> None:
    model = seeded(lambda: Packed(kind))
    quantized = jit_passes.quantize_script(torch.jit.script(model), target=target)
    assert [row.mode for row in jit_passes.coverage(quantized)] == ["dynamic"]
    floor = 38 if target == "reference" else decibels_here(38)
    for lengths in ([6, 2, 4], [1, 1], [3]):
        x = torch.randn(len(lengths), 6, INPUT)
        with torch.no_grad():
            found, wanted = (net(x, torch.tensor(lengths)) for net in (quantized, model))
            assert sqnr(found, wanted) > floor


def test_states_of_the_caller() -> None:
    model = seeded(Given)
    lowered = jit_passes.quantize_script(torch.jit.script(model), target="stock")
    x = pack_padded_sequence(torch.randn(5, 3, INPUT), torch.tensor([5, 3, 2]))
    state = (torch.randn(1, 3, HIDDEN), torch.randn(1, 3, HIDDEN))
    with torch.no_grad():
        assert sqnr(lowered(x, state), model(x, state)) > 36


def test_traced_as_scripted() -> None:
    """A trace has the weights one by one, a script in a list; names and numbers are the same."""
    model = layer_of("LSTM", {"num_layers": 2, "bidirectional": True})
    x = torch.randn(4, 3, INPUT)
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        traced = torch.jit.trace(model, x, check_trace=False)
    both = [torch.jit.script(model), traced]
    results, names = [], []
    for script in both:
        prepared = jit_passes.prepare(script, target="stock")
        places = jit_passes._C.places(prepared._c, "forward")
        names.append({operands["name"] for _, _, operands in places})
        results.append(jit_passes.lower(jit_passes.convert(prepared))(x)[0])
    assert torch.equal(*results)
    weights = [{name for name in found if "weight" in name} for found in names]
    assert weights[0] == weights[1] and len(weights[0]) == 8, names
    assert "rnn.weight_hh_l1_reverse -> rnn:lstm" in names[0]


def test_files(tmp_path: Path) -> None:
    """Files load with torch alone, and have about a quarter of the bytes."""

    class Tagger(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.rnn = nn.LSTM(256, 512, 2, bidirectional=True)
            self.head = nn.Linear(1024, 9)

        def forward(self, x: Tensor) -> Tensor:
            return self.head(self.rnn(x)[0])

    model = torch.jit.script(seeded(Tagger))
    x = torch.randn(6, 2, 256)
    lowered = jit_passes.quantize_script(model, target="stock")
    assert not jit_passes.coverage(lowered).needs_package
    sizes = []
    for name, module in (("float", model), ("int8", lowered)):
        module.save(str(tmp_path / f"{name}.pt"))
        sizes.append((tmp_path / f"{name}.pt").stat().st_size)
    assert sizes[1] < 0.27 * sizes[0], sizes
    manifest = [{"file": str(tmp_path / "int8.pt"), "method": "forward", "args": (x,)}]
    torch.save(manifest, tmp_path / "manifest.pt")
    run_fresh(tmp_path / "manifest.pt")
    ((_, loaded),) = torch.load(tmp_path / "outputs.pt")[0]
    with torch.no_grad():
        assert torch.equal(loaded, lowered(x))
    again = io.BytesIO()
    torch.jit.save(lowered, again)
    buffer = io.BytesIO()
    torch.jit.save(jit_passes.quantize_script(model, target="stock"), buffer)
    assert buffer.getvalue() == again.getvalue()


@pytest.mark.parametrize("engine", torch.backends.quantized.supported_engines)
def test_engines(engine: str) -> None:
    if engine == "none":
        pytest.skip("no engine")
    before = torch.backends.quantized.engine
    torch.backends.quantized.engine = engine
    try:
        model = layer_of("GRU", {"num_layers": 2})
        lowered = jit_passes.quantize_script(torch.jit.script(model), target=Stock(engine=engine))
        x = torch.randn(4, 3, INPUT)
        with torch.no_grad():
            assert sqnr(lowered(x), model(x)) > 32
    finally:
        torch.backends.quantized.engine = before


class Two(nn.Module):
    """A convolution, and two layers of which one may be left alone."""

    def __init__(self, **options: Any) -> None:
        super().__init__()
        self.conv = nn.Conv1d(INPUT, INPUT, 3, padding=1)
        self.a = nn.LSTM(INPUT, HIDDEN, **options)
        self.b = nn.GRU(options.get("proj_size", HIDDEN), HIDDEN)

    def forward(self, x: Tensor) -> Tensor:
        y = self.conv(x.permute(1, 2, 0)).permute(2, 0, 1)
        return self.b(self.a(y)[0])[0]


def test_beside_static_operators() -> None:
    """A convolution in front has a range from the data, and gives floats."""
    model = torch.jit.script(seeded(Two))
    x = torch.randn(8, 3, INPUT)
    for target in TARGETS:
        quantized = jit_passes.quantize_script(model, [x], target=target, progress=False)
        rows = {row.kind: row.mode for row in jit_passes.coverage(quantized)}
        assert rows == {"conv1d": "static", "lstm": "dynamic", "gru": "dynamic"}
        with torch.no_grad():
            assert sqnr(quantized(x), model(x)) > 26


def test_projections_stay_in_float() -> None:
    model = torch.jit.script(seeded(lambda: Two(proj_size=8)))
    for target in ("stock", "x86"):
        lowered = jit_passes.quantize_script(model, mode="dynamic", target=target)
        rows = {row.kind: row for row in jit_passes.coverage(lowered)}
        assert (rows["lstm"].dtype, rows["gru"].dtype) == ("float", "int8")
        assert "proj_size" in rows["lstm"].reason
        x = torch.randn(8, 3, INPUT)
        with torch.no_grad():
            assert sqnr(lowered(x), model(x)) > 30


def test_what_rules_say() -> None:
    """Bits of weights, float, and modes that these layers have not."""
    model = torch.jit.script(seeded(Two))
    x = torch.randn(8, 3, INPUT)

    def rows(rule: dict[str, Any], target: str = "stock") -> dict[str, Any]:
        config = {"version": 1, "global": {"mode": "dynamic"}, "rules": [rule]}
        quantized = jit_passes.quantize_script(model, target=target, config=config)
        assert quantized(x).isfinite().all()
        return {row.kind: row for row in jit_passes.coverage(quantized)}

    assert rows({"op": "lstm", "weight": {"bits": 4}})["lstm"].bits == bits_here("w4a8")
    assert rows({"op": "lstm", "input": {"tokenwise": True}}, "reference")["lstm"].bits == "w8a8"
    assert "kept in float" in rows({"module": "a", "keep_float": True})["lstm"].reason
    with pytest.warns(jit_passes.JitPassesWarning, match="no weight_only form of it"):
        refused = rows({"op": "lstm", "mode": "weight_only"})
    assert (refused["lstm"].dtype, refused["gru"].dtype) == ("float", "int8")
    with pytest.warns(jit_passes.JitPassesWarning, match=r"its input is to be .*per_token"):
        assert rows({"op": "gru", "input": {"tokenwise": True}})["gru"].dtype == "float"
    with pytest.warns(jit_passes.JitPassesWarning, match=r"its weight is to be .*affine"):
        assert rows({"op": "gru", "weight": {"scheme": "affine"}})["gru"].dtype == "float"
    weightless = jit_passes.quantize_script(model, target="stock", mode="weight_only")
    reasons = {row.kind: row.reason for row in jit_passes.coverage(weightless)}
    assert reasons["lstm"] == "the target has no weight_only form of it"


def test_weights_that_cannot_be_quantized() -> None:
    model = layer_of("LSTM", {})
    with torch.no_grad():
        model.rnn.weight_hh_l0[0, 0] = float("nan")
    (row,) = jit_passes.coverage(jit_passes.prepare(torch.jit.script(model)))
    assert (row.dtype, row.reason) == ("float", "its weight holds a NaN or an infinity")


class Stepwise(nn.Module):
    """A decoder that collects its results in a list, and writes to a part of a list."""

    def __init__(self) -> None:
        super().__init__()
        self.rnn, self.head = nn.LSTM(INPUT, HIDDEN, bidirectional=True), nn.Linear(2 * HIDDEN, 8)

    def forward(self, x: Tensor) -> Tensor:
        parts = [x[:2], x[2:]]
        first = parts[0].clone()
        first += 0.5
        y, _ = self.rnn(torch.cat([first, parts[1]]))
        results: list[Tensor] = []
        for t in range(y.shape[0]):
            results.append(self.head(y[t]))
        return torch.stack(results)


@pytest.mark.parametrize("target", ["reference", "stock", "x86"])
def test_beside_lists_that_are_filled(target: str) -> None:
    """A value that goes into a list has nothing to do with the list of weights."""
    model = seeded(Stepwise)
    quantized = jit_passes.quantize_script(torch.jit.script(model), target=target, progress=False)
    assert [row.dtype for row in jit_passes.coverage(quantized)] == ["int8", "int8"]
    x = torch.randn(7, 3, INPUT)
    with torch.no_grad():
        assert sqnr(quantized(x), model(x)) > (decibels_here(26) if target == "stock" else 26)


class Growing(nn.Module):
    """A list of tensors that is an attribute, and grows or is written to."""

    def __init__(self, how: str) -> None:
        super().__init__()
        self.how, self.kept = how, [torch.zeros(4), torch.ones(4)]
        self.linear = nn.Linear(4, 4)

    def forward(self, x: Tensor) -> Tensor:
        y = self.linear(x)
        if self.how == "append":
            self.kept.append(y)
        elif self.how == "element":
            self.kept[0] += 1
        elif self.how == "another":
            kept = self.kept if x.shape[0] > 0 else [x]
            kept[1] += y[0]
        else:
            both = [self.kept, [y]]
            both[0].append(y)
        return y + self.kept[0] + self.kept[-1] * len(self.kept)


@pytest.mark.parametrize("how", ["append", "element", "another", "nested"])
def test_lists_that_the_model_changes(how: str) -> None:
    """Lists stay attributes: each call finds the values that the calls before it left."""
    model = torch.jit.script(Growing(how).eval())
    frozen = jit_passes.Pipeline("freeze", ("freeze",)).run(model).module
    x = torch.randn(2, 4)
    with torch.no_grad():
        for _ in range(3):
            assert torch.equal(frozen(x), model(x))
