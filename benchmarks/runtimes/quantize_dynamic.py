"""PyTorch's dynamic quantization of modules, ``torch.ao.quantization.quantize_dynamic``."""

# PyTorch declares its quantization functions without types.
# mypy: disable-error-code="no-untyped-call"

from __future__ import annotations

import copy
import warnings
from pathlib import Path
from time import perf_counter

import torch
from torch import nn
from torch.ao.quantization import per_channel_dynamic_qconfig, quantize_dynamic

from benchmarks.runtimes.base import Built, Workload
from benchmarks.runtimes.torch_script import save_and_load


class QuantizeDynamicRuntime:
    """Linear and recurrent layers with int8 weights per channel, then scripted."""

    name = "quantize_dynamic"
    requires: tuple[str, ...] = ()

    def build(self, workload: Workload, directory: Path) -> Built:
        start = perf_counter()
        with warnings.catch_warnings(), torch.no_grad():
            warnings.simplefilter("ignore")  # deprecation notices
            model = copy.deepcopy(workload.model).eval()
            layers = (nn.Linear, nn.LSTM, nn.GRU)
            quantized = quantize_dynamic(model, dict.fromkeys(layers, per_channel_dynamic_qconfig))
            scripted = torch.jit.freeze(torch.jit.script(quantized))
        seconds = perf_counter() - start
        return save_and_load(scripted, directory / f"{self.name}.pt", None, seconds)
