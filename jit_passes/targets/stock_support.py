"""The capability of PyTorch's quantized operators."""

from __future__ import annotations

from dataclasses import replace
from functools import cache
from typing import Any

import torch

from .. import _C
from ..graph.view import NodeView
from ..quantizers.capability import Capability, average_reason
from ..quantizers.support import PER_TENSOR, OperatorSupport, Role, SpecSupport
from ..specification.grid import SCHEMES
from ..specification.recurrent import CELLS, GATED, PLAIN, matrices_of
from ..specification.slots import LOOKUPS
from ..specification.specification import FixedQParamsQuantizationSpec
from .stock_rules import fixed_grids


def _constants(node: NodeView, *operands: int) -> str | None:
    """Refuse a node whose geometry is computed by the model."""
    missing = [i for i in operands if i < len(node.inputs) and not node.inputs[i].is_constant]
    return "its stride, padding or another option is computed by the model" if missing else None


def _convolution(node: NodeView) -> str | None:
    reason = _constants(node, *range(3, len(node.inputs)))
    if reason:
        return reason
    padding, weighted = node.operand("padding").constant, node.traits.weighted
    if isinstance(padding, str):
        return f"padding={padding!r} has no quantized form"
    assert weighted is not None
    lists = [value.constant for value in node.inputs[3:] if isinstance(value.constant, list)]
    if any(len(numbers) != weighted.spatial_dims for numbers in lists):
        return "its stride, padding or another option is one number for several axes"
    return None


def runs_on_fbgemm(node: NodeView, engine: str) -> bool:
    """Say whether the engine hands this convolution to FBGEMM.

    `x86` takes oneDNN, but for processors without VNNI, and for more than 100 groups
    (ATen/native/quantized/cpu/OnednnUtils.h, should_use_onednn_quant).
    """
    groups = node.operand("groups").constant
    vnni = torch.cpu._is_vnni_supported()
    return engine == "fbgemm" or (engine == "x86" and (groups > 100 or not vnni))


def is_depthwise(node: NodeView) -> bool:
    """Say whether each output channel of the convolution reads a single input channel."""
    groups, weight = node.operand("groups").constant, node.operand("weight").constant
    return bool(groups > 1 and weight.shape[1] == 1)


def adds_pairs_in_int16(node: NodeView) -> bool:
    """Say whether a kernel may add pairs of neighbouring products in int16, which can overflow.

    FBGEMM's depthwise kernels do so even on processors that have VNNI. Whatever engine the model
    is made for, its file may be loaded under one that hands the convolution to FBGEMM.
    """
    return is_depthwise(node)


def _slow(node: NodeView, engine: str) -> str | None:
    """Refuse shapes for which the engine has no kernel but a scalar loop.

    Under x86 the pass split_groups makes convolutions of them that oneDNN takes.
    """
    splits = engine == "x86" and torch.cpu._is_vnni_supported()
    names = ("weight", "stride", "padding", "dilation", "groups")
    weight, *geometry = (node.operand(name).constant for name in names)
    if (
        splits
        or not runs_on_fbgemm(node, engine)
        or _C.fast_on_fbgemm(list(weight.shape), *geometry)
    ):
        return None
    return (
        f"PyTorch's engine '{engine}' is slower than float for these groups and window; "
        "Stock(engine='onednn') is not"
    )


# Groups that FBGEMM computes together, with AVX-512 and with AVX2, by channels of a group:
# PackWeightMatrixForGConv.cc, numOfGroupsTogether. With 8 channels and more it is one.
_TOGETHER = {2: (8, 4), 4: (4, 2)}


def _leaves_groups(node: NodeView) -> str | None:
    """Refuse shapes for which FBGEMM's kernels of groups give wrong numbers, or end the process.

    They are for windows of 3 with as many channels of a group coming in as going out, and take a
    few groups together. A remainder of groups overwrites memory that is not theirs; 24 channels in
    12 groups show it. Refused on every engine, since the file may be loaded under another one.
    """
    names = ("weight", "padding", "dilation", "groups")
    weight, padding, dilation, groups = (node.operand(name).constant for name in names)
    out, channels, *window = weight.shape
    known = len(window) > 1 and {*window} == {3} and {*padding} == {*dilation} == {1}
    if not known or out != channels * groups:
        return None
    together = _TOGETHER.get(channels, ())
    if any(groups >= count and groups % count for count in together):
        return f"PyTorch's FBGEMM is wrong for {groups} groups of {channels} channels"
    return None


