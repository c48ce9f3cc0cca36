"""AIMET: a simulation of the quantized module."""

from __future__ import annotations

import logging
from contextlib import redirect_stdout
from copy import deepcopy
from io import StringIO
from pathlib import Path
from time import perf_counter
from typing import Any

import torch

from benchmarks.runtimes.base import Built, Predict, Workload


class AimetRuntime:
    """``QuantizationSimModel`` with 8 bits and ranges by ``post_training_tf_enhanced``.

    Or behind ``equalize_model``: cross-layer equalization, with high-bias absorption.
    """

    requires: tuple[str, ...] = ("aimet_torch",)

    def __init__(self, equalize: bool = False) -> None:
        self.name = "aimet_equalized" if equalize else "aimet"
        self._equalize = equalize

    def build(self, workload: Workload, directory: Path) -> Built:
        """Quantize a module that `torch.fx` can trace; nothing is written."""
        logging.disable(logging.WARNING)  # a line for each node of the graph
        try:
            with redirect_stdout(StringIO()):
                return self._built(workload)
        finally:
            logging.disable(logging.NOTSET)

    def _built(self, workload: Workload) -> Built:
        from aimet_torch import QuantizationSimModel
        from aimet_torch.batch_norm_fold import fold_all_batch_norms
        from aimet_torch.common.defs import QuantScheme
        from aimet_torch.cross_layer_equalization import equalize_model
        from aimet_torch.model_preparer import prepare_model

        first = workload.calibration[0]
        start = perf_counter()
        model = prepare_model(deepcopy(workload.model))
        if self._equalize:
            equalize_model(model, dummy_input=first)
        else:
            fold_all_batch_norms(model, first.shape, dummy_input=first)
        simulation = QuantizationSimModel(
            model, dummy_input=first, quant_scheme=QuantScheme.post_training_tf_enhanced,
            default_output_bw=8, default_param_bw=8,
        )  # fmt: skip

        def calibrate(model: Any, _: Any = None) -> None:
            with torch.no_grad():
                for batch in workload.calibration:
                    model(batch)

        simulation.compute_encodings(calibrate, None)
        seconds = perf_counter() - start
        predict: Predict = simulation.model
        return Built(specialize=lambda _: predict, seconds=seconds, file_bytes=0)
