"""Inspection beforehand, against what quantizing then does."""

from __future__ import annotations

import warnings
from typing import Any

import pytest
import torch
from torch import Tensor, nn

import jit_passes
from jit_passes import JitPassesError, JitPassesWarning
from jit_passes.targets import PowerOfTwoQuantizer, X86Quantizer
from tests.models import BASIC, CASES, Case

CONVERTS_BACK = {"aten::dequantize", "jit_passes::dequantize"}
CONVERTS = {"aten::quantize_per_tensor", "jit_passes::quantize"}


@pytest.mark.parametrize("case", BASIC, ids=lambda case: case.name)
def test_foretells_coverage(case: Case) -> None:
    """Inspection says int8 or float, and gives the reason, just as preparing does then.

    Where a weight alone is quantized the operator is on no integers.
    """
    for frontend in case.frontends:
        model = case.shared(frontend)
        foretold = {row.name: row for row in jit_passes.inspect(model, method=case.method)}
        with warnings.catch_warnings():
            warnings.simplefilter("ignore", JitPassesWarning)
            prepared = jit_passes.prepare(model, method=case.method)
        for row in jit_passes.coverage(prepared):
            told = foretold[row.name]
            assert (told.mode, told.why) == (row.mode, row.why)
            if row.mode == "weight_only":
                assert told.reason == "only its weight is quantized" and row.dtype == "int8"
            else:
                assert (told.dtype, told.reason) == (row.dtype, row.reason)


WRITES = [case for case in CASES if case.name.startswith(("inplace_", "state_", "norm_and_raw"))]


@pytest.mark.parametrize("case", WRITES, ids=lambda case: case.name)
def test_foretells_regions(case: Case) -> None:
    """A reference model has the same regions; its codes are copies of values that are written."""
    model, data = case.build(case.frontends[0]), [case.arguments(2, 1)]
    foretold = jit_passes.inspect(model, target="x86", mode="static", method=case.method)
    prepared = jit_passes.prepare(model, target="x86", mode="static", method=case.method)
    reference = jit_passes.convert(jit_passes.calibrate(prepared, data))
    found = [region.operators for region in jit_passes.partition(reference, "x86").regions]
    rows = {row.name for row in foretold}
    names = [tuple(name for name in operators if name in rows) for operators in found]
    assert sorted(map(sorted, foretold.regions)) == sorted(map(sorted, names))


class Net(nn.Module):
    """A residual sum, a function without an int8 kernel, and an operator at the end."""

    def __init__(self) -> None:
        super().__init__()
        self.a, self.b, self.c = (nn.Conv2d(4, 4, 3, padding=1) for _ in range(3))
        self.head = nn.Linear(4, 2)

    def forward(self, x: Tensor) -> Tensor:
        x = torch.relu(self.a(x))
        x = torch.relu(self.b(x) + x)
        x = torch.cos(self.c(x))
        return self.head(x.mean([2, 3]))


def test_counts_conversions_and_regions() -> None:
    """As many as the lowered model then holds."""
    torch.manual_seed(0)
    x = torch.randn(2, 4, 8, 8)
    model = torch.jit.script(Net().eval())
    for quantizer in (X86Quantizer(), X86Quantizer().skip(module="b")):
        found = jit_passes.inspect(model, quantizer)
        lowered = jit_passes.quantize_script(model, [x], quantizer=quantizer, progress=False)
        kinds = [node.kind() for node in lowered.graph.nodes()]
        assert found.quantizes == sum(kind in CONVERTS for kind in kinds)
        assert found.dequantizes == sum(kind in CONVERTS_BACK for kind in kinds)
    regions = jit_passes.inspect(model, X86Quantizer()).regions
    assert regions == [("a:conv2d", "b:conv2d", "add", "c:conv2d"), ("head:linear",)]
    regions = jit_passes.inspect(model, X86Quantizer().skip(module="b")).regions
    assert regions == [("a:conv2d",), ("c:conv2d",), ("head:linear",)]
    assert len(jit_passes.inspect(model, PowerOfTwoQuantizer()).regions) == 1


