"""Operators of plans one by one, between two convolutions and as the result, beside float.

    python -m benchmarks.operators [part of a name ...] [--rounds 5] [--form result]

Each model is a pointwise convolution, the operator, and for the form `between` another pointwise
convolution, of 64 channels unless the name says other ones. Times are milliseconds of one call on
one thread: frozen TorchScript in float, and the targets x86 and stock. All take turns, and ratios
are medians of the rounds. The column `bare` is x86 / float of the model without the operator. A row
is marked, and the exit status is 1, where x86 / float is above 1.05, and above 1.05 times `bare`,
or x86 is slower than float and x86 / stock above 1.5.
"""

from __future__ import annotations

import argparse
import sys
import warnings
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from functools import partial
from statistics import median

import torch
from torch import Tensor, nn
from torch.nn import functional as F

import jit_passes
from benchmarks import report
from benchmarks.measure import alternate, ratios

FORMS = ("between", "result")
MOST_OF_FLOAT, MOST_OF_STOCK = 1.05, 1.5  # x86 over these
_CONVOLUTIONS = {1: nn.Conv1d, 2: nn.Conv2d, 3: nn.Conv3d}

Operator = Callable[[Tensor], Tensor]


@dataclass(frozen=True)
class Row:
    """An operator, and the tensor that it reads."""

    operator: Operator | nn.Module
    channels: int = 64
    size: tuple[int, ...] = (28, 28)
    forms: tuple[str, ...] = FORMS
    channels_out: int | None = None  # where they are others


class Net(nn.Module):
    def __init__(self, row: Row, form: str) -> None:
        super().__init__()
        convolution = _CONVOLUTIONS[len(row.size)]
        self.first = convolution(row.channels, row.channels, 1)
        self.operator = row.operator
        last = convolution(row.channels_out or row.channels, row.channels, 1)
        self.last = last if form == "between" else nn.Identity()

    def forward(self, x: Tensor) -> Tensor:
        y: Tensor = self.last(self.operator(self.first(x)))
        return y


def resized(mode: str, *size: int) -> Operator:
    """A resize to a size."""
    corners = None if mode == "nearest" else False
    return lambda x: F.interpolate(x, size=size, mode=mode, align_corners=corners)


