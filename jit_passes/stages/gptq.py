"""Codes of weights, chosen one after another: later codes make up for earlier errors."""

from __future__ import annotations

from dataclasses import dataclass

import torch
from torch import Tensor

_BLOCK = 128


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

    def codes(self, numbers: Tensor) -> Tensor:
        """Return the nearest codes of numbers."""
        return (numbers / self.scale + self.zero_point).round().clamp(self.low, self.high)

    def numbers(self, codes: Tensor) -> Tensor:
        """Return the numbers that codes stand for."""
        return (codes - self.zero_point) * self.scale

    def at(self, columns: Tensor) -> Grid:
        """Return the grid of some inputs, [groups, columns], in that order."""
        scale, zero_point = (_columns(each, columns) for each in (self.scale, self.zero_point))
        return Grid(scale, zero_point, self.low, self.high)


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
    codes = _rounded(_columns(weight.double(), order), feedback, grid.at(order))
    back = order.argsort(1)
    return _columns(codes, back).to(weight.dtype)


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


def _rounded(weight: Tensor, feedback: Tensor, grid: Grid) -> Tensor:
    """Return codes of weights [groups, outputs, inputs], input by input."""
    codes, errors = torch.empty_like(weight), torch.empty_like(weight)
    scale, zero_point = (each.expand_as(weight) for each in (grid.scale, grid.zero_point))
    inputs = weight.shape[2]
    for first in range(0, inputs, _BLOCK):
        last = min(first + _BLOCK, inputs)
        wanted = weight[..., first:last] + errors[..., :first] @ feedback[:, :first, first:last]
        for j in range(first, last):
            here = slice(j, j + 1)
            point = Grid(scale[..., here], zero_point[..., here], grid.low, grid.high)
            codes[..., here] = point.codes(wanted[..., :1])
            errors[..., here] = weight[..., here] - point.numbers(codes[..., here])
            wanted = wanted[..., 1:] + errors[..., here] * feedback[:, here, j + 1 : last]
    return codes
