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
    constants = written.model.graph.initializers.values()
    apart = sum(value.const_value.nbytes for value in constants) > LARGE
    place = Path(os.path.realpath(path))
    special = place.exists() and not place.is_file()  # a device or a pipe
    beside = None if special else place.parent
    with (
        writing(path),
        tempfile.TemporaryDirectory(prefix=f".{place.name}.", dir=beside) as folder,
    ):
        file = Path(folder) / place.name
        # The checker copies what it is given four times, but for weights apart.
        written.save(file, external_data=True)
        _check(os.fspath(file))
        if apart:
            # The weights first: a file without its weights is read by nobody.
            for name in (f"{place.name}.data", place.name):
                os.replace(file.with_name(name), place.with_name(name))
            return
    write_whole(path, written.model_proto.SerializeToString())


def _check(file: str) -> None:
    checker: Any = importlib.import_module("onnx").checker
    try:
        checker.check_model(file, full_check=True)
    except Exception as error:  # of several classes of its own
        raise JitPassesError(
            f"the file would not be right: onnx.checker says {first_line(error).strip()!r}"
        ) from error
