"""Passes and operators for a chip without dividers and without exponentials."""

from __future__ import annotations

from pathlib import Path

import torch
from torch import Tensor

from jit_passes import RewriteRule

# After jit_passes, whose library this one is linked with. Loading it registers the pass
# `replace_division` and the operator `torch.ops.fpga.shift_sigmoid`.
torch.ops.load_library(str(Path(__file__).parent / "library.so"))


def _pattern(x: Tensor) -> Tensor:
    return torch.sigmoid(x)


def _replacement(x: Tensor) -> Tensor:
    return torch.ops.fpga.shift_sigmoid(x)


use_shift_sigmoid = RewriteRule("use_shift_sigmoid", _pattern, _replacement)
use_shift_sigmoid.register("Turn sigmoid into fpga::shift_sigmoid.")
