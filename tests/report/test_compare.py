"""A quantized model beside the float model: against a slow oracle, and planted mistakes."""

from __future__ import annotations

import io
import math
from collections.abc import Collection, Mapping
from dataclasses import replace
from itertools import pairwise
from typing import Any

import pytest
import torch
from torch import Tensor, nn

import jit_passes
from jit_passes import Comparison, JitPassesError
from jit_passes.graph.view import GraphView, ValueView
from jit_passes.stages.annotate import formed
from jit_passes.stages.normalize import normalize
from jit_passes.targets import Reference
from jit_passes.testing import random_modules
from tests.processor import HIGHEST
from tests.seeds import seeds

QUANTIZE = ("jit_passes::quantize", "jit_passes::quantize_per_channel")
BETWEEN = (*QUANTIZE, "jit_passes::dequantize", "jit_passes::dequantize_per_channel")


class Unsupported(Exception):
    """The oracle knows straight lines of operators only."""


def interpret(
    graph: GraphView,
    arguments: tuple[Tensor, ...],
    told: Mapping[str, Tensor] | None = None,
    floats: Collection[str] = (),
) -> tuple[dict[str, Tensor], dict[str, Tensor], Any]:
    """Compute node by node in Python; return values, those that codes stand for, and the result.

    Args:
        told: by name, float values that are quantized in place of those that were computed.
        floats: names of results that are replaced by these themselves.
    """
    if len(graph.inputs) != len(arguments):
        raise Unsupported
    known: dict[int, Any] = {v.id: x for v, x in zip(graph.inputs, arguments, strict=True)}
    values = {v.name: x for v, x in zip(graph.inputs, arguments, strict=True)}
    codes: dict[str, Tensor] = {}

    def get(value: ValueView) -> Any:
        return known.get(value.id, value.constant)

    for node in graph.nodes:
        if node.block:
            raise Unsupported
        operands = [get(value) for value in node.inputs]
        if node.kind in ("prim::Constant", "prim::GetAttr"):
            continue
        if node.kind in ("prim::ListConstruct", "prim::TupleConstruct"):
            known[node.output.id] = operands
            continue
        single = node.overload is not None and len(node.outputs) == 1
        if not single or node.kind.startswith("prim::"):
            raise Unsupported
        namespace, _, name = node.kind.partition("::")
        operator = getattr(getattr(getattr(torch.ops, namespace), name), node.overload or "default")
        schema = operator._schema.arguments
        keywords = {a.name: x for a, x in zip(schema, operands, strict=True) if a.kwarg_only}
        operands = operands[: len(operands) - len(keywords)]
        if any(str(argument.type).removeprefix("List[").startswith("t") for argument in schema):
            raise Unsupported  # of any type `t`, which Python cannot call
        computed = operator(*operands, **keywords)
        values[node.name] = computed
        if told is not None and node.name in floats:
            computed = told[node.name]
        if node.kind in QUANTIZE and not node.inputs[0].is_constant:
            source = node.inputs[0]
            while source.producer is not None and source.producer.kind in BETWEEN:
                source = source.producer.inputs[0]
            scale, zero = operands[1:3]
            if isinstance(scale, Tensor):
                raise Unsupported
            own = computed
            if told is not None and source.name in told:
                computed = operator(told[source.name], *operands[1:])
            codes[source.name] = (own.double() - zero) * scale
        known[node.output.id] = computed
    return values, codes, [get(value) for value in graph.outputs]


def decibels(x: Tensor, y: Tensor) -> float:
    noise = float((x.double() - y.double()).square().sum())
    return math.inf if noise == 0 else 10 * math.log10(float(x.double().square().sum()) / noise)


def close(one: float, other: float) -> bool:
    """In dB; both sum in double, of values that are equal to the bit. Very small noise is alike."""
    return one == other or abs(one - other) < 0.01 or min(one, other) > 110


