"""Files with which other engines quantize the float model as this package does."""

from __future__ import annotations

import inspect
import io
import os
from collections.abc import Callable
from typing import Any

import torch

from ..errors import JitPassesError, nearest
from ..files import write_whole
from .aimet import from_aimet, load_aimet, text_of, to_aimet
from .encoding import Encoding, Encodings, Layer
from .nni import from_nni, load_nni, save_nni, to_nni
from .reading import encodings_of
from .tensorrt import from_tensorrt, to_tensorrt

__all__ = [
    "Encoding",
    "Encodings",
    "Layer",
    "encodings_of",
    "export_calibration",
    "from_aimet",
    "from_nni",
    "from_tensorrt",
    "load_aimet",
    "load_nni",
    "save_nni",
    "to_aimet",
    "to_nni",
    "to_tensorrt",
]

FORMATS: dict[str, Callable[..., Any]] = {
    "nni": to_nni,
    "tensorrt": to_tensorrt,
    "aimet": to_aimet,
}


def export_calibration(
    model: torch.jit.ScriptModule | Encodings,
    path: str | os.PathLike[str] | None = None,
    format: str = "nni",
    **options: Any,
) -> Any:
    """Return, and write to a file, what another engine needs to quantize as this model does.

    Args:
        model: whatever `encodings_of` reads, or its `Encodings`.
        path: the file; None for none.
        format: "nni" (see `to_nni`; a file of torch.save), "tensorrt" (see `to_tensorrt`; text) or
            "aimet" (see `to_aimet`; JSON).
        options: arguments of that function: `version`, `names`.

    Returns:
        A dict, or for tensorrt the text.

    Raises:
        JitPassesError: there is no such format or option, the model has no encodings, or the format
            cannot say what they do.
        JitPassesError: the file cannot be written; this is an OSError too.
    """
    if format not in FORMATS:
        raise JitPassesError(f"no format '{format}': formats are {', '.join(map(repr, FORMATS))}")
    make = FORMATS[format]
    known = list(inspect.signature(make).parameters)[1:]
    for name in options:
        if name not in known:
            raise JitPassesError(f"no option '{name}' of '{format}': {nearest(name, known)}")
    encodings = model if isinstance(model, Encodings) else encodings_of(model)
    content = make(encodings, **options)
    if path is not None:
        if format == "nni":
            buffer = io.BytesIO()  # PyTorch's own writing hides errors of the system
            torch.save(content, buffer)
            write_whole(path, buffer.getbuffer())
        else:
            write_whole(path, content if format == "tensorrt" else text_of(content))
    return content
