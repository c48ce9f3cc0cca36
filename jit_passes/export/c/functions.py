"""All functions of C that operators call, by name."""

from __future__ import annotations

from collections.abc import Mapping

from .cmsis_kernels import CMSIS
from .kernels import KERNELS, Kernel

FUNCTIONS: Mapping[str, Kernel] = {**KERNELS, **CMSIS}
