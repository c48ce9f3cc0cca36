"""ONNX Runtime: static QDQ quantization of the exported model."""

from __future__ import annotations

import logging
import warnings
from collections.abc import Callable, Iterable, Mapping, Sequence
from functools import partial
from pathlib import Path
from time import perf_counter
from typing import Any

import torch
from torch import Tensor, nn

from benchmarks.runtimes.base import THREADS, Built, Predict, Workload, narrow_weights

_INPUT = "input"
_OUTPUT = "output"
_BATCH = "batch"
_AXES = (_BATCH, "positions")


class OnnxRuntime:
    """Per-channel int8 weights, uint8 activations: ``quantize_static`` with MinMax calibration.

    Or ``quantize_dynamic``, as the model runs. The functions of this module take models of several
    inputs too.
    """

    requires: tuple[str, ...] = ("onnx", "onnxruntime", "onnxruntime.quantization")

    def __init__(self, dynamic: bool = False) -> None:
        self.name = "onnxruntime_dynamic" if dynamic else "onnxruntime"
        self._dynamic = dynamic

    def build(self, workload: Workload, directory: Path) -> Built:
        exported = directory / "float.onnx"
        quantized = directory / f"{self.name}.onnx"
        calibration = [(batch,) for batch in workload.calibration]
        export(workload.model, calibration[0], exported)
        start = perf_counter()
        quantize(exported, quantized, None if self._dynamic else calibration)
        seconds = perf_counter() - start
        return Built(
            specialize=partial(session, quantized),
            seconds=seconds,
            file_bytes=quantized.stat().st_size,
        )


def export(model: nn.Module, example: tuple[Tensor, ...], path: Path, free_axes: int = 1) -> None:
    """Export with the TorchScript exporter, which folds BatchNorm.

    With that of `torch.export` where it has not all operators. The leading axes of inputs have any
    size, as the first axis of the result has.
    """
    inputs = _names(example)
    names: dict[str, Any] = {"input_names": inputs, "output_names": [_OUTPUT]}
    free = dict(enumerate(_AXES[:free_axes]))
    axes = dict.fromkeys(inputs, free) | {_OUTPUT: {0: _BATCH}}
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # the exporter announces its deprecation
        try:
            torch.onnx.export(
                model, example, str(path), opset_version=17, dynamo=False, dynamic_axes=axes,
                **names,
            )  # fmt: skip
        except torch.onnx.errors.UnsupportedOperatorError:
            torch.onnx.export(
                model, example, str(path), dynamo=True, external_data=False, verbose=False,
                dynamic_shapes=tuple(free for _ in example), **names,
            )  # fmt: skip


def _names(example: Sequence[Tensor]) -> list[str]:
    return [f"{_INPUT}{number or ''}" for number in range(len(example))]


def quantize(
    exported: Path,
    quantized: Path,
    calibration: list[tuple[Tensor, ...]] | None,
    operators: Sequence[str] | None = None,
    **options: Any,
) -> None:
    """Shape inference and graph optimisation, then quantization; dynamic without data.

    ``operators`` are ``op_types_to_quantize`` of ``quantize_static``, and ``options`` its
    ``extra_options``.
    """
    from onnxruntime import quantization
    from onnxruntime.quantization.shape_inference import quant_pre_process

    class Reader(quantization.CalibrationDataReader):  # type: ignore[misc]
        """Hands the calibration batches to ONNX Runtime one by one."""

        def __init__(self, batches: Iterable[tuple[Tensor, ...]]) -> None:
            self._batches = list(batches)

        def get_next(self) -> dict[str, Any] | None:
            if not self._batches:
                return None
            batch = self._batches.pop(0)
            return dict(zip(_names(batch), (value.numpy() for value in batch), strict=True))

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
        op_types_to_quantize=operators,
        extra_options=options,
    )


def session(path: Path, example: Tensor) -> Predict:
    """The model at ``path`` as a callable for the batch size of ``example``."""
    return loaded_session(path, {_BATCH: example.shape[0]})


def loaded_session(path: Path, sizes: Mapping[str, int]) -> Callable[..., Tensor]:
    """The model at ``path`` as a callable of its inputs, with sizes of named dimensions."""
    import onnxruntime

    options = onnxruntime.SessionOptions()
    options.intra_op_num_threads = THREADS
    options.inter_op_num_threads = 1
    options.log_severity_level = 3
    for name, size in sizes.items():
        options.add_free_dimension_override_by_name(name, size)
    loaded = onnxruntime.InferenceSession(
        str(path), sess_options=options, providers=["CPUExecutionProvider"]
    )
    names = [value.name for value in loaded.get_inputs()]

    def call(*inputs: Tensor) -> Tensor:
        arrays = (value.numpy() for value in inputs)
        return torch.from_numpy(loaded.run(None, dict(zip(names, arrays, strict=True)))[0])

    return call
