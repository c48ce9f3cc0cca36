"""ONNX Runtime: static QDQ quantization of the exported model."""

from __future__ import annotations

import logging
import warnings
from collections.abc import Iterable, Iterator
from functools import partial
from pathlib import Path
from time import perf_counter
from typing import Any

import torch
from torch import Tensor

from benchmarks.runtimes.base import THREADS, Built, Predict, Workload, narrow_weights

_INPUT = "input"
_OUTPUT = "output"
_BATCH = "batch"


class OnnxRuntime:
    """Per-channel int8 weights, uint8 activations: ``quantize_static`` with MinMax calibration.

    Or ``quantize_dynamic``, as the model runs.
    """

    requires: tuple[str, ...] = ("onnx", "onnxruntime", "onnxruntime.quantization")

    def __init__(self, dynamic: bool = False) -> None:
        self.name = "onnxruntime_dynamic" if dynamic else "onnxruntime"
        self._dynamic = dynamic

    def build(self, workload: Workload, directory: Path) -> Built:
        exported = directory / "float.onnx"
        quantized = directory / f"{self.name}.onnx"
        _export(workload, exported)
        start = perf_counter()
        _quantize(exported, quantized, None if self._dynamic else workload.calibration)
        seconds = perf_counter() - start
        return Built(
            specialize=partial(session, quantized),
            seconds=seconds,
            file_bytes=quantized.stat().st_size,
        )


def _export(workload: Workload, path: Path) -> None:
    """Export with a free batch size, with the TorchScript exporter, which folds BatchNorm.

    With that of `torch.export` where it has not all operators.
    """
    names: dict[str, Any] = {"input_names": [_INPUT], "output_names": [_OUTPUT]}
    arguments = (workload.model, (workload.calibration[0],), str(path))
    axes = {_INPUT: {0: _BATCH}, _OUTPUT: {0: _BATCH}}
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # the exporter announces its deprecation
        try:
            torch.onnx.export(
                *arguments, opset_version=17, dynamo=False, dynamic_axes=axes, **names
            )
        except torch.onnx.errors.UnsupportedOperatorError:
            torch.onnx.export(
                *arguments,
                dynamo=True,
                dynamic_shapes=({0: _BATCH},),
                external_data=False,
                verbose=False,
                **names,
            )


def _quantize(exported: Path, quantized: Path, calibration: list[Tensor] | None) -> None:
    """Shape inference and graph optimisation, then quantization; dynamic without data."""
    from onnxruntime import quantization
    from onnxruntime.quantization.shape_inference import quant_pre_process

    class Reader(quantization.CalibrationDataReader):  # type: ignore[misc]
        """Hands the calibration batches to ONNX Runtime one by one."""

        def __init__(self, batches: Iterable[Tensor]) -> None:
            self._batches: Iterator[Tensor] = iter(batches)

        def get_next(self) -> dict[str, Any] | None:
            batch = next(self._batches, None)
            return None if batch is None else {_INPUT: batch.numpy()}

    logging.getLogger().setLevel(logging.ERROR)  # it logs advice to run what is run here
    preprocessed = exported.with_suffix(".preprocessed.onnx")
    try:
        quant_pre_process(str(exported), str(preprocessed))
    except Exception:  # symbolic shapes know no reshape whose sizes come out of a split or a roll
        quant_pre_process(str(exported), str(preprocessed), skip_symbolic_shape=True)
    if calibration is None:
        quantization.quantize_dynamic(
            str(preprocessed),
            str(quantized),
            per_channel=True,
            reduce_range=narrow_weights(),
            weight_type=quantization.QuantType.QInt8,
        )
        return
    quantization.quantize_static(
        str(preprocessed),
        str(quantized),
        Reader(calibration),
        quant_format=quantization.QuantFormat.QDQ,
        per_channel=True,
        reduce_range=narrow_weights(),
        activation_type=quantization.QuantType.QUInt8,
        weight_type=quantization.QuantType.QInt8,
        calibrate_method=quantization.CalibrationMethod.MinMax,
    )


def session(path: Path, example: Tensor) -> Predict:
    """The model at ``path`` as a callable for the batch size of ``example``."""
    import onnxruntime

    options = onnxruntime.SessionOptions()
    options.intra_op_num_threads = THREADS
    options.inter_op_num_threads = 1
    options.log_severity_level = 3
    options.add_free_dimension_override_by_name(_BATCH, example.shape[0])
    loaded = onnxruntime.InferenceSession(
        str(path), sess_options=options, providers=["CPUExecutionProvider"]
    )
    name = loaded.get_inputs()[0].name

    def predict(x: Tensor) -> Tensor:
        return torch.from_numpy(loaded.run(None, {name: x.numpy()})[0])

    return predict
