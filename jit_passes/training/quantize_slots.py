"""Fake quantization of the five slots of convolutions and linears, ahead of autograd."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from functools import partial
from typing import Any

import torch

from ..configuration.options import TensorOptions
from ..errors import JitPassesError, not_among
from ..fake_quantizers import FakeQuantizer, fake_quantizer_of
from ..graph.view import GraphView
from ..passes.pipeline import FOLD_NUMBERS, Pipeline, own
from ..passes.steps import PassCall
from ..passes.subject import check_script
from ..quantizers.slot_quantizer import RECIPES, SlotQuantizer
from ..specification.slots import CORRELATION, SLOTS
from ..stages.annotate import Mode, annotate
from ..stages.normalize import normalize_training
from ..targets import Target, resolve_target
from .prepare import train_at
from .standing_norms import absent_of, fold_standing_norms, put_behind_layers, standing_norms

SPLIT_LAYERS = (
    "canonicalize_convolution",
    PassCall("split_conv_bias", linears=True),
    FOLD_NUMBERS,
    "remove_dead_code",
)
SPLIT = Pipeline(
    "split_slots",
    (
        "propagate_constants",
        "replace_inplace",
        *SPLIT_LAYERS,
    ),
)

SPLIT_FOR_INTEGERS = Pipeline("split_for_integers", ("remove_dropout", *SPLIT_LAYERS))


def quantize_slots(
    model: torch.jit.ScriptModule,
    *,
    recipe: str | None = None,
    input: int | TensorOptions | None = None,
    weight: int | TensorOptions | None = None,
    correlation: int | TensorOptions | None = None,
    bias: int | TensorOptions | None = None,
    sum: int | TensorOptions | None = None,
    where: str | Sequence[str] = "*",
    fake_quantizer: str | FakeQuantizer = "moving_average",
    target: str | Target = "reference",
    method: str = "forward",
) -> torch.jit.ScriptModule:
    """Return a model that trains with its convolutions and linears quantized slot by slot.

    A convolution becomes

        y = q_sum(q_correlation(sum over c, k of q_weight(w[o, c, k]) * q_input(x[n, c, p + k]))
                  + q_bias(b[o]))

        q(x) = (clamp(round(x / scale) + zero_point, quant_min, quant_max) - zero_point) * scale

    q(x) has x's shape, dtype and units, and the gradient 1 where nothing was clamped, 0 elsewhere.
    Slots that are not given stay float. Without a bias, q_sum(q_correlation(...)) is left. A linear
    is a convolution whose window has no axes: y[n, o] of x[n, c] and w[o, c].

    The result is a model as from `prepare_qat`, for `convert`, `lower`, `coverage`, `parity` and
    the rest. Convolutions and linears are split, and batch norms stay behind them, in float.

    For a target that computes with integers alone, `FixedPoint`, the model is on integers from
    its input to its last code. All other operators that the target has, such as residual sums,
    concatenations and means, have results on grids with the options of the slot "input". Where one
    layer alone reads a result, the grid is that layer's own input slot. A batch norm behind a layer
    is a part of it, with statistics that stand still: the slot "weight" holds
    w gamma / sqrt(var + eps), and "bias" (b - mean) gamma / sqrt(var + eps) + beta. A batch norm
    without a layer in front is a depthwise convolution with w = 1. A bias without a slot is in
    steps of the sum of products.

    With the method "moving_average", activations have the moving average of each batch's range in
    training mode, and its last value in eval mode; weights and biases have the range of their own
    values. Ranges are buffers `<slot>_range` (low, high), float32 of shape [2] or [2, channels], of
    the layer's module. Other methods train scales: see `fake_quantizers`.

    Args:
        model: scripted, traced or loaded, in training or eval mode. The model does not change, but
            the result has its parameters and buffers: training one trains both.
        recipe: a name in `quantizer.RECIPES` that says how to quantize slots that are not given:
            "graffitist" is q8(q16(sum q8(w) * q8(x)) + q16(b)), all signed, one power of two each.
        input: the layer's input: `TensorOptions`, or a number of bits; missing options
            are as in the recipe, or 8 signed bits with a symmetric scale. None for the recipe's.
        weight: its weight.
        correlation: its sum of products, before the bias.
        bias: its bias.
        sum: its result.
        where: a pattern, or several, of the paths of modules whose convolutions and linears are
            meant; `*` stands for any characters, dots included. For integers alone, name all of
            them in one call.
        fake_quantizer: the method of training, see `prepare_qat`.
        target: the backend that the model is for. "stock" and "x86" take layers whose input, weight
            and sum are quantized as they can, and whose correlation is not; lowered, these are
            single operators again. "fixed_point" takes layers whose input, weight and sum are
            quantized, and rounds the correlation too where it has a slot. Other layers stay in
            float.
        method: the method to quantize; the others stay in float.

    Raises:
        JitPassesError: the model is not a ScriptModule or does not have the method; no slot or an
            unknown recipe is given; no layer is where `where` says, or one is quantized already;
            the target can do none of them; the fake quantizer does not train these slots; or bits
            are out of 2 to 16.

    Warns:
        JitPassesWarning: the target cannot do some of them: these stay in float. For integers
            alone, other operators are told too.

    Source: the slots of Graffitist (Jain et al. 2019); the gradient of Bengio et al. 2013,
    "Estimating or propagating gradients through stochastic neurons".
    """
    given = dict(zip(SLOTS, (input, weight, correlation, bias, sum), strict=True))
    trainer, backend = fake_quantizer_of(fake_quantizer), resolve_target(target)
    quantizer = SlotQuantizer(_choose_slots(recipe, given), where, backend)
    mode = SPLITTING
    if backend.capability.integers_only:
        mode = replace(SPLITTING, normalize=partial(split_for_integers, where=quantizer.where))
    annotated = annotate(model, method, mode, quantizer, backend, strict=False)
    return train_at(annotated, model, trainer)


def split(model: torch.jit.ScriptModule, method: str) -> Any:
    """Return a C++ module with the model's parameters, whose layers are split."""
    subject = own(model, method)
    SPLIT.run_on(subject)
    return subject.module


