"""Statistics of layers' results, read from batch norms before these are folded."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor

from ..graph.view import GraphView, NodeView
from ..passes.pipeline import Pipeline
from .normalize import NORMALIZE

UNFOLDED = Pipeline(
    "normalize_unfolded", tuple(step for step in NORMALIZE.steps if step != "fold_batch_norm")
)


@dataclass(frozen=True)
class Normal:
    """A result that is taken as normally distributed, channel by channel.

    Attributes:
        mean: the shift of the batch norm.
        deviation: the magnitude of its gain.
    """

    mean: Tensor
    deviation: Tensor

    def clipped_mean(self, low: float = -torch.inf, high: float = torch.inf) -> Tensor:
        """Return the mean of the result, limited to [low, high].

        With a = (low - mean) / deviation, b = (high - mean) / deviation, the density p and the
        distribution P of the normal distribution:

            low P(a) + high (1 - P(b)) + mean (P(b) - P(a)) + deviation (p(a) - p(b))

        Source: Nagel et al., 2019 (arXiv:1906.04721), equations 37 to 40 of appendix C.
        """
        spread = self.deviation.clamp_min(torch.finfo(torch.float64).tiny)
        a, b = (low - self.mean) / spread, (high - self.mean) / spread
        inside = _distribution(b) - _distribution(a)
        found: Tensor = self.mean * inside + spread * (_density(a) - _density(b))
        if low > -torch.inf:
            found = found + low * _distribution(a)
        if high < torch.inf:
            found = found + high * (1 - _distribution(b))
        return found


def _density(x: Tensor) -> Tensor:
    found: Tensor = torch.exp(-x.square() / 2) / (2 * torch.pi) ** 0.5
    return found


def _distribution(x: Tensor) -> Tensor:
    found: Tensor = torch.special.ndtr(x)
    return found


def batch_norms(model: torch.jit.ScriptModule, method: str = "forward") -> dict[str, Normal]:
    """Return the distribution of layers' results by the batch norms behind them, by layer."""
    options: dict[str, Any] = {"freeze": {"state": []}}
    graph = GraphView.of(UNFOLDED.run(model._c, method, options=options).module, method)
    found = {}
    for node in graph.nodes:
        layer = node.main_operand.producer if node.kind == "aten::batch_norm" else None
        if layer is None or layer.traits.weighted is None or len(layer.output.uses) > 1:
            continue
        gain, shift = (node.operand(name).constant for name in ("weight", "bias"))
        if isinstance(gain, Tensor) and isinstance(shift, Tensor) and _fits(layer, gain):
            found[layer.name] = Normal(shift.detach().double(), gain.detach().abs().double())
    return found


def _fits(layer: NodeView, gain: Tensor) -> bool:
    """Say whether the channels of a batch norm, axis 1, are a layer's: a linear has them last."""
    weighted, weight = layer.traits.weighted, layer.operand("weight").constant
    if weighted is None or weighted.spatial_dims or not isinstance(weight, Tensor):
        return True
    return layer.output.facts.rank in (None, 2) and len(gain) == len(weight)
