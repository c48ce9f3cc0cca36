"""Products of a layer's inputs in the float model and in the quantized one."""

from __future__ import annotations

from collections.abc import Iterable

import torch
from torch import Tensor


class InputSums:
    """Sums over the inputs X of a layer in float, and its inputs Y in the quantized model.

    X and Y have [groups, rows, inputs of one output]; sums have [groups, inputs, inputs], float32.

    Attributes:
        quantized: Y^T Y.
        cross: X^T Y.
        in_float: X^T X.
        rows: how many were added.
    """

    def __init__(self) -> None:
        self.quantized, self.cross, self.in_float = torch.zeros(3, 1, 1, 1)
        self.rows = 0

    def add(self, in_float: Iterable[Tensor], quantized: Iterable[Tensor]) -> None:
        """Add rows."""
        for x, y in zip(in_float, quantized, strict=True):
            self.rows += x.shape[1]
            self.quantized = self.quantized + y.transpose(1, 2) @ y
            self.cross = self.cross + x.transpose(1, 2) @ y
            self.in_float = self.in_float + x.transpose(1, 2) @ x

    @property
    def is_finite(self) -> bool:
        """Whether there were rows, and no sum has overflown."""
        sums = (self.quantized, self.cross, self.in_float)
        return self.rows > 0 and all(bool(each.isfinite().all()) for each in sums)

    def aim(self, weight: Tensor, damping: float) -> Tensor:
        """Return the weight that makes the most of the quantized model's inputs.

            W + W (X^T Y - Y^T Y) (Y^T Y + damping * mean(diag Y^T Y) I)^-1

        the W' of the least  || X W^T - Y W'^T ||^2 + damping * mean * || W' - W ||^2.

        Args:
            weight: [groups, outputs, inputs].
            damping: above 0.
        """
        square = self.quantized.double()
        mean = square.diagonal(dim1=1, dim2=2).mean(1)[:, None, None]
        added = torch.where(mean > 0, damping * mean, 1.0)
        damped = square + added * torch.eye(square.shape[1], dtype=square.dtype)
        shift = weight.double() @ (self.cross.double() - square)
        moved: Tensor = torch.linalg.solve(damped, shift, left=False)
        return weight.double() + moved

    def error(self, weight: Tensor, rounded: Tensor) -> float:
        """Return the squared error of the result of `rounded` and Y for `weight` and X."""
        w, q = weight.double(), rounded.double()
        parts = (
            (q @ self.quantized.double() * q).sum(),
            -2 * (w @ self.cross.double() * q).sum(),
            (w @ self.in_float.double() * w).sum(),
        )
        return max(float(sum(parts)), 0.0)
