"""Forward and backward of trained fake quantization on 16 million numbers, beside what PyTorch has.

Usage, from the repository root::

    python -m benchmarks.trained_quantization --rounds 20

The last two rows are bounds.  One forward and one backward must move 20 bytes for each number, 8
and 12.  ``x.clone()`` and ``x + gradient`` move as many and make two new tensors, as the operators
do, whose pages the system has to provide; ``copy_`` between tensors that are there already does
not.  Run it on a machine that does nothing else: all of these are bound by memory, which neighbours
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
_SCALE, _LOG2_THRESHOLD, _LOW, _HIGH = 2.0**-5, 2.0, -128, 127
_GRADIENT_SCALE = 1e-3
_BASELINE = "aten::_fake_quantize_learnable_per_tensor_affine"


def main(arguments: Sequence[str] | None = None) -> None:
    """Measure and print one table."""
    parser = argparse.ArgumentParser(
        prog="python -m benchmarks.trained_quantization", description=__doc__
    )
    parser.add_argument("--rounds", type=int, default=20)
    parser.add_argument("--threads", type=int, default=torch.get_num_threads())
    options = parser.parse_args(sys.argv[1:] if arguments is None else arguments)
    torch.set_num_threads(options.threads)
    print(report.machine_facts())
    samples = alternate(_calls(), options.rounds)
    print(report.comparison("forward and backward", samples, _BASELINE))


def _eager(x: Tensor, scale: Tensor) -> Tensor:
    """LSQ in operators of PyTorch, with detached differences for its gradients."""
    scaled = (scale - scale * _GRADIENT_SCALE).detach() + scale * _GRADIENT_SCALE
    clipped = (x / scaled).clamp(_LOW, _HIGH)
    return ((clipped.round() - clipped).detach() + clipped) * scaled


def _calls() -> dict[str, Callable[[], object]]:
    """The measured functions by name; operands are made once."""
    generator = torch.Generator().manual_seed(0)
    x = (2 * torch.randn(_ELEMENTS, generator=generator)).requires_grad_()
    gradient = torch.randn(_ELEMENTS, generator=generator)
    scale = torch.tensor([_SCALE], requires_grad=True)
    offset = torch.tensor([0.1], requires_grad=True)
    log2_threshold = torch.tensor([_LOG2_THRESHOLD], requires_grad=True)
    own, trained = torch.ops.jit_passes, (_LOW, _HIGH, _GRADIENT_SCALE)
    learnable = torch.ops.aten._fake_quantize_learnable_per_tensor_affine
    zero_point = torch.zeros(1)
    rows, channels = x.detach().reshape(64, 256, 32, 32), torch.full((256,), _SCALE)
    rows.requires_grad_()
    channels.requires_grad_()
    forwards: dict[str, tuple[Callable[..., Tensor], tuple[Tensor, ...]]] = {
        _BASELINE: (lambda x, s: learnable(x, s, zero_point, *trained), (x, scale)),
        "LSQ in eager operators": (_eager, (x, scale)),
        "jit_passes::fake_quantize_lsq": (
            lambda x, s: own.fake_quantize_lsq(x, s, *trained),
            (x, scale),
        ),
        "jit_passes::fake_quantize_lsq, 256 channels": (
            lambda x, s: own.fake_quantize_lsq(x, s, *trained, 1),
            (rows, channels),
        ),
        "jit_passes::fake_quantize_lsq_plus": (
            lambda x, s, b: own.fake_quantize_lsq_plus(x, s, b, *trained),
            (x, scale, offset),
        ),
        "jit_passes::fake_quantize_tqt": (
            lambda x, t: own.fake_quantize_tqt(x, t, _LOW, _HIGH),
            (x, log2_threshold),
        ),
    }
    calls: dict[str, Callable[[], object]] = {
        name: partial(_step, forward, leaves, gradient.view_as(leaves[0]))
        for name, (forward, leaves) in forwards.items()
    }
    plain = x.detach()
    calls["clone and add"] = lambda: (plain.clone(), plain + gradient)
    # A copy reads and writes: 8 bytes for each float32, and 20 are due.
    source, target = torch.ones(_ELEMENTS * 20 // 8), torch.ones(_ELEMENTS * 20 // 8)
    calls["copying as many bytes"] = lambda: target.copy_(source)
    return calls


def _step(
    forward: Callable[..., Tensor], leaves: tuple[Tensor, ...], gradient: Tensor
) -> tuple[Tensor, ...]:
    """One forward and one backward."""
    return torch.autograd.grad(forward(*leaves), leaves, gradient)


if __name__ == "__main__":
    main()
