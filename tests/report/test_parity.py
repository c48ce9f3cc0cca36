"""Converted models against those that trained, and what strip leaves of these."""

from __future__ import annotations

import copy
import functools
import io
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import torch
import torch.nn.functional as F
from torch import Tensor, nn

import jit_passes
from jit_passes import _C, GraphEditor, JitPassesError, Parity, Pipeline
from jit_passes.passes.subject import wrap
from jit_passes.report.steps import rounded
from jit_passes.specification.parameters import QParams
from jit_passes.training.prepare import prepare_qat
from jit_passes.training.switches import disable_fake_quantize
from tests.advice import traced_branches
from tests.processes import run_python
from tests.qat_nets import makes_scales_positive

pytestmark = [makes_scales_positive, traced_branches]

METHODS = ("moving_average", "lsq", "lsq_plus", "tqt")
SHAPE = (4, 3, 12, 12)


class Plain(nn.Module):
    """No bias and no batch norm: nothing that conversion rounds."""

    def __init__(self) -> None:
        super().__init__()
        self.conv1 = nn.Conv2d(3, 8, 3, padding=1, bias=False)
        self.conv2 = nn.Conv2d(8, 8, 3, padding=1, groups=8, bias=False)
        self.fc = nn.Linear(8, 5, bias=False)

    def forward(self, x: Tensor) -> Tensor:
        y = F.max_pool2d(F.relu(self.conv1(x)), 2)
        return self.fc((self.conv2(y) + y).flatten(2).mean(2))


class Block(nn.Module):
    def __init__(self, inputs: int, outputs: int, stride: int) -> None:
        super().__init__()
        self.conv1 = nn.Conv2d(inputs, outputs, 3, stride, 1, bias=False)
        self.bn1 = nn.BatchNorm2d(outputs)
        self.conv2 = nn.Conv2d(outputs, outputs, 3, 1, 1, bias=False)
        self.bn2 = nn.BatchNorm2d(outputs)
        self.down = nn.Sequential(
            nn.Conv2d(inputs, outputs, 1, stride, bias=False), nn.BatchNorm2d(outputs)
        )
        self.relu = nn.ReLU(inplace=True)

    def forward(self, x: Tensor) -> Tensor:
        y = self.bn2(self.conv2(self.relu(self.bn1(self.conv1(x)))))
        return self.relu(y + self.down(x))


