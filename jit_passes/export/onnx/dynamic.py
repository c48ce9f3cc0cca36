"""Scales that are chosen as the model runs: DynamicQuantizeLinear.

ONNX has one form of it: uint8, affine, codes 0 to 255, one scale for the whole tensor. This form
finds scale and zero point like `jit_passes::choose_qparams` with the range form "pytorch".
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch

from ...errors import JitPassesError
from ..program.decomposed import decomposed
from .graph import made_by, nodes_of, operand

_DOUBLE, _INT64 = 11, 7  # ONNX's numbers of the types that PyTorch's operator gives


def check_chosen(program: torch.export.ExportedProgram) -> None:
    """Check that DynamicQuantizeLinear chooses scales as the model does.

    Raises:
        JitPassesError: one is not.
    """
    for node in nodes_of(program):
        if "choose_qparams" not in str(node.target):
            continue
        affine = node.target == decomposed().choose_qparams.tensor
        if not affine or tuple(node.args[1:3]) != (0, 255):
            name = node.meta.get("custom", {}).get("name", node.name)
            raise JitPassesError(
                f"the scale of '{name}' is chosen as the model runs, for codes that ONNX does not "
                "choose scales for: it has uint8, affine, with codes 0 to 255; quantize for the "
                "target 'onnxruntime', or in the mode static"
            )


def chosen_of(value: Any) -> tuple[Any, Any, Any] | None:
    """Return codes, scale and zero point of a value that DynamicQuantizeLinear has quantized."""
    decoded = made_by(value, "DequantizeLinear")
    made = decoded and made_by(operand(decoded, "x"), "DynamicQuantizeLinear")
    return tuple(made.outputs) if made else None


def dynamic_translations(op: Any) -> dict[Callable[..., Any], Callable[..., Any]]:
    """Return the translations of operators with chosen scales; `op` is the module of an opset."""

    def choose(input: Any, low: int, high: int, eps: float, dtype: int) -> Any:
        _, scale, zero_point = op.DynamicQuantizeLinear(input)
        # In the types of PyTorch's operator. Nothing reads them: see `made`.
        return op.Cast(scale, to=_DOUBLE), op.Cast(zero_point, to=_INT64)

    def made(scale: Any) -> Any:
        return made_by(operand(made_by(scale, "Cast"), "input"), "DynamicQuantizeLinear")

    def quantize(input: Any, scale: Any, zero_point: Any, low: int, high: int, dtype: int) -> Any:
        return made(scale).outputs[0]

    def dequantize(
        input: Any, scale: Any, zero_point: Any, low: int, high: int, dtype: int,
        out_dtype: int | None = None,
    ) -> Any:  # fmt: skip
        _, of_codes, zero = made(scale).outputs
        return op.DequantizeLinear(input, of_codes, zero)

    names = decomposed()
    return {
        names.choose_qparams.tensor: choose,
        names.quantize_per_tensor.tensor: quantize,
        names.dequantize_per_tensor.tensor: dequantize,
    }
