"""Linears and convolutions in the forms that ONNX Runtime puts on integers.

static      Gemm with beta spelled out, between two Reshape where the input has more than 2 axes:
behind a MatMul, the bias would be added in float
dynamic     MatMulInteger or ConvInteger, Cast, Mul, Add; in float beside a weight of 16 bits
of groups   DequantizeLinear(axis 0, block_size), MatMul: the weight is transposed; a dynamic input
            beside 8 bits is decoded by Sub and Mul
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import torch

from .dynamic import chosen_of
from .graph import block_size, made_by, operand, state_of

_ATEN = torch.ops.aten
_FLOAT, _INT32 = 1, 6  # ONNX's numbers of types
_KINDS = tuple(
    overload
    for n in (1, 2, 3)
    for overload in (getattr(_ATEN, f"conv{n}d").default, getattr(_ATEN, f"conv{n}d").padding)
)


def product_translations(
    op: Any, program: torch.export.ExportedProgram
) -> dict[Callable[..., Any], Callable[..., Any]]:
    """Return the translations of linears and convolutions.

    Args:
        op: the module of an opset.
        program: that is translated.
    """

    def scaled(product: Any, scales: tuple[Any, Any], bias: Any, axes: int) -> Any:
        """Return a sum of products of codes in float32, the channels in front of some axes."""

        def along(values: Any) -> Any:
            if axes == 0 or len(values.shape) == 0:
                return values
            return op.Unsqueeze(values, op.Constant(value_ints=list(range(1, axes + 1))))

        of_input, of_weight = scales
        found = op.Mul(op.Cast(product, to=_FLOAT), op.Mul(of_input, along(of_weight)))
        return found if bias is None else op.Add(found, along(bias))

    def decoded_alone(codes: Any, scale: Any, zero_point: Any) -> Any:
        """Return what DequantizeLinear gives, without it.

        ONNX Runtime 1.31 fuses one on each side of a MatMul, and takes groups for channels: its
        results are wrong, or it fails.
        """
        steps = op.Sub(op.Cast(codes, to=_INT32), op.Cast(zero_point, to=_INT32))
        return op.Mul(op.Cast(steps, to=_FLOAT), scale)

    def linear(input: Any, weight: Any, bias: Any = None) -> Any:
        decoded, chosen = made_by(weight, "DequantizeLinear"), chosen_of(input)
        if size := block_size(decoded):
            parts = [op.Transpose(part, perm=[1, 0]) for part in decoded.inputs if part is not None]
            weight = op.DequantizeLinear(*parts, axis=0, block_size=size)
            # Codes of 4 bits are cast to them, and not fused.
            if chosen is not None and made_by(decoded.inputs[0], "Cast") is None:
                input = decoded_alone(*chosen)
            product = op.MatMul(input, weight)
            return product if bias is None else op.Add(product, bias)
        if decoded is not None and chosen is not None and in_bytes(decoded):
            codes, scale, zero_point = chosen
            of_weight, weight_scale, *zeros = decoded.inputs
            columns = op.Transpose(of_weight, perm=[1, 0])
            product = op.MatMulInteger(codes, columns, zero_point, *zeros)
            return scaled(product, (scale, weight_scale), bias, 0)
        if len(input.shape) == len(weight.shape) == 2:
            return op.Gemm(input, weight, bias, transB=1, beta=1.0)
        if decoded is None or len(weight.shape) != 2:
            turned = weight if len(weight.shape) < 2 else op.Transpose(weight, perm=[1, 0])
            product = op.MatMul(input, turned)
            return product if bias is None else op.Add(product, bias)
        rows = op.Reshape(input, op.Constant(value_ints=[-1, weight.shape[1]]))
        result = op.Gemm(rows, weight, bias, transB=1, beta=1.0)
        features = op.Constant(value_ints=[weight.shape[0]])
        return op.Reshape(result, op.Concat(op.Shape(input, start=0, end=-1), features, axis=0))

    def convolution(
        input: Any, weight: Any, bias: Any = None, stride: Sequence[int] = (1,),
        padding: Sequence[int] | str = (0,), dilation: Sequence[int] = (1,), groups: int = 1,
    ) -> Any:  # fmt: skip
        window = list(weight.shape[2:])
        options = _options(window, stride, padding, dilation) | {"group": groups}
        alone, front = len(input.shape) == len(weight.shape) - 1, op.Constant(value_ints=[0])
        decoded, chosen = made_by(weight, "DequantizeLinear"), chosen_of(input)
        # ONNX Runtime takes one zero point for a weight, so zero points of channels have to be 0.
        fits = decoded is not None and in_bytes(decoded)
        if not fits or chosen is None or not around_zero(operand(decoded, "x_zero_point")):
            x = op.Unsqueeze(input, front) if alone else input
            found = op.Conv(x, weight, bias, **options)
        else:
            codes, scale, zero_point = chosen
            of_weight, weight_scale, *_ = decoded.inputs
            x = op.Unsqueeze(codes, front) if alone else codes
            product = op.ConvInteger(x, of_weight, zero_point, **options)
            found = scaled(product, (scale, weight_scale), bias, len(window))
        return op.Squeeze(found, front) if alone else found

    state = state_of(program)

    def in_bytes(decoded: Any) -> bool:
        """Say whether codes have 8 bits at most, as ONNX's products of integers take them."""
        return bool(decoded.inputs[0].dtype.bitwidth <= 8)

    def around_zero(zero_point: Any) -> bool:
        """Say whether a zero point, which is a cast constant, is 0, or all are."""
        source = operand(zero_point.producer(), "input")
        if (constant := made_by(source, "Constant")) is not None:
            return bool(constant.attributes["value_int"].as_int() == 0)
        return source.name in state and not state[source.name].any()

    # `torch.onnx` 2.13 takes one number for all axes as the first axis's.
    return {_ATEN.linear.default: linear} | dict.fromkeys(_KINDS, convolution)


def _options(
    window: list[int], stride: Sequence[int], padding: Sequence[int] | str, dilation: Sequence[int]
) -> dict[str, list[int]]:
    """Return strides, dilations and pads of a convolution; pads are all first ends, then last."""
    strides, dilations = (_for_each(numbers, window) for numbers in (stride, dilation))
    if isinstance(padding, str):
        same = padding == "same"
        reach = [same * d * (k - 1) for d, k in zip(dilations, window, strict=True)]
        first = [total // 2 for total in reach]
        pads = first + [total - half for total, half in zip(reach, first, strict=True)]
    else:
        pads = 2 * _for_each(padding, window)
    return {"strides": strides, "dilations": dilations, "pads": pads}


def _for_each(numbers: Sequence[int], window: list[int]) -> list[int]:
    return list(numbers) * (len(window) if len(numbers) == 1 else 1)