def check_with_oracle(
    script: torch.jit.ScriptModule,
    arguments: tuple[Tensor, ...],
    calibrated: tuple[Tensor, ...] | None = None,
    config: Any = None,
) -> int:
    """Compare every row of a reference model with the oracle; return how many."""
    prepared = jit_passes.prepare(script, target="reference", config=config)
    jit_passes.calibrate(prepared, [arguments if calibrated is None else calibrated])
    reference = jit_passes.convert(prepared)
    float_graph = GraphView.of(
        formed(normalize(script._c, "forward").module, "forward", Reference(), {})[0]
    )
    graph = GraphView.of(reference)
    if any(value.written for node in graph.nodes for value in node.outputs):
        raise Unsupported
    copies = [tuple(x.clone() for x in arguments) for _ in range(4)]
    expected, _, outputs = interpret(float_graph, copies[0])
    plain, plain_codes, plain_outputs = interpret(graph, copies[1])
    found = jit_passes.compare(script, reference, [copies[3]])
    floats = {row.name for row in found.rows if row.kind == "float"}
    own, own_codes, own_outputs = interpret(graph, copies[2], expected, floats)
    rows = [row for row in found.rows if row.kind != "output"]
    for row in rows:
        x = expected[row.name].double()
        y = (plain if row.kind == "float" else plain_codes)[row.name].double()
        z = (own if row.kind == "float" else own_codes)[row.name].double()
        assert row.elements == x.numel()
        assert close(row.sqnr, decibels(x, y)), row
        assert close(row.own_sqnr, decibels(x, z)), row
        # Of values in float32, of which other kernels may round the last bits otherwise.
        bits = 1e-9 + 2**-22 * float(x.abs().nan_to_num(0, 0).max()) if x.numel() else 0
        assert row.difference == pytest.approx(float((x - y).abs().max()), rel=1e-5, abs=bits)
        if norm := float(x.norm() * y.norm()):
            assert row.cosine == pytest.approx(float((x * y).sum()) / norm, abs=1e-6)
    if isinstance(outputs[0], Tensor) and outputs[0].is_floating_point():
        row = found["output"]
        assert close(row.sqnr, decibels(outputs[0], plain_outputs[0])), row
        assert close(row.own_sqnr, decibels(outputs[0], own_outputs[0])), row
    return len(rows)


@pytest.mark.parametrize("between", [nn.ReLU(), nn.Sigmoid()], ids=["relu", "sigmoid"])
def test_values_beyond_a_grid_of_few_codes(between: nn.Module) -> None:
    """Values are clipped to the ends of the grid, not to those of the dtype of the codes."""
    torch.manual_seed(0)
    script = torch.jit.script(nn.Sequential(nn.Conv2d(3, 8, 3), between, nn.Conv2d(8, 4, 3)).eval())
    x = torch.randn(2, 3, 8, 8)
    config = {"version": 1, "global": {"input": {"bits": 4}, "output": {"bits": 4}}}
    if isinstance(between, nn.ReLU):
        assert check_with_oracle(script, (20 * x,), calibrated=(x,), config=config) >= 3
        return
    options = {"target": "reference", "config": config, "progress": False}
    lowered = jit_passes.quantize_script(script, [x], **options)
    kinds = [node.kind for node in GraphView.of(lowered).nodes]
    assert "jit_passes::lookup_table" in kinds  # which refuses codes that it does not know
    found = jit_passes.compare(script, lowered, [20 * x])
    assert found["1:sigmoid"].clipped > 0.2 and 0 < found.sqnr < 20


class Stack(nn.Module):
    """Layers of random widths, with one of three things between them."""

    def __init__(self, seed: int) -> None:
        super().__init__()
        torch.manual_seed(seed)
        widths = [3, *torch.randint(2, 9, (4,)).tolist()]
        self.layers = nn.ModuleList(nn.Conv2d(a, b, 3, padding=1) for a, b in pairwise(widths))
        self.head = nn.Linear(widths[-1], 5)
        self.kind = seed % 3

    def forward(self, x: Tensor) -> Tensor:
        for layer in self.layers:
            y = layer(x)
            if self.kind == 0:
                x = torch.sigmoid(y)
            elif self.kind == 1:
                x = y + y.mean([2, 3], keepdim=True)
            else:
                x = y
        return self.head(x.flatten(2).mean(2))


@pytest.mark.parametrize("seed", range(6))
def test_own_and_inherited_error_against_an_oracle(seed: int) -> None:
    torch.manual_seed(100 + seed)
    script = torch.jit.script(Stack(seed).eval())
    assert check_with_oracle(script, (torch.randn(2, 3, 7, 6),)) >= 5


