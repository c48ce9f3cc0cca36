"""Models for the quantizers of backends, and the numbers in what they made."""

from __future__ import annotations

import io
import math
from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor, nn

import jit_passes
from jit_passes.graph.view import GraphView, NodeView
from jit_passes.observers import KLJ, Histogram, MinMax
from jit_passes.quantizer import (
    Annotations,
    BackendQuantizer,
    DerivedQuantizationSpec,
    LayerOptions,
    QuantizationAnnotation,
    QuantizationSpec,
    Quantizer,
    TensorOptions,
    bias_qparams,
)

ENGINES = torch.backends.quantized.supported_engines
CODES = (torch.uint8, torch.int8, torch.int16, torch.int32)
FLOAT = TensorOptions(dtype="float")
Row = tuple[float, int, int, int, torch.dtype]


def images(*shape: int) -> list[Tensor]:
    generator = torch.Generator().manual_seed(3)
    return [torch.randn(*(shape or (2, 3, 8, 8)), generator=generator) for _ in range(4)]


def seeded(model: Callable[[], nn.Module]) -> nn.Module:
    torch.manual_seed(0)
    return model().eval()


def reference_of(
    model: nn.Module, quantizer: Quantizer, data: list[Tensor], **options: Any
) -> torch.jit.ScriptModule:
    prepared = jit_passes.prepare(torch.jit.script(model), quantizer=quantizer, **options)
    return jit_passes.convert(jit_passes.calibrate(prepared, data))


def results(module: torch.jit.ScriptModule) -> dict[str, list[Row]]:
    """Scale, zero point, range and dtype of each quantize, by the float value it goes back to."""
    found: dict[str, list[Row]] = {}
    for node in GraphView.of(module).nodes:
        if node.kind == "jit_passes::quantize":
            value, *grid = node.inputs
            while value.producer and value.producer.kind == "jit_passes::dequantize":
                quantize = value.producer.inputs[0].producer
                assert quantize is not None
                value = quantize.inputs[0]
            scale, zero_point, low, high, code = (operand.constant for operand in grid)
            found.setdefault(value.name, []).append((scale, zero_point, low, high, CODES[code]))
    return found


def weights(module: torch.jit.ScriptModule) -> dict[str, tuple[Tensor, Any]]:
    """Codes and scale of the weights and biases that are stored as integers."""
    found = {}
    for node in GraphView.of(module).nodes:
        for place, value in zip(("weight", "bias"), node.inputs[1:3], strict=False):
            maker = value.producer
            if maker and maker.kind.startswith("jit_passes::dequantize"):
                codes, scale = maker.inputs[0].constant, maker.inputs[1].constant
                if isinstance(codes, Tensor):
                    found[f"{node.module}.{place}"] = codes, scale
    return found


def reload(module: torch.jit.ScriptModule) -> torch.jit.ScriptModule:
    buffer = io.BytesIO()
    torch.jit.save(module, buffer)
    return torch.jit.load(io.BytesIO(buffer.getvalue()))


def is_power_of_two(scale: float) -> bool:
    return math.frexp(scale)[0] == 0.5


class Adds(nn.Module):
    """Convolutions, a relu, and an addition."""

    def __init__(self) -> None:
        super().__init__()
        self.c = nn.Conv2d(3, 4, 3)
        self.d = nn.Conv2d(3, 4, 3)
        self.e = nn.Conv2d(4, 5, 3, stride=2)

    def forward(self, x: Tensor) -> Tensor:
        return self.e(self.c(x).relu() + self.d(x))


def exponent_of(values: Tensor, bits: int) -> int:
    """The smallest power of two with which nothing is clipped."""
    high = float(values.detach().max()) / (2 ** (bits - 1) - 1)
    low = float(values.detach().min()) / -(2 ** (bits - 1))
    return math.ceil(math.log2(max(high, low)))


class Layers(nn.Module):
    """Convolutions of one type, one of them used twice."""

    def __init__(self) -> None:
        super().__init__()
        self.first = nn.Conv2d(3, 4, 1)
        self.twice = nn.Conv2d(4, 4, 1)
        self.last = nn.Conv2d(4, 4, 1)
        self.fc = nn.Linear(8, 3)

    def forward(self, x: Tensor) -> Tensor:
        return self.fc(self.last(self.twice(self.twice(self.first(x)))))


def weight(bits: int) -> LayerOptions:
    return LayerOptions(weight=TensorOptions(bits=bits))


FIRST, LAST, FC = "first:conv2d", "last:conv2d", "fc:linear"
TWICE = ("twice:conv2d", "twice:conv2d#1")
ALL = dict.fromkeys((FIRST, *TWICE, LAST, FC), 8)


def ranges(model: type[nn.Module], quantizer: BackendQuantizer) -> dict[str, list[tuple[int, int]]]:
    """The ranges of codes that each value is quantized to, one after another."""
    rows = results(reference_of(seeded(model), quantizer, images(), target="reference"))
    return {name: [(row[2], row[3]) for row in found] for name, found in rows.items()}


def grid(bits: int) -> tuple[int, int]:
    return 0, 2**bits - 1


AFFINE = QuantizationSpec("uint8", observer=MinMax())
SHIFTED = QuantizationSpec("int8", qscheme="per_tensor_power_of_two", observer=MinMax())
KL = QuantizationSpec("uint8", observer=KLJ())
DEFAULT = QuantizationSpec("uint8", observer=Histogram())
WEIGHT_8 = QuantizationSpec("int8", -127, 127, "per_channel_symmetric", 0, MinMax())
WEIGHT_4 = QuantizationSpec("int8", -7, 7, "per_channel_symmetric", 0, MinMax())
WEIGHT_SHIFTED = QuantizationSpec("int8", -127, 127, "per_tensor_power_of_two", observer=MinMax())
ACTIVATIONS = {
    "x": AFFINE,
    "b.0.relu:relu": SHIFTED,  # as block 1 wants it
    "b.1.relu:relu": DEFAULT,  # read in float
    "b.2.relu:relu": KL,
    "b.3.relu:relu": SHIFTED,
    "b.4.relu:relu": AFFINE,
    "b.5.relu:relu": DEFAULT,
}
WEIGHTS = {0: WEIGHT_8, 1: WEIGHT_SHIFTED, 3: WEIGHT_4, 4: WEIGHT_SHIFTED, 5: WEIGHT_8}


class ByHand(Quantizer):
    """Equal annotations, made operator by operator."""

    def annotate(self, graph: GraphView) -> Annotations:
        annotations = Annotations()
        for node in graph.nodes:
            if node.kind == "aten::conv2d" and int(node.module[2]) in WEIGHTS:
                self.annotate_block(annotations, node)
        return annotations

    def annotate_block(self, annotations: Annotations, conv: NodeView) -> None:
        (relu, _), spec = conv.output.uses[0], WEIGHTS[int(conv.module[2])]
        x, weight, bias = conv.inputs[:3]
        granularity = "per_tensor" if spec.ch_axis is None else "per_channel"
        of_bias = DerivedQuantizationSpec(
            ((x, conv), (weight, conv)), bias_qparams, "int32", -(2**31) + 1,
            qscheme=f"{granularity}_symmetric", ch_axis=spec.ch_axis,
        )  # fmt: skip
        operands = {x: ACTIVATIONS[x.name], weight: spec, bias: of_bias}
        annotations[conv] = QuantizationAnnotation(operands)
        annotations[relu] = QuantizationAnnotation({}, ACTIVATIONS[relu.output.name], part_of=conv)
