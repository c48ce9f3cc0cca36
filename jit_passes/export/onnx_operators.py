"""Operators of programs as operators of ONNX, in the forms that engines put on integers.

    quantize_per_tensor      QuantizeLinear, and Clip where not all codes of the type are used
    dequantize_per_tensor    DequantizeLinear
    dequantize_per_channel   DequantizeLinear(axis)
    ..._channel_group        DequantizeLinear(axis, block_size)
    linear                   Gemm, between two Reshape where the input has other than two axes
    mean                     GlobalAveragePool, where it is that

`torch.onnx` writes a linear of three axes as MatMul and Add, and a global average as ReduceMean.
ONNX Runtime adds the bias of that linear in float, and computes that average in float.
"""

from __future__ import annotations

import importlib
import math
from collections.abc import Callable
from typing import Any

import torch

from ..errors import JitPassesError
from .program.decomposed import decomposed

SIXTEEN = 21  # the first opset with codes of 16 bits
_ATEN = torch.ops.aten
_ADAPTIVE = {getattr(_ATEN, f"adaptive_avg_pool{n}d").default: n for n in (1, 2, 3)}
_AVERAGES = {getattr(_ATEN, f"avg_pool{n}d").default: n for n in (2, 3)}


def spell_out_pools(program: torch.export.ExportedProgram) -> None:
    """Write average pools with operators that `torch.onnx` translates rightly, in place.

    Adaptive ones that give one value become means, and a divisor a factor: `torch.onnx` 2.13 leaves
    it out.
    """
    for module in program.graph_module.modules():
        if not isinstance(module, torch.fx.GraphModule):
            continue
        for node in list(module.graph.nodes):
            if node.target in _ADAPTIVE and {*node.args[1]} == {1}:
                node.args = (node.args[0], list(range(-_ADAPTIVE[node.target], 0)), True)
                node.target = _ATEN.mean.dim
            elif node.target in _AVERAGES and _divisor(node) is not None:
                _multiply(node, module.graph)


def _divisor(average: torch.fx.Node) -> int | None:
    named = average.kwargs.get("divisor_override")
    return average.args[6] if len(average.args) > 6 else named  # type: ignore[return-value]


def _multiply(average: torch.fx.Node, graph: torch.fx.Graph) -> None:
    """Write an average by a divisor as that by the size of the window, times size by divisor."""
    window: Any = average.args[1]
    dims = _AVERAGES[average.target]
    factor = math.prod(window if len(window) == dims else [*window] * dims) / _divisor(average)
    operand, _, *options = average.args
    stride, padding, ceil = (*options, *((), 0, False)[len(options) :])[:3]
    with graph.inserting_after(average):
        product = graph.call_function(_ATEN.mul.Tensor, (average, factor))
    average.replace_all_uses_with(product, delete_user_cb=lambda user: user is not product)
    product.meta, average.meta = average.meta, {"val": average.meta["val"]}
    average.args, average.kwargs = (operand, window, stride, padding, ceil, True), {}


