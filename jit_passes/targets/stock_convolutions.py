"""Which convolutions PyTorch's quantized kernels compute, and compute rightly."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import astuple, dataclass

import torch

from .. import _C
from ..graph.view import NodeView, ValueView, are_constant


@dataclass(frozen=True)
class ConvolutionShape:
    """The facts that decide which kernel computes a convolution, all but the input's size.

    Args:
        weight: its sizes: output channels, input channels of a group, window.
        stride: one number for each spatial axis, as are padding and dilation.
    """

    weight: Sequence[int]
    stride: Sequence[int]
    padding: Sequence[int]
    dilation: Sequence[int]
    groups: int

    @classmethod
    def of(cls, node: NodeView) -> ConvolutionShape:
        """Return the shape of a node whose weight and options are constants."""
        names = ("weight", "stride", "padding", "dilation", "groups")
        weight, *options = (node.operand(name).constant for name in names)
        return cls(list(weight.shape), *options)

    @property
    def window(self) -> Sequence[int]:
        return self.weight[2:]

    @property
    def one_channel(self) -> bool:
        """Whether each group reads a single input channel."""
        return self.weight[1] == 1


def constants_reason(options: Iterable[ValueView]) -> str | None:
    """Refuse options that the model computes."""
    known = are_constant(options)
    return None if known else "its stride, padding or another option is computed by the model"


def _geometry(node: NodeView) -> str | None:
    """Refuse options that the quantized operators do not take."""
    options = node.operands_behind("bias")
    reason = constants_reason(options)
    if reason:
        return reason
    padding, weighted = node.operand("padding").constant, node.traits.weighted
    if isinstance(padding, str):
        return f"padding={padding!r} has no quantized form"
    assert weighted is not None
    lists = [value.constant for value in options if isinstance(value.constant, list)]
    if any(len(numbers) != weighted.spatial_dims for numbers in lists):
        return "its stride, padding or another option is one number for several axes"
    return None


def runs_on_fbgemm(node: NodeView, engine: str) -> bool:
    """Say whether the engine hands this convolution to FBGEMM.

    `x86` takes oneDNN, but for processors without VNNI, and for more than 100 groups
    (ATen/native/quantized/cpu/OnednnUtils.h, should_use_onednn_quant).
    """
    vnni = torch.cpu._is_vnni_supported()
    return engine == "fbgemm" or (engine == "x86" and (node.groups > 100 or not vnni))


def is_depthwise(node: NodeView) -> bool:
    """Say whether each output channel of the convolution reads a single input channel."""
    return bool(node.groups > 1 and node.operand("weight").constant.shape[1] == 1)


def adds_pairs_in_int16(node: NodeView) -> bool:
    """Say whether a kernel may add pairs of neighbouring products in int16, which can overflow.

    FBGEMM's depthwise kernels do so even on processors that have VNNI. A file made for another
    engine may be loaded under one that hands the convolution to FBGEMM.
    """
    return is_depthwise(node)


def _slow(node: NodeView, engine: str) -> str | None:
    """Refuse shapes for which the engine has no kernel but a scalar loop.

    Under x86 the pass split_groups makes convolutions of them that oneDNN takes.
    """
    splits = engine == "x86" and torch.cpu._is_vnni_supported()
    if splits or not runs_on_fbgemm(node, engine):
        return None
    shape = ConvolutionShape.of(node)
    if _C.fast_on_fbgemm(*astuple(shape)):
        return None
    return (
        f"PyTorch's engine '{engine}' is slower than float for these groups and window; "
        "Stock(engine='onednn') is not"
    )


# Groups that FBGEMM computes together, with AVX-512 and with AVX2, by channels of a group:
# PackWeightMatrixForGConv.cc, numOfGroupsTogether. With 8 channels and more it is one.
_TOGETHER = {2: (8, 4), 4: (4, 2)}


def _wrong_on_fbgemm(shape: ConvolutionShape) -> str | None:
    """Refuse shapes for which FBGEMM's kernels of groups give wrong numbers, or end the process.

    Kernels for windows of 3, with as many input channels as output channels in a group, take a few
    groups together. A remainder of groups overwrites memory that is not theirs; 24 channels in 12
    groups show it. Depthwise kernels for large windows in 3 dimensions read beyond small inputs.
    The shapes are refused on every engine, since the file may be loaded under another one.
    """
    out, channels, *window = shape.weight
    same = all(2 * p == k - 1 for p, k in zip(shape.padding, window, strict=True))
    if len(window) == 1 or not same or {*shape.dilation} != {1}:
        return None
    if {*window} == {3} and out == channels * shape.groups:
        together = _TOGETHER.get(channels, ())
        if any(shape.groups >= count and shape.groups % count for count in together):
            return f"PyTorch's FBGEMM is wrong for {shape.groups} groups of {channels} channels"
    large = len(window) == 3 and {*window} <= {3, 5, 7} and {*window} != {3}
    depthwise = shape.one_channel and shape.groups % 8 == 0 and out <= 2 * shape.groups
    if large and depthwise and window[1] == window[2]:
        return "PyTorch's FBGEMM ends the process for this depthwise window and small inputs"
    return None


def _misses_input(window: int, stride: int, padding: int, dilation: int) -> bool:
    """Say whether windows along an axis may read padding alone, for some length of the input.

    A padding beyond the window has this effect on the first one. Dilated windows may step over an
    input that is shorter than the dilation: then the answer is whether all of them do.
    """
    reach = dilation * (window - 1)
    if padding > reach:
        return True
    if padding % dilation == 0:  # the first window reads the first element
        return False
    for length in range(max(1, reach + 1 - 2 * padding), dilation):
        starts = range(-padding, length + padding - reach, stride)
        read = (start + dilation * tap for start in starts for tap in range(window))
        if not any(0 <= place < length for place in read):
            return True
    return False


def _wrong_on_onednn(shape: ConvolutionShape) -> str | None:
    """Refuse shapes for which oneDNN, as PyTorch 2.13 calls it, gives wrong numbers.

    Each shape is wrong for small inputs only: outputs of width 1, a depth of 1, windows on padding.
    The size of the input is not known here. Refused on every engine, since the file may be loaded
    under one that takes oneDNN.
    """
    window, stride, padding, dilation = shape.window, shape.stride, shape.padding, shape.dilation
    if any(map(_misses_input, window, stride, padding, dilation)):
        return "PyTorch's oneDNN is wrong for windows that read padding alone"
    depthwise = shape.weight[0] == shape.groups > 1  # by a kernel of its own, which is right
    if not shape.one_channel or depthwise or window[-1] == 1 or dilation[-1] > 1:
        return None
    if len(window) > 1 and stride[-2] == 1 < stride[-1]:
        return "PyTorch's oneDNN is wrong for one input channel in a group and these strides"
    if len(window) == 3 and window[0] > 1 and padding[0] > 0:
        return "PyTorch's oneDNN is wrong for one input channel in a group and padding in depth"
    return None


def kernels_reason(shape: ConvolutionShape) -> str | None:
    """Return why PyTorch's kernels must not compute a convolution of this shape, or None."""
    return _wrong_on_fbgemm(shape) or _wrong_on_onednn(shape)


