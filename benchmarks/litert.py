"""Whether LiteRT's kernels give the codes of the target `fixed_point`, operator by operator.

Needs the package `ai-edge-litert`. Each operator of a network that LiteRT has too becomes a file of
its own with int8 operands (uint8 ones less 128), and reads codes of that network. Weights are
random, with BatchNorm statistics from data. Usage, from the repository root::

    python -m benchmarks.litert
    python -m benchmarks.litert --models encoder --kernels reference

Columns: the rounding of the target; of each operator the codes at which LiteRT's reference kernels
differ, its optimized ones, and the ones of XNNPACK, which LiteRT takes by default; and the most
steps that a code is off.
"""

from __future__ import annotations

import argparse
import sys
from collections import defaultdict
from collections.abc import Iterator, Mapping, Sequence
from importlib.util import find_spec
from math import prod

import numpy as np
import torch
from torch import nn

import jit_passes
from benchmarks import report
from benchmarks.inputs import realistic
from benchmarks.integers import CASES, Case
from benchmarks.tflite_file import Array, Tensor, one_operator
from jit_passes.export.c.parameters import parameters_of
from jit_passes.export.c.program import Buffer, Call, Program
from jit_passes.export.c.reading import read_program
from jit_passes.targets import FixedPoint

KERNELS = {
    "reference": "BUILTIN_REF",
    "optimized": "BUILTIN_WITHOUT_DEFAULT_DELEGATES",
    "XNNPACK": "AUTO",
}
ROUNDINGS = ("half_up", "double_round")


class Gates(nn.Module):
    """Products, differences and concatenations, which the other networks lack."""

    def __init__(self) -> None:
        super().__init__()
        self.a, self.b = nn.Conv2d(3, 8, 3, padding=1), nn.Conv2d(3, 8, 3, padding=1)
        self.last = nn.Conv2d(24, 8, 1)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        a, b = self.a(x), self.b(x) * 3.0
        y: torch.Tensor = self.last(torch.cat([a * b, a - b, b], 1))
        return y


NETWORKS = CASES | {"gates": Case("products and differences", Gates, (3, 48, 48))}


class Operator:
    """A call of a program, as an operator of LiteRT.

    Attributes:
        file: of LiteRT.
        operands: codes that the file reads.
        expected: codes of the program, in LiteRT's order.
        low: the smallest code; LiteRT's are clamped to it, since a clip is an operator of its own.
        high: the largest code.
    """

    def __init__(self, program: Program, call: Call) -> None:
        self.codes, self.call, self.given = program.codes, call, parameters_of(call)
        r = self.given.numbers["rescaling"]
        shift = _shift(call.writes)
        self.low, self.high = r["low"] - shift, r["high"] - shift
        self.operands: list[Array] = []
        self.expected = self.of(call.writes)
        self.file: bytes = getattr(self, f"_{call.kernel}")()

    def of(self, buffer: Buffer) -> Array:
        """Return codes as int8, images of convolutions and pools as NHWC."""
        found = self.codes[buffer].reshape(buffer.shape).numpy().astype(np.int64) - _shift(buffer)
        images = self.call.kernel in ("conv2d", "mean") and found.ndim == 4
        return np.moveaxis(found, 1, -1) if images else found

    def tensor(self, buffer: Buffer, codes: Array) -> Tensor:
        zero = buffer.zero_point - _shift(buffer)
        return Tensor(codes.shape, "int8", [buffer.scale], zero)

    def read(self, name: str) -> Tensor:
        """Let the file read an operand."""
        buffer = self.given.buffers[name]
        self.operands.append(self.of(buffer))
        return self.tensor(buffer, self.operands[-1])

    @property
    def result(self) -> Tensor:
        return self.tensor(self.call.writes, self.expected)

    def _weights(self, axis: int, order: Sequence[int]) -> tuple[Tensor, Tensor]:
        """Return weight and bias; scales are in float32, as the model has them."""
        constants, x, y = self.given.constants, self.given.buffers["x"], self.call.writes
        pairs = zip(
            *(constants[n].numbers.tolist() for n in ("multipliers", "shifts")), strict=True
        )
        scales = [float(np.float32(y.scale * (m / 2**n) / x.scale)) for m, n in pairs]
        numbers = constants["weight"].numbers.numpy()
        numbers = numbers.reshape(*numbers.shape[:1], -1, *numbers.shape[2:]).transpose(order)
        count = len(constants["weight"].numbers)
        bias = constants["bias"].numbers.numpy() if "bias" in constants else np.zeros(count)
        weight = Tensor(numbers.shape, "int8", scales, 0, axis, numbers)
        steps = [float(np.float32(x.scale * scale)) for scale in scales]
        return weight, Tensor(bias.shape, "int32", steps, 0, 0, bias)

    def _conv2d(self) -> bytes:
        s = self.given.numbers["conv2d_shape"]
        self.read("x")
        rim = [(0, 0), (s["padding_y"],) * 2, (s["padding_x"],) * 2, (0, 0)]
        x = self.given.buffers["x"]
        zero = x.zero_point - _shift(x)
        self.operands[0] = np.pad(self.operands[0], rim, constant_values=zero)
        source = self.tensor(x, self.operands[0])
        options = {
            "padding": 1,  # none
            "strideH": s["stride_y"],
            "strideW": s["stride_x"],
            "dilationHFactor": s["dilation_y"],
            "dilationWFactor": s["dilation_x"],
        }
        if 1 < s["groups"] == s["in_channels"]:
            weight, bias = self._weights(3, (1, 2, 3, 0))
            options["depthMultiplier"] = s["out_channels"] // s["groups"]
            name, kind = "DEPTHWISE_CONV_2D", "DepthwiseConv2DOptions"
        else:
            weight, bias = self._weights(0, (0, 2, 3, 1))
            name, kind = "CONV_2D", "Conv2DOptions"
        return one_operator(name, [source, weight, bias], self.result, kind, **options)

    def _linear(self) -> bytes:
        rows, outs = self.given.numbers["rows"], self.given.numbers["outs"]
        self.read("x")
        self.operands[0] = self.operands[0].reshape(rows, -1)
        self.expected = self.expected.reshape(rows, outs)
        source = self.tensor(self.given.buffers["x"], self.operands[0])
        weight, bias = self._weights(0, (0, 1))
        return one_operator(
            "FULLY_CONNECTED", [source, weight, bias], self.result, "FullyConnectedOptions",
            keepNumDims=True,
        )  # fmt: skip

    def _add(self) -> bytes:
        minus = self.given.numbers.get("sign", 1) < 0 or self.given.numbers.get("factor_b", 1) < 0
        name, kind = ("SUB", "SubOptions") if minus else ("ADD", "AddOptions")
        return one_operator(name, [self.read("a"), self.read("b")], self.result, kind)

    _add_rescaled = _add

    def _multiply(self) -> bytes:
        return one_operator("MUL", [self.read("a"), self.read("b")], self.result, "MulOptions")

    def _matmul(self) -> bytes:
        return one_operator(
            "BATCH_MATMUL", [self.read("a"), self.read("b")], self.result, "BatchMatMulOptions"
        )

    def _requantize(self) -> bytes:
        return one_operator("QUANTIZE", [self.read("x")], self.result, "QuantizeOptions")

    def _mean(self) -> bytes:
        source = self.read("x")
        if len(source.shape) != 4 or self.call.writes.count != prod(source.shape[::3]):
            raise AttributeError  # of the middle axes alone
        axes = Tensor([2], "int32", numbers=np.array([1, 2]))
        keep = len(self.expected.shape) == 4
        self.expected = self.expected.reshape(self.result.shape)
        return one_operator("MEAN", [source, axes], self.result, "ReducerOptions", keepDims=keep)

    def run(self, kernels: str) -> Array:
        """Return LiteRT's codes."""
        from ai_edge_litert.interpreter import Interpreter, OpResolverType

        interpreter = Interpreter(
            model_content=self.file,
            experimental_op_resolver_type=getattr(OpResolverType, KERNELS[kernels]),
        )
        interpreter.allocate_tensors()
        inputs = interpreter.get_input_details()
        for codes, place in zip(self.operands, inputs, strict=True):
            interpreter.set_tensor(place["index"], codes.astype(np.int8))
        interpreter.invoke()
        found = interpreter.get_tensor(interpreter.get_output_details()[0]["index"])
        return found.astype(np.int64).clip(self.low, self.high)