def test_random_modules_against_an_oracle() -> None:
    """Of modules drawn at random, those that are straight lines are compared."""
    rows, count = 0, len(seeds(150, few=60))
    for drawn in random_modules(count, seed=5):
        try:
            script = drawn.compile(drawn.frontends[0], training=False, dtype=torch.float32)
            rows += check_with_oracle(script, drawn.arguments(torch.float32))
        except (Unsupported, JitPassesError, jit_passes.JitPassesWarning):
            continue
    assert rows >= count // 3


class Chain(nn.Module):
    """Four convolutions and a head, to plant mistakes in."""

    def __init__(self) -> None:
        super().__init__()
        torch.manual_seed(0)
        self.convs = nn.ModuleList(nn.Conv2d(8, 8, 3, padding=1) for _ in range(4))
        self.head = nn.Linear(8, 5)

    def forward(self, x: Tensor) -> Tensor:
        for conv in self.convs:
            x = torch.relu(conv(x))
        return self.head(x.flatten(2).mean(2))


def data() -> list[Tensor]:
    torch.manual_seed(1)
    return [torch.randn(4, 8, 9, 9), torch.randn(2, 8, 9, 9)]


def reloaded(model: torch.jit.ScriptModule) -> torch.jit.ScriptModule:
    file = io.BytesIO()
    torch.jit.save(model, file)
    file.seek(0)
    return torch.jit.load(file)


def names(found: Comparison) -> list[str]:
    return [row.name for row in found.rows]


@pytest.mark.parametrize("target", ["reference", "stock", "x86"])
def test_a_layer_with_few_bits_is_found(target: str) -> None:
    """Its own error stands out; what follows inherits, and does not."""
    script = torch.jit.script(Chain().eval())
    # The result has few numbers here: with headroom its own error is no longer far below.
    plain = {"output": {"calibration": {"method": "histogram", "headroom": 0}}}
    rules = [{"module": "convs.2", "weight": {"bits": 2}}]
    config = {"version": 1, "global": plain, "rules": rules}
    quantized = jit_passes.quantize_script(script, data(), target=target, config=config)
    found = jit_passes.compare(script, quantized, data())
    if target == "x86":  # one plan, of which only the result can be seen
        assert len(found.unmatched) >= 4
        missing = f"or no data reach them: {len(found.unmatched)} values ("
        assert missing in str(found)
        return
    first = found.first
    assert first is not None and first is not found.rows[0]
    assert first.name in ("convs.2:conv2d", "relu#2")
    assert "test_compare.py:" in first.source and first.operator in ("aten::conv2d", "aten::relu")
    assert first.name in found.summary and first.source in found.summary
    behind = [row for row in found.rows if row.name in ("relu#3", "head:linear")]
    assert len(behind) == 2 and all(row.inherited for row in behind)
    assert found.worst[0] is first


def test_clipping_is_found() -> None:
    """A range that is too small: shares of clipped values, and the largest error in steps."""
    script = torch.jit.script(Chain().eval())
    narrow = {"version": 1, "rules": [{"value": "relu#1", "range": [0, 0.05]}]}
    quantized = jit_passes.quantize_script(script, data(), target="stock", config=narrow)
    found = jit_passes.compare(script, quantized, data())
    first = found.first
    assert first is not None and first.name == "relu#1" and "clipped" in found.summary
    x = torch.cat(data())
    model = Chain().eval()
    for conv in model.convs[:2]:
        x = torch.relu(conv(x))
    step = 0.05 / HIGHEST
    # The float model in canonical form computes these to within rounding of float32.
    assert first.clipped == pytest.approx(float((x > 0.05 + step / 2).float().mean()), abs=1e-3)
    assert first.steps == pytest.approx((float(x.max()) - 0.05) / step, rel=1e-2)


def test_batches_add_up() -> None:
    """One pass, in whatever parts: the same sums; a generator will do."""
    script = torch.jit.script(Chain().eval())
    quantized = jit_passes.quantize_script(script, data(), target="stock")
    found = jit_passes.compare(script, quantized, iter(data()))
    parts = jit_passes.compare(script, quantized, [x for batch in data() for x in batch.split(1)])
    assert names(found) == names(parts)
    for row, part in zip(found.rows, parts.rows, strict=True):
        assert row.elements == part.elements
        assert part.sqnr == pytest.approx(row.sqnr, abs=1e-3)
        assert (row.steps, row.clipped) == (
            part.steps and pytest.approx(part.steps, rel=1e-3),
            part.clipped,
        )


