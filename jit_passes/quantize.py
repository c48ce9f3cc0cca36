"""From a float ScriptModule to an int8 one."""

from __future__ import annotations

import os
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import replace
from typing import Any

import torch

from .configuration.stages import AUTO, NONE, StageOptions
from .errors import JitPassesError
from .in_order import quantize_method
from .logs import timed
from .profile import Profile
from .quantizers.backend import BackendQuantizer
from .quantizers.base import Quantizer
from .stages.annotate import choose_quantizer
from .stages.batches import InputFn
from .stages.methods import by_method, check_methods, join_methods
from .targets import Target
from .tuning.improve import improve as improve_method


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
    weight_rounding: str | None = "auto",
    bias_correction: str | None = "auto",
    improve: bool = False,
    budget: float | None = None,
    time: float | None = None,
    strict: bool = False,
    inplace: bool = False,
    progress: bool | None = None,
    method: str = "forward",
    methods: Sequence[str] | None = None,
    input_fn: InputFn | None = None,
) -> torch.jit.ScriptModule:
    """Quantize a scripted, traced or loaded model to int8.

    The stages `smooth` where it helps, `prepare`, `calibrate`, `round_weights` and `correct_bias`
    where they help, `convert` and `lower`, in order; call them yourself to look or step in between.

    Args:
        model: in eval mode. The model does not change, unless `inplace`.
        calibration_data: batches of typical inputs, a hundred or so samples: an iterable of
            tensors, tuples of positional arguments or dicts of keyword arguments. None with a
            profile, or if nothing needs data: weights do not, nor does the mode "dynamic". Without
            data, "auto" leaves operators in float that need some. With `methods`, a dict of these
            by method.
        profile: of this model, or the file of one, in place of data: see `jit_passes.profile`. With
            `methods`, a dict of these by method.
        quantizer: decides what is quantized and how; None for the target's own.
        target: the backend: "auto", a name, or a `Target` such as `Stock(engine="onednn")`. "auto"
            is the quantizer's own target, or the best for this machine: "x86" on a processor with
            AVX-512 VNNI or AVX-VNNI, else "stock". A file for "x86" needs `import jit_passes`
            before `torch.jit.load`, or in C++ the library `runtime_path()`; one for "stock" loads
            with torch alone, anywhere.
        config: other options, layer by layer: the path of a YAML file, a dict, or a
            `Configuration`. A configuration may hold a recipe, the next four options under
            `stages`; an argument that is not the default wins.
        mode: of all operators with weights that no rule of `config` gives another one.
            "static": inputs have parameters from the data.
            "dynamic": inputs have parameters from the input itself each time the model runs, which
            needs no data.
            "weight_only": inputs stay float; embeddings have only this mode.
            "auto": by the graph. Embeddings are weight_only. Recurrent layers are dynamic, and so
            are linears of transformers, and linears beside recurrent layers and embeddings. All
            others are static, or without data, or with weights in groups, dynamic or weight_only.
            Signal processing in front of learned layers, a mel filterbank say, stays in float.
            None for "auto", or with a `quantizer` for its own.
        smooth: "auto" to smooth layer norms in front of linears where the largest channel is more
            than four times the median one, by the data, or without data by gain and shift; a
            number, the strength, for all layer norms in front of linears; "search" for strengths by
            the error of rounded weights, for weights of few bits; None for none. See
            `jit_passes.smooth`. Where linears are static, large channels of their results for
            residual sums are divided ahead of rounding too, and multiplied in float behind it. Not
            with a profile; "auto" smooths nothing in the mode "weight_only".
        equalize: whose ranges to scale the channels between layers by: "auto", "activations" or
            "weights", see `jit_passes.equalize`; None for not at all. Not with a profile.
        weight_rounding: "gptq", "adaround", "gptq_sequential" or "adaround_sequential", which need
            data: see `jit_passes.round_weights`. "auto" is "gptq" with damping 0.1 and 4096 rows of
            inputs of four of the batches, for layers whose outputs have 1536 inputs or fewer. With
            fewer batches, without data, or with `methods`, which may share layers, weights have the
            nearest codes. None for these.
        bias_correction: "sequential" or "fast", which need data, or "statistics": see
            `jit_passes.correct_bias`. "auto" is "fast" with four of the batches, for layers that
            have a bias. With fewer batches, or without data, biases stay. None for none.
        improve: True to try stages and calibration methods, and to keep each that lowers the error
            of the output on every fourth batch, which is held back: see `jit_passes.improve`.
            Options that are given here hold. `provenance` of the result has the recipe and the
            steps. For a metric, workers or a file to go on from, call `jit_passes.improve`.
        budget: with `improve`, the SQNR of the output in dB at which it ends; layers may get other
            options for it. None to try all steps.
        time: with `improve`, seconds after which no step begins; None for no limit.
        strict: raise an error for operators with weights and matrix products, the rows of
            `coverage`, that would stay in float and were not asked to, and for rules of the
            configuration that change nothing. A softmax or a norm may stay in float.
        inplace: make `model` itself the int8 model, to free the float weights once all has gone
            well. Until then memory is 4 to 5 times the model's. With `weight_rounding=None` it is
            about 1.9 times the model's, 1.7 times with `bias_correction=None` too, or 2.2 times
            where folded batch norms make copies of weights.
        progress: progress bars, of calibration and of the slow steps behind it; None for
            some on terminals only.
        method: the method to quantize. The result has this one only.
        methods: several methods to quantize, in place of `method`. The result has all methods of
            the model; the others compute in float as before, by weights of their own. Each
            quantized method is a module, `quantized_<method>`. State that methods share, such as a
            stream's state and its reset, is in one module, `common_state`. A rule of `config` that
            is for some of the methods needs `allow_unmatched`.
        input_fn: makes a batch of inputs out of an item of `calibration_data`.

    Returns:
        The int8 model. `coverage` lists the int8 operators, and why the others are float.

    Raises:
        JitPassesError: the model or the data do not allow it; the message says how to go on.

    Warns:
        JitPassesWarning: without data, operators stay in float that need some; a mode for all
            operators puts signal processing on integers.
    """
    stages = StageOptions(_said(smooth), equalize, _said(weight_rounding), _said(bias_correction))
    how: dict[str, Any] = {
        "quantizer": quantizer, "target": target, "config": config, "mode": mode, "strict": strict,
        "progress": progress, "input_fn": input_fn,
    }  # fmt: skip

    def quantized(
        data: Any, profile: Any, method: str, state: Sequence[str] | None = None
    ) -> torch.jit.ScriptModule:
        return quantize_method(
            model, data, profile, stages=stages, method=method, state=state, **how
        )

    if improve:
        data = _improvable(calibration_data, profile, methods)
        how["config"] = _with_stages(stages, quantizer, target, config, mode)
        result = improve_method(model, data, budget=budget, time=time, method=method, **how).model
    elif budget is not None or time is not None:
        name = "time" if budget is None else "budget"
        raise JitPassesError(f"{name} ends improve=True: pass that too, or leave {name} out")
    elif methods is None:
        result = quantized(calibration_data, profile, method)
    elif method != "forward":
        raise JitPassesError("method or methods: one of the two")
    else:
        names, state = check_methods(model, methods)
        by_name = by_method(calibration_data, names, "calibration_data")
        profiles = by_method(profile, names, "profile")
        parts: dict[str, torch.jit.ScriptModule] = {}
        for name in names:
            try:
                given = by_name.get(name), profiles.get(name)
                parts[name] = quantized(*given, name, state)
            except JitPassesError as error:
                raise JitPassesError(f"the method '{name}': {error}") from error
        result = join_methods(model, parts)
    if inplace:
        model._reconstruct(result._c)
        return model
    return result


def _said(option: Any) -> Any:
    """Return an argument as an option of a configuration, which holds where an argument is auto."""
    return NONE if option is None else None if option == AUTO else option


def _improvable(data: Any, profile: Any, methods: Any) -> Any:
    """Return the data on which steps can be tried.

    Raises:
        JitPassesError: there are no data, or there are several methods.
    """
    if data is None or profile is not None:
        raise JitPassesError(
            "improve=True tries steps on calibration data: pass some, and no profile"
        )
    if methods is not None:
        raise JitPassesError(
            "improve=True is for one method: call jit_passes.improve(..., method=...) for each, "
            "and pass a recipe as config, whose rules of single methods need allow_unmatched"
        )
    return data


def _with_stages(
    stages: StageOptions, quantizer: Quantizer | None, target: str | Target, config: Any,
    mode: str | None,
) -> Any:  # fmt: skip
    """Return a configuration that has the stages of the caller too."""
    chosen = choose_quantizer(quantizer, target, config, mode)[1]
    if not isinstance(chosen, BackendQuantizer) or not stages.given():
        return config
    own = chosen.configuration
    return replace(own, stages=own.stages.updated(stages))
