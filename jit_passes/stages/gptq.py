"""Codes of weights, chosen one after another: later codes make up for earlier errors."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, replace

import torch
from torch import Tensor

_NUMBERS = 2**21  # at a time, 16 MiB in float64


@dataclass(frozen=True)
class Grid:
    """The numbers that weights can be: (q - zero_point) * scale, q in low .. high.

    Attributes:
        scale: [groups, outputs, inputs], or a shape that broadcasts to it; float64.
        zero_point: likewise.
        low, high: the codes at the ends.
    """

    scale: Tensor
    zero_point: Tensor
    low: int
    high: int

    def of_outputs(self, some: slice) -> Grid:
        """Return the grid of some outputs."""

        def part(numbers: Tensor) -> Tensor:
            return numbers[:, some] if numbers.dim() == 3 and numbers.shape[1] > 1 else numbers

        return replace(self, scale=part(self.scale), zero_point=part(self.zero_point))

    def equals(self, other: Grid) -> bool:
        """Say whether another grid has equal numbers, in an equal shape."""
        return (
            (self.low, self.high) == (other.low, other.high)
            and self.scale.equal(other.scale)
            and self.zero_point.equal(other.zero_point)
        )

    def codes(self, numbers: Tensor) -> Tensor:
        """Return the nearest codes of numbers."""
        return (numbers / self.scale + self.zero_point).round().clamp(self.low, self.high)

    def numbers(self, codes: Tensor) -> Tensor:
        """Return the numbers that codes stand for."""
        return (codes - self.zero_point) * self.scale


def _columns(tensor: Tensor, columns: Tensor) -> Tensor:
    if tensor.shape[2] == 1:
        return tensor
    index = columns.unsqueeze(1).expand(-1, tensor.shape[1], -1)
    return tensor.expand(len(columns), -1, -1).gather(2, index)


def gptq(weight: Tensor, gram: Tensor, grid: Grid, damping: float = 0.01) -> Tensor:
    """Return codes that give a layer's result a small squared error.

    GPTQ (Frantar et al., 2023, arXiv:2210.17323): weights are rounded input by input, inputs with
    the most energy first. Each weight also makes up for the errors e of the inputs before. With
    G + damping * mean(diag G) I = R R^T, R upper triangular:

        q_j = nearest(w_j + sum over i < j of  e_i R_ij / R_jj)       e_j = w_j - number(q_j)

    The update is the paper's without its inverse: the rows of R^-1 give equal coefficients.

    Args:
        weight: [groups, outputs, inputs].
        gram: X X^T of the inputs X, [groups, inputs, inputs]; finite.
        grid: of the weight.
        damping: part of the mean energy that is added to each input's.

    Returns:
        Codes, in the shape and dtype of the weight.
    """
    energy = gram.diagonal(dim1=1, dim2=2).double()
    order = energy.argsort(dim=1, descending=True, stable=True)
    rows = order.unsqueeze(2).expand_as(gram)
    sorted_gram = gram.gather(1, rows).gather(2, order.unsqueeze(1).expand_as(gram)).double()
    mean = energy.mean(1, keepdim=True)
    added = torch.where(mean > 0, damping * mean, 1.0).expand_as(energy)
    feedback = _feedback(sorted_gram, torch.diag_embed(added))
    found = torch.empty_like(weight)
    back = order.argsort(1)
    for some in outputs_of(weight):
        own = grid.of_outputs(some)
        in_order, scale, zero_point = (
            _columns(each.double(), order) for each in (weight[:, some], own.scale, own.zero_point)
        )
        codes = torch.ops.jit_passes.round_with_feedback(
            in_order, feedback, scale, zero_point, grid.low, grid.high
        )
        found[:, some] = _columns(codes, back).to(weight.dtype)
    return found


def outputs_of(weight: Tensor) -> Iterator[slice]:
    """Yield the outputs of a weight [groups, outputs, inputs] in parts that need little memory."""
    each = _NUMBERS // max(1, len(weight) * weight.shape[2]) + 1
    for first in range(0, weight.shape[1], each):
        yield slice(first, first + each)


def _feedback(gram: Tensor, damping: Tensor) -> Tensor:
    """Return R_ij / R_jj of gram + damping = R R^T, R upper triangular.

    A sum in float32 may have eigenvalues below 0 by more than the damping: then it grows.
    """
    factor, failed = torch.linalg.cholesky_ex((gram + damping).flip(1, 2))
    while failed.any():
        damping = 10 * damping
        factor, failed = torch.linalg.cholesky_ex((gram + damping).flip(1, 2))
    upper: Tensor = factor.flip(1, 2)
    return upper / upper.diagonal(dim1=1, dim2=2).unsqueeze(1)
