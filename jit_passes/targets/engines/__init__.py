"""Engines of others as targets: the capability of each as data, one file each."""

from __future__ import annotations

from .engine import Engine
from .inductor import Inductor
from .onnxruntime import OnnxRuntime
from .openvino import OpenVINO
from .qonnx import QONNX
from .tensorrt import TensorRT
from .xnnpack import XNNPACK

__all__ = ["QONNX", "XNNPACK", "Engine", "Inductor", "OnnxRuntime", "OpenVINO", "TensorRT"]
