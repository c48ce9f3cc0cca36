"""Capabilities, and how quantizers go by them."""

from __future__ import annotations

import io
import re
from dataclasses import dataclass, replace
from typing import ClassVar

import pytest
import torch
from torch import nn

import jit_passes
from jit_passes import _C, GraphEditor, GraphView, JitPassesError, Pipeline
from jit_passes.observers import MinMax, PairSums
from jit_passes.quantizer import (
    PER_TENSOR,
    Annotations,
    BackendQuantizer,
    Capability,
    FixedQParamsQuantizationSpec,
    OperatorSupport,
    QuantizationAnnotation,
    QuantizationSpec,
    Quantizer,
    Role,
    SpecSupport,
)
from jit_passes.stages.module import Report
from jit_passes.targets import Reference, Stock, resolve_target
from tests.processor import highest, needs_vnni

SUPPORT = SpecSupport({"uint8": (0, 255)}, PER_TENSOR, whole=True)
NARROW = SpecSupport({"int8": (-127, 127)}, ("per_channel_symmetric",))


@pytest.mark.parametrize(
    ("support", "spec", "reason"),
    [
        (SUPPORT, QuantizationSpec("uint8"), None),
        (SUPPORT, FixedQParamsQuantizationSpec(1 / 256, 0), None),
        (SUPPORT, QuantizationSpec("uint8", 0, 15), r"uint8 \[0, 15\], and .* uint8 \[0, 255\]"),
        (SUPPORT, QuantizationSpec("int8"), r"int8 \[-128, 127\], and"),
        (SUPPORT, QuantizationSpec(rounding="floor"), "rounded floor"),
        (NARROW, QuantizationSpec("int8", -7, 7, "per_channel_symmetric", 0), None),
        (NARROW, QuantizationSpec("int8", -128, 127, "per_channel_symmetric", 0), "-128"),
        (
            NARROW,
            QuantizationSpec("int8", -7, 7, "per_channel_affine", 0),
            "channel_affine, and",
        ),
    ],
)
def test_refusals(support: SpecSupport, spec: QuantizationSpec, reason: str | None) -> None:
    """A misfit is named, with what would fit."""
    found = support.refusal(spec)
    assert found is None if reason is None else found is not None and re.search(reason, found)


WEIGHT = QuantizationSpec("int8", -127, 127, "per_tensor_symmetric", observer=MinMax())


class WeightedAs(Quantizer):
    """Quantizes the first weighted operator, and its weight as it is told."""

    def __init__(self, weight: QuantizationSpec, reduced: bool) -> None:
        self.weight, self.target = weight, Stock(reduce_range=reduced)
        self.activation = QuantizationSpec("uint8", 0, highest(reduced))

    def annotate(self, graph: GraphView) -> Annotations:
        node = next(node for node in graph.nodes if "conv" in node.kind)
        operands = {node.inputs[0]: self.activation, node.inputs[1]: self.weight}
        annotations = Annotations()
        annotations[node] = QuantizationAnnotation(operands, output_qspec=self.activation)
        return annotations


def test_what_to_do_about_7_bits() -> None:
    """Asked for 8 bits, a target that has 7 says which one has more."""
    script, target = torch.jit.script(nn.Linear(4, 4).eval()), Stock(reduce_range=True)
    config = {"version": 1, "global": {"input": {"bits": 8}}}
    with pytest.warns(
        jit_passes.JitPassesWarning, match=r"has uint8 \[0, 127\] \(.*target='x86' has them\)"
    ):
        jit_passes.prepare(script, target=target, config=config, mode="static")


TRANSPOSED = (
    lambda: nn.ConvTranspose2d(4, 4, 3, bias=False),
    WEIGHT,
    r"int8 \[-127, 127\], and the target has int8 \[-127, 126\]",
    replace(WEIGHT, quant_max=126),
)
DEPTHWISE = (
    lambda: nn.Conv2d(4, 4, 3, groups=4, bias=False),
    WEIGHT,
    "calibrated with min_max, and the target's kernel adds pairs of products in int16",
    replace(WEIGHT, qscheme="per_channel_symmetric", ch_axis=0, observer=PairSums()),
)


