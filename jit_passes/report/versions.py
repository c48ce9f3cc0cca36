"""Versions and processor, for reports of errors."""

from __future__ import annotations

import os
import platform
import sys
from importlib import metadata
from typing import Any

import torch

from .. import _C
from .._version import __version__

PACKAGES = ("numpy", "click", "PyYAML", "tqdm", "pillow", "safetensors")


def versions() -> dict[str, Any]:
    """Return versions, processor and settings that results may depend on, without any paths."""
    found: dict[str, Any] = {
        "jit_passes": __version__,
        "torch": torch.__version__,
        "python": platform.python_version(),
        "platform": platform.platform(),
        "processor": f"{platform.machine()}, {torch.backends.cpu.get_cpu_capability()}",
        "x86 kernels": _C.x86_level(),
        "engine": torch.backends.quantized.engine,
        "threads": torch.get_num_threads(),
    }
    for name in PACKAGES:
        try:
            found[name] = metadata.version(name)
        except metadata.PackageNotFoundError:
            found[name] = "not installed"
    given = (name for name in sorted(os.environ) if name.startswith(("JIT_PASSES_", "PYTORCH_JIT")))
    return found | {name: os.environ[name] for name in given}


def show_versions() -> None:
    """Print versions, processor and settings: put this into the report of an error."""
    for name, value in versions().items():
        sys.stdout.write(f"{name}: {value}\n")
