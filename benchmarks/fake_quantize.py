"""Forward and backward of fake quantization, beside PyTorch's own, on 16 million numbers.

Usage, from the repository root::

    python -m benchmarks.fake_quantize --rounds 20

Run it on a machine that does nothing else: all of these are bound by memory, which neighbours
share.
"""

from __future__ import annotations

import argparse
import sys
from collections.abc import Callable, Sequence
from functools import partial

import torch
from torch import Tensor

import jit_passes  # noqa: F401  registers the operators
from benchmarks import report
from benchmarks.measure import alternate

_ELEMENTS = 1 << 24
_SCALE, _ZERO_POINT, _LOW, _HIGH = 2.0**-5, 3, -128, 127
_BASELINE = "torch.fake_quantize_per_tensor_affine"


def main(arguments: Sequence[str] | None = None) -> None:
    """Measure and print one table."""
    parser = argparse.ArgumentParser(prog="python -m benchmarks.fake_quantize", description=__doc__)
    parser.add_argument("--rounds", type=int, default=20)
    parser.add_argument("--threads", type=int, default=torch.get_num_threads())
    options = parser.parse_args(sys.argv[1:] if arguments is None else arguments)
    torch.set_num_threads(options.threads)
    print(report.machine_facts())
    samples = alternate(_calls(), options.rounds)
    print(report.comparison("forward and backward", samples, _BASELINE))


def _calls() -> dict[str, Callable[[], object]]:
    """The measured functions by name; operands are made once."""
    generator = torch.Generator().manual_seed(0)
    x = (2 * torch.randn(_ELEMENTS, generator=generator)).requires_grad_()
    gradient = torch.randn(_ELEMENTS, generator=generator)
    scale, zero_point = torch.tensor([_SCALE]), torch.tensor([_ZERO_POINT])
    own = torch.ops.jit_passes
    learnable = torch.ops.aten._fake_quantize_learnable_per_tensor_affine
    state = torch.tensor([-4.0, 4.0])
    average = (state, None, 0, True, True, 0.01, False, _LOW, _HIGH)
    whole_zero_point = zero_point.to(torch.float32)
    forwards: dict[str, Callable[[Tensor], Tensor]] = {
        _BASELINE: lambda x: torch.fake_quantize_per_tensor_affine(
            x, _SCALE, _ZERO_POINT, _LOW, _HIGH
        ),
        "aten::_fake_quantize_learnable_per_tensor_affine": lambda x: learnable(
            x, scale, whole_zero_point, _LOW, _HIGH, 1.0
        ),
        "jit_passes::fake_quantize": lambda x: own.fake_quantize(x, scale, zero_point, _LOW, _HIGH),
        "jit_passes::fake_quantize, half_away": lambda x: own.fake_quantize(
            x, scale, zero_point, _LOW, _HIGH, None, "half_away"
        ),
        "jit_passes::fake_quantize_moving_average": lambda x: own.fake_quantize_moving_average(
            x, *average, "per_tensor_power_of_two", None, "half_even", "", "x", ""
        ),
    }
    return {name: partial(_step, forward, x, gradient) for name, forward in forwards.items()}


def _step(forward: Callable[[Tensor], Tensor], x: Tensor, gradient: Tensor) -> None:
    """One forward and one backward."""
    forward(x).backward(gradient)
    x.grad = None


if __name__ == "__main__":
    main()