def _addition(node: NodeView) -> str | None:
    return None if node.operand("alpha").constant == 1 else "alpha is not 1"


def _tensors(node: NodeView) -> str | None:
    return None if all(value.is_tensor for value in node.inputs[:2]) else "not of two tensors"


def _add(node: NodeView) -> str | None:
    return _tensors(node) or _addition(node)


def _batch_norm(node: NodeView) -> str | None:
    if node.operand("training").constant is not False:
        return "it is in training mode"
    if any(value.is_constant and value.constant is None for value in node.inputs[1:5]):
        return "it has no weight, bias or statistics, which the quantized operator asks for"
    constant = all(value.is_constant for value in node.inputs[1:5])
    return None if constant else "its statistics are computed by the model"


def _layer_norm(node: NodeView) -> str | None:
    for value in node.inputs[2:4]:
        if not value.is_constant or (
            isinstance(value.constant, torch.Tensor) and value.constant.dtype != torch.float32
        ):
            return "its weight is computed by the model or not float32"
    return _constants(node, 1, 4)


def linear(node: NodeView) -> str | None:
    """Refuse a weight that is a vector."""
    weight = node.operand("weight").constant
    vector = isinstance(weight, torch.Tensor) and weight.dim() == 1
    return "its weight is a vector, and the quantized operator takes matrices" if vector else None


def _sums(node: NodeView) -> str | None:
    """Refuse rows of weights whose products with uint8 may add up to more than int32 holds."""
    weight = node.operand("weight").constant
    if not isinstance(weight, torch.Tensor) or 255 * 127 * weight[0].numel() < 2**31:
        return None
    rows = weight.flatten(1).abs()
    codes = 127 * (rows.sum(1, dtype=torch.double) / rows.amax(1)).nan_to_num()
    return None if 255 * codes.max() < 2**31 else "its sums of products may not fit in int32"


def _linear(node: NodeView) -> str | None:
    return linear(node) or _sums(node)


def _clamp(node: NodeView) -> str | None:
    return None if node.clip is not None else "its bounds are computed by the model"


def _mean(node: NodeView) -> str | None:
    dtype = node.operand("dtype")
    return None if dtype.is_constant and dtype.constant is None else "it changes the dtype"


def _elu(node: NodeView) -> str | None:
    if any(node.operand(name).constant != 1 for name in ("scale", "input_scale")):
        return "scale or input_scale is not 1"
    return None


def _transposed(node: NodeView, engine: str) -> str | None:
    """Refuse what PyTorch 2.13 does not compute, or computes wrongly.

    With other numbers of input than of output channels oneDNN's results have nothing to do with
    the right ones; `quantized::conv_transpose2d` of 8 channels into 12 shows it. FBGEMM's have not
    for windows of 2 if both numbers are multiples of 8; 8 channels into 8 show it. The second is
    refused on every engine, since the file may be loaded under one that takes FBGEMM.
    """
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


# The kernels take weights of any bits in int8, around 0.
WEIGHTS = SpecSupport(
    {"int8": (-127, 127)},
    (
        "per_tensor_symmetric",
        "per_channel_symmetric",
        "per_tensor_power_of_two",
        "per_channel_power_of_two",
    ),
)
# One scale, and room for the shift of the codes: see stock_rules.WEIGHTS.
SHIFTED_WEIGHTS = SpecSupport(
    {"int8": (-127, 126)}, ("per_tensor_symmetric", "per_tensor_power_of_two")
)
# Decoded, or looked up, by operators of ATen that know all of these.
WEIGHTS_ALONE = SpecSupport({"int8": (-128, 127), "uint8": (0, 255)}, SCHEMES, groups=True)


