"""Fake quantization of the five slots of convolutions, ahead of autograd, for training."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from typing import Any

import torch

from ..errors import JitPassesError
from ..fake_quantizers import MovingAverage
from ..passes.pipeline import Pipeline, own
from ..quantizers.slots import RECIPES, Slot, SlotQuantizer
from ..stages.annotate import Mode, annotate
from ..stages.module import attribute_of, check_script
from .plan import Plan

SPLIT = Pipeline(
    "split_slots",
    (
        "resolve_none_checks",
        "propagate_constants",
        "fold_constant_lists",
        "split_conv_bias",
        "fold_constant_lists",
        "remove_dead_code",
    ),
)
QUANTIZE = Pipeline("quantize_slots", ("insert_fake_quantize", "pool_constants"))


def quantize_slots(
    model: torch.jit.ScriptModule,
    *,
    recipe: str | None = None,
    input: int | Slot | None = None,
    weight: int | Slot | None = None,
    correlation: int | Slot | None = None,
    bias: int | Slot | None = None,
    sum: int | Slot | None = None,
    where: str | Sequence[str] = "*",
    method: str = "forward",
) -> torch.jit.ScriptModule:
    """Return a model that trains with its convolutions quantized slot by slot.

    A convolution becomes

        y = q_sum(q_correlation(sum over c, k of q_weight(w[o, c, k]) * q_input(x[n, c, p + k]))
                  + q_bias(b[o]))

        q(x) = (clamp(round(x / scale) + zero_point, quant_min, quant_max) - zero_point) * scale

    q(x) has x's shape, dtype and units, and the gradient 1 where nothing was clamped, 0 elsewhere.
    Slots that are not given stay float. Without a bias, q_sum(q_correlation(...)) is left.

    Activations have the moving average of each batch's range in training mode, and what it has
    come to in eval mode; weights and biases the range of their own values. Ranges are buffers
    `<slot>_range` (low, high), float32 of shape [2] or [2, channels], of the convolution's module.

    Args:
        model: scripted, traced or loaded, in training or eval mode. It is not touched, but the
            result has the same parameters and buffers: training one trains both.
        recipe: a name in `quantizer.RECIPES` that says how to quantize slots that are not given:
            "graffitist" is q8(q16(sum q8(w) * q8(x)) + q16(b)), all signed, one power of two each.
        input: the convolution's input: a number of bits (for `Slot(bits)`, or the recipe's slot
            with that many), a `Slot`, or None for the recipe's.
        weight: its weight.
        correlation: its sum of products, before the bias.
        bias: its bias.
        sum: its result.
        where: a pattern, or several, of the paths of modules whose convolutions are meant; `*`
            stands for any characters, dots included.
        method: the method to quantize; the others stay in float.

    Raises:
        JitPassesError: the model is not a ScriptModule or has no such method, no slot or an
            unknown recipe is given, no convolution is where `where` says, or it is quantized
            already.
        ValueError: a number of bits outside of 2 to 16.

    Source: the slots of Graffitist (Jain et al. 2019); the gradient of Bengio et al. 2013,
    "Estimating or propagating gradients through stochastic neurons".
    """
    given = {
        "input": input, "weight": weight, "correlation": correlation, "bias": bias, "sum": sum,
    }  # fmt: skip
    quantizer = SlotQuantizer(_choose_slots(recipe, given), where)
    annotated = annotate(model, method, SPLITTING, quantizer)
    plan = Plan(annotated.graph, lambda path: attribute_of(model, path), MovingAverage())
    plan.add_all(annotated.quantizations)
    return annotated.insert(QUANTIZE, plan.options())


def split(model: torch.jit.ScriptModule, method: str) -> Any:
    """Return a C++ module with the model's parameters, whose convolutions are split."""
    subject = own(model, method)
    SPLIT.run_on(subject)
    return subject.module


SPLITTING = Mode(check_script, split, parameters=True, again=True)


def _choose_slots(recipe: str | None, given: dict[str, int | Slot | None]) -> dict[str, Slot]:
    if recipe is not None and recipe not in RECIPES:
        raise JitPassesError(f"recipe is one of {', '.join(RECIPES)}, not {recipe!r}")
    slots = dict(RECIPES[recipe]) if recipe else {}
    for name, slot in given.items():
        if isinstance(slot, Slot):
            slots[name] = slot
        elif isinstance(slot, int):
            slots[name] = replace(slots.get(name, Slot()), bits=slot)
        elif slot is not None:
            what = type(slot).__name__
            raise JitPassesError(f"{name} is a number of bits, a Slot or None, not a {what}")
    if not slots:
        raise JitPassesError(
            f"nothing is to be quantized: give {', '.join(given)} a number of bits or a Slot, or "
            f"recipe one of {', '.join(RECIPES)}"
        )
    return slots
