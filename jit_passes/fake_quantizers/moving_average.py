"""Ranges that follow the data, and a straight-through gradient."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, replace
from typing import Any, ClassVar

import torch

from ..observers import Fixed, MinMax, MovingAverageMinMax, ObserverState, PairSums
from ..specification.parameters import QParams
from ..specification.qparams import choose_qparams
from ..specification.specification import QuantizationSpec
from .fake_quantizer import FakeQuantizer
from .place import Operator, State, TrainingPlace


@dataclass(frozen=True)
class MovingAverage(FakeQuantizer):
    """The moving average of each batch's range; weights have the range of their numbers.

    x^ = (clamp(round(x / scale) + zero_point, quant_min, quant_max) - zero_point) * scale

    with the gradient 1 where nothing was clamped and 0 elsewhere: the straight-through estimator
    (Bengio et al., arXiv:1308.3432). Scale and zero point are not trained: they follow from the
    range as in `QuantizationSpec`. Ranges are buffers `<slot>_range`: low and high, float32 of
    shape [2] or [2, channels]. With `disable_observers` they stand still.

    Attributes:
        averaging_constant: weight of the newest batch, in (0, 1].
    """

    name: ClassVar[str] = "moving_average"
    aliases: ClassVar[tuple[str, ...]] = ("ste",)
    averaging_constant: float = 0.01

    def __post_init__(self) -> None:
        MovingAverageMinMax(self.averaging_constant)

    def operator(self, place: TrainingPlace) -> Operator:
        """Return fake_quantize_moving_average."""
        spec = place.spec
        assert isinstance(spec, QuantizationSpec)
        spec = spec.for_range(-1.0 if place.signed else 0.0)
        constant = self.averaging_constant
        if isinstance(spec.observer, MovingAverageMinMax):
            constant = spec.observer.averaging_constant
        range_ = unseen(place)
        observe: dict[str, Any] = {}
        if isinstance(spec.observer, Fixed):
            range_[0], range_[1] = spec.observer.low, spec.observer.high
            observe = {"observe": False}
        elif place.is_parameter:
            observe = {"observe": place.place.observed}
        return Operator(
            "fake_quantize_moving_average",
            {
                "range": State("range", range_, trained=False),
                **observe,
                "averaging_constant": 1.0 if place.is_parameter else constant,
                "pair_sums": isinstance(spec.observer, PairSums),
                "qscheme": spec.qscheme,
            },
            scale=(spec.qscheme, spec.quant_min, spec.quant_max),
        )

    def qparams(
        self, kind: str, operands: Mapping[str, Any], spec: QuantizationSpec
    ) -> QParams | None:
        """Return the parameters that follow from the range; weights have their range of now."""
        spec = replace(spec, qscheme=operands["qscheme"])
        if operands["observe"] is True and isinstance(operands["x"], torch.Tensor):
            return measured_qparams(operands["x"], spec)
        return _qparams(operands["range"].double().cpu(), spec)


def by_range(place: TrainingPlace) -> Operator | None:
    """Return the operator for a specification with a known range, so that no scale is trained.

    The range is fixed then, or follows from a limit of the kernel.
    """
    spec = place.spec
    ranged = isinstance(spec, QuantizationSpec) and isinstance(spec.observer, PairSums | Fixed)
    return MovingAverage().at(place) if ranged else None


def unseen(place: TrainingPlace) -> torch.Tensor:
    """Return a range that has seen nothing."""
    spec = place.spec
    per_channel = isinstance(spec, QuantizationSpec) and spec.ch_axis is not None
    shape = (2, *place.place.scales) if per_channel else (2,)
    range_ = torch.full(shape, float("inf"))
    range_[1].neg_()
    return range_


def measured_qparams(values: torch.Tensor, spec: QuantizationSpec) -> QParams | None:
    """Return the parameters of numbers that are constant by now."""
    if spec.ch_axis is None:
        return _qparams(torch.stack(values.aminmax()).double(), spec)
    range_ = torch.full((2, values.shape[spec.ch_axis]), float("inf"), dtype=torch.float64)
    range_[1].neg_()
    measure = getattr(torch.ops.jit_passes, spec.observer.per_channel_op)
    measure(values, range_, spec.ch_axis, "", "")
    return _qparams(range_, spec)


def _qparams(range_: torch.Tensor, spec: QuantizationSpec) -> QParams | None:
    if not bool((range_[0] <= range_[1]).all()):
        return None
    return choose_qparams(replace(spec, observer=MinMax()), ObserverState(range_, None))
