"""The coverage report: all that computes with weights counts, with its bits, or why it is float."""

from __future__ import annotations

import json
from dataclasses import replace
from typing import Any

import pytest
import torch
from torch import Tensor, nn
from torch.nn import functional as F

import jit_passes
from jit_passes import JitPassesError
from jit_passes.command_line.main import cli
from jit_passes.stages.module import REPORT, OperatorRecord, Report
from tests.processor import bits_here


class Recurrent(nn.Module):
    """A convolution, which is quantized, and a layer that is not."""

    def __init__(self, layer: str) -> None:
        super().__init__()
        self.conv = nn.Conv1d(8, 8, 1)
        self.layer = getattr(nn, layer)(8, 8, batch_first=True)

    def forward(self, x: Tensor) -> Tensor:
        return self.layer(self.conv(x).transpose(1, 2))[0]


class Attention(nn.Module):
    """Attention without weights of its own."""

    def __init__(self) -> None:
        super().__init__()
        self.conv = nn.Conv1d(8, 8, 1)

    def forward(self, x: Tensor) -> Tensor:
        x = self.conv(x)
        return F.scaled_dot_product_attention(x, x, x)


class Embedded(nn.Module):
    """An embedding in front of a linear."""

    def __init__(self, bag: bool) -> None:
        super().__init__()
        self.table = nn.EmbeddingBag(10, 8) if bag else nn.Embedding(10, 8)
        self.conv = nn.Linear(8, 8)

    def forward(self, x: Tensor) -> Tensor:
        return self.conv(self.table(x))


class Fused(nn.Module):
    """PyTorch's fused attention to other keys, which stays in one piece."""

    def __init__(self) -> None:
        super().__init__()
        self.conv = nn.Conv1d(8, 8, 1)
        self.inside, self.out = nn.Linear(8, 24), nn.Linear(8, 8)

    def forward(self, x: Tensor) -> Tensor:
        x, keys = self.conv(x), x.relu()
        w, b, out_w, out_b = self.inside.weight, self.inside.bias, self.out.weight, self.out.bias
        return torch._native_multi_head_attention(
            x, keys, keys, 8, 2, w, b, out_w, out_b, None, False
        )[0]


NO_FORM = "the target 'stock' has no int8 form of it"
STATES, NOTHING = "its states have no ranges ahead", "nothing is said of its weight"
FLOATS: list[tuple[nn.Module, set[str], str]] = [
    (Recurrent("LSTM"), {"lstm"}, STATES),
    (Recurrent("GRU"), {"gru"}, STATES),
    (Recurrent("RNN"), {"rnn_tanh"}, STATES),
    (Attention(), {"scaled_dot_product_attention"}, NO_FORM),
    (Embedded(bag=False), {"embedding"}, NOTHING),
    (Embedded(bag=True), {"embedding_bag"}, NOTHING),
    (Fused(), {"_native_multi_head_attention"}, NO_FORM),
]


@pytest.mark.parametrize(("net", "kinds", "reason"), FLOATS, ids=[min(k) for _, k, _ in FLOATS])
def test_what_computes_in_float_counts(net: nn.Module, kinds: set[str], reason: str) -> None:
    """The operator is a row with a reason, prepared or not, and an error where all is wanted."""
    model = torch.jit.script(net.eval())
    assert kinds <= {row.kind for row in jit_passes.coverage(model)}
    prepared = jit_passes.prepare(model, target="stock", mode="static")
    rows = jit_passes.coverage(prepared)
    assert [row.precision for row in rows.int8 if row.name.startswith("conv")] == [
        bits_here("w8a8")
    ]
    assert kinds <= {row.kind for row in rows.float}
    assert all(reason in row.reason for row in rows.float if row.kind in kinds)
    inspected = jit_passes.inspect(model, target="stock", mode="static")
    foretold = {row.name: row.dtype for row in inspected}
    assert {row.name: row.dtype for row in rows} == {row.name: foretold[row.name] for row in rows}
    with pytest.raises(JitPassesError, match="would stay in float") as error:
        jit_passes.prepare(model, target="stock", mode="static", strict=True)
    assert all(kind in str(error.value) for kind in kinds)
    rules = [{"op": row.kind, "keep_float": True} for row in rows.float]
    config = {"version": 1, "global": {"mode": "static"}, "rules": rules}
    jit_passes.prepare(model, target="stock", strict=True, config=config)


class Plain(nn.Module):
    """Two layers that a target can do."""

    def __init__(self) -> None:
        super().__init__()
        self.conv = nn.Conv2d(3, 8, 3)
        self.head = nn.Linear(8, 4)

    def forward(self, x: Tensor) -> Tensor:
        return self.head(torch.relu(self.conv(x)).mean([2, 3]))


def test_models_made_for_inference() -> None:
    """The convolutions that PyTorch has turned into oneDNN's count, and can be kept in float."""
    model = torch.jit.optimize_for_inference(torch.jit.script(Plain().eval()))
    if not any("mkldnn_convolution" in node.kind() for node in model.graph.nodes()):
        pytest.skip("this build of PyTorch has no oneDNN")
    rows = jit_passes.coverage(model)
    assert "mkldnn_convolution" in {row.kind for row in rows}
    with pytest.raises(JitPassesError, match="mkldnn_convolution"):
        jit_passes.prepare(model, strict=True)


BITS: list[tuple[dict[str, Any], str]] = [
    ({}, "w8a8"),
    ({"weight": {"bits": 4}}, "w4a8"),
    ({"bits": 16}, "w16a16"),
    ({"input": {"dtype": "float"}, "bias": {"dtype": "float"}}, "w8 only"),
    ({"weight": {"dtype": "float"}}, "a8 only"),
    ({"keep_float": True}, "float"),
]


