"""OpenVINO: NNCF post-training quantization, run by OpenVINO's CPU plugin."""

from __future__ import annotations

import io
import logging
import warnings
from contextlib import redirect_stdout
from functools import partial
from pathlib import Path
from time import perf_counter
from typing import Any

import torch
from torch import Tensor

from benchmarks.runtimes.base import THREADS, Built, Predict, Workload, narrow_weights


class OpenVinoRuntime:
    """``nncf.quantize`` with the MIXED preset: asymmetric activations, symmetric weights.

    Other options of ``nncf.quantize`` may be given. With `accuracy_control`, layers become float
    again until all decisions on the calibration data are as in float.
    """

    requires: tuple[str, ...] = ("openvino", "nncf")

    def __init__(
        self, name: str = "openvino", accuracy_control: bool = False, **options: Any
    ) -> None:
        self.name = name
        self._accuracy_control = accuracy_control
        self._options = options

    def build(self, workload: Workload, directory: Path) -> Built:
        import openvino

        path = directory / "openvino.xml"
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")
            converted = openvino.convert_model(
                workload.model, example_input=workload.calibration[0]
            )
        start = perf_counter()
        samples = [batch.numpy() for batch in workload.calibration]
        if self._accuracy_control:
            quantized = _controlled(converted, samples)
        else:
            quantized = quantize(converted, samples, **self._options)
        seconds = perf_counter() - start
        # The float parts are stored as they are run instead of rounded to half precision.
        openvino.save_model(quantized, str(path), compress_to_fp16=False)
        size = path.stat().st_size + path.with_suffix(".bin").stat().st_size
        return Built(specialize=partial(compiled, path), seconds=seconds, file_bytes=size)


def quantize(model: Any, samples: list[Any], **options: Any) -> Any:
    """Quantize with the batches of the calibration data as everyone else gets them.

    Single images are the alternative, but NNCF averages the extrema of its samples, and averages
    over images of different contrast clip: on ResNet-18 they cost 10 dB, on MobileNetV2 they
    make less than 1 dB of difference.
    """
    import nncf

    logging.getLogger("nncf").setLevel(logging.ERROR)
    narrow = nncf.AdvancedQuantizationParameters(overflow_fix=nncf.OverflowFix.ENABLE)
    with redirect_stdout(io.StringIO()):  # progress bars
        return nncf.quantize(
            model,
            nncf.Dataset(samples),
            preset=nncf.QuantizationPreset.MIXED,
            subset_size=len(samples),
            advanced_parameters=narrow if narrow_weights() else None,
            **options,
        )


def _controlled(model: Any, samples: list[Any]) -> Any:
    """Quantize like `quantize`, and make layers float again where decisions differ from float."""
    import nncf
    import openvino

    in_float = openvino.compile_model(model, "CPU")
    pairs = [(batch, in_float([batch])[0].argmax(1)) for batch in samples]

    def agreement(compiled: Any, validation: Any) -> tuple[float, None]:
        equal = [compiled([batch])[0].argmax(1) == wanted for batch, wanted in validation]
        return float(sum(part.sum() for part in equal) / sum(part.size for part in equal)), None

    with redirect_stdout(io.StringIO()):
        return nncf.quantize_with_accuracy_control(
            model,
            nncf.Dataset(samples),
            nncf.Dataset(pairs),
            agreement,
            max_drop=0.0,
            preset=nncf.QuantizationPreset.MIXED,
            subset_size=len(samples),
        )


def compiled(path: Path, example: Tensor) -> Predict:
    """The model at ``path`` compiled for the shape of ``example`` and for low latency."""
    import openvino

    core = openvino.Core()
    model = core.read_model(str(path))
    model.reshape(list(example.shape))
    settings = {"PERFORMANCE_HINT": "LATENCY", "INFERENCE_NUM_THREADS": THREADS}
    request = core.compile_model(model, "CPU", settings).create_infer_request()

    def predict(x: Tensor) -> Tensor:
        # The output shares memory with the request and is overwritten by the next call.
        results = request.infer([x.numpy()], share_inputs=True, share_outputs=True)
        return torch.from_numpy(results[0])

    return predict
