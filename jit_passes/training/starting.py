"""Training that starts where the rounding of weights has ended."""

from __future__ import annotations

from collections.abc import Sequence

import torch
from torch import Tensor

from ..errors import JitPassesError, nearest, shortened
from ..specification.groups import spread
from ..specification.parameters import QParams
from ..stages.module import ModelStage, attribute_of, stage_of
from ..stages.seen import QuantizedPlace, check_seen, read_places
from .switches import INSTEAD
from .weights import TrainedWeight, trained_weights


@torch.no_grad()
def start_from(model: torch.jit.ScriptModule, rounded: torch.jit.ScriptModule) -> None:
    """Let weights start at the codes and scales of a calibrated model.

    w = s c / f

    s and c are the scale and the code that the weight has in the calibrated model, f is the factor
    of the batch norm behind, or 1. A weight starts in the middle of its code, and the scale that
    trains at s. So training continues from the codes of `round_weights` and from ranges of weights
    by error. LSQ alone starts at the nearest codes of a scale by a rule:

        prepared = jit_passes.calibrate(jit_passes.prepare(model, config=config), batches)
        rounded = jit_passes.round_weights(prepared, batches, how="gptq_sequential")
        qat = jit_passes.prepare_qat(model, fake_quantizer=LSQ(activations="mean_squared_error"),
                                     config=config)
        jit_passes.start_from(qat, rounded)

    Scales of activations start with the first batch, as ever. Weights that the calibrated model
    leaves in float keep their start. Call it ahead of the first step, on a model of its own: it
    shares its parameters with the argument of `prepare_qat`, which changes too.

    Args:
        model: from `prepare_qat`, with LSQ or LSQ+. Its weights and their scales change.
        rounded: from `calibrate` or `round_weights`, of the same float model with equal numbers of
            bits. The model does not change.

    Raises:
        JitPassesError: the models are at other stages; a weight is in one model alone, or has other
            codes in the second one; its scale does not train; or two places that read one parameter
            have codes of their own. Nothing has changed then.
    """
    report = stage_of(model, ModelStage.QAT, INSTEAD, "the first model")
    known = stage_of(
        rounded, ModelStage.PREPARED, "call jit_passes.prepare and calibrate first", "the second"
    )
    places = read_places(rounded, known)[1]
    check_seen(places, known)
    changes: dict[int, tuple[Tensor, Tensor]] = {}
    scales: list[tuple[Tensor, Tensor]] = []
    for weight, source in _pairs(trained_weights(model, report.method)[0], places):
        name = weight.place.name
        parameter, scale = weight.parameter(model), _scale_of(model, weight)
        found = source.found()
        codes = _codes_of(source, found)
        _check_codes(model, weight, found, parameter, scale, codes)
        scales.append((scale, torch.as_tensor(found.scale).reshape(scale.shape)))
        centre = _centre(model, weight, found, codes)
        before = changes.setdefault(parameter.data_ptr(), (parameter, centre))[1]
        if not torch.allclose(before, centre):
            raise JitPassesError(
                f"'{name}' and another place read '{weight.path}' with codes of their own: it "
                "cannot start at both"
            )
    for target, value in (*scales, *changes.values()):
        target.copy_(value)


def _pairs(
    weights: Sequence[TrainedWeight], places: Sequence[QuantizedPlace]
) -> list[tuple[TrainedWeight, QuantizedPlace]]:
    """Return the weights that train with the places of the calibrated model at these operators."""
    left = {
        user: it
        for it in places
        if it.place.slot == "weight" and it.reached
        for user in it.place.users
    }
    found = []
    for weight in weights:
        sources = {id(it): it for user in weight.place.users if (it := left.pop(user, None))}
        found += [(weight, source) for source in sources.values()]
    if left:
        names = {user: "" for weight in weights for user in weight.place.users}
        first = next(iter(left))
        raise JitPassesError(
            f"the calibrated model quantizes the weight of {shortened(list(left))}, and this one "
            f"does not train that; {nearest(first, names)}: prepare both with one configuration"
        )
    return found


def _scale_of(model: torch.jit.ScriptModule, weight: TrainedWeight) -> Tensor:
    path = weight.operands.paths.get("scale")
    if path is None or not attribute_of(model, path).requires_grad:
        raise JitPassesError(
            f"'{weight.place.name}' trains without a scale of its own ({weight.kind}), so it has "
            "none to start at: prepare the model with fake_quantizer='lsq' or 'lsq_plus'"
        )
    return attribute_of(model, path)


def _codes_of(source: QuantizedPlace, found: QParams) -> Tensor:
    """Return the codes that the calibrated model will be converted to, with 0 for the number 0."""
    codes = source.operands.get("codes")
    numbers = source.operands["x"].detach()
    scale, zero = _along(found.scale, found, numbers), _along(found.zero_point, found, numbers)
    if codes is None:
        codes = ((numbers / scale).round() + zero).clamp(found.quant_min, found.quant_max)
    counted: Tensor = codes - zero
    return counted


def _along(values: float | int | Tensor, found: QParams, numbers: Tensor) -> Tensor:
    """Return a number for each channel, for all numbers of a tensor."""
    tensor = torch.as_tensor(values, dtype=numbers.dtype)
    return tensor if found.axis is None else spread(tensor, found.axis, numbers.shape)


def _check_codes(
    model: torch.jit.ScriptModule, weight: TrainedWeight, found: QParams, parameter: Tensor,
    scale: Tensor, codes: Tensor,
) -> None:  # fmt: skip
    now = weight.codes(model)
    count = torch.as_tensor(found.scale).numel()
    same = (
        now is not None
        and codes.shape == parameter.shape
        and count == scale.numel()
        and now.low <= int(codes.min())
        and int(codes.max()) <= now.high
    )
    if not same:
        grid = "none yet" if now is None else f"{now.low} to {now.high}"
        raise JitPassesError(
            f"'{weight.place.name}' has codes from {int(codes.min())} to {int(codes.max())} and "
            f"{count} scales in the calibrated model, and trains with codes {grid} and "
            f"{scale.numel()}: prepare both with equal bits, scheme and channelwise"
        )


def _centre(
    model: torch.jit.ScriptModule, weight: TrainedWeight, found: QParams, codes: Tensor
) -> Tensor:
    """Return the weight that has these codes in the middle."""
    numbers = codes * _along(found.scale, found, codes.to(weight.parameter(model)))
    if weight.fold is None:
        return numbers
    factor = 1 / weight.fold.read(model)
    unfolded: Tensor = torch.ops.jit_passes.deferred_weight(
        numbers, factor, weight.fold.axis, True
    )[0]
    return unfolded
