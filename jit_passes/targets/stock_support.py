"""The capability of PyTorch's quantized operators."""

from __future__ import annotations

from dataclasses import replace
from functools import cache

import torch

from ..graph.view import NodeView, are_constant
from ..quantizers.capability import Capability, average_reason, dtype_reason, tensors_reason
from ..quantizers.support import CLIPS, PER_TENSOR, OperatorSupport, Role, SpecSupport
from ..specification.grid import SCHEMES
from ..specification.recurrent import CELLS, GATED, PLAIN, matrices_of
from ..specification.slots import LOOKUPS
from ..specification.specification import FixedQParamsQuantizationSpec
from .stock_convolutions import (
    adds_pairs_in_int16,
    constants_reason,
    convolution_reason,
    transposed_reason,
)
from .stock_rules import fixed_grids


def _addition(node: NodeView) -> str | None:
    return None if node.operand("alpha").constant == 1 else "alpha is not 1"


def _add(node: NodeView) -> str | None:
    return tensors_reason(node) or _addition(node)


def _batch_norm(node: NodeView) -> str | None:
    if node.operand("training").constant is not False:
        return "it is in training mode"
    values = [node.operand(name) for name in ("weight", "bias", "running_mean", "running_var")]
    if any(value.is_constant and value.constant is None for value in values):
        return "it has no weight, bias or statistics, which the quantized operator asks for"
    constant = are_constant(values)
    return None if constant else "its statistics are computed by the model"


def _layer_norm(node: NodeView) -> str | None:
    for value in (node.operand("weight"), node.operand("bias")):
        if not value.is_constant or (
            isinstance(value.constant, torch.Tensor) and value.constant.dtype != torch.float32
        ):
            return "its weight is computed by the model or not float32"
    return constants_reason(node.operand(name) for name in ("normalized_shape", "eps"))


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


def _options(node: NodeView) -> str | None:
    return constants_reason(node.other_operands)


def _clamp(node: NodeView) -> str | None:
    return None if node.clip is not None else "its bounds are computed by the model"


def _elu(node: NodeView) -> str | None:
    if any(node.operand(name).constant != 1 for name in ("scale", "input_scale")):
        return "scale or input_scale is not 1"
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
# In the mode dynamic, weights that the kernels do not have are decoded for each product.
DYNAMIC_WEIGHTS = replace(WEIGHTS, qschemes=(*WEIGHTS.qschemes, "per_channel_affine"), groups=1)
# A single scale, and room for the shift of the codes: see stock_rules.WEIGHTS.
SHIFTED_WEIGHTS = SpecSupport(
    {"int8": (-127, 126)}, ("per_tensor_symmetric", "per_tensor_power_of_two")
)
# Decoded, or looked up, by operators of ATen that know all of these.
WEIGHTS_ALONE = SpecSupport({"int8": (-128, 127), "uint8": (0, 255)}, SCHEMES, groups=1)


def no_projection(node: NodeView) -> str | None:
    """Refuse recurrent layers that PyTorch's quantized ones do not compute."""
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
    row = OperatorSupport(
        "", Role.LOOKUP, (), mode_weights={"weight_only": WEIGHTS_ALONE}, modes=("weight_only",)
    )
    return tuple(replace(row, kind=kind) for kind in LOOKUPS)


def recurrent() -> tuple[OperatorSupport, ...]:
    """Return the rows of recurrent layers: gated ones have kernels, others are expanded."""
    row = OperatorSupport("", Role.RECURRENT, ranks=(2, 3), modes=("dynamic",))
    checks = dict.fromkeys(GATED, no_projection) | dict.fromkeys(PLAIN, _plain_layer)
    layers = (replace(row, kind=kind, check=check) for kind, check in checks.items())
    return (*layers, *(replace(row, kind=kind) for kind in CELLS))


def _fixed(kind: str) -> FixedQParamsQuantizationSpec:
    return FixedQParamsQuantizationSpec(*fixed_grids("qnnpack")[kind])


_W, _OWN, _SHARED, _FIXED = Role.WEIGHTED, Role.OWN, Role.SHARED, Role.FIXED

_ROWS = (
    OperatorSupport(
        "aten::linear",
        _W,
        clips=CLIPS,
        ranks=(2, 8),
        check=_linear,
        mode_weights={"weight_only": WEIGHTS_ALONE, "dynamic": DYNAMIC_WEIGHTS},
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
            weights=weights,
            adds_batch_axis=True,
        )
        for kind, weights in (("conv", None), ("conv_transpose", SHIFTED_WEIGHTS))
        for n in (1, 2, 3)
    ),
    OperatorSupport("aten::add", _OWN, (0, 1), clips=CLIPS, check=_add),
    OperatorSupport("aten::mul", _OWN, (0, 1), clips=CLIPS, check=tensors_reason),
    OperatorSupport("aten::cat", _OWN, clips=("aten::relu",)),
    OperatorSupport("aten::batch_norm", _OWN, clips=CLIPS, ranks=(2, 5), check=_batch_norm),
    OperatorSupport("aten::layer_norm", _OWN, check=_layer_norm),
    OperatorSupport("aten::hardswish", _OWN),
    OperatorSupport("aten::leaky_relu", _OWN, check=_options),
    OperatorSupport("aten::elu", _OWN, check=_elu),
    OperatorSupport("aten::softmax", _OWN, check=_options),
    OperatorSupport("aten::sigmoid", _OWN),
    OperatorSupport("aten::hardsigmoid", _FIXED, fixed=_fixed("aten::hardsigmoid")),
    OperatorSupport("aten::tanh", _FIXED, fixed=_fixed("aten::tanh")),
    OperatorSupport("aten::clamp", _SHARED, check=_clamp),
    OperatorSupport("aten::avg_pool2d", _SHARED, ranks=(4, 4), check=average_reason),
    OperatorSupport("aten::avg_pool3d", _SHARED, ranks=(5, 5), check=average_reason),
    OperatorSupport("aten::adaptive_avg_pool2d", _SHARED, ranks=(3, 4)),
    OperatorSupport("aten::adaptive_avg_pool3d", _SHARED, ranks=(4, 5)),
    OperatorSupport("aten::mean", _SHARED, check=dtype_reason),
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
        return "PyTorch's engine 'qnnpack' always divides by the size of the window"
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
    """Return an engine's capability; the arguments are as for `Stock`.

    With a reduced range it does without operators whose results always take all 8 bits.
    """

    def convolution(node: NodeView) -> str | None:
        return convolution_reason(node, engine) or _sums(node)

    def transposed(node: NodeView) -> str | None:
        return transposed_reason(node, engine)

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
    """Return the specifications that `quantized::linear_dynamic` gives its input."""
    return SpecSupport(
        _codes(reduce_range), ("per_tensor_affine",), whole=True, range_forms=("fbgemm",),
        why=_why(reduce_range),
    )  # fmt: skip


def _codes(reduce_range: bool) -> dict[str, tuple[int, int]]:
    return {"uint8": (0, 127 if reduce_range else 255)}


def _why(reduce_range: bool) -> str:
    return "8 bits overflow in PyTorch's kernels here; target='x86' has them" * reduce_range
