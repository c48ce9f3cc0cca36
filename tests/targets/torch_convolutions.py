"""Compute convolutions with PyTorch's quantized kernels, and measure how wrong they are.

A process of its own, since some shapes end it. Usage: `torch_convolutions.py ENGINE CASES`, with
the cases as JSON: input sizes, weight sizes, stride, padding, dilation, groups, zero point. Writes
the largest error of each as a line, in steps of the result. The program imports torch alone.
"""

from __future__ import annotations

import json
import sys
import warnings
from collections.abc import Sequence

import torch
from torch.nn import functional as F

Case = tuple[list[int], list[int], list[int], list[int], list[int], int, int]


def largest_error(case: Case, seed: int, repeats: int = 3) -> int:
    """Return by how many steps PyTorch's result is off; a right one may be off by one."""
    size, weight_size, *options, zero_point = case
    torch.manual_seed(seed)
    dims = len(size) - 2
    # Activations of 7 bits and small weights: pairs of products fit in int16 on every kernel.
    x = torch.quantize_per_tensor(
        (torch.randint(0, 128, size) - zero_point) / 127, 1 / 127, zero_point, torch.quint8
    )
    weight = torch.randn(weight_size)
    scales = weight.abs().flatten(1).amax(1).double() / 63
    zeros = torch.zeros(len(scales), dtype=torch.long)
    packed = torch.quantize_per_channel(weight, scales, zeros, 0, torch.qint8)
    stride, padding, dilation, groups = options
    float_form = getattr(F, f"conv{dims}d")
    wanted = float_form(x.dequantize(), packed.dequantize(), None, *options)
    scale = (wanted.max() - wanted.min()).item() / 200 + 1e-3
    codes = torch.clamp(torch.round(wanted / scale) + 100, 0, 255).int()
    operators = torch.ops.quantized
    parameters = getattr(operators, f"conv{dims}d_prepack")(
        packed, None, stride, padding, dilation, groups
    )
    found = (getattr(operators, f"conv{dims}d")(x, parameters, scale, 100) for _ in range(repeats))
    return max(int((result.int_repr().int() - codes).abs().max()) for result in found)


def main(arguments: Sequence[str]) -> None:
    warnings.simplefilter("ignore")
    engine, cases = arguments
    torch.set_num_threads(1)
    torch.backends.quantized.engine = engine
    for seed, case in enumerate(json.loads(cases)):
        print(largest_error(case, seed), flush=True)


if __name__ == "__main__":
    main(sys.argv[1:])