@pytest.mark.skipif(
    not torch.backends.quantized.supported_engines,
    reason="this build of PyTorch has no quantized engine",
)
@pytest.mark.parametrize(
    ("layer", "refused", "why", "allowed", "reduced"),
    [
        pytest.param(*TRANSPOSED, False, marks=needs_vnni, id="transposed-8_bits"),
        pytest.param(*TRANSPOSED, True, id="transposed-7_bits"),
        # With 7 bits no pair overflows; with 8 those are kept apart that would, on any processor.
        pytest.param(*DEPTHWISE, False, id="depthwise-8_bits"),
    ],
)
def test_weights_that_kernels_overflow_with(
    layer: object, refused: QuantizationSpec, why: str, allowed: QuantizationSpec, reduced: bool
) -> None:
    """By any quantizer: codes that the kernel shifts, and pairs of products."""
    torch.manual_seed(0)
    model = nn.Sequential(layer()).eval()  # type: ignore[operator]
    with torch.no_grad():
        model[0].weight.fill_(0.5)
        model[0].weight[0, 0] = 2.0  # the largest codes, next to each other
    x = torch.rand(2, 4, 6, 6)
    script = torch.jit.script(model)
    with pytest.raises(JitPassesError, match=why):
        jit_passes.prepare(script, quantizer=WeightedAs(refused, reduced))
    prepared = jit_passes.prepare(script, quantizer=WeightedAs(allowed, reduced))
    reference = jit_passes.convert(jit_passes.calibrate(prepared, [x], progress=False))
    lowered = jit_passes.lower(reference)
    step = jit_passes.encodings_of(reference).activations[-1].scale[0]
    assert (lowered(x) - reference(x)).abs().max() <= step * 1.001
    assert reference(x).abs().max() > 100 / 255 * highest(reduced) * step


def test_what_comes_nearest() -> None:
    """Defaults follow from what there is; what is asked for is only made narrower."""
    affine = QuantizationSpec()
    assert SUPPORT.nearest(affine) == affine
    assert NARROW.nearest(affine) == QuantizationSpec(
        "int8", -127, 127, "per_channel_symmetric", 0, affine.observer
    )
    assert NARROW.narrow(affine) == affine
    four = QuantizationSpec("int8", -8, 7)
    wide = SpecSupport({"int8": (-4, 127)}, PER_TENSOR)
    assert (wide.narrow(four).quant_min, wide.narrow(four).quant_max) == (-4, 7)
    channels = replace(WEIGHT, qscheme="per_channel_symmetric", ch_axis=1)
    assert wide.narrow(channels) == replace(WEIGHT, quant_min=-4)


def test_a_capability_shows_what_it_is() -> None:
    row = OperatorSupport("aten::linear", Role.WEIGHTED, ranks=(2, 3), weights=NARROW)
    shown = str(Capability({row.kind: row}, SUPPORT, WEIGHTS)).splitlines()
    assert shown[1] == "  weights      int8 [-127, 127] or fewer codes; per_tensor_symmetric"
    assert shown[-1] == "aten::linear  weighted  0         per channel  2 to 3  static"


WEIGHTS = SpecSupport({"int8": (-127, 127)}, ("per_tensor_symmetric",))


def test_biases_are_what_accumulators_hold() -> None:
    """In steps of the accumulator, which reach the largest; and as options say, if it can."""
    row = OperatorSupport("aten::linear", Role.WEIGHTED)
    narrow = SpecSupport({"int16": (-3000, 3000)}, PER_TENSOR)
    quantizer = BackendQuantizer(Capability({row.kind: row}, accumulators=narrow))
    model = nn.Sequential(nn.Linear(4, 2))
    with torch.no_grad():
        model[0].weight.fill_(1.0)
        model[0].bias.copy_(torch.tensor([0.01, 0.5]))
    script, x = torch.jit.script(model.eval()), torch.linspace(-1, 1, 1024).reshape(-1, 4)
    prepared = jit_passes.prepare(script, quantizer=quantizer, target="reference")
    reference = jit_passes.convert(jit_passes.calibrate(prepared, [x], progress=False))
    codes, scale = next(
        (node.inputs[0].constant, node.inputs[1].constant)
        for node in GraphView.of(reference).nodes
        if "dequantize" in node.kind
        and isinstance(node.inputs[0].constant, torch.Tensor)
        and node.inputs[0].constant.dim() == 1
    )
    step = float(torch.as_tensor(scale).reshape(-1)[0])
    assert step == pytest.approx(0.5 / 1500, rel=1e-2)  # and not 1 / 127 * 2 / 255
    assert codes.dtype == torch.int16
    assert codes.tolist() == [round(0.01 / step), 1500]
    wide = {"version": 1, "global": {"bias": {"dtype": "int32", "bits": 16}}}
    with pytest.warns(jit_passes.JitPassesWarning, match="its bias is to be int32 .* has int16"):
        jit_passes.prepare(script, quantizer=quantizer, target="reference", config=wide)


