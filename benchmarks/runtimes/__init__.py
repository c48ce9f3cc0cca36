"""The quantizers and runtimes that are compared: ``RUNTIMES`` maps each name to a runtime.

A runtime turns the same float model and the same calibration batches into a file on disk and
a callable loaded from that file.  So the measured file is the one that a user would deploy.
"""

from __future__ import annotations

import torch

from benchmarks.runtimes.base import Built, Runtime, Workload, first_line
from benchmarks.runtimes.jit_passes import JitPassesRuntime
from benchmarks.runtimes.onnx_runtime import OnnxRuntime
from benchmarks.runtimes.openvino_nncf import OpenVinoRuntime
from benchmarks.runtimes.quantize_dynamic import QuantizeDynamicRuntime
from benchmarks.runtimes.quantize_jit import QuantizeJitRuntime
from benchmarks.runtimes.torch_float import TorchFloatRuntime

__all__ = ["RUNTIMES", "Built", "Runtime", "Workload", "first_line"]

_TORCH_ENGINES = [
    engine
    for engine in ("x86", "onednn", "fbgemm")
    if engine in torch.backends.quantized.supported_engines
]

_ALL: list[Runtime] = [
    TorchFloatRuntime(),
    *(QuantizeJitRuntime(engine) for engine in _TORCH_ENGINES),
    JitPassesRuntime(engine=None),
    *(JitPassesRuntime(engine) for engine in _TORCH_ENGINES if engine != "x86"),
    JitPassesRuntime(target="x86"),
    JitPassesRuntime(mode="dynamic"),
    JitPassesRuntime(target="x86", mode="dynamic"),
    QuantizeDynamicRuntime(),
    OnnxRuntime(),
    OnnxRuntime(dynamic=True),
    OpenVinoRuntime(),
]

RUNTIMES: dict[str, Runtime] = {runtime.name: runtime for runtime in _ALL}
