"""The operators `quantized_decomposed`, which compilers of exported programs match.

PyTorch defines them in a deprecated module, and torchao will. Where neither does, they are defined
here, by their formulas:

    q = clamp(round(x * (1 / scale)) + zero_point, quant_min, quant_max)      halves to even
    x = (q - zero_point) * scale
"""

from __future__ import annotations

import importlib
from functools import cache
from typing import Any

import torch
from torch import Tensor

NAMESPACE = "quantized_decomposed"
_MODULES = ("torch.ao.quantization.fx._decomposed", "torchao.quantization.pt2e")
_CODES = "int quant_min, int quant_max, ScalarType dtype"
_OUT = "*, ScalarType? out_dtype=None"


@cache
def decomposed() -> Any:
    """Return the namespace of the operators, defined."""
    for module in _MODULES:
        if not hasattr(getattr(torch.ops, NAMESPACE), "choose_qparams"):
            try:
                importlib.import_module(module)
            except ImportError:
                continue
    namespace = getattr(torch.ops, NAMESPACE)
    if not hasattr(namespace, "choose_qparams"):
        _define()
    return namespace


def _quantize(x: Tensor, scale: Any, zero_point: Any, low: int, high: int, dtype: Any) -> Tensor:
    codes: Tensor = torch.round(x * (1.0 / scale)) + zero_point
    return codes.clamp(low, high).to(dtype)


def _dequantize(
    q: Tensor,
    scale: Any,
    zero_point: Any,
    low: int,
    high: int,
    dtype: Any,
    *,
    out_dtype: Any = None,
) -> Tensor:
    real = out_dtype or torch.float32
    values: Tensor = (q.to(real) - zero_point) * scale
    return values.to(real)


def _along(numbers: Tensor, x: Tensor, axis: int) -> Tensor:
    shape = [1] * x.dim()
    shape[axis] = -1
    return numbers.reshape(shape)


def _quantize_channels(
    x: Tensor, scales: Tensor, zeros: Tensor, axis: int, low: int, high: int, dtype: Any
) -> Tensor:
    along = _along(scales, x, axis), _along(zeros, x, axis)
    return _quantize(x, *along, low, high, dtype)


def _dequantize_channels(
    q: Tensor, scales: Tensor, zeros: Tensor | None, axis: int, low: int, high: int, dtype: Any,
    *, out_dtype: Any = None,
) -> Tensor:  # fmt: skip
    zero = 0 if zeros is None else _along(zeros, q, axis)
    return _dequantize(q, _along(scales, q, axis), zero, low, high, dtype, out_dtype=out_dtype)


def _dequantize_groups(
    q: Tensor, scales: Tensor, zeros: Tensor | None, low: int, high: int, dtype: Any, size: int,
    out_dtype: Any,
) -> Tensor:  # fmt: skip
    zero = 0 if zeros is None else zeros.reshape(-1, 1)
    rows = q.reshape(-1, size)
    found = _dequantize(rows, scales.reshape(-1, 1), zero, low, high, dtype, out_dtype=out_dtype)
    return found.reshape(q.shape)


def _choose(x: Tensor, low: int, high: int, eps: float, dtype: Any) -> tuple[Tensor, Tensor]:
    least, most = torch.aminmax(x)
    least, most = least.clamp(max=0), most.clamp(min=0)
    scale = ((most - least) / float(high - low)).clamp(min=eps)
    zero = (low - torch.round(least / scale).to(torch.int64)).clamp(low, high)
    return scale.to(torch.float64).reshape(1), zero.reshape(1)


def _choose_symmetric(
    x: Tensor, low: int, high: int, eps: float, dtype: Any
) -> tuple[Tensor, Tensor]:
    scale = (x.abs().amax() / (float(high - low) / 2)).clamp(min=eps)
    scale = scale.to(torch.float64).reshape(1)
    return scale, torch.full_like(scale, 128 if dtype == torch.uint8 else 0, dtype=torch.int64)


_DEFINITIONS = {
    f"quantize_per_tensor(Tensor input, float scale, int zero_point, {_CODES}) "
    "-> Tensor": _quantize,
    f"quantize_per_tensor.tensor(Tensor input, Tensor scale, Tensor zero_point, {_CODES}) "
    "-> Tensor": _quantize,
    f"dequantize_per_tensor(Tensor input, float scale, int zero_point, {_CODES}, {_OUT}) "
    "-> Tensor": _dequantize,
    f"dequantize_per_tensor.tensor(Tensor input, Tensor scale, Tensor zero_point, {_CODES}, "
    f"{_OUT}) -> Tensor": _dequantize,
    f"quantize_per_channel(Tensor input, Tensor scales, Tensor zero_points, int axis, {_CODES}) "
    "-> Tensor": _quantize_channels,
    f"dequantize_per_channel(Tensor input, Tensor scales, Tensor? zero_points, int axis, {_CODES}, "
    f"{_OUT}) -> Tensor": _dequantize_channels,
    f"dequantize_per_channel_group(Tensor input, Tensor scales, Tensor? zero_points, {_CODES}, "
    "int group_size, ScalarType output_dtype) -> Tensor": _dequantize_groups,
    "choose_qparams.tensor(Tensor input, int quant_min, int quant_max, float eps, "
    "ScalarType dtype) -> (Tensor, Tensor)": _choose,
    "choose_qparams_symmetric.tensor(Tensor input, int quant_min, int quant_max, float eps, "
    "ScalarType dtype) -> (Tensor, Tensor)": _choose_symmetric,
}
_LIBRARY: list[torch.library.Library] = []  # its operators live as long as it


def _define() -> None:
    library: Any = torch.library.Library(NAMESPACE, "FRAGMENT")  # type: ignore[no-untyped-call]
    for schema, function in _DEFINITIONS.items():
        library.define(schema)
        library.impl(schema.partition("(")[0], function, "CompositeExplicitAutograd")
    _LIBRARY.append(library)
