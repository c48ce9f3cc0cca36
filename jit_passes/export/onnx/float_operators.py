"""Float operators that `torch.onnx` 2.13 translates wrongly, or not at all.

copy            it leaves the shape of the copied tensor, whose values are to be repeated
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch

_ATEN = torch.ops.aten


def float_translations(op: Any) -> dict[Callable[..., Any], Callable[..., Any]]:
    """Return the translations of these operators; `op` is the module of an opset."""

    def copy(self: Any, src: Any, non_blocking: bool = False) -> Any:
        same = src if src.dtype == self.dtype else op.CastLike(src, self)
        equal = src.shape is not None and src.shape == self.shape
        return op.Identity(same) if equal else op.Expand(same, op.Shape(self))

    return {_ATEN.copy.default: copy}
