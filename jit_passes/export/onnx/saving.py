"""Files of a written model: one of protobuf, which ends below 2 GiB, or two with weights apart."""

from __future__ import annotations

import importlib
import os
import tempfile
from pathlib import Path
from typing import Any

from ...errors import JitPassesError, first_line
from ...files import write_whole, writing

LARGE = 2**31 - 2**20  # bytes of constants, beyond which they are apart


def save(written: Any, path: str | os.PathLike[str]) -> None:
    """Check a model with `onnx.checker` and write it, as a whole or not at all.

    Args:
        written: of `torch.onnx`.
        path: the file; weights apart are in `<path>.data`, which the file names.

    Raises:
        JitPassesError: `onnx.checker` refuses it; or it cannot be written, which is an OSError too.
    """
    checker: Any = importlib.import_module("onnx").checker
    constants = written.model.graph.initializers.values()
    if sum(value.const_value.nbytes for value in constants) <= LARGE:
        proto = written.model_proto
        _check(checker, proto, full_check=True)
        write_whole(path, proto.SerializeToString())
        return
    path = Path(os.path.realpath(path))
    with (
        writing(path),
        tempfile.TemporaryDirectory(prefix=f".{path.name}.", dir=path.parent) as folder,
    ):
        file = Path(folder) / path.name
        written.save(file, external_data=True)
        _check(checker, os.fspath(file))
        # The weights first: a file without its weights is read by nobody.
        for name in (f"{path.name}.data", path.name):
            os.replace(file.with_name(name), path.with_name(name))


def _check(checker: Any, model: Any, **options: Any) -> None:
    try:
        checker.check_model(model, **options)
    except Exception as error:  # of several classes of its own
        raise JitPassesError(
            f"the file would not be right: onnx.checker says {first_line(error).strip()!r}"
        ) from error