@pytest.mark.parametrize("target", ["reference", "stock", "x86"])
def test_files(target: str) -> None:
    """Files have lost the paths of modules, and reports know the names of values."""
    script = torch.jit.script(Chain().eval())
    quantized = jit_passes.quantize_script(script, data(), target=target)
    found = jit_passes.compare(script, quantized, data())
    loaded = jit_passes.compare(reloaded(script), reloaded(quantized), data())
    assert [replace(row, source="") for row in loaded.rows] == [
        replace(row, source="") for row in found.rows
    ]
    assert loaded.unmatched == found.unmatched


@pytest.mark.parametrize("lowered", [False, True], ids=["reference", "stock"])
def test_a_model_that_trained(lowered: bool) -> None:
    """Batch norms are folded in both; every row of the reference model is there."""
    torch.manual_seed(0)
    model = nn.Sequential(
        nn.Conv2d(8, 8, 3, bias=False), nn.BatchNorm2d(8), nn.ReLU(), nn.Conv2d(8, 4, 3)
    )
    qat = jit_passes.prepare_qat(torch.jit.script(model.train()), target="stock")
    for x in data():
        qat(x)
    qat.eval()
    converted = jit_passes.convert(qat)
    converted = jit_passes.lower(converted) if lowered else converted
    found = jit_passes.compare(jit_passes.strip(qat)[0], converted, data())
    assert not found.unmatched
    kinds = [row.kind for row in found.rows]
    assert kinds.count("quantized") == 3 and kinds[-1] == "output"
    assert 15 < found.sqnr < 60


