"""Backends, one file each."""

from __future__ import annotations

from .. import _C
from ..errors import JitPassesError
from ..registered import UnknownError
from .engines import QONNX, XNNPACK, Engine, Inductor, OnnxRuntime, OpenVINO, TensorRT
from .fixed_point import FixedPoint
from .partition import CompileRegions, Partition, Region, RegionValue
from .quantizers import PowerOfTwoQuantizer, QnnpackQuantizer, X86Quantizer
from .reference import Reference
from .stock import Stock
from .target import Target
from .x86 import X86

__all__ = [
    "QONNX",
    "X86",
    "XNNPACK",
    "CompileRegions",
    "Engine",
    "FixedPoint",
    "Inductor",
    "OnnxRuntime",
    "OpenVINO",
    "Partition",
    "PowerOfTwoQuantizer",
    "QnnpackQuantizer",
    "Reference",
    "Region",
    "RegionValue",
    "Stock",
    "Target",
    "TensorRT",
    "X86Quantizer",
    "resolve_target",
    "targets",
]

targets = Target.registered


def resolve_target(target: str | Target) -> Target:
    """Return the backend that a name stands for.

    "auto" is the best one for this machine: `X86` where its processor multiplies int8 by itself
    (AVX-VNNI, or AVX-512 F, BW, VL, VNNI and VBMI), else `Stock`. Kernels of `X86` for AVX2 alone
    are exact, and slower than the kernels of `Stock`, which have inputs of 7 bits there.

    Raises:
        JitPassesError: no target has this name, or it is not available here.
    """
    if isinstance(target, Target):
        return target
    if target == "auto":
        return X86() if _C.has_x86_kernels() else Stock()
    if isinstance(target, type) and issubclass(target, Target):
        raise JitPassesError(f"a target is an object, not a class: pass {target.__name__}()")
    try:
        return Target.make(target)
    except UnknownError as error:
        raise JitPassesError(
            f"{error}. A target is 'auto', a name, or an object such as "
            "jit_passes.targets.Stock(engine='onednn')"
        ) from None
