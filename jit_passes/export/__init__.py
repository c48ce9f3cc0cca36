"""Files with which other engines quantize as this package does, and programs for compilers."""

from __future__ import annotations

import inspect
import io
import os
from collections.abc import Iterator
from typing import Any

import torch

from ..errors import JitPassesError, count_of, nearest, shortened, warn
from ..files import write_whole
from ..stages.module import Report
from . import aimet, nni, tensorrt
from .aimet import from_aimet, load_aimet, text_of, to_aimet
from .aoti import export_aoti
from .c import export_c
from .encoding import Encoding, Encodings, Layer
from .nni import from_nni, load_nni, save_nni, to_nni
from .onnx import export_onnx
from .program import from_exported_program, to_exported_program
from .reading import encodings_of
from .tensorrt import from_tensorrt, to_tensorrt
from .vectors import export_vectors

__all__ = [
    "Encoding",
    "Encodings",
    "Layer",
    "encodings_of",
    "export_aoti",
    "export_c",
    "export_calibration",
    "export_onnx",
    "export_vectors",
    "from_aimet",
    "from_exported_program",
    "from_nni",
    "from_tensorrt",
    "load_aimet",
    "load_nni",
    "save_nni",
    "to_aimet",
    "to_exported_program",
    "to_nni",
    "to_tensorrt",
]

FORMATS = {"nni": nni.FORM, "tensorrt": tensorrt.FORM, "aimet": aimet.FORM}


def export_calibration(
    model: torch.jit.ScriptModule | Encodings,
    path: str | os.PathLike[str] | None = None,
    format: str = "nni",
    **options: Any,
) -> Any:
    """Return, and write to a file, what another engine needs to quantize as this model does.

    Args:
        model: as for `encodings_of`, or its `Encodings`.
        path: the file; None for none.
        format: "nni" (see `to_nni`; a file of torch.save), "tensorrt" (see `to_tensorrt`; text) or
            "aimet" (see `to_aimet`; JSON).
        options: arguments of that function: `version`, `names`.

    Returns:
        A dict, or for tensorrt the text.

    Raises:
        JitPassesError: the format or an option is unknown, the model has no encodings, or the
            format cannot express them.
        JitPassesError: the file cannot be written; this is an OSError too.

    Warns:
        JitPassesWarning: the format cannot say all of it, and the engine will compute otherwise.
    """
    if format not in FORMATS:
        raise JitPassesError(f"no format '{format}': formats are {', '.join(map(repr, FORMATS))}")
    make = FORMATS[format].write
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
    for sentence in (*FORMATS[format].losses(encodings, **options), *_dynamic(model)):
        warn(sentence)
    return content


def _dynamic(model: torch.jit.ScriptModule | Encodings) -> Iterator[str]:
    """Yield a loss of all formats: operators that choose scales as the model runs."""
    report = Report.read(model)
    rows = () if report is None else report.operators
    names = [f"'{row.name}'" for row in rows if row.mode == "dynamic" and row.dtype == "int8"]
    if names:
        yield (
            "no file tells of inputs that are quantized as the model runs: the engine has "
            f"{count_of(len(names), 'operator')} ({shortened(names, 3)}) in float; quantize in the "
            "mode static"
        )
