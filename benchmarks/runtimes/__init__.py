"""The quantizers and runtimes that are compared: ``RUNTIMES`` maps each name to a runtime.

A runtime turns the same float model and the same calibration batches into a file on disk and
a callable loaded from that file.  So the measured file is the one that a user would deploy.
"""

from __future__ import annotations

import torch

from benchmarks.runtimes.base import Built, Runtime, Workload, first_line
from benchmarks.runtimes.exported import ExportedRuntime
from benchmarks.runtimes.inductor import CompiledFloatRuntime, InductorRuntime
from benchmarks.runtimes.jit_passes import JitPassesRuntime
from benchmarks.runtimes.onnx_runtime import OnnxRuntime, session
from benchmarks.runtimes.openvino_nncf import OpenVinoRuntime, compiled
from benchmarks.runtimes.quantize_dynamic import QuantizeDynamicRuntime
from benchmarks.runtimes.quantize_jit import QuantizeJitRuntime
from benchmarks.runtimes.torch_float import TorchFloatRuntime

__all__ = [
    "OWN_QUANTIZER",
    "RUNTIMES",
    "Built",
    "OnnxRuntime",
    "OpenVinoRuntime",
    "Runtime",
    "Workload",
    "first_line",
]

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
    ExportedRuntime("onnxruntime", session),
    ExportedRuntime("onnxruntime", session, mode="dynamic"),
    ExportedRuntime("openvino", compiled),
    InductorRuntime(),
    CompiledFloatRuntime(),
]

RUNTIMES: dict[str, Runtime] = {runtime.name: runtime for runtime in _ALL}

OWN_QUANTIZER = {
    "jit_passes_onnxruntime": "onnxruntime",
    "jit_passes_onnxruntime_dynamic": "onnxruntime_dynamic",
    "jit_passes_openvino": "openvino",
}
"""The engine's own quantizer, of files that jit_passes writes for that engine."""
