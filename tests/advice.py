"""Advice of PyTorch that odd models provoke on purpose: a test marks the advice that it gets."""

from __future__ import annotations

import pytest

even_kernels = pytest.mark.filterwarnings(
    "ignore:Using padding='same' with even kernel:UserWarning"
)
projections = pytest.mark.filterwarnings(
    "ignore:LSTM with projections is not supported:UserWarning"
)
nested_tensors = pytest.mark.filterwarnings("ignore:The PyTorch API of nested tensors:UserWarning")
# PyTorch's about its own code, where a test decomposes a program.
decomposes = pytest.mark.filterwarnings("ignore:.*LeafSpec.. is deprecated:FutureWarning")
# Of models whose branches go by sizes, which a trace fixes.
traced_branches = pytest.mark.filterwarnings("ignore::torch.jit.TracerWarning")