def no_projection(node: NodeView) -> str | None:
    """Refuse what PyTorch's quantized recurrent layers do not compute."""
    names = ("has_biases", "num_layers", "bidirectional")
    numbers = [node.operand(name).constant for name in names]
    if any(number is None for number in numbers):
        return "its number of layers or of directions is computed by the model"
    _, layers, both_ways = numbers
    count = len(matrices_of(node) or ())
    if count != 2 * layers * (1 + bool(both_ways)):
        return "it projects its state (proj_size), which PyTorch's quantized layers do not"
    return None


def _plain_layer(node: NodeView) -> str | None:
    """Refuse layers that cannot be written as a loop of linears."""
    if node.overload != "input":
        return "it reads a packed sequence, for which there is no loop of linears"
    if node.operand("train").constant is not False:
        return "it may be in training mode"
    return no_projection(node)


def lookups() -> tuple[OperatorSupport, ...]:
    """Return the rows of embeddings."""
    alone: dict[str, Any] = {"weights_alone": WEIGHTS_ALONE, "modes": ("weight_only",)}
    return tuple(OperatorSupport(kind, Role.LOOKUP, (), **alone) for kind in LOOKUPS)


def recurrent() -> tuple[OperatorSupport, ...]:
    """Return the rows of recurrent layers: gated ones have kernels, others are expanded."""
    row = OperatorSupport("", Role.RECURRENT, ranks=(2, 3), modes=("dynamic",))
    checks = dict.fromkeys(GATED, no_projection) | dict.fromkeys(PLAIN, _plain_layer)
    layers = (replace(row, kind=kind, check=check) for kind, check in checks.items())
    return (*layers, *(replace(row, kind=kind) for kind in CELLS))


def _fixed(kind: str) -> FixedQParamsQuantizationSpec:
    return FixedQParamsQuantizationSpec(*fixed_grids("qnnpack")[kind])


CLIPS = ("aten::relu", "aten::clamp")
_W, _OWN, _SHARED, _FIXED = Role.WEIGHTED, Role.OWN, Role.SHARED, Role.FIXED

_ROWS = (
    OperatorSupport(
        "aten::linear",
        _W,
        clips=CLIPS,
        ranks=(2, 8),
        check=_linear,
        weights_alone=WEIGHTS_ALONE,
        modes=("static", "dynamic", "weight_only"),
    ),
    *lookups(),
    *recurrent(),
    *(
        OperatorSupport(
            f"aten::{kind}{n}d",
            _W,
            clips=CLIPS,
            ranks=(n + 1, n + 2),
            check=_convolution,
            weights=weights,
            adds_batch_axis=True,
        )
        for kind, weights in (("conv", None), ("conv_transpose", SHIFTED_WEIGHTS))
        for n in (1, 2, 3)
    ),
    OperatorSupport("aten::add", _OWN, (0, 1), clips=CLIPS, check=_add),
    OperatorSupport("aten::mul", _OWN, (0, 1), clips=CLIPS, check=_tensors),
    OperatorSupport("aten::cat", _OWN, clips=("aten::relu",)),
    OperatorSupport("aten::batch_norm", _OWN, clips=CLIPS, ranks=(2, 5), check=_batch_norm),
    OperatorSupport("aten::layer_norm", _OWN, check=_layer_norm),
    OperatorSupport("aten::hardswish", _OWN),
    OperatorSupport("aten::leaky_relu", _OWN, check=lambda node: _constants(node, 1)),
    OperatorSupport("aten::elu", _OWN, check=_elu),
    OperatorSupport("aten::softmax", _OWN, check=lambda node: _constants(node, 1, 2)),
    OperatorSupport("aten::sigmoid", _OWN),
    OperatorSupport("aten::hardsigmoid", _FIXED, fixed=_fixed("aten::hardsigmoid")),
    OperatorSupport("aten::tanh", _FIXED, fixed=_fixed("aten::tanh")),
    OperatorSupport("aten::clamp", _SHARED, check=_clamp),
    OperatorSupport("aten::avg_pool2d", _SHARED, ranks=(4, 4), check=average_reason),
    OperatorSupport("aten::avg_pool3d", _SHARED, ranks=(5, 5), check=average_reason),
    OperatorSupport("aten::adaptive_avg_pool2d", _SHARED, ranks=(3, 4)),
    OperatorSupport("aten::adaptive_avg_pool3d", _SHARED, ranks=(4, 5)),
    OperatorSupport("aten::mean", _SHARED, check=_mean),
)