def test_says_why() -> None:
    """Each operator in float has its reason, and the line of the model that it stands in."""
    model = torch.jit.script(Net().eval())
    rows = {row.name: row for row in jit_passes.inspect(model, target="stock", config={
        "version": 1, "rules": [{"module": "b", "keep_float": True}],
    })}  # fmt: skip
    assert rows["b:conv2d"].reason.startswith("kept in float by")
    assert rows["add"].reason == "its operand 'b:conv2d' is in float"
    assert rows["cos"].reason == "the target 'stock' has no int8 form of it"
    assert "test_inspection.py" in rows["cos"].source
    assert not rows["a:conv2d"].reason
    text = str(jit_passes.inspect(model, target="stock"))
    assert text.startswith("5 of 7 operators on integers, in 2 regions; 2 values quantized")


def test_bad_input() -> None:
    """Errors are those of prepare, and the model is unchanged."""
    with pytest.raises(JitPassesError, match="eval"):
        jit_passes.inspect(torch.jit.script(Net()))
    with pytest.raises(JitPassesError, match="no_such"):
        jit_passes.inspect(torch.jit.script(Net().eval()), X86Quantizer().skip(module="no_such"))


def test_models_that_were_seen_before() -> None:
    """Options cannot change them any more: the result has their origin and their coverage."""
    model, data = torch.jit.script(Net().eval()), [torch.randn(2, 4, 8, 8)]
    stages = {"prepared": jit_passes.prepare(model, target="stock")}
    stages["qat"] = jit_passes.prepare_qat(model, target="stock").train()
    calibrated = jit_passes.calibrate(stages["prepared"], data, progress=False)
    stages["reference"] = jit_passes.convert(calibrated)
    stages["lowered"] = jit_passes.lower(stages["reference"])
    for stage, found in stages.items():
        described = jit_passes.inspect(found)
        assert isinstance(described, jit_passes.Description)
        assert described.made == jit_passes.provenance(found)
        assert tuple(described) == tuple(jit_passes.coverage(found))
        assert f"stage: {stage}\n" in str(described) and str(jit_passes.coverage(found)) in str(
            described
        )
        options: list[dict[str, Any]] = [
            {"target": "stock"}, {"mode": "static"}, {"quantizer": X86Quantizer()},
            {"config": {"version": 1}}, {"without_data": True},
        ]  # fmt: skip
        for given in options:
            with pytest.raises(JitPassesError, match=f"the model is {stage} already, and options"):
                jit_passes.inspect(found, **given)


class Words(nn.Module):
    """A table, a linear, and a convolution."""

    def __init__(self) -> None:
        super().__init__()
        self.table, self.linear = nn.Embedding(16, 8), nn.Linear(8, 8)
        self.conv = nn.Conv1d(8, 4, 3)

    def forward(self, ids: Tensor) -> Tensor:
        return self.conv(torch.relu(self.linear(self.table(ids))).transpose(1, 2))


@pytest.mark.parametrize("target", ["stock", "reference", "x86"])
def test_without_data(target: str) -> None:
    """As `quantize_script` does without any; the summary counts weights that are alone."""
    torch.manual_seed(0)
    model = torch.jit.script(Words().eval())
    foretold = jit_passes.inspect(model, target=target, without_data=True)
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", JitPassesWarning)
        quantized = jit_passes.quantize_script(model, target=target)
    rows = {row.name: row for row in foretold}
    for row in jit_passes.coverage(quantized):
        told = rows[row.name]
        assert (told.mode, told.why, told.bits) == (row.mode, row.why, row.bits)
    assert foretold != jit_passes.inspect(model, target=target)
    assert rows["linear:linear"].mode == "dynamic" and rows["table:embedding"].bits == "w8 only"
    alone = [row for row in foretold if row.dtype == "float" and row.bits]
    assert f"; {len(alone)} more with a quantized weight alone" in foretold.summary
