"""Operators of programs as operators of ONNX.

    quantize_per_tensor      QuantizeLinear, and Clip where not all codes of the type are used
    dequantize_per_tensor    DequantizeLinear
    dequantize_per_channel   DequantizeLinear(axis)
    ..._channel_group        DequantizeLinear(axis, block_size)

Forms that engines want of others are in `products.py` and `pools.py`, chosen scales in
`dynamic.py`.
"""

from __future__ import annotations

import importlib
from collections.abc import Callable
from typing import Any

import torch

from ...errors import JitPassesError
from ..program.decomposed import decomposed
from .dynamic import dynamic_translations
from .float_operators import float_translations
from .graph import state_of
from .loops import loop_translations
from .pools import pool_translations
from .products import product_translations

SIXTEEN = 21  # the first opset with codes of 16 bits


def translations(
    program: torch.export.ExportedProgram, opset: int
) -> dict[Callable[..., Any], Callable[..., Any]]:
    """Return the functions that translate operators to an opset, by operator."""
    scripts, ir = (importlib.import_module(name) for name in ("onnxscript", "onnx_ir"))
    op = getattr(scripts, f"opset{opset}")
    of = state_of(program)

    def typed(zero_points: Any, dtype: int) -> Any:
        return op.Cast(op.Constant(value_int=zero_points), to=dtype)

    def channels(zero_points: Any, dtype: int, spelled: bool = False) -> Any:
        """Return zero points in the type of the codes; None if they are 0, unless spelled out."""
        if zero_points is None:
            return None
        known = of.get(zero_points.name)
        zero = known is not None and not known.any()
        return None if zero and not spelled else op.Cast(zero_points, to=dtype)

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
        if quant_min >= -8 and quant_max <= 7:  # two codes in a byte
            dtype = ir.DataType.INT4
            input = op.Cast(input, to=dtype)
        zeros = channels(zero_points, dtype)
        return op.DequantizeLinear(input, scales, zeros, axis=1, block_size=group_size)

    names = decomposed()
    return {
        names.quantize_per_tensor.default: quantize,
        names.dequantize_per_tensor.default: dequantize,
        names.dequantize_per_channel.default: dequantize_channels,
        names.dequantize_per_channel_group.default: dequantize_groups,
        **float_translations(op),
        **loop_translations(op),
        **dynamic_translations(op),
        **pool_translations(op),
        **product_translations(op, program),
    }


def _type(dtype: int, quant_min: int, quant_max: int, opset: int) -> int:
    """Return ONNX's number of the type of computed codes; codes of 16 bits are int32 here.

    Raises:
        JitPassesError: ONNX does not quantize to these codes, or not in this opset.
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
