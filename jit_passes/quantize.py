"""From a float ScriptModule to an int8 one."""

from __future__ import annotations

import os
from collections.abc import Iterable
from typing import Any

import torch

from .errors import JitPassesError
from .logs import timed
from .profile import Profile, fill
from .quantizers.base import Quantizer
from .stages.batches import InputFn
from .stages.calibrate import calibrate
from .stages.convert import convert, needs_data
from .stages.lower import lower
from .stages.prepare import prepare
from .targets import Target


@timed
def quantize_script(
    model: torch.jit.ScriptModule,
    calibration_data: Iterable[Any] | None = None,
    *,
    profile: Profile | str | os.PathLike[str] | None = None,
    quantizer: Quantizer | None = None,
    target: str | Target = "auto",
    config: Any = None,
    mode: str | None = None,
    strict: bool = False,
    inplace: bool = False,
    progress: bool | None = None,
    method: str = "forward",
    input_fn: InputFn | None = None,
) -> torch.jit.ScriptModule:
    """Quantize a scripted, traced or loaded model to int8.

    The stages `prepare`, `calibrate`, `convert` and `lower`, in order; call them yourself to look
    or step in between.

    Args:
        model: in eval mode. It is not touched, unless `inplace`.
        calibration_data: batches of typical inputs, a hundred or so samples: an iterable of
            tensors, tuples of positional arguments or dicts of keyword arguments. None with a
            profile, or if nothing needs data: weights do not, nor does the mode "dynamic".
        profile: of this model, or the file of one, in place of data: see `jit_passes.profile`.
        quantizer: decides what is quantized and how; None for the target's own.
        target: the backend: "auto", a name, or a `Target` such as `Stock(engine="onednn")`. "auto"
            is the one that the quantizer is made for, or the best for this machine: "x86" on a
            processor with AVX-512 VNNI, else "stock". A file for "x86" needs `import jit_passes`
            before `torch.jit.load`, or in C++ the library `runtime_path()`; one for "stock" loads
            with torch alone, anywhere.
        config: layer by layer, what is to be done otherwise: the path of a YAML file, a dict, or a
            `Configuration`.
        mode: of all operators with weights that no rule of `config` gives another: "static", their
            inputs have parameters from the data; "dynamic", from the input itself each time the
            model runs, which needs no data; "weight_only", inputs stay float, and embeddings have
            weights too. None for the quantizer's own, static.
        strict: raise an error for operators that would stay in float and were not asked to.
        inplace: make `model` itself the int8 model, to free the float weights.
        progress: a progress bar during calibration; None for one on terminals only.
        method: the method to quantize. The result has this one only.
        input_fn: makes a batch of inputs out of what `calibration_data` gives.

    Returns:
        The int8 model. `coverage` tells what became int8 and why the rest did not.

    Raises:
        JitPassesError: the model or the data do not allow it; the message says what to do.
    """
    ranges = "ranges come from calibration data, an iterable of batches, or from a profile: pass "
    if calibration_data is not None and profile is not None:
        raise JitPassesError(f"{ranges}one of the two")
    prepared = prepare(
        model,
        quantizer=quantizer,
        target=target,
        config=config,
        mode=mode,
        strict=strict,
        method=method,
    )
    if profile is not None:
        fill(prepared, profile)
    elif calibration_data is not None:
        calibrate(prepared, calibration_data, input_fn=input_fn, progress=progress)
    elif needs_data(prepared):
        raise JitPassesError(f"{ranges}one of the two")
    reference = convert(prepared)
    lowered = lower(reference)
    if inplace:
        model._reconstruct(lowered._c)
        return model
    return lowered
