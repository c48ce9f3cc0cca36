"""Shared by the runtimes that end in a TorchScript module."""

# PyTorch declares torch.jit.load and calling a module without types.
# mypy: disable-error-code="no-any-return,no-untyped-call"

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from functools import partial
from pathlib import Path

import torch
from torch import Tensor

from benchmarks.runtimes.base import Built, Predict


@contextmanager
def quantized_engine(engine: str | None) -> Iterator[None]:
    """Make ``engine`` the quantized engine of PyTorch; None leaves it as it is.

    The engine decides how weights are packed when a model is converted or loaded, and which
    kernel some operators take when it runs, so both happen inside this context.
    """
    if engine is None:
        yield
        return
    previous = torch.backends.quantized.engine
    torch.backends.quantized.engine = engine
    try:
        yield
    finally:
        torch.backends.quantized.engine = previous


def save_and_load(
    module: torch.jit.ScriptModule, path: Path, engine: str | None, seconds: float
) -> Built:
    """Write ``module`` to ``path`` and return what comes back from there.

    Loaded anew for every shape of input: PyTorch's int8 convolutions on oneDNN keep the primitive
    of the first shape that they see, and make one for each call with another shape.
    """
    torch.jit.save(module, str(path))

    return Built(partial(load, path, engine), seconds, path.stat().st_size)


def load(path: Path, engine: str | None, _: Tensor) -> Predict:
    """The model at ``path`` as a callable."""
    with quantized_engine(engine):
        return predictor(torch.jit.load(str(path)).eval(), engine)


def predictor(module: torch.jit.ScriptModule, engine: str | None) -> Predict:
    """``module`` as a callable that runs under ``engine`` and without autograd."""

    def predict(x: Tensor) -> Tensor:
        with quantized_engine(engine), torch.inference_mode():
            return module(x)

    return predict
