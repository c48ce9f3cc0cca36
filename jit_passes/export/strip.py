"""A trained model as the float model and the grids that its values have."""

from __future__ import annotations

from typing import Any

import torch

from .. import _C
from ..errors import JitPassesError
from ..passes.pipeline import CLEAN_UP, FOLD_NUMBERS, Pipeline
from ..passes.subject import wrap
from ..stages.module import ModelStage, stage_of
from ..stages.seen import read_places
from .encoding import Encodings
from .reading import encodings_of

STRIP = Pipeline(
    "strip",
    (FOLD_NUMBERS, "insert_quantize_dequantize", "merge_conv_bias", *CLEAN_UP),
)


def strip(qat: torch.jit.ScriptModule) -> tuple[torch.jit.ScriptModule, Encodings]:
    """Return the float model that trained, and how its values are quantized.

    For engines that quantize by themselves: `export_calibration(encodings, ...)` writes files, and
    does so with `qat` too. The model is frozen and in eval mode, batch norms are folded into
    weights, and nothing is left of quantization: torch loads it without this package. Its results
    equal the results of `qat` in eval mode after `disable_fake_quantize`, up to rounding in
    float32.

    The encodings equal `encodings_of(jit_passes.convert(qat))`. Biases are int32 in steps of
    input scale times weight scale.

    Args:
        qat: from `prepare_qat`, in training or eval mode; it is not touched.

    Raises:
        JitPassesError: the model is not from `prepare_qat`, or has not trained; or an operator
            has no equal in PyTorch.
    """
    report = stage_of(qat, ModelStage.QAT, "call jit_passes.prepare_qat first, and train")
    module, _ = read_places(qat, report)
    options: dict[str, Any] = {"insert_quantize_dequantize": {"parameters": {}}}
    module = STRIP.run(module, report.method, options=options).module
    named = _C.names_by_kind(module, report.method).items()
    if left := [names[0] for kind, names in named if kind.startswith("jit_passes::")]:
        raise JitPassesError(f"'{left[0]}' has no equal in PyTorch: the model cannot do without")
    return wrap(module), encodings_of(qat)
