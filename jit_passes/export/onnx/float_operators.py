"""Float operators that `torch.onnx` 2.13 translates wrongly, not at all, or not for all engines.

- copy: it leaves the shape of the copied tensor, whose values are to be repeated.
- clamp: of a whole and a real number it fails.
- pad: circular, it writes a mode that OpenVINO does not read. Other operators are written for all
  axes:
  ONNX Runtime 1.31 fails on some axes as it puts channels last around convolutions on integers.
- scaled_dot_product_attention: it takes four axes alone.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from typing import Any

import torch

from .graph import nodes_of

_ATEN = torch.ops.aten
_MODES = {"constant": "constant", "reflect": "reflect", "replicate": "edge"}
_BOOL = 9  # ONNX's number of truths
_LAST = 2**63 - 1  # of a slice: to the end


def spell_out_clamps(program: torch.export.ExportedProgram) -> None:
    """Give clamps of real numbers real limits, in place."""
    for node in nodes_of(program):
        if node.target == _ATEN.clamp.default and node.meta["val"].is_floating_point():
            x, *limits = node.args
            node.args = (x, *(None if limit is None else float(limit) for limit in limits))  # type: ignore[arg-type]


def float_translations(op: Any) -> dict[Callable[..., Any], Callable[..., Any]]:
    """Return the translations of these operators; `op` is the module of an opset."""

    def numbers(*values: int) -> Any:
        return op.Constant(value_ints=list(values))

    def amounts(*values: Any) -> Any:
        """Return numbers as one tensor; some may be open sizes."""
        if all(isinstance(value, int) for value in values):
            return numbers(*values)
        one = numbers(1)
        parts = (
            numbers(each) if isinstance(each, int) else op.Reshape(each, one) for each in values
        )
        return op.Concat(*parts, axis=0)

    def copy(self: Any, src: Any, non_blocking: bool = False) -> Any:
        same = src if src.dtype == self.dtype else op.CastLike(src, self)
        equal = src.shape is not None and src.shape == self.shape
        return op.Identity(same) if equal else op.Expand(same, op.Shape(self))

    def pad(
        self: Any, pad: Sequence[Any], mode: str = "constant", value: float | None = None
    ) -> Any:
        axes = [-1 - k for k in range(len(pad) // 2)]
        if mode == "circular":
            for axis, before, after in zip(axes, pad[::2], pad[1::2], strict=True):
                parts = [self] if before == after == 0 else _wrapped(self, axis, before, after)
                self = op.Concat(*parts, axis=axis) if len(parts) > 1 else parts[0]
            return self
        fill = None
        if mode == "constant":
            fill = op.CastLike(op.Constant(value_float=float(value or 0)), self)
        front = [0] * (len(self.shape) - len(axes))
        sizes = amounts(*front, *pad[-2::-2], *front, *pad[::-2])
        return op.Pad(self, sizes, fill, mode=_MODES[mode])

    def _wrapped(x: Any, axis: int, before: int, after: int) -> list[Any]:
        """Return the parts of an axis with its end in front and its start behind."""

        def part(of: Any, start: int, end: int) -> Any:
            return op.Slice(of, numbers(start), numbers(end), numbers(axis))

        if min(before, after) < 0:  # cropped first
            x = part(x, max(-before, 0), min(after, 0) or _LAST)
        front = [part(x, -before, _LAST)] if before > 0 else []
        return [*front, x, *([part(x, 0, after)] if after > 0 else [])]

    def attention(
        query: Any, key: Any, value: Any, attn_mask: Any = None, dropout_p: float = 0.0,
        is_causal: bool = False, scale: float | None = None, enable_gqa: bool = False,
    ) -> Any:  # fmt: skip
        rank, factor = len(key.shape), 1 / math.sqrt(query.shape[-1]) if scale is None else scale
        if enable_gqa:
            heads, times = key.shape[-3], query.shape[-3] // key.shape[-3]
            each = numbers(*(head for head in range(heads) for _ in range(times)))
            key, value = (op.Gather(part, each, axis=rank - 3) for part in (key, value))
        order = [*range(rank - 2), rank - 1, rank - 2]
        scaled = op.Mul(query, op.CastLike(op.Constant(value_float=factor), query))
        scores = op.MatMul(scaled, op.Transpose(key, perm=order))
        lowest = op.CastLike(op.Constant(value_float=-math.inf), scores)
        if is_causal:
            ones = op.Expand(op.Constant(value_int=1), op.Shape(scores, start=-2))
            scores = op.Where(op.Cast(op.Trilu(ones, upper=0), to=_BOOL), scores, lowest)
        if attn_mask is not None and attn_mask.dtype == _BOOL:
            scores = op.Where(attn_mask, scores, lowest)
        elif attn_mask is not None:
            scores = op.Add(scores, attn_mask)
        return op.MatMul(op.Softmax(scores, axis=-1), value)

    return {
        _ATEN.copy.default: copy,
        _ATEN.pad.default: pad,
        _ATEN.scaled_dot_product_attention.default: attention,
    }