class ResNet(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.conv = nn.Conv2d(3, 8, 3, padding=1)
        self.bn = nn.BatchNorm2d(8)
        self.layer1 = Block(8, 8, 1)
        self.layer2 = Block(8, 16, 2)
        self.fc = nn.Linear(16, 5)

    def forward(self, x: Tensor) -> Tensor:
        y = self.layer2(self.layer1(F.relu(self.bn(self.conv(x)))))
        return self.fc(torch.flatten(F.adaptive_avg_pool2d(y, 1), 1))


class Depthwise(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.expand = nn.Conv2d(3, 8, 1)
        self.bn1 = nn.BatchNorm2d(8)
        self.depth = nn.Conv2d(8, 8, 3, padding=1, groups=8, bias=False)
        self.bn2 = nn.BatchNorm2d(8)
        self.project = nn.Linear(8, 5)

    def forward(self, x: Tensor) -> Tensor:
        y = F.relu6(self.bn1(self.expand(x)))
        y = y + F.relu6(self.bn2(self.depth(y)))
        return self.project(y.mean([2, 3]))


class Branches(nn.Module):
    """A convolution in a branch that is taken, one in a loop, and one that nothing reaches."""

    def __init__(self) -> None:
        super().__init__()
        self.conv1 = nn.Conv2d(3, 3, 3, padding=1, bias=False)
        self.conv2 = nn.Conv2d(3, 3, 3, padding=1, bias=False)
        self.conv3 = nn.Conv2d(3, 5, 3, padding=1, bias=False)

    def forward(self, x: Tensor, rounds: int) -> Tensor:
        x = self.conv1(x) * 2 if rounds > 1 else x + 1
        for _ in range(rounds):
            x = torch.sigmoid(self.conv2(x)) + x
        return self.conv3(x).mean([2, 3])


def trained(
    make: Callable[[], nn.Module],
    method: str = "lsq",
    target: str = "reference",
    bits: int | None = 8,
    trace: bool = False,
    inputs: tuple = (),
    **options: object,
) -> torch.jit.ScriptModule:
    """A model after three steps, in training mode; one of its own where options are none."""
    if options:
        return train(make, method, target, bits, trace, inputs, **options)
    return copy.deepcopy(trained_once(make, method, target, bits, trace, inputs))


@functools.cache
def trained_once(*how: Any) -> torch.jit.ScriptModule:
    """A model that several tests copy."""
    return train(*how)


def train(
    make: Callable[[], nn.Module],
    method: str,
    target: str,
    bits: int | None,
    trace: bool,
    inputs: tuple,
    **options: object,
) -> torch.jit.ScriptModule:
    """Prepare a model and train it for three steps."""
    torch.manual_seed(0)
    model = make().train()
    example = torch.randn(SHAPE)
    script = torch.jit.trace(model, example) if trace else torch.jit.script(model)
    qat = prepare_qat(script, fake_quantizer=method, target=target, bits=bits, **options)
    optimizer = torch.optim.SGD(qat.parameters(), lr=0.01)
    for _ in range(3):
        optimizer.zero_grad()
        F.cross_entropy(qat(torch.randn(SHAPE), *inputs), torch.arange(4)).backward()
        optimizer.step()
    return qat


def data() -> list[Tensor]:
    torch.manual_seed(1)
    return [torch.randn(SHAPE), torch.randn(2, *SHAPE[1:])]


def reloaded(model: torch.jit.ScriptModule) -> torch.jit.ScriptModule:
    file = io.BytesIO()
    torch.jit.save(model, file)
    file.seek(0)
    return torch.jit.load(file)


def names(report: Parity) -> list[str]:
    return [row.name for row in report.rows]


@pytest.mark.parametrize("trace", [False, True], ids=["script", "trace"])
@pytest.mark.parametrize("bits", [8, 4])
@pytest.mark.parametrize("method", METHODS)
def test_exact_without_biases(method: str, bits: int, trace: bool) -> None:
    """Nothing but the last bits of float32, weights included."""
    qat = trained(Plain, method, bits=bits, trace=trace)
    reference = jit_passes.convert(qat)
    for converted in (reference, jit_passes.lower(reference)):
        report = jit_passes.parity(qat, converted, data())
        assert not report.unmatched
        if method == "lsq_plus":  # a tie next to an odd zero point
            assert report.largest_own_steps < 1.05
        else:
            assert report.equal and report.first is None and report.largest_steps < 0.05, report
            assert str(report).endswith("\nequal")
        kinds = [row.kind for row in report.rows]
        assert kinds.count("parameter") == 3 and kinds.count("output") == 1
        assert kinds.count("activation") >= 5


@pytest.mark.parametrize("make", [ResNet, Depthwise])
@pytest.mark.parametrize(
    ("target", "bits"), [("stock", None), ("reference", 8), ("reference", 4)], ids=str
)
@pytest.mark.parametrize("method", METHODS)
def test_folded_batch_norms(
    make: Callable[[], nn.Module], method: str, target: str, bits: int | None
) -> None:
    """Nothing but the last bits of float32, biases included; engines round sums by themselves."""
    qat = trained(make, method, target, bits)
    reference = jit_passes.convert(qat)
    report = jit_passes.parity(qat, reference, data())
    assert not report.unmatched
    lowered = jit_passes.parity(qat, jit_passes.lower(reference), data())
    for found, engine in ((report, "reference"), (lowered, target)):
        if method == "lsq_plus" or engine == "stock":  # a tie next to an odd zero point
            assert found.largest_own_steps < 1.05, found
        else:
            assert found.equal, found
    activations = [row.name for row in report.rows if row.kind == "activation"]
    assert [row.name for row in lowered.rows if row.kind == "activation"] == activations
    if target == "stock":  # packed weights are not looked into
        parameters = [row.name for row in report.rows if row.kind == "parameter"]
        assert sorted(lowered.unmatched) == sorted(parameters)


class Writes(nn.Module):
    """Adds in place to a quantized result."""

    def __init__(self) -> None:
        super().__init__()
        self.main = nn.Sequential(nn.Conv2d(3, 4, 3, bias=False), nn.BatchNorm2d(4))
        self.shortcut = nn.Sequential(nn.Conv2d(3, 4, 3, bias=False), nn.BatchNorm2d(4))

    def forward(self, x: Tensor) -> Tensor:
        x = torch.relu(x)
        y = self.main(x)
        y += self.shortcut(x)
        return torch.relu(y).flatten(1)


@pytest.mark.parametrize("trace", [False, True], ids=["script", "trace"])
def test_what_is_written_to(trace: bool) -> None:
    """Is compared as it was computed."""
    qat = trained(Writes, trace=trace)
    report = jit_passes.parity(qat, jit_passes.convert(qat), data())
    assert report.equal, report


class Products(nn.Module):
    """Linear layers spelled as products with parameters."""

    def __init__(self) -> None:
        super().__init__()
        self.down = nn.Parameter(torch.randn(8, 6) / 3)
        self.added = nn.Parameter(torch.randn(6))
        self.up = nn.Parameter(torch.randn(5, 6) / 3)
        self.last = nn.Parameter(torch.randn(5, 3) / 3)
        self.bias = nn.Parameter(torch.randn(3))

    def forward(self, x: Tensor) -> Tensor:
        x = torch.relu(x @ self.down + self.added) @ self.up.T
        return torch.addmm(self.bias, torch.relu(x), self.last)


@pytest.mark.parametrize("trace", [False, True], ids=["script", "trace"])
def test_products_with_parameters(trace: bool) -> None:
    """Products train as linear layers do, and weights get gradients in the shape that they have."""
    torch.manual_seed(0)
    model, x = Products(), torch.randn(7, 8)
    script = torch.jit.trace(model, x) if trace else torch.jit.script(model)
    qat = prepare_qat(script, bits=3)
    optimizer = torch.optim.SGD(qat.parameters(), lr=0.01)
    qat(x).square().mean().backward()
    assert all(p.grad is not None and p.grad.abs().sum() > 0 for p in qat.parameters())
    optimizer.step()
    report = jit_passes.parity(qat, jit_passes.convert(qat), [x])
    assert report.equal, report
    assert sum(row.kind == "parameter" for row in report.rows) == 5


@pytest.mark.parametrize("trace", [False, True], ids=["script", "trace"])
def test_loaded_from_files(trace: bool) -> None:
    """A file keeps no module paths, and names come from what is written in the graph."""
    qat = trained(ResNet, target="auto", bits=None, trace=trace)
    reference = jit_passes.convert(qat)
    expected = jit_passes.parity(qat, reference, data())
    loaded = jit_passes.parity(reloaded(qat), reloaded(reference), data())
    rows = [replace(row, source="", operator="") for row in loaded.rows]
    assert rows == [replace(row, source="", operator="") for row in expected.rows]
    again = jit_passes.convert(reloaded(qat))
    assert names(jit_passes.parity(qat, again, data())) == names(expected)
    lowered = jit_passes.lower(reference)
    assert names(jit_passes.parity(reloaded(qat), reloaded(lowered), data())) == names(
        jit_passes.parity(qat, lowered, data())
    )


def changed(
    model: torch.jit.ScriptModule, change: Callable[[GraphEditor], None]
) -> torch.jit.ScriptModule:
    """A copy; `run_pass` would compute weights ahead of time, as it resolves what is constant."""
    jit_passes.register_pass("break_it", summary="Break it.", replace=True)(change)
    try:
        return wrap(Pipeline("break", ("break_it",)).run(_C.clone(model._c)).module)
    finally:
        jit_passes.passes.remove("break_it")


@pytest.mark.parametrize("factor", [1.001, 4.0])
@pytest.mark.parametrize("which", [0, 2, 4])
def test_a_wrong_scale_is_found(which: int, factor: float) -> None:
    """A thousandth more moves the largest codes by an eighth of a step."""
    qat = trained(Plain)
    reference = jit_passes.convert(qat)
    rows = [r for r in jit_passes.parity(qat, reference, data()).rows if r.kind == "activation"]

    def change(graph: GraphEditor) -> None:
        node = [node for node in graph.nodes if node.kind == "jit_passes::quantize"][which]
        wrong = graph.constant(node.inputs[1].constant * factor, before=node)
        for user in [node, *(user for user, _ in node.output.uses)]:
            graph.set_input(user, 1, wrong)

    report = jit_passes.parity(qat, changed(reference, change), data())
    assert not report.equal and report.first is not None
    assert report.first.name == rows[which].name
    own = [row.name for row in report.rows if row.own_different and row.kind == "activation"]
    assert own == [rows[which].name]
    if factor == 4:
        assert report.summary.startswith(f"first difference: {rows[which].name} ")
        assert any(row.inherited for row in report.rows) or which == 4


def test_a_wrong_operator_is_found() -> None:
    """The first value behind it, with its operator and line; what follows has inherited."""
    qat = trained(Plain)

    def change(graph: GraphEditor) -> None:
        conv = [node for node in graph.nodes if node.kind == "aten::conv2d"][1]
        user = conv.output.uses[0][0]
        graph.replace(conv.output, graph.insert("aten::neg", [conv.output], before=user).output)

    report = jit_passes.parity(qat, changed(jit_passes.convert(qat), change), data())
    assert report.first is not None and report.first.name == "conv2:conv2d"
    assert report.first.operator == "aten::conv2d" and "test_parity.py:" in report.first.source
    assert report.first.own_steps is not None and report.first.own_steps > 10
    assert [row.name for row in report.rows if row.own_different] == ["conv2:conv2d"]
    assert report["output"].inherited
    assert (
        jit_passes.parity(
            qat, changed(jit_passes.convert(qat), change), data(), atol_steps=1000
        ).first
        is None
    )


def test_a_wrong_weight_is_found() -> None:
    """Its codes differ, and so does what it makes."""
    qat = trained(Plain)

    def change(graph: GraphEditor) -> None:
        node = next(n for n in graph.nodes if n.kind == "jit_passes::dequantize_per_channel")
        scale = node.inputs[1].constant.clone()
        scale[2] *= 2
        graph.set_input(node, 1, graph.constant(scale, before=node))

    report = jit_passes.parity(qat, changed(jit_passes.convert(qat), change), data())
    assert report.first is not None and report.first.name == "conv1.weight -> conv1:conv2d"
    assert 0 < report.first.own_different <= report.first.elements / 8


def test_branches_and_loops() -> None:
    """Values are compared each time they are computed."""
    qat = trained(Branches, inputs=(3,))
    batches = [(torch.randn(SHAPE), 3), (torch.randn(SHAPE), 2), (torch.randn(SHAPE), 1)]
    converted = jit_passes.convert(qat)
    report = jit_passes.parity(qat, converted, batches)
    assert report.equal, report
    size = torch.Size(SHAPE).numel()
    assert report["conv2:conv2d"].elements == 6 * size
    assert report["conv1:conv2d"].elements == 2 * size


def test_the_callers_models_stay() -> None:
    """Modes, switches, parameters and buffers; and switches do not change what is compared."""
    qat = trained(ResNet)
    converted = jit_passes.convert(qat)
    expected = jit_passes.parity(qat, converted, data())
    disable_fake_quantize(qat)
    before = {name: value.clone() for name, value in qat.state_dict().items()}
    assert jit_passes.parity(qat, converted, data()) == expected
    assert qat.training
    after = qat.state_dict()
    assert list(after) == list(before)
    assert all(torch.equal(after[name], value) for name, value in before.items())


def test_inputs() -> None:
    """Tuples, dicts, and what input_fn makes of others."""
    qat = trained(Plain)
    converted = jit_passes.convert(qat)
    expected = jit_passes.parity(qat, converted, data())
    assert jit_passes.parity(qat, converted, [(x,) for x in data()]) == expected
    assert jit_passes.parity(qat, converted, [{"x": x} for x in data()]) == expected
    pairs = [(x, torch.zeros(4)) for x in data()]
    assert jit_passes.parity(qat, converted, pairs, input_fn=lambda pair: pair[0]) == expected


def test_errors() -> None:
    """Errors say what is wrong, and what to do."""
    qat = trained(Plain)
    converted = jit_passes.convert(qat)
    with pytest.raises(JitPassesError, match="a qat module is needed, got a reference one"):
        jit_passes.parity(converted, converted, data())
    with pytest.raises(JitPassesError, match="reference or lowered module is needed, got a qat"):
        jit_passes.parity(qat, qat, data())
    with pytest.raises(JitPassesError, match="data is empty"):
        jit_passes.parity(qat, converted, [])
    with pytest.raises(JitPassesError, match=r"pass \[tensor\]"):
        jit_passes.parity(qat, converted, data()[0])
    with pytest.raises(JitPassesError, match="made from this trained model"):
        jit_passes.parity(qat, jit_passes.convert(trained(Depthwise)), data())
    with pytest.raises(JitPassesError, match="a qat module is needed"):
        jit_passes.strip(converted)
    fresh = prepare_qat(torch.jit.script(Plain()))
    with pytest.raises(JitPassesError, match="has not trained"):
        jit_passes.strip(fresh)


@pytest.mark.parametrize("trace", [False, True], ids=["script", "trace"])
@pytest.mark.parametrize("bits", [8, 4])
@pytest.mark.parametrize("method", METHODS)
def test_strip(method: str, bits: int, trace: bool) -> None:
    """The float model that trained, and the encodings of the converted one."""
    qat = trained(ResNet, method, bits=bits, trace=trace)
    model, encodings = jit_passes.strip(qat)
    converted = jit_passes.encodings_of(jit_passes.convert(qat))
    assert [e.name for e in encodings] == [e.name for e in converted]
    assert len(encodings.layers) == len(converted.layers) == 8
    for ours, theirs in zip(encodings, converted, strict=True):
        assert (ours.kind, ours.scale, ours.zero_point, ours.ch_axis) == (
            *(theirs.kind, theirs.scale, theirs.zero_point, theirs.ch_axis),
        )
    assert encodings["layer1.conv1.weight"].bits == bits  # the reference model shows fewer
    assert encodings.layers[0].input is not None and encodings.layers[0].bias is not None
    assert qat.training and not model.training
    qat.eval()
    disable_fake_quantize(qat)
    x = data()[0]
    expected = qat(x)
    assert (model(x) - expected).abs().max() <= 1e-5 * expected.abs().max()
    assert expected.abs().max() > 0.01
    assert "jit_passes" not in str(model.graph)
    constants = {v.name for n in jit_passes.GraphView.of(model).nodes for v in n.outputs}
    assert {"conv.weight", "conv.bias", "layer1.conv1.weight", "layer1.conv1.bias"} <= constants


def test_stripped_models_need_no_package(tmp_path: Path) -> None:
    """Torch alone loads the file, and computes the same to the bit."""
    model, _ = jit_passes.strip(trained(ResNet))
    x = data()[0]
    torch.jit.save(model, tmp_path / "model.pt")
    torch.save((x, model(x)), tmp_path / "case.pt")
    code = (
        "import sys, torch\n"
        "model, (x, y) = torch.jit.load(sys.argv[1]), torch.load(sys.argv[2])\n"
        "assert torch.equal(model(x), y) and 'jit_passes' not in sys.modules"
    )
    files = [str(tmp_path / "model.pt"), str(tmp_path / "case.pt")]
    run_python("-c", code, *files, cwd=tmp_path)


@pytest.mark.filterwarnings("ignore::jit_passes.JitPassesWarning")  # of what a form cannot say
@pytest.mark.parametrize("loaded", [False, True], ids=["built", "loaded"])
@pytest.mark.parametrize("format", ["nni", "tensorrt", "aimet"])
def test_export(format: str, loaded: bool, tmp_path: Path) -> None:
    """Files say what those of the encodings do."""
    qat = trained(ResNet)
    qat = reloaded(qat) if loaded else qat
    _, encodings = jit_passes.strip(qat)
    content = jit_passes.export_calibration(qat, tmp_path / "file", format)
    assert str(content) == str(jit_passes.export_calibration(encodings, format=format))
    assert (tmp_path / "file").stat().st_size > 0
    assert "layer1.conv1" in str(content) or format == "tensorrt"


def test_export_of_weights_alone() -> None:
    """A configuration that leaves activations in float."""
    floats = {"input": {"dtype": "float"}, "output": {"dtype": "float"}}
    qat = trained(Plain, bits=None, config={"version": 1, "global": floats})
    _, encodings = jit_passes.strip(qat)
    assert encodings.parameters and not encodings.activations
    with pytest.warns(jit_passes.JitPassesWarning, match="'conv1', 'conv2', 'fc': quantize both"):
        assert set(jit_passes.export_calibration(qat)) == {"conv1", "conv2", "fc"}
    assert jit_passes.parity(qat, jit_passes.convert(qat), data()).equal


@pytest.mark.parametrize("axis", [None, 0])
def test_parity_rounds_as_the_dialect_does(axis: int | None) -> None:
    """At ties as the float32 product with 1 / scale says, where x / scale in double goes on."""
    scale = torch.linspace(0.001, 0.002, 64)
    x = (torch.arange(-20000, 20000, 13) + 0.5) * scale[:, None]
    ours, naive = torch.empty_like(x), torch.empty_like(x)
    grid = (-32768, 32767, "int16")
    zero = torch.zeros(64, dtype=torch.long)
    for i in range(64):
        step = float(scale[i])
        codes = torch.quantize_per_tensor(x[i], step, 0, torch.qint32).int_repr()
        ours[i] = codes.float() * step
        naive[i] = (x[i].double() / step).round() * step
        if axis is None:
            assert torch.equal(rounded(x[i], QParams(step, 0, None, *grid)), ours[i])
    if axis == 0:
        codes = (x * (1 / scale)[:, None]).round()
        found = rounded(x, QParams(scale.double(), zero, 0, *grid))
        assert torch.equal(found, codes * scale[:, None])
    assert ((ours - naive).abs() > scale[:, None] / 2).any()
