"""From a float ScriptModule to an int8 one."""

from __future__ import annotations

import os
from collections.abc import Iterable, Mapping, Sequence
from functools import partial
from typing import Any

import torch

from . import _C
from .configuration.stages import AUTO, NO_SMOOTHING, StageOptions
from .errors import JitPassesError, count_of, warn
from .logs import stage, timed
from .profile import Profile, fill
from .quantizers.automatic import NEEDS_DATA
from .quantizers.backend import BackendQuantizer
from .quantizers.base import Quantizer
from .stages.annotate import choose_quantizer, frozen
from .stages.batches import InputFn
from .stages.calibrate import calibrate_alone
from .stages.convert import converted
from .stages.lower import lowered
from .stages.methods import by_method, check_methods, join_methods
from .stages.module import Report
from .stages.prepare import prepare_for
from .stages.records import refuse
from .stages.seen import needs_data
from .stages.staged import Staged
from .targets import Target

RANGES = (
    "ranges come from calibration data, an iterable of batches, or from a profile: pass one of "
    "the two"
)
OPTIONS = "ranges come from --data, --profile or --random"


@timed
def quantize_script(
    model: torch.jit.ScriptModule,
    calibration_data: Iterable[Any] | Mapping[str, Iterable[Any]] | None = None,
    *,
    profile: Profile | str | os.PathLike[str] | Mapping[str, Any] | None = None,
    quantizer: Quantizer | None = None,
    target: str | Target = "auto",
    config: Any = None,
    mode: str | None = None,
    smooth: str | float | None = "auto",
    equalize: str | None = None,
    weight_rounding: str | None = None,
    bias_correction: str | None = None,
    strict: bool = False,
    inplace: bool = False,
    progress: bool | None = None,
    method: str = "forward",
    methods: Sequence[str] | None = None,
    input_fn: InputFn | None = None,
) -> torch.jit.ScriptModule:
    """Quantize a scripted, traced or loaded model to int8.

    The stages `smooth` where it helps, `prepare`, `calibrate`, `convert` and `lower`, in order;
    call them yourself to look or step in between.

    Args:
        model: in eval mode. It is not touched, unless `inplace`.
        calibration_data: batches of typical inputs, a hundred or so samples: an iterable of
            tensors, tuples of positional arguments or dicts of keyword arguments. None with a
            profile, or if nothing needs data: weights do not, nor does the mode "dynamic"; "auto"
            then leaves in float what does. With `methods`, a dict of these by method.
        profile: of this model, or the file of one, in place of data: see `jit_passes.profile`. With
            `methods`, a dict of these by method.
        quantizer: decides what is quantized and how; None for the target's own.
        target: the backend: "auto", a name, or a `Target` such as `Stock(engine="onednn")`. "auto"
            is the one that the quantizer is made for, or the best for this machine: "x86" on a
            processor with AVX-512 VNNI or AVX-VNNI, else "stock". A file for "x86" needs
            `import jit_passes` before `torch.jit.load`, or in C++ the library `runtime_path()`;
            one for "stock" loads with torch alone, anywhere.
        config: layer by layer, what is to be done otherwise: the path of a YAML file, a dict, or a
            `Configuration`. It may hold a recipe, the next four options under `stages`; an argument
            that is not the default wins.
        mode: of all operators with weights that no rule of `config` gives another: "static", their
            inputs have parameters from the data; "dynamic", from the input itself each time the
            model runs, which needs no data; "weight_only", inputs stay float, and embeddings have
            weights too; "auto", by the graph: embeddings weight_only, recurrent layers and linears
            of transformers, or beside recurrent layers and embeddings, dynamic, all others static,
            or without data dynamic or weight_only; signal processing in front of learned layers, a
            mel filterbank say, stays in float. None for "auto", or with a `quantizer` for its own.
        smooth: "auto" to smooth layer norms in front of linears where the largest channel is more
            than four times the median one, in the data, or without by gain and shift; a number, the
            strength, for all that are in front of linears; None for none. See
            `jit_passes.smooth`. Not with a profile, nor in the mode "weight_only".
        equalize: whose ranges to scale the channels between layers by: "auto", "activations" or
            "weights", see `jit_passes.equalize`; None for not at all. Not with a profile.
        weight_rounding: "gptq", "adaround", "gptq_sequential" or "adaround_sequential", which need
            data: see `jit_passes.round_weights`; None for the nearest codes.
        bias_correction: "sequential" or "fast", which need data, or "statistics": see
            `jit_passes.correct_bias`; None for none.
        strict: raise an error for operators with weights and matrix products, the rows of
            `coverage`, that would stay in float and were not asked to, and for rules of the
            configuration that change nothing. Others, a softmax or a norm, may stay in float.
        inplace: make `model` itself the int8 model, to free the float weights once all has gone
            well. Until then memory is about 1.7 times that of the model, or 2.2 times where batch
            norms are folded, whose weights are copies.
        progress: progress bars, of calibration and of the slow steps behind it; None for
            some on terminals only.
        method: the method to quantize. The result has this one only.
        methods: several methods to quantize, in place of `method`. The result has all methods of
            the model; the others compute in float what they did, by weights of their own. Each
            quantized method is a module, `quantized_<method>`. State that methods have in common,
            such as that of a stream and a method that resets it, is one, `common_state`. A rule of
            `config` that is for some of the methods needs `allow_unmatched`.
        input_fn: makes a batch of inputs out of an item of `calibration_data`.

    Returns:
        The int8 model. `coverage` lists the int8 operators, and why the others are float.

    Raises:
        JitPassesError: the model or the data do not allow it; the message says what to do.

    Warns:
        JitPassesWarning: without data, operators stay in float that need some; a mode for all
            operators puts signal processing on integers.
    """
    said = NO_SMOOTHING if smooth is None else None if smooth == AUTO else smooth
    stages = StageOptions(said, equalize, weight_rounding, bias_correction)
    quantized = partial(
        _quantized, model, quantizer=quantizer, target=target, config=config, mode=mode,
        stages=stages, strict=strict, progress=progress, input_fn=input_fn,
    )  # fmt: skip
    if methods is None:
        result = quantized(calibration_data, profile, method=method)
    elif method != "forward":
        raise JitPassesError("method or methods: one of the two")
    else:
        names, state = check_methods(model, methods)
        data = by_method(calibration_data, names, "calibration_data")
        profiles = by_method(profile, names, "profile")
        parts: dict[str, torch.jit.ScriptModule] = {}
        for name in names:
            try:
                given = data.get(name), profiles.get(name)
                parts[name] = quantized(*given, method=name, state=state)
            except JitPassesError as error:
                raise JitPassesError(f"the method '{name}': {error}") from error
        result = join_methods(model, parts)
    if inplace:
        model._reconstruct(result._c)
        return model
    return result


