"""Codes of weights, each one of two neighbours, by gradient descent over all of a layer at once."""

from __future__ import annotations

from math import cos, pi

import torch
from torch import Tensor

from .gptq import Grid

ITERATIONS = 150
RATE = 0.1  # of Adam
STRENGTH = 0.2  # of the regularizer
BETA = (20.0, 2.0)
STRETCH = (-0.1, 1.1)  # the ends of the sigmoid, which are clipped to 0 and 1
_WIDTH = STRETCH[1] - STRETCH[0]
BEGIN = 0.3  # by how much h(V) leans from 0.5 towards the codes that it begins at


def adaround(
    weight: Tensor, gram: Tensor, grid: Grid, start: Tensor, iterations: int = ITERATIONS
) -> Tensor:
    """Return codes that give a layer's result a smaller squared error than given ones.

    AdaRound (Nagel et al., 2020, arXiv:2004.10568), equations 21 to 24: each weight is rounded down
    or up, q = below + h(V), h(V) = clip(1.2 sigmoid(V) - 0.1, 0, 1), and V is found by Adam for a
    small

        tr(E G E^T) + strength * sum(1 - |2 h(V) - 1|^beta)

    with E the errors in steps of the grid, G = X X^T of the inputs X over its mean diagonal, and
    beta from 20 down to 2 by a cosine. Three points differ from the paper. The squared error comes
    from the products of inputs, so no data are in the loop. An activation function behind the layer
    is ignored. h(V) begins near the given codes, each one of the two, and not at the weight. An
    output keeps the given codes where they have less error for its inputs.

    Args:
        weight: [groups, outputs, inputs].
        gram: X X^T of the inputs X, [groups, inputs, inputs]; finite.
        grid: of the weight.
        start: codes in the shape of the weight, for example from `gptq`.
        iterations: of Adam.

    Returns:
        Codes, in the shape and dtype of the weight.
    """
    position = weight.double() / grid.scale + grid.zero_point
    first = start.to(position.dtype)
    below = position.floor()
    below = torch.where(first < below, first, torch.where(first > below + 1, first - 1, below))
    below = below.clamp(grid.low, grid.high - 1)
    rounding = Rounding(position - below, grid.scale, gram)
    up = rounding.solve(first > below, iterations)
    codes = below + up
    better = errors(weight, codes, grid, gram) < errors(weight, first, grid, gram)
    return torch.where(better, codes, first).to(weight.dtype)


def errors(weight: Tensor, codes: Tensor, grid: Grid, gram: Tensor) -> Tensor:
    """Return the squared error of each output over the inputs X, [groups, outputs, 1]."""
    lost = weight.double() - grid.numbers(codes.double())
    return ((lost @ gram.double()) * lost).sum(2, keepdim=True)


class Rounding:
    """The loss of AdaRound over V, [groups, outputs, inputs], in float32.

    Args:
        part: the weights in steps of the grid, above the lower one of their two codes.
        scale: of the grid; steps of an output may differ.
        gram: [groups, inputs, inputs].
    """

    def __init__(self, part: Tensor, scale: Tensor, gram: Tensor) -> None:
        scale = scale.expand_as(part)
        self.part = part.float()
        self.step = (scale / scale.mean(2, keepdim=True)).float()
        mean = gram.diagonal(dim1=1, dim2=2).double().mean(1)[:, None, None]
        self.gram = (gram / torch.where(mean > 0, mean, 1.0)).float()

    def solve(self, start: Tensor, iterations: int) -> Tensor:
        """Return which weights are rounded up, if it begins near the given choice."""
        share = (0.5 + BEGIN * torch.where(start, 1.0, -1.0).to(self.part) - STRETCH[0]) / _WIDTH
        v = torch.logit(share)
        mean, square = torch.zeros_like(v), torch.zeros_like(v)
        for step in range(1, iterations + 1):
            slope = self.slope(v, _beta(step / iterations))
            mean.mul_(0.9).add_(slope, alpha=0.1)
            square.mul_(0.999).addcmul_(slope, slope, value=0.001)
            width = (square / (1 - 0.999**step)).sqrt_().add_(1e-8)
            v.addcdiv_(mean, width, value=-RATE / (1 - 0.9**step))
        return v > 0

    def slope(self, v: Tensor, beta: float) -> Tensor:
        """Return the gradient of the loss."""
        sigmoid = v.sigmoid()
        h = (sigmoid * _WIDTH + STRETCH[0]).clamp_(0, 1)
        slope = (((h - self.part) * self.step) @ self.gram).mul_(self.step).mul_(2)
        lean = 2 * h - 1
        slope.sub_(lean.abs().pow_(beta - 1).mul_(lean.sign()), alpha=2 * STRENGTH * beta)
        inside = (h > 0) & (h < 1)
        return slope.mul_(sigmoid * (1 - sigmoid)).mul_(inside).mul_(_WIDTH)


def _beta(part: float) -> float:
    first, last = BETA
    return last + (first - last) * (1 + cos(pi * part)) / 2
