"""The compiled part, imported with a sentence that helps where it does not fit."""

from __future__ import annotations

import torch  # the extension needs its libraries in memory

_REBUILD = (
    f"the extension of jit_passes was not compiled for this torch, {torch.__version__}: compile it "
    "again with 'pip install --no-build-isolation .' in its source folder"
)
try:
    from . import _C
except ImportError as error:
    raise ImportError(f"{_REBUILD} ({error})") from error


def check_version(compiled_for: str, installed: str) -> None:
    """Check that extension and torch are of one minor version: C++ interfaces change with it."""
    if compiled_for.split(".")[:2] != installed.split(".")[:2]:
        raise ImportError(f"{_REBUILD} (it was compiled for {compiled_for})")


check_version(_C.torch_version, torch.__version__)

PATH = str(_C.__file__)