def _quantized(
    model: torch.jit.ScriptModule, calibration_data: Any, profile: Any, *,
    quantizer: Quantizer | None, target: str | Target, config: Any, mode: str | None,
    stages: StageOptions, strict: bool, progress: bool | None, method: str,
    input_fn: InputFn | None, state: Sequence[str] = (),
) -> torch.jit.ScriptModule:  # fmt: skip
    """Return a model with one method, quantized: see `quantize_script`."""
    if calibration_data is not None and profile is not None:
        raise JitPassesError(RANGES, command=OPTIONS)
    has_data = calibration_data is not None or profile is not None
    backend, chosen = choose_quantizer(quantizer, target, config, mode)
    if isinstance(chosen, BackendQuantizer):
        stages = chosen.configuration.stages.updated(stages)
        chosen = chosen if has_data else chosen.without_data()
    staged = Staged(
        stages, model, calibration_data, profile is not None, chosen, input_fn, progress
    )
    prepared = prepare_for(
        model, backend, chosen, change=staged.change, strict=strict, method=method,
        mode=frozen(state),
    )  # fmt: skip
    if profile is not None:
        fill(prepared, profile)
    elif staged.calibrating is not None:
        calibrate_alone(prepared, staged.calibrating, input_fn, progress)
    elif needs_data(prepared):
        raise JitPassesError(RANGES, command=OPTIONS)
    else:
        check_without_data(prepared)
    prepared = staged.finished(prepared)
    held = [prepared]
    del prepared
    return _finished(held, backend, strict, progress)


def _finished(
    held: list[torch.jit.ScriptModule], backend: Target, strict: bool, progress: bool | None
) -> torch.jit.ScriptModule:
    """Convert and lower the only model in a list, which is taken out of it.

    Then no other code holds it, so its weights can be freed one by one.
    """
    before = Report.read(held[0])
    assert before is not None
    module = _C.clone(held.pop()._c, before.method)  # the executor has copies for the old one
    with stage("convert"):
        module = converted(module, before, progress)._c
    reference = Report.read(module)
    assert reference is not None
    if strict:
        check_converted(before, reference)
    with stage("lower"):
        return lowered(module, reference, backend, progress)


def check_converted(before: Report, after: Report) -> None:
    """Raise an error for operators that data have ruled out, by never reaching them, say."""
    pairs = zip(before.operators, after.operators, strict=True)
    refuse([row for was, row in pairs if was.dtype != row.dtype])


def check_without_data(prepared: torch.jit.ScriptModule) -> None:
    """Tell which operators of a prepared model stay in float for want of data.

    Raises:
        JitPassesError: all that could be quantized do.
    """
    report = Report.read(prepared)
    assert report is not None
    waiting = [row.name for row in report.operators if row.reason == NEEDS_DATA]
    if waiting and not any(row.dtype == "int8" for row in report.operators):
        raise JitPassesError(RANGES, command=OPTIONS)
    if waiting:
        why = (
            f"{count_of(len(waiting), 'operator')} stay in float without data, '{waiting[0]}' first"
        )
        warn(f"{why}: {RANGES}", command=f"{why}: {OPTIONS}")
