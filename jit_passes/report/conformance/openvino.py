"""OpenVINO on CPUs, with the precisions of the layers that it runs."""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import torch

from .foreign import errors_of, fed, imported

ENGINE = "OpenVINO"
# Layers of the plugin that coverage counts, and how it calls their precision on integers.
LAYERS = frozenset(("Convolution", "Deconvolution", "FullyConnected", "MatMul"))
INTEGERS = frozenset(("u8", "i8", "u4", "i4"))


class OpenVinoFile:
    """A file of ONNX in OpenVINO's CPU plugin; layers that are in float are in float32.

    Args:
        path: of the file.

    Attributes:
        integers: convolutions, linears and products on integers in the graph that runs, by type.
        floats: the others.

    Raises:
        JitPassesError: openvino is not installed, or does not load the file.
    """

    def __init__(self, path: Path) -> None:
        options = {  # bfloat16 on some processors otherwise
            "INFERENCE_PRECISION_HINT": "f32",
            "INFERENCE_NUM_THREADS": torch.get_num_threads(),
        }
        core = imported("openvino").Core()
        with errors_of(ENGINE):
            self._compiled = core.compile_model(str(path), "CPU", options)
            self.integers, self.floats = _layers(self._compiled.get_runtime_model())

    def __call__(self, given: Mapping[str, Any]) -> list[torch.Tensor]:
        """Return the results, in the file's order, for arguments by name."""
        # Values that OpenVINO takes for an argument are other names of it.
        names = [argument.node.friendly_name for argument in self._compiled.inputs]
        feed = fed(names, given)
        with errors_of(ENGINE):
            arrays = self._compiled(feed).to_tuple()
        return [torch.from_numpy(array) for array in arrays]


def _layers(executed: Any) -> tuple[Counter[str], Counter[str]]:
    integers: Counter[str] = Counter()
    floats: Counter[str] = Counter()
    for node in executed.get_ops():
        told = node.get_rt_info()
        kind, precision = (told[key].astype(str) for key in ("layerType", "runtimePrecision"))
        if kind in LAYERS:
            (integers if precision in INTEGERS else floats)[kind] += 1
    return integers, floats