def _shift(buffer: Buffer) -> int:
    return 128 if buffer.dtype == torch.uint8 else 0


def program_of(case: Case, rounding: str) -> Program:
    """Return a network as a program, with codes of a sample."""
    torch.manual_seed(0)
    net = realistic(case.make(), [case.batch(8, 100 + i) for i in range(4)])
    sample = case.batch(1, 7)
    model = torch.jit.trace(net, sample)
    batches = [case.batch(8, i) for i in range(4)]
    lowered = jit_passes.quantize_script(model, batches, target=FixedPoint(rounding=rounding))
    return read_program(lowered, (sample,), "forward")[0]


def operators(program: Program) -> Iterator[Operator]:
    """Yield the calls that LiteRT has an operator for."""
    for call in program.calls:
        if hasattr(Operator, f"_{call.kernel}"):
            try:
                yield Operator(program, call)
            except AttributeError:
                continue


def differences(program: Program, kernels: str) -> Mapping[str, tuple[int, int, int]]:
    """Return by kind of operator: codes that differ, all codes, and the most steps apart."""
    found: dict[str, tuple[int, int, int]] = defaultdict(lambda: (0, 0, 0))
    for operator in operators(program):
        apart = np.abs(operator.run(kernels) - operator.expected)
        wrong, count, most = found[operator.call.kernel]
        most = max(most, int(apart.max(initial=0)))
        found[operator.call.kernel] = (wrong + int((apart > 0).sum()), count + apart.size, most)
    return found


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0] if __doc__ else None)
    small = ("digits_resnet", "digits_mobilenet", "keywords", "unet", "encoder", "gates")
    parser.add_argument("--models", nargs="+", choices=NETWORKS, default=small)
    parser.add_argument("--kernels", nargs="+", choices=KERNELS, default=list(KERNELS))
    given = parser.parse_args()
    if find_spec("ai_edge_litert") is None:
        parser.error("it needs LiteRT: pip install ai-edge-litert")
    rows = []
    for name in given.models:
        for rounding in ROUNDINGS:
            program = program_of(NETWORKS[name], rounding)
            columns = {kernels: differences(program, kernels) for kernels in given.kernels}
            for kind in next(iter(columns.values())):
                cells = [f"{c[kind][0]:,} of {c[kind][1]:,}" for c in columns.values()]
                most = max(c[kind][2] for c in columns.values())
                rows.append([NETWORKS[name].title, rounding, kind, *cells, str(most)])
                print(" | ".join(rows[-1]), file=sys.stderr, flush=True)
    print(report.table(("model", "rounding", "function", *given.kernels, "steps"), rows))
    print(report.machine_facts())


if __name__ == "__main__":
    main()