def _ends_on_empty(node: NodeView) -> str | None:
    return "PyTorch's engine 'qnnpack' ends the process for an empty batch"


def _qnnpack_clamp(node: NodeView) -> str | None:
    low, high = node.clip or (None, None)
    if low is None or high is None or low >= high:
        return "PyTorch's engine 'qnnpack' clamps between two numbers, the lower one first"
    return None


def _qnnpack_average(node: NodeView) -> str | None:
    """Refuse options that PyTorch does not hand to QNNPACK (AveragePool2d.cpp)."""
    names = ("padding", "count_include_pad", "divisor_override")
    padding, counts, divisor = (node.operand(name).constant for name in names)
    if divisor is not None or (counts is not True and padding != [0, 0]):
        return "PyTorch's engine 'qnnpack' divides by the size of the window, whatever is asked for"
    return None


# QNNPACK's sigmoid has one output scale only.
_QNNPACK_ROWS = (
    OperatorSupport("aten::sigmoid", _FIXED, fixed=_fixed("aten::sigmoid")),
    OperatorSupport("aten::hardswish", _OWN, check=_ends_on_empty),
    OperatorSupport("aten::hardsigmoid", _FIXED, check=_ends_on_empty),
    OperatorSupport("aten::clamp", _SHARED, check=_qnnpack_clamp),
    OperatorSupport("aten::avg_pool2d", _SHARED, ranks=(4, 4), check=_qnnpack_average),
)


MEANS = ("aten::adaptive_avg_pool2d", "aten::adaptive_avg_pool3d", "aten::mean")


@cache
def capability_of(engine: str, reduce_range: bool, integer_pools: bool) -> Capability:
    """Return what an engine can compute; the arguments are those of `Stock`.

    With a reduced range it does without operators whose results always take all 8 bits.
    """

    def convolution(node: NodeView) -> str | None:
        return _convolution(node) or _leaves_groups(node) or _slow(node, engine) or _sums(node)

    def transposed(node: NodeView) -> str | None:
        return _convolution(node) or _transposed(node, engine)

    pairs = None if reduce_range else adds_pairs_in_int16
    rows = {row.kind: row for row in _ROWS}
    for dims in (1, 2, 3):
        plain, other = f"aten::conv{dims}d", f"aten::conv_transpose{dims}d"
        rows[plain] = replace(rows[plain], check=convolution, adds_pairs=pairs)
        rows[other] = replace(rows[other], check=transposed)
    if engine == "qnnpack":
        rows |= {row.kind: row for row in _QNNPACK_ROWS}
    operators = {
        kind: row
        for kind, row in rows.items()
        if (integer_pools or kind not in MEANS) and not (reduce_range and row.role is Role.FIXED)
    }
    activations = SpecSupport(_codes(reduce_range), PER_TENSOR, whole=True, why=_why(reduce_range))
    return Capability(operators, activations, WEIGHTS, dynamic=dynamic_inputs(reduce_range))


def dynamic_inputs(reduce_range: bool) -> SpecSupport:
    """Return what `quantized::linear_dynamic` makes of its input."""
    return SpecSupport(
        _codes(reduce_range), ("per_tensor_affine",), whole=True, range_forms=("fbgemm",),
        why=_why(reduce_range),
    )  # fmt: skip


def _codes(reduce_range: bool) -> dict[str, tuple[int, int]]:
    return {"uint8": (0, 127 if reduce_range else 255)}


def _why(reduce_range: bool) -> str:
    return "8 bits overflow in PyTorch's kernels here; target='x86' has them" * reduce_range