@pytest.mark.parametrize(("options", "expected"), BITS, ids=[text for _, text in BITS])
def test_bits(options: dict[str, Any], expected: str) -> None:
    """The report says with how many bits of what a layer is quantized, and keeps it in the file."""
    model = torch.jit.script(Plain().eval())
    rules = [{"module": "conv", **options}] if options else []
    config = {"version": 1, "rules": rules}
    prepared = jit_passes.prepare(model, target="reference", config=config)
    reference = jit_passes.convert(jit_passes.calibrate(prepared, [torch.ones(1, 3, 8, 8)]))
    for stage in (prepared, reference, jit_passes.lower(reference)):
        conv, head = jit_passes.coverage(stage)
        assert conv.precision == expected and head.precision.startswith("w8")
    foretold = {
        row.name: row for row in jit_passes.inspect(model, target="reference", config=config)
    }
    assert foretold["conv:conv2d"].bits == ("" if expected == "float" else expected)


class Products(nn.Module):
    """A product of two computed matrices of different widths."""

    def __init__(self) -> None:
        super().__init__()
        self.a, self.b = nn.Linear(4, 4), nn.Linear(4, 4)

    def forward(self, x: Tensor) -> Tensor:
        return self.b(torch.matmul(self.a(x), self.b(x)))


def test_bits_of_products() -> None:
    """Products have no weight: the row has the bits of both operands, once if equal."""
    model = torch.jit.script(Products().eval())
    rows = {
        row.kind: row for row in jit_passes.coverage(jit_passes.prepare(model, target="reference"))
    }
    assert rows["matmul"].precision == "a8"
    config = {"version": 1, "rules": [{"module": "a", "output": {"bits": 4}}]}
    prepared = jit_passes.prepare(model, target="reference", config=config)
    rows = {row.kind: row for row in jit_passes.coverage(prepared)}
    assert rows["matmul"].precision == "a4x8"


def test_the_table() -> None:
    """Columns line up, and the first line sums up."""
    config = {"version": 1, "rules": [
        {"module": "conv", "weight": {"bits": 4}}, {"module": "head", "keep_float": True},
    ]}  # fmt: skip
    model = torch.jit.script(Plain().eval())
    prepared = jit_passes.prepare(model, target="reference", config=config)
    first, conv, head = str(jit_passes.coverage(prepared)).splitlines()
    assert first == "1 of 2 operators quantized: 1 w4a8, 1 in float"
    assert conv == "conv:conv2d  conv2d  w4a8   static"
    assert head.startswith("head:linear  linear  float          kept in float by ")
    assert str(jit_passes.coverage(torch.jit.script(nn.ReLU().eval()))) == (
        "no operator with weights, and no matrix product"
    )


def test_remarks() -> None:
    """Remarks stand behind the reason, in a file too; a float operator has none on its codes."""
    prepared = jit_passes.prepare(torch.jit.script(Plain().eval()), target="reference")
    report = Report.read(prepared)
    assert report is not None
    conv, head = report.operators
    conv = conv.remarked("its scale is raised").remarked("its channels differ")
    replace(report, operators=(conv, replace(head, reason="why").remarked("and more"))).write(
        prepared._c
    )
    table = str(jit_passes.coverage(prepared))
    assert "w8a8  static  its scale is raised; its channels differ\n" in table
    assert "its scale is raised; its channels differ" in jit_passes.coverage(prepared)._repr_html_()
    assert table.endswith(f"why ({head.source}); and more")
    assert conv.in_float("not fused").explanation == "not fused"


def test_reports_of_earlier_versions() -> None:
    """Earlier reports know no bits: the dtype stands in their place."""
    prepared = jit_passes.prepare(torch.jit.script(Plain().eval()))
    fields = json.loads(getattr(prepared, REPORT))
    for row in fields["operators"]:
        del row["bits"], row["mode"], row["why"], row["remark"]
    jit_passes._C.set_string_attribute(prepared._c, REPORT, json.dumps(fields))
    report = Report.read(prepared)
    assert report is not None
    assert all(isinstance(row, OperatorRecord) for row in report.operators)
    assert str(jit_passes.coverage(prepared)).splitlines()[1] == "conv:conv2d  conv2d  int8"


# ---------------------------------------------------------------------------- strict

STRICT = [jit_passes.prepare, jit_passes.prepare_qat, jit_passes.quantize_script]


@pytest.mark.parametrize("function", STRICT, ids=lambda function: function.__name__)
def test_strict_is_about_weights_and_products(function: Any) -> None:
    """A softmax stays in float, and the documentation says so; an embedding does not."""
    text = " ".join((function.__doc__ or "").split())
    assert "strict: raise an error for operators with weights and matrix products" in text
    assert "A softmax or a norm may stay in float." in text
    layers = nn.Sequential(nn.Linear(4, 4), nn.LogSoftmax(-1))
    model = torch.jit.script(layers.train(function is jit_passes.prepare_qat))
    result = function(model, strict=True, target="stock")
    assert len(jit_passes.coverage(result).int8) == 1
    assert "aten::log_softmax" in jit_passes.format_graph(result)
    table = torch.jit.script(nn.Sequential(nn.Embedding(5, 4), nn.Linear(4, 4)).eval())
    with pytest.raises(JitPassesError, match=r"strict: 1 operator would stay in float:\n  0:emb"):
        jit_passes.prepare(table, strict=True, target="stock", mode="static")


def test_strict_as_an_option() -> None:
    """The command says the same."""
    (option,) = [o for o in cli.commands["quantize"].params if o.name == "strict"]
    assert "an operator with weights or a matrix product" in (getattr(option, "help", "") or "")
