"""PT2 export quantization of torchao: `X86InductorQuantizer`, with its graph run as it is."""

from __future__ import annotations

import logging
import warnings
from pathlib import Path
from time import perf_counter
from typing import Any

import torch
from torch import Tensor

from benchmarks.runtimes.base import Built, Predict, Workload
from benchmarks.runtimes.exported import open_batch


class Pt2eRuntime:
    """`prepare_pt2e` and `convert_pt2e` with the default configuration for x86.

    The callable computes the quantized graph operator by operator, as Inductor would but for
    rounding, without the minutes in which Inductor compiles: for accuracy, not for time.
    """

    name = "pt2e"
    requires: tuple[str, ...] = ("torchao.quantization.pt2e",)

    def build(self, workload: Workload, directory: Path) -> Built:
        from torchao.quantization.pt2e.quantize_pt2e import convert_pt2e, prepare_pt2e
        from torchao.quantization.pt2e.quantizer import x86_inductor_quantizer as x86

        logging.getLogger("torchao").setLevel(logging.ERROR)
        with warnings.catch_warnings(), torch.no_grad():
            warnings.simplefilter("ignore")  # of observers, and deprecations
            start = perf_counter()
            example = workload.calibration[0]
            program = torch.export.export(
                workload.model, (example,), dynamic_shapes=open_batch(), strict=False
            )
            quantizer = x86.X86InductorQuantizer()
            quantizer.set_global(x86.get_default_x86_inductor_quantization_config())
            prepared = prepare_pt2e(program.module(), quantizer)
            for batch in workload.calibration:
                prepared(batch)
            converted = convert_pt2e(prepared)
            seconds = perf_counter() - start
            path = directory / f"{self.name}.pt2"
            torch.export.save(
                torch.export.export(converted, (example,), dynamic_shapes=open_batch()), path
            )
        return Built(lambda _: _loaded(path), seconds, path.stat().st_size)


def _loaded(path: Path) -> Predict:
    module: Any = torch.export.load(path).module()

    def predict(x: Tensor) -> Tensor:
        with torch.no_grad():
            result: Tensor = module(x)
            return result

    return predict
