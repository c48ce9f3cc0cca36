"""Quantization and graph rewriting for TorchScript."""

from __future__ import annotations

from pathlib import Path

import torch  # noqa: F401  the extension links against its libraries

from . import observers, quantizer, targets
from .calibrate import calibrate
from .convert import convert
from .errors import JitPassesError, JitPassesWarning, PassError
from .lower import lower
from .observe import prepare
from .passes import Pipeline, passes
from .quantize import quantize_script
from .report import Coverage, coverage

__version__ = "0.1.0"

__all__ = [
    "Coverage",
    "JitPassesError",
    "JitPassesWarning",
    "PassError",
    "Pipeline",
    "calibrate",
    "convert",
    "coverage",
    "include_paths",
    "lower",
    "observers",
    "passes",
    "prepare",
    "quantize_script",
    "quantizer",
    "targets",
]


def include_paths() -> list[str]:
    """Return the folders with the headers for C++ passes of your own, PyTorch's included."""
    from torch.utils import cpp_extension

    return [str(Path(__file__).parent / "include"), *cpp_extension.include_paths()]
