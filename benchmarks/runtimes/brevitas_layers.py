"""Brevitas: a simulation of the module with quantized layers."""

from __future__ import annotations

from contextlib import redirect_stderr
from copy import deepcopy
from io import StringIO
from pathlib import Path
from time import perf_counter

import torch

from benchmarks.runtimes.base import Built, Predict, Workload


class BrevitasRuntime:
    """Post-training quantization layer by layer, as Brevitas' own ImageNet example has it.

    Inputs and weights of layers have 8 bits, and all values between are float. The example's other
    ways have relu in place of relu6.
    """

    requires: tuple[str, ...] = ("brevitas", "brevitas_examples")

    def __init__(self, bias_correction: bool = False) -> None:
        self.name = "brevitas_corrected" if bias_correction else "brevitas"
        self._bias_correction = bias_correction

    def build(self, workload: Workload, directory: Path) -> Built:
        """Quantize a module that `torch.fx` can trace; nothing is written."""
        from brevitas.graph.quantize import preprocess_for_quantize
        from brevitas_examples.imagenet_classification.ptq import ptq_common

        data = [(batch, None) for batch in workload.calibration]
        start = perf_counter()
        with torch.no_grad(), redirect_stderr(StringIO()):  # progress bars
            folded = preprocess_for_quantize(
                deepcopy(workload.model), relu6_to_relu=False, equalize_iters=0
            )
            model = ptq_common.quantize_model(
                folded, backend="layerwise", quant_format="int", scale_factor_type="float_scale",
                weight_bit_width=8, weight_quant_granularity="per_channel", weight_quant_type="sym",
                act_bit_width=8, act_quant_percentile=99.999, act_quant_type="asym",
                bias_bit_width=32,
            )  # fmt: skip
            ptq_common.calibrate(data, model)
            if self._bias_correction:
                ptq_common.apply_bias_correction(data, model)
        seconds = perf_counter() - start
        predict: Predict = model.eval()
        return Built(specialize=lambda _: predict, seconds=seconds, file_bytes=0)
