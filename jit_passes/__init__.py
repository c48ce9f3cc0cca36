"""Quantization and graph rewriting for TorchScript."""

from __future__ import annotations

from pathlib import Path

from . import _extension, observers, quantizer, targets
from .calibrate import calibrate
from .convert import convert
from .errors import JitPassesError, JitPassesWarning, PassError
from .lower import lower
from .observe import prepare
from .passes import Pipeline, passes
from .quantize import quantize_script
from .quantizer import Slot
from .report import Coverage, coverage
from .slots import quantize_slots

__version__ = "0.1.0"

__all__ = [
    "Coverage",
    "JitPassesError",
    "JitPassesWarning",
    "PassError",
    "Pipeline",
    "Slot",
    "calibrate",
    "convert",
    "coverage",
    "include_paths",
    "library_path",
    "lower",
    "observers",
    "passes",
    "prepare",
    "quantize_script",
    "quantize_slots",
    "quantizer",
    "targets",
]


def include_paths() -> list[str]:
    """Return the folders with the headers for C++ passes of your own, PyTorch's included.

    Headers are `<jit_passes/registry.h>` and its neighbours. Link with `library_path()`.
    """
    from torch.utils import cpp_extension

    return [str(Path(__file__).parent / "include"), *cpp_extension.include_paths()]


def library_path() -> str:
    """Return the extension, which a library with C++ passes of your own links with.

    Import that library after this package, with `torch.ops.load_library` or as a module; its passes
    then are in `jit_passes.passes`.
    """
    return _extension.PATH
