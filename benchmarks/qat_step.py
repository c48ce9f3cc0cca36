"""A training step of ResNet-18 with quantization, beside the float step and PyTorch's own.

Usage, from the repository root::

    python -m benchmarks.qat_step --rounds 20

A step is forward, cross entropy, backward and SGD with momentum on 16 images of 96 by 96 pixels.
Float is the scripted model, and the eager one.  PyTorch's are those of its FX graph mode: fused
moving-average fake quantization, as its x86 configuration has it, and scales that are learned.
"""

from __future__ import annotations

import argparse
import sys
import warnings
from collections.abc import Callable, Sequence
from typing import Any

import torch
from torch import Tensor, nn
from torch.ao.quantization import QConfig, QConfigMapping, get_default_qat_qconfig_mapping
from torch.ao.quantization._learnable_fake_quantize import _LearnableFakeQuantize as Learnable
from torch.ao.quantization.observer import MovingAverageMinMaxObserver
from torch.ao.quantization.quantize_fx import prepare_qat_fx

import jit_passes
from benchmarks import report
from benchmarks.measure import alternate
from benchmarks.models.resnet import resnet18

_BATCH, _PIXELS, _CLASSES = 16, 96, 1000
_BASELINE = "float, scripted"
_METHODS = ("moving_average", "lsq", "lsq_plus", "tqt")


def main(arguments: Sequence[str] | None = None) -> None:
    """Measure and print one table."""
    parser = argparse.ArgumentParser(prog="python -m benchmarks.qat_step", description=__doc__)
    parser.add_argument("--rounds", type=int, default=20)
    parser.add_argument("--threads", type=int, default=torch.get_num_threads())
    parser.add_argument("--methods", nargs="*", default=_METHODS, choices=_METHODS)
    parser.add_argument("--target", default="auto", help="that of prepare_qat")
    parser.add_argument("--skip-peers", action="store_true", help="only this package and float")
    options = parser.parse_args(sys.argv[1:] if arguments is None else arguments)
    torch.set_num_threads(options.threads)
    warnings.simplefilter("ignore")  # of PyTorch's, about what it will remove
    print(report.machine_facts())
    calls = _calls(options.methods, options.target, not options.skip_peers)
    samples = alternate(calls, options.rounds)
    print(report.comparison("training step", samples, _BASELINE))


def _calls(methods: Sequence[str], target: str, peers: bool) -> dict[str, Callable[[], object]]:
    """The measured steps by name."""
    models: dict[str, Any] = {_BASELINE: torch.jit.script(_net()), "float, eager": _net()}
    for method in methods:
        scripted = torch.jit.script(_net())
        name = f"jit_passes, {method}"
        models[name] = jit_passes.prepare_qat(scripted, fake_quantizer=method, target=target)
    if peers:
        example = (torch.randn(_BATCH, 3, _PIXELS, _PIXELS),)
        fused = get_default_qat_qconfig_mapping("x86")
        models["FX, fused moving average"] = prepare_qat_fx(_net(), fused, example)
        models["FX, learned scales"] = prepare_qat_fx(_net(), _learned(), example)
    return {name: _step(model) for name, model in models.items()}


def _net() -> nn.Module:
    torch.manual_seed(0)
    return resnet18().train()


def _learned() -> QConfigMapping:
    """PyTorch's learned scales: one for activations, one for each channel of weights."""
    activations = Learnable.with_args(
        observer=MovingAverageMinMaxObserver, quant_min=0, quant_max=255, scale=0.1,
        dtype=torch.quint8, qscheme=torch.per_tensor_affine, use_grad_scaling=True,
    )  # fmt: skip
    weights = Learnable.with_args(
        observer=MovingAverageMinMaxObserver, quant_min=-128, quant_max=127, scale=0.1,
        dtype=torch.qint8, qscheme=torch.per_tensor_symmetric, use_grad_scaling=True,
    )  # fmt: skip
    return QConfigMapping().set_global(QConfig(activation=activations, weight=weights))


def _step(model: Any) -> Callable[[], Tensor]:
    """One training step of a model."""
    generator = torch.Generator().manual_seed(0)
    images = torch.randn(_BATCH, 3, _PIXELS, _PIXELS, generator=generator)
    labels = torch.randint(_CLASSES, (_BATCH,), generator=generator)
    optimizer = torch.optim.SGD(model.parameters(), lr=1e-4, momentum=0.9)

    def step() -> Tensor:
        optimizer.zero_grad()
        loss = nn.functional.cross_entropy(model(images), labels)
        loss.backward()  # type: ignore[no-untyped-call]
        optimizer.step()
        return loss

    return step


if __name__ == "__main__":
    main()