def translations(
    program: torch.export.ExportedProgram, opset: int
) -> dict[Callable[..., Any], Callable[..., Any]]:
    """Return the functions that translate operators into those of an opset, by operator."""
    scripts, ir = (importlib.import_module(name) for name in ("onnxscript", "onnx_ir"))
    op = getattr(scripts, f"opset{opset}")
    state = {**program.state_dict, **program.constants}
    paths = program.graph_signature.inputs_to_buffers
    of = {input: state[path] for input, path in paths.items() if path in state}

    def typed(zero_points: Any, dtype: int) -> Any:
        return op.Cast(op.Constant(value_int=zero_points), to=dtype)

    def channels(zero_points: Any, dtype: int, spelled: bool = False) -> Any:
        """Return zero points in the type of the codes; None if they are 0, unless spelled out."""
        known = None if zero_points is None else of.get(zero_points.name)
        zero = zero_points is None or (known is not None and not known.any())
        return (
            None
            if zero_points is None or (zero and not spelled)
            else op.Cast(zero_points, to=dtype)
        )

    def quantize(
        input: Any, scale: float, zero_point: int, quant_min: int, quant_max: int, dtype: int
    ) -> Any:
        kind = _type(dtype, quant_min, quant_max, opset)
        codes = op.QuantizeLinear(input, op.Constant(value_float=scale), typed(zero_point, kind))
        if (quant_min, quant_max) == _ends(kind):
            return codes
        return op.Clip(codes, typed(quant_min, kind), typed(quant_max, kind))

    def dequantize(
        input: Any, scale: float, zero_point: int, quant_min: int, quant_max: int, dtype: int,
        out_dtype: int | None = None,
    ) -> Any:  # fmt: skip
        kind = dtype if input.name in of else _type(dtype, quant_min, quant_max, opset)
        return op.DequantizeLinear(input, op.Constant(value_float=scale), typed(zero_point, kind))

    def dequantize_channels(
        input: Any, scales: Any, zero_points: Any, axis: int, quant_min: int, quant_max: int,
        dtype: int, out_dtype: int | None = None,
    ) -> Any:  # fmt: skip
        # ONNX Runtime fuses a Gemm only if its weight has zero points, though all are 0.
        zeros = channels(zero_points, dtype, dtype in (ir.DataType.INT8, ir.DataType.UINT8))
        return op.DequantizeLinear(input, scales, zeros, axis=axis)

    def dequantize_groups(
        input: Any, scales: Any, zero_points: Any, quant_min: int, quant_max: int, dtype: int,
        group_size: int, output_dtype: int | None = None,
    ) -> Any:  # fmt: skip
        zeros = channels(zero_points, dtype)
        return op.DequantizeLinear(input, scales, zeros, axis=1, block_size=group_size)

    def linear(input: Any, weight: Any, bias: Any = None) -> Any:
        quantized = weight.producer() is not None  # ONNX Runtime wants beta spelled out
        if len(input.shape) == 2:
            return op.Gemm(input, weight, bias, transB=1, beta=1.0)
        if not quantized:
            product = op.MatMul(input, op.Transpose(weight, perm=[1, 0]))
            return product if bias is None else op.Add(product, bias)
        width, features = (op.Constant(value_ints=[size]) for size in (-1, weight.shape[0]))
        rows = op.Reshape(
            input, op.Concat(width, op.Constant(value_ints=[weight.shape[1]]), axis=0)
        )
        result = op.Gemm(rows, weight, bias, transB=1, beta=1.0)
        return op.Reshape(result, op.Concat(op.Shape(input, start=0, end=-1), features, axis=0))

    def mean(input: Any, dim: Any = None, keepdim: bool = False, dtype: int | None = None) -> Any:
        rank = len(input.shape)
        if dtype is not None:
            input = op.Cast(input, to=dtype)
        if not dim or rank == 0:
            return op.ReduceMean(input, keepdims=keepdim)
        axes = op.Constant(value_ints=list(dim))
        if rank < 3 or {axis % rank for axis in dim} != set(range(2, rank)):
            return op.ReduceMean(input, axes, keepdims=keepdim)
        average = op.GlobalAveragePool(input)
        return average if keepdim else op.Squeeze(average, axes)

    names = decomposed()
    return {
        _ATEN.linear.default: linear,
        _ATEN.mean.dim: mean,
        names.quantize_per_tensor.default: quantize,
        names.dequantize_per_tensor.default: dequantize,
        names.dequantize_per_channel.default: dequantize_channels,
        names.dequantize_per_channel_group.default: dequantize_groups,
    }


def _type(dtype: int, quant_min: int, quant_max: int, opset: int) -> int:
    """Return ONNX's number of the type of computed codes; those of 16 bits are int32 here.

    Raises:
        JitPassesError: ONNX quantizes to none such, or not in this opset.
    """
    ir = importlib.import_module("onnx_ir")
    if dtype in (ir.DataType.UINT8, ir.DataType.INT8):
        return dtype
    for kind in (ir.DataType.UINT16, ir.DataType.INT16):
        low, high = _ends(kind)
        if low <= quant_min and quant_max <= high:
            if opset < SIXTEEN:
                raise JitPassesError(f"codes of 16 bits need opset {SIXTEEN} or later, not {opset}")
            return int(kind)
    raise JitPassesError(
        f"ONNX has no codes from {quant_min} to {quant_max}: quantize values to 16 bits at most"
    )


def _ends(kind: int) -> tuple[int, int]:
    """Return the smallest and the largest number of a type, by ONNX's number of it."""
    ir = importlib.import_module("onnx_ir")
    limits = torch.iinfo(getattr(torch, str(ir.DataType(kind).numpy())))
    return limits.min, limits.max