def convolution_reason(node: NodeView, engine: str) -> str | None:
    """Return why a convolution stays float on an engine, or None."""
    return _geometry(node) or kernels_reason(ConvolutionShape.of(node)) or _slow(node, engine)


def transposed_reason(node: NodeView, engine: str) -> str | None:
    """Refuse operators that PyTorch 2.13 does not compute, or computes wrongly.

    With other numbers of input than of output channels oneDNN's results have nothing to do with
    the right ones; `quantized::conv_transpose2d` of 8 channels into 12 shows it. FBGEMM's have not
    for windows of 2 if both numbers are multiples of 8; 8 channels into 8 show it. The second is
    refused on every engine, since the file may be loaded under one that takes FBGEMM.
    """
    reason = _geometry(node)
    if reason:
        return reason
    names = ("weight", "groups", "output_padding")
    weight, groups, output_padding = (node.operand(name).constant for name in names)
    even = any(size in (2, 6) for size in weight.shape[2:])  # its kernel is for 2 and 6
    if even and weight.shape[0] % 8 == 0 and weight.shape[1] % 8 == 0:
        return "PyTorch's FBGEMM is wrong for a transposed convolution of this window"
    if engine == "onednn" and (weight.shape[0] != weight.shape[1] or groups > 1):
        return "PyTorch's engine 'onednn' is wrong for a transposed convolution of this shape"
    if engine == "qnnpack" and len(weight.shape) == 5:
        return "PyTorch's engine 'qnnpack' is wrong for transposed convolutions in 3 dimensions"
    if engine == "onednn" and any(output_padding):
        return "PyTorch's engine 'onednn' has no output_padding"
    return None
