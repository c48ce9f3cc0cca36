"""The steps that `improve` tries, cheap ones first."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field, replace

from ..configuration.configuration import Configuration
from ..configuration.options import LayerOptions, TensorOptions
from ..configuration.stages import NONE, StageOptions
from ..observers import Entropy, MeanSquaredError, MinMax, Observer, OutputError, Percentile


@dataclass(frozen=True)
class Step:
    """Options that may lower the loss.

    Attributes:
        name: for reports.
        layers: options of all layers.
        stages: of the stages around calibration.
        needs: the kind of an operator without which the step changes nothing; "" for none.
    """

    name: str
    layers: LayerOptions = field(default_factory=LayerOptions)
    stages: StageOptions = field(default_factory=StageOptions)
    needs: str = ""

    def after(self, steps: Sequence[Step], base: Configuration) -> Configuration:
        """Return a configuration with the options of these steps and of this one.

        Options of the base hold.
        """
        layers, stages = LayerOptions(), StageOptions()
        for step in (*steps, self):
            layers, stages = layers.updated(step.layers), stages.updated(step.stages)
        return replace(
            base, everywhere=layers.updated(base.everywhere), stages=stages.updated(base.stages)
        )


def _activations(observer: Observer) -> Step:
    options = TensorOptions(calibration=observer)
    name = f"ranges of activations: {observer.name}"
    return Step(name, LayerOptions(input=options, output=options))


def _weights(observer: Observer) -> Step:
    options = TensorOptions(calibration=observer)
    return Step(f"ranges of weights: {observer.name}", LayerOptions(weight=options))


def _stage(name: str, option: str | float, needs: str = "") -> Step:
    return Step(f"{name}: {option}", stages=StageOptions(**{name: option}), needs=needs)  # type: ignore[arg-type]


NORM = "aten::layer_norm"
# The best step of each row is kept, if it lowers the loss. Later rows are measured on top of it.
STEPS: tuple[tuple[Step, ...], ...] = (
    tuple(map(_activations, (MinMax(), Entropy(), MeanSquaredError(), Percentile()))),
    tuple(map(_weights, (MeanSquaredError(), OutputError()))),
    tuple(_stage("smooth", strength, NORM) for strength in (0.25, 0.5, 0.75, "search", "none")),
    tuple(_stage("equalize", ranges) for ranges in ("activations", "weights")),
    tuple(_stage("bias_correction", how) for how in ("fast", NONE)),
    tuple(_stage("weight_rounding", how) for how in ("gptq", "adaround")),
    (_stage("bias_correction", "sequential"),),
    (_stage("weight_rounding", "gptq_sequential"),),
)