@dataclass(frozen=True)
class Press(Reference):
    """A target of somebody else's: its own lowering, with a function and a remark as steps."""

    name: ClassVar[str] = "press"
    lookup_tables: bool = False
    size: int = 3

    def lowering(self) -> Pipeline:
        def leave(graph: GraphEditor) -> None:
            """Say which convolutions the press has no kernel for."""
            for node in graph.nodes:
                if node.kind == "aten::conv2d":
                    graph.remark(node, "the press has no kernel of this size")

        return Pipeline("lower_press", (leave, *super().lowering().steps))


def test_a_target_of_ones_own() -> None:
    """Is used as it is given, and its remarks are the report's reasons."""
    torch.manual_seed(0)
    model = torch.jit.script(nn.Sequential(nn.Conv2d(2, 3, 3), nn.ReLU()).eval())
    data = [torch.randn(1, 2, 6, 6)]
    prepared = jit_passes.calibrate(jit_passes.prepare(model, target=Press()), data, progress=False)
    reference = jit_passes.convert(prepared)
    (row,) = jit_passes.coverage(reference)
    assert (row.dtype, row.reason) == ("int8", "")
    lowered = jit_passes.lower(reference, Press())
    (row,) = jit_passes.coverage(lowered)
    assert (row.name, row.dtype) == ("0:conv2d", "float")
    assert row.reason == "not fused: the press has no kernel of this size"
    assert torch.equal(lowered(data[0]), reference(data[0]))
    with pytest.raises(JitPassesError, match=r"prepared for Press\(.*size=3\)"):
        jit_passes.lower(reference, Press(size=7))
    with pytest.raises(JitPassesError, match="prepared for Press"):
        jit_passes.lower(reference, "stock")


@pytest.fixture(params=["x86", "stock"])
def best(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> str:
    """The target that is the best on a machine."""
    monkeypatch.setattr(_C, "has_x86_kernels", lambda: request.param == "x86")
    return request.param


def test_auto(best: str) -> None:
    """By the processor; but the target of the quantizer, and for lower that of the model."""
    assert resolve_target("auto").name == best
    model, x = torch.jit.script(nn.Conv2d(3, 4, 3).eval()), torch.randn(2, 3, 8, 8)
    for quantizer, name in ((None, best), (BackendQuantizer(Reference()), "reference")):
        prepared = jit_passes.prepare(model, quantizer=quantizer)
        qat = jit_passes.prepare_qat(model, quantizer)
        assert {Report.read(module).target["name"] for module in (prepared, qat)} == {name}
    lowered = jit_passes.quantize_script(model, [x], progress=False)
    text = str(lowered.inlined_graph)
    assert ("quantized::conv2d" in text, "jit_passes.Plan" in text) == (
        best == "stock",
        best == "x86",
    )
    assert (lowered(x) - model(x)).abs().max() < 0.05


@pytest.mark.parametrize("target", ["x86", "stock"])
def test_lower_takes_the_target_of_the_model(best: str, target: str) -> None:
    """Also that of a file from a machine for which another one is the best."""
    model, x = torch.jit.script(nn.Conv2d(3, 4, 3).eval()), torch.randn(2, 3, 8, 8)
    prepared = jit_passes.prepare(model, target=target)
    file = io.BytesIO()
    torch.jit.save(jit_passes.calibrate(prepared, [x], progress=False), file)
    lowered = jit_passes.lower(jit_passes.convert(torch.jit.load(io.BytesIO(file.getvalue()))))
    assert Report.read(lowered).target["name"] == target
    found = jit_passes.coverage(lowered)
    assert found.needs_package == (target == "x86")
    assert ("`import jit_passes` first" in str(found)) == found.needs_package


@pytest.mark.filterwarnings("ignore:nothing was quantized")
def test_what_needs_no_package() -> None:
    """A model of which nothing is quantized, whatever its target."""
    model, x = (
        torch.jit.script(nn.Conv2d(3, 4, 3).double().eval()),
        torch.randn(2, 3, 8, 8).double(),
    )
    lowered = jit_passes.quantize_script(model, [x], target="x86", progress=False)
    assert not jit_passes.coverage(lowered).needs_package
    assert not jit_passes.coverage(model).needs_package