def windows(x: Tensor) -> Tensor:
    """Windows of 7 x 7, and back."""
    n, c, h, w = x.shape
    parts = x.view(n, c, h // 7, 7, w // 7, 7).permute(0, 2, 4, 3, 5, 1)
    return parts.softmax(-1).permute(0, 5, 1, 3, 2, 4).reshape(n, c, h, w)


def shuffled(x: Tensor) -> Tensor:
    """A shuffle of channels in two groups."""
    n, c, h, w = x.shape
    return x.view(n, 2, c // 2, h, w).transpose(1, 2).reshape(n, c, h, w)


def attention(x: Tensor) -> Tensor:
    """Attention of places, four heads."""
    n, c, h, w = x.shape
    q = x.view(n, 4, c // 4, h * w).transpose(2, 3)
    y = F.scaled_dot_product_attention(q, q, q)
    return y.transpose(2, 3).reshape(n, c, h, w)


def layer_norm(x: Tensor) -> Tensor:
    """A layer norm of the channels."""
    return F.layer_norm(x.permute(0, 2, 3, 1), x.shape[1:2]).permute(0, 3, 1, 2)


FUNCTIONS: Mapping[str, Operator] = {
    "relu": F.relu,
    "relu6": F.relu6,
    "leaky_relu": F.leaky_relu,
    "hardswish": F.hardswish,
    "hardsigmoid": F.hardsigmoid,
    "sigmoid": torch.sigmoid,
    "tanh": torch.tanh,
    "silu": F.silu,
    "gelu": F.gelu,
    "elu": F.elu,
    "exp": torch.exp,
    "abs": torch.abs,
    "square": torch.square,
    "mish": F.mish,
    "softplus": F.softplus,
}
ROWS: dict[str, Row] = {
    **{name: Row(function, size=(56, 56)) for name, function in FUNCTIONS.items()},
    "power": Row(lambda x: x.abs() ** 0.75, size=(56, 56)),
    "add": Row(lambda x: x + x.flip(1), size=(56, 56)),
    "add a constant": Row(lambda x: x + 0.5, size=(56, 56)),
    "mul": Row(lambda x: x * torch.sigmoid(x), size=(56, 56)),
    "gate per channel": Row(lambda x: x * torch.sigmoid(x.mean((2, 3), True)), size=(56, 56)),
    "cat": Row(lambda x: torch.cat([x, F.relu(x)], 1), size=(56, 56), channels_out=128),
    "max_pool2d": Row(nn.MaxPool2d(3, 2, 1), size=(112, 112)),
    "max_pool1d": Row(nn.MaxPool1d(3, 2, 1), size=(2000,)),
    "max_pool3d": Row(nn.MaxPool3d(2), size=(8, 28, 28)),
    "avg_pool2d": Row(nn.AvgPool2d(2), size=(112, 112)),
    "avg_pool2d 3 stride 1": Row(nn.AvgPool2d(3, 1, 1), size=(56, 56)),
    "avg_pool1d": Row(nn.AvgPool1d(3, 2), size=(2000,)),
    "avg_pool3d": Row(nn.AvgPool3d(2), size=(8, 28, 28)),
    "adaptive_avg_pool2d to 1": Row(nn.AdaptiveAvgPool2d(1), size=(56, 56)),
    "adaptive_avg_pool2d to 7": Row(nn.AdaptiveAvgPool2d(7), size=(28, 28)),
    "adaptive_max_pool2d to 1": Row(nn.AdaptiveMaxPool2d(1), size=(28, 28)),
    "adaptive_max_pool2d to 7": Row(nn.AdaptiveMaxPool2d(7), size=(28, 28)),
    "mean of the last axis": Row(lambda x: x.mean(3, keepdim=True), size=(56, 56)),
    "sum of channels": Row(lambda x: x.sum(1, keepdim=True), size=(56, 56), channels_out=1),
    "amax of the last axis": Row(lambda x: x.amax(3, keepdim=True), size=(56, 56)),
    "nearest, twice": Row(resized("nearest", 112, 112), size=(56, 56)),
    "bilinear, twice": Row(resized("bilinear", 112, 112), size=(56, 56)),
    "bilinear of classes": Row(resized("bilinear", 520, 520), 19, (65, 65)),
    "bicubic, twice": Row(resized("bicubic", 112, 112), size=(56, 56)),
    "trilinear, twice": Row(resized("trilinear", 16, 56, 56), 16, (8, 28, 28)),
    "linear resize of lines": Row(lambda x: F.interpolate(x, 2000, mode="linear"), size=(1000,)),
    "softmax of channels": Row(lambda x: x.softmax(1), size=(56, 56)),
    "softmax of the last axis": Row(lambda x: x.softmax(3), size=(56, 56)),
    "log_softmax of channels": Row(lambda x: x.log_softmax(1), size=(56, 56)),
    "layer_norm of channels": Row(layer_norm, size=(56, 56)),
    "layer_norm of images": Row(nn.LayerNorm([64, 56, 56]), size=(56, 56)),
    "layer_norm of planes": Row(nn.LayerNorm([56, 56]), size=(56, 56)),
    "group_norm": Row(nn.GroupNorm(8, 64), size=(56, 56)),
    "instance_norm": Row(nn.InstanceNorm2d(64), size=(56, 56)),
    "batch_norm behind relu": Row(nn.Sequential(nn.ReLU(), nn.BatchNorm2d(64)), size=(56, 56)),
    "local_response_norm": Row(nn.LocalResponseNorm(5), size=(56, 56)),
    "normalize channels": Row(lambda x: F.normalize(x, dim=1), size=(56, 56)),
    "cumsum of the last axis": Row(lambda x: x.cumsum(3), size=(56, 56)),
    "pad": Row(lambda x: F.pad(x, (1, 1, 1, 1)), size=(56, 56)),
    "reflection pad": Row(nn.ReflectionPad2d(1), size=(56, 56)),
    "replication pad": Row(nn.ReplicationPad2d(1), size=(56, 56)),
    "crop": Row(lambda x: x[:, :, 1:-1, 1:-1], size=(56, 56)),
    "every second place": Row(lambda x: x[:, :, ::2, ::2], size=(112, 112)),
    "every second channel": Row(lambda x: x[:, ::2], size=(56, 56), channels_out=32),
    "half of the channels": Row(lambda x: x.chunk(2, 1)[0], size=(56, 56), channels_out=32),
    "flip": Row(lambda x: x.flip(3), size=(56, 56)),
    "roll": Row(lambda x: x.roll((3, 3), (2, 3)), size=(56, 56)),
    "height and width swapped": Row(lambda x: x.transpose(2, 3), size=(56, 56)),
    "channels last axis": Row(lambda x: x.permute(0, 2, 3, 1), size=(56, 56), forms=("result",)),
    "flatten": Row(lambda x: x.flatten(1), size=(28, 28), forms=("result",)),
    "tile": Row(lambda x: x.tile([1, 1, 2, 2]), size=(28, 28)),
    "repeat_interleave": Row(lambda x: x.repeat_interleave(2, 3), size=(56, 28)),
    "expand": Row(lambda x: x.mean(3, True).expand(-1, -1, -1, 56), size=(56, 56)),
    "pixel_shuffle": Row(nn.PixelShuffle(2), size=(56, 56), channels_out=16),
    "pixel_unshuffle": Row(nn.PixelUnshuffle(2), 16, (56, 56), channels_out=64),
    "channel shuffle": Row(shuffled, size=(56, 56)),
    "windows of six axes": Row(windows, size=(56, 56)),
    "attention": Row(attention, size=(14, 14)),
    "matmul": Row(lambda x: x @ x.transpose(2, 3), size=(28, 28)),
    "glu": Row(lambda x: F.glu(x, 1), size=(56, 56), channels_out=32),
    "prelu": Row(nn.PReLU(64), size=(56, 56)),
    "clamp": Row(lambda x: x.clamp(-1, 1), size=(56, 56)),
    "where": Row(lambda x: torch.where(x > 0, x, x * 0.1), size=(56, 56)),
    "where of two tests": Row(
        lambda x: torch.where((x > 0) & (x < 1), x, torch.tanh(x)), size=(56, 56)
    ),
    "masked_fill": Row(lambda x: x.masked_fill(x < 0.1, 0.5), size=(56, 56)),
    "conv2d": Row(nn.Conv2d(64, 64, 3, padding=1)),
    "conv2d depthwise": Row(nn.Conv2d(64, 64, 3, padding=1, groups=64), size=(56, 56)),
    "conv2d of 4 groups": Row(nn.Conv2d(64, 64, 3, padding=1, groups=4)),
    "conv2d dilated": Row(nn.Conv2d(64, 64, 3, padding=2, dilation=2)),
    "conv1d": Row(nn.Conv1d(64, 64, 5, padding=2), size=(500,)),
    "conv3d": Row(nn.Conv3d(16, 16, 3, padding=1), 16, (8, 14, 14)),
    "conv_transpose2d": Row(nn.ConvTranspose2d(64, 64, 2, 2)),
    "conv_transpose2d depthwise": Row(nn.ConvTranspose2d(64, 64, 3, 2, groups=64)),
    "conv_transpose1d": Row(nn.ConvTranspose1d(64, 64, 4, 2), size=(250,)),
    "linear": Row(nn.Linear(28, 28)),
}  # fmt: skip


def calls_of(net: Net, x: Tensor, suffix: str = "") -> dict[str, Callable[[], object]]:
    """A call of the model in float, and of what each target makes of it."""
    traced = torch.jit.trace(net.eval(), x, check_trace=False)
    models = {"float": torch.jit.freeze(traced.eval())}
    for target in ("x86", "stock"):
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")
            models[target] = jit_passes.quantize_script(traced, [x], target=target)
    return {f"{kind}{suffix}": partial(model, x) for kind, model in models.items()}


def measured(name: str, row: Row, form: str, rounds: int) -> tuple[list[str], bool]:
    """The cells of a row of the table, and whether its bars hold."""
    torch.manual_seed(0)
    x = torch.randn(1, row.channels, *row.size)
    bare = Row(nn.Identity(), row.channels, row.size)
    calls = calls_of(Net(row, form), x) | calls_of(Net(bare, form), x, " bare")
    with torch.inference_mode():
        times = alternate(calls, rounds)
    of_float, of_stock, of_bare = (
        median(ratios(times[a], times[b]))
        for a, b in (("x86", "float"), ("x86", "stock"), ("x86 bare", "float bare"))
    )
    holds = of_float <= MOST_OF_FLOAT * max(1.0, of_bare) and (
        of_stock <= MOST_OF_STOCK or of_float <= 1
    )
    cells = [f"{1e3 * median(times[kind]):.3f}" for kind in ("float", "x86", "stock")]
    marks = [f"{of_float:.2f}", f"{of_bare:.2f}", f"{of_stock:.2f}", "" if holds else "slower"]
    return [f"{name}, {form}", *cells, *marks], holds


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("names", nargs="*", help="parts of names; all operators without any")
    parser.add_argument("--rounds", type=int, default=5)
    parser.add_argument("--form", choices=FORMS)
    options = parser.parse_args()
    torch.set_num_threads(1)
    rows, failed = [], 0
    for name, row in ROWS.items():
        if options.names and not any(part in name for part in options.names):
            continue
        for form in row.forms:
            if options.form in (None, form):
                cells, holds = measured(name, row, form, options.rounds)
                report.progress("  ".join(cells))
                rows.append(cells)
                failed += not holds
    header = ["operator", "float", "x86", "stock", "x86 / float", "bare", "x86 / stock", ""]
    print(f"{report.machine_facts()}\n\n{report.table(header, rows)}")
    return int(failed > 0)


if __name__ == "__main__":
    sys.exit(main())