def split_for_integers(model: torch.jit.ScriptModule, method: str, where: Sequence[str]) -> Any:
    """Return a C++ module as `split` does, in the canonical form of a model that trains.

    Operators between layers then have the forms that targets know. Batch norms behind the layers
    that `where` names are a part of these; all others are layers of their own. Dropout that a trace
    has switched off is gone.
    """
    module = normalize_training(model, method)
    layers = partial(put_behind_layers, where=where, norms=standing_norms(module, method))
    module = Pipeline("put_behind_layers", (layers,)).run(module, method).module
    module = SPLIT_FOR_INTEGERS.run(module, method).module
    absent = absent_of(GraphView.of(module, method, parameters=True))
    folded = partial(fold_standing_norms, where=where, absent=absent)
    return Pipeline("fold_standing_norms", (folded, "remove_dead_code")).run(module, method).module


SPLITTING = Mode(check_script, split, parameters=True, again=CORRELATION)


def _choose_slots(
    recipe: str | None, given: dict[str, int | TensorOptions | None]
) -> dict[str, TensorOptions]:
    if recipe is not None and recipe not in tuple(RECIPES):
        raise JitPassesError(not_among("recipe", recipe, tuple(RECIPES)))
    slots = dict(RECIPES[recipe]) if recipe else {}
    for name, options in given.items():
        if isinstance(options, int):
            options = TensorOptions(bits=options)
        if isinstance(options, TensorOptions):
            slots[name] = slots.get(name, TensorOptions()).updated(options)
        elif options is not None:
            what = type(options).__name__
            raise JitPassesError(f"{name} is a number of bits, TensorOptions or None, not a {what}")
    if not slots:
        raise JitPassesError(
            f"nothing is to be quantized: give {', '.join(given)} a number of bits or "
            f"TensorOptions, or recipe one of {', '.join(RECIPES)}"
        )
    return slots
