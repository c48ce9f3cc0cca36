"""The dialect's operators as operators of `quantized_decomposed`, which compilers of programs know.

    jit_passes::quantize                quantize_per_tensor
    jit_passes::dequantize              dequantize_per_tensor
    jit_passes::quantize_per_channel    quantize_per_channel
    jit_passes::dequantize_per_channel  dequantize_per_channel, dequantize_per_channel_group
    jit_passes::choose_qparams          choose_qparams.tensor, choose_qparams_symmetric.tensor
    jit_passes::quantize_dynamic        quantize_per_tensor.tensor
    jit_passes::dequantize_dynamic      dequantize_per_tensor.tensor
    jit_passes::correlation, add_bias   a convolution without its bias, and a sum, of ATen

Integers are ours but for ties: those operators round x / scale and add the zero point, and with
torch 2.13 ours round the sum. Scales of tokens are spelled out in operators of ATen.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any

import torch
from torch import Tensor

from ...graph.view import NodeView
from .decomposed import decomposed
from .enums import DTYPES

Limits = tuple[int, int]
Form = Callable[..., Any]

_QUANTIZES = ("jit_passes::quantize", "jit_passes::quantize_dynamic")
_SMALLEST = {"pytorch": 2.0**-60, "fbgemm": 6.1e-5}  # scales, by range form: cpp/ops/dynamic.cpp


def dialect_form(node: NodeView, known: Mapping[int, Limits]) -> Form | None:
    """Return the function of a node's operands for an operator of the dialect; None for others.

    Args:
        node: of a reference model.
        known: by index of a quantize, its smallest and largest code.
    """
    make = _FORMS.get(node.kind)
    return None if make is None else make(decomposed(), _limits(node, known))


def _limits(node: NodeView, known: Mapping[int, Limits]) -> Limits | None:
    """Return the codes that a node takes or gives, as far as the graph or the report tells."""
    if node.index in known:
        return known[node.index]
    maker = node.main_operand.producer
    while maker is not None and maker.kind not in _QUANTIZES:
        if not maker.moves_data:
            return None
        maker = maker.main_operand.producer
    if maker is None:
        return None
    low, high = (maker.operand(end).constant for end in ("quant_min", "quant_max"))
    return low, high


def _grid(q: Tensor, limits: Limits | None) -> tuple[int, int, torch.dtype]:
    """Return the last arguments of operators that dequantize: codes and dtype."""
    whole = torch.iinfo(q.dtype)
    return (*(limits or (whole.min, whole.max)), q.dtype)


def _real(x: Tensor) -> Tensor:
    """Return a tensor in float32, which the operators take; a cast would stand in the program."""
    return x if x.dtype == torch.float32 else x.to(torch.float32)


def _quantize(op: Any, limits: Limits | None) -> Form:
    def form(x: Tensor, scale: float, zero_point: int, low: int, high: int, dtype: int) -> Any:
        x = _real(x)
        return op.quantize_per_tensor.default(x, scale, zero_point, low, high, DTYPES[dtype])

    return form


def _dequantize(op: Any, limits: Limits | None) -> Form:
    def form(q: Tensor, scale: float, zero_point: int) -> Any:
        return op.dequantize_per_tensor.default(q, scale, zero_point, *_grid(q, limits))

    return form


def _quantize_per_channel(op: Any, limits: Limits | None) -> Form:
    def form(
        x: Tensor, scales: Tensor, zeros: Tensor, axis: int, low: int, high: int, dtype: int
    ) -> Any:
        x, axis = _real(x), axis % x.dim()
        if scales.dim() < 2:
            return op.quantize_per_channel.default(x, scales, zeros, axis, low, high, DTYPES[dtype])
        return _by_group(
            x,
            scales,
            zeros,
            axis,
            lambda x, scales, zeros: op.quantize_per_channel.default(
                x, scales, zeros, 0, low, high, DTYPES[dtype]
            ),
        )

    return form


def _dequantize_per_channel(op: Any, limits: Limits | None) -> Form:
    def form(q: Tensor, scales: Tensor, zeros: Tensor, axis: int) -> Any:
        axis, grid = axis % q.dim(), _grid(q, limits)
        if scales.dim() < 2:
            return op.dequantize_per_channel.default(q, scales, zeros, axis, *grid)
        if q.dim() == 2 and axis == 0:
            size = q.shape[1] // scales.shape[1]
            group = op.dequantize_per_channel_group.default
            return group(q, scales, zeros, *grid, size, torch.float32)
        return _by_group(
            q,
            scales,
            zeros,
            axis,
            lambda q, scales, zeros: op.dequantize_per_channel.default(q, scales, zeros, 0, *grid),
        )

    return form


def _by_group(x: Tensor, scales: Tensor, zeros: Tensor, axis: int, form: Form) -> Tensor:
    """Return the result of a form for channels, with each group as a channel of its own.

    Scales are [channels, groups], and x is cut along the other one of its first two axes.
    """
    rows = x.transpose(0, 1) if axis == 1 else x
    groups = rows.reshape(scales.numel(), -1, *rows.shape[2:])
    found: Tensor = form(groups, scales.reshape(-1), zeros.reshape(-1)).reshape(rows.shape)
    return found.transpose(0, 1) if axis == 1 else found


def _choose(op: Any, limits: Limits | None) -> Form:
    def form(x: Tensor, low: int, high: int, qscheme: str, range_form: str) -> Any:
        x, symmetric = _real(x), qscheme.endswith("symmetric")
        of_tokens = qscheme.startswith("per_token")
        dtype = torch.int8 if low < 0 else torch.uint8
        # The symmetric operator has 0 or 128 in the middle, whichever the codes are.
        if of_tokens or (symmetric and (low + high + 1) >> 1 != (0 if low < 0 else 128)):
            return _spelled(x, low, high, symmetric, of_tokens)
        name = "choose_qparams_symmetric" if symmetric else "choose_qparams"
        return getattr(op, name).tensor(x, low, high, _SMALLEST[range_form], dtype)

    return form


def _spelled(
    x: Tensor, low: int, high: int, symmetric: bool, of_tokens: bool
) -> tuple[Tensor, Tensor]:
    """Return scale and zero point, of each token or of all, as cpp/ops/dynamic.cpp finds them."""
    least, most = (x.amin(-1, True), x.amax(-1, True)) if of_tokens else (x.amin(), x.amax())
    least, most = least.clamp(max=0), most.clamp(min=0)
    scale = (2 * torch.maximum(-least, most) if symmetric else most - least) / (high - low)
    scale = torch.where(scale == 0, 2.0**-23, scale.clamp(min=_SMALLEST["pytorch"]))
    if symmetric:
        return scale, torch.full_like(scale, (low + high + 1) >> 1, dtype=torch.int32)
    return scale, (low - torch.round(least / scale)).clamp(low, high).to(torch.int32)


def _quantize_dynamic(op: Any, limits: Limits | None) -> Form:
    def form(x: Tensor, scale: Tensor, zero: Tensor, low: int, high: int, dtype: int) -> Any:
        x = _real(x)
        if scale.dim() > 1:  # of tokens
            return (x * (1.0 / scale)).round().add(zero).clamp(low, high).to(DTYPES[dtype])
        return op.quantize_per_tensor.tensor(x, scale, zero, low, high, DTYPES[dtype])

    return form


def _dequantize_dynamic(op: Any, limits: Limits | None) -> Form:
    def form(q: Tensor, scale: Tensor, zero: Tensor) -> Any:
        if scale.dim() > 1:
            return (q.to(torch.int32) - zero).to(torch.float32) * scale
        return op.dequantize_per_tensor.tensor(q, scale, zero, *_grid(q, limits))

    return form


def _lookup(op: Any, limits: Limits | None) -> Form:
    return lambda codes, table, first: table[codes.to(torch.int64) - first]


def _correlation(op: Any, limits: Limits | None) -> Form:
    by_name = {1: torch.conv1d, 2: torch.conv2d, 3: torch.conv3d}

    def form(x: Tensor, weight: Tensor, stride: Any, padding: Any, *rest: Any) -> Any:
        if weight.dim() == 2:
            return torch.nn.functional.linear(x, weight)
        by_mode = isinstance(padding, str)
        convolve: Any = by_name[weight.dim() - 2] if by_mode else torch.convolution
        return convolve(x, weight, None, stride, padding, *rest)

    return form


def _add_bias(op: Any, limits: Limits | None) -> Form:
    return lambda x, bias, dims: x + bias.to(x.dtype).reshape([-1] + [1] * dims)


_FORMS: dict[str, Callable[[Any, Limits | None], Form]] = {
    "jit_passes::quantize": _quantize,
    "jit_passes::dequantize": _dequantize,
    "jit_passes::quantize_per_channel": _quantize_per_channel,
    "jit_passes::dequantize_per_channel": _dequantize_per_channel,
    "jit_passes::choose_qparams": _choose,
    "jit_passes::quantize_dynamic": _quantize_dynamic,
    "jit_passes::dequantize_dynamic": _dequantize_dynamic,
    "jit_passes::lookup_table": _lookup,
    "jit_passes::correlation": _correlation,
    "jit_passes::add_bias": _add_bias,
}