class Branches(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.conv1 = nn.Conv2d(8, 8, 3, padding=1)
        self.conv2 = nn.Conv2d(8, 8, 3, padding=1)

    def forward(self, x: Tensor, rounds: int) -> Tensor:
        if rounds > 1:
            x = torch.relu(self.conv1(x)) + 1
        for _ in range(rounds):
            x = torch.sigmoid(self.conv2(x)) + x
        return x * 2


def test_branches_and_loops() -> None:
    """Values count each time they are computed."""
    torch.manual_seed(0)
    script = torch.jit.script(Branches().eval())
    batches = [(torch.randn(2, 8, 5, 5), 3), (torch.randn(2, 8, 5, 5), 1)]
    quantized = jit_passes.quantize_script(script, batches, target="stock")
    found = jit_passes.compare(script, quantized, batches)
    assert found["conv2:conv2d"].elements == 4 * 2 * 8 * 25
    assert found["conv1:conv2d" if "conv1:conv2d" in names(found) else "relu"].elements == 400


def test_models_stay(monkeypatch: pytest.MonkeyPatch) -> None:
    script = torch.jit.script(Chain().eval())
    quantized = jit_passes.quantize_script(script, data(), target="stock")
    graphs = str(script.graph), str(quantized.graph)
    result = quantized(data()[0])
    jit_passes.compare(script, quantized, data())
    assert (str(script.graph), str(quantized.graph)) == graphs
    assert torch.equal(quantized(data()[0]), result)


class Two(Chain):
    def forward(self, x: Tensor, y: Tensor) -> Tensor:
        for conv in self.convs:
            x = torch.relu(conv(x))
        return self.head((x + y).flatten(2).mean(2))


def test_errors() -> None:
    script = torch.jit.script(Chain().eval())
    quantized = jit_passes.quantize_script(script, data(), target="stock")
    with pytest.raises(JitPassesError, match="the first model is lowered already, as the second"):
        jit_passes.compare(quantized, quantized, data())
    with pytest.raises(
        JitPassesError, match=r"the first model is lowered.*, and the second one in"
    ):
        jit_passes.compare(quantized, script, data())
    with pytest.raises(JitPassesError, match=r"the second model is not .*that was not prepared"):
        jit_passes.compare(script, script, data())
    with pytest.raises(JitPassesError, match="empty"):
        jit_passes.compare(script, quantized, [])
    with pytest.raises(
        JitPassesError,
        match=r"in the float model, the batch does not run.*takes .*float32.2, 5, 9, 9",
    ):
        jit_passes.compare(script, quantized, [torch.zeros(2, 5, 9, 9)])
    other = torch.jit.script(nn.Sequential(nn.Flatten(), nn.Linear(8 * 81, 2)).eval())
    with pytest.raises(JitPassesError, match="made from this float model"):
        jit_passes.compare(other, quantized, data())
    two = torch.jit.script(Two().eval())
    quantized_two = jit_passes.quantize_script(two, [(x, x) for x in data()])
    with pytest.raises(
        JitPassesError, match=r"takes \(x: Tensor, y: Tensor\), so it was made of an"
    ):
        jit_passes.compare(script, quantized_two, data())
    narrow, wide = (
        torch.jit.script(nn.Sequential(nn.Conv2d(3, n, 3), nn.Conv2d(n, 4, 3)).eval())
        for n in (8, 16)
    )
    images = [torch.ones(1, 3, 8, 8)]
    quantized = jit_passes.quantize_script(narrow, images, target="reference")
    with pytest.raises(JitPassesError, match=r"'0:conv2d' has shape .*made from this one"):
        jit_passes.compare(wide, quantized, images)


class Tokens(nn.Module):
    """A table and linears: nothing of it has static parameters."""

    def __init__(self) -> None:
        super().__init__()
        self.table, self.fc, self.head = nn.Embedding(9, 4), nn.Linear(4, 4), nn.Linear(4, 2)

    def forward(self, ids: Tensor) -> Tensor:
        return self.head(torch.relu(self.fc(self.table(ids))))


@pytest.mark.parametrize("target", ["reference", "stock", "x86"])
def test_operators_that_quantize_as_they_run(target: str) -> None:
    """Operators that cannot be seen are named, as values are; a model of other names is refused."""
    torch.manual_seed(0)
    script, ids = torch.jit.script(Tokens().eval()), [torch.randint(9, (3, 5))]
    quantized = jit_passes.quantize_script(script, ids, target=target)
    found = jit_passes.compare(script, quantized, ids)
    seen = {row.name for row in found.rows}
    names = {row.name for row in jit_passes.coverage(quantized).int8}
    assert names == {"table:embedding", "fc:linear", "head:linear"}
    if target == "reference":
        assert seen >= {"fc:linear", "head:linear"} and not found.unmatched
    else:
        assert set(found.unmatched) == names - seen and "fc:linear" in found.unmatched
        assert "in a form of its own, or no data reach them: " in str(found)
    other = torch.jit.script(nn.Sequential(nn.Embedding(9, 4), nn.Linear(4, 2)).eval())
    with pytest.raises(JitPassesError, match="made from this float model"):
        jit_passes.compare(other, quantized, ids)


class Logarithm(nn.Module):
    """A small positive value, which 8 bits take to zero."""

    def __init__(self) -> None:
        super().__init__()
        self.fc = nn.Linear(3, 3, bias=False)
        nn.init.ones_(self.fc.weight)

    def forward(self, x: Tensor, times: int = 0) -> Tensor:
        """Return the logarithm, or that times a number."""
        return self.fc(x).log() * times


@pytest.mark.parametrize("times", [1, 0], ids=["infinite", "nan"])
def test_results_that_are_not_finite(times: int) -> None:
    """Where float is finite and the other is not, nothing is left of the signal."""
    script = torch.jit.script(Logarithm().eval())
    arguments = [(torch.tensor([[1e-4] * 3, [8.0] * 3]), times)]
    quantized = jit_passes.quantize_script(script, arguments, target="reference")
    assert script(*arguments[0]).isfinite().all() and not quantized(*arguments[0]).isfinite().all()
    row = jit_passes.compare(script, quantized, arguments).rows[-1]
    assert (row.kind, row.sqnr, row.cosine) == ("output", -math.inf, 0)


class Writes(nn.Module):
    """Writes into its input, once it has been read."""

    def __init__(self) -> None:
        super().__init__()
        self.linear = nn.Linear(6, 6)

    def forward(self, x: Tensor) -> Tensor:
        y = self.linear(x)
        x.zero_()
        return y


def test_a_model_that_writes_into_its_input() -> None:
    """Each run sees the batch as it was given, and the caller's tensor stays."""
    torch.manual_seed(0)
    model, x = torch.jit.script(Writes().eval()), torch.randn(16, 6)
    quantized = jit_passes.quantize_script(model, [x.clone()], target="reference")
    given = x.clone()
    found = jit_passes.compare(model, quantized, [given])
    assert torch.equal(given, x)
    assert all(25 < row.sqnr < 70 for row in found.rows if row.kind != "float"), str(found)
