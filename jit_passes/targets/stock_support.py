"""What PyTorch's quantized operators can compute."""

from __future__ import annotations

import torch

from ..graph import NodeView
from ..quantizer import FixedQParamsQuantizationSpec, OperatorSupport, Role


def _constants(node: NodeView, *operands: int) -> str | None:
    """Refuse a node whose geometry is computed by the model."""
    missing = [i for i in operands if i < len(node.inputs) and not node.inputs[i].is_constant]
    return "its stride, padding or another option is computed by the model" if missing else None


def _convolution(node: NodeView) -> str | None:
    reason = _constants(node, *range(3, len(node.inputs)))
    if reason:
        return reason
    if isinstance(node.inputs[4].constant, str):
        return f"padding={node.inputs[4].constant!r} has no quantized form"
    return None


def _depthwise_is_slow(node: NodeView) -> str | None:
    """PyTorch's int8 depthwise kernel falls back to a scalar loop for some channel counts."""
    return _convolution(node)


def _addition(node: NodeView) -> str | None:
    return None if node.inputs[2].constant == 1 else "alpha is not 1"


def _tensors(node: NodeView) -> str | None:
    return None if all(value.is_tensor for value in node.inputs[:2]) else "not of two tensors"


def _add(node: NodeView) -> str | None:
    return _tensors(node) or _addition(node)


def _batch_norm(node: NodeView) -> str | None:
    if node.inputs[5].constant is not False:
        return "it is in training mode"
    constant = all(value.is_constant for value in node.inputs[1:5])
    return None if constant else "its statistics are computed by the model"


def _layer_norm(node: NodeView) -> str | None:
    for value in node.inputs[2:4]:
        if not value.is_constant or (
            isinstance(value.constant, torch.Tensor) and value.constant.dtype != torch.float32
        ):
            return "its weight is computed by the model or not float32"
    return _constants(node, 1, 4)


def _elu(node: NodeView) -> str | None:
    if node.inputs[2].constant != 1 or node.inputs[3].constant != 1:
        return "scale or input_scale is not 1"
    return None


CLIPS = ("aten::relu", "aten::clamp")
_W, _OWN, _SHARED, _FIXED = Role.WEIGHTED, Role.OWN, Role.SHARED, Role.FIXED

_ROWS = (
    OperatorSupport("aten::linear", _W, clips=CLIPS, ranks=(2, 8)),
    OperatorSupport("aten::conv1d", _W, clips=CLIPS, ranks=(3, 3), check=_convolution),
    OperatorSupport("aten::conv2d", _W, clips=CLIPS, ranks=(4, 4), check=_depthwise_is_slow),
    OperatorSupport("aten::conv3d", _W, clips=CLIPS, ranks=(5, 5), check=_convolution),
    OperatorSupport(
        "aten::conv_transpose1d", _W, clips=CLIPS, ranks=(3, 3), check=_convolution, per_channel=False
    ),
    OperatorSupport(
        "aten::conv_transpose2d", _W, clips=CLIPS, ranks=(4, 4), check=_convolution, per_channel=False
    ),
    OperatorSupport(
        "aten::conv_transpose3d", _W, clips=CLIPS, ranks=(5, 5), check=_convolution, per_channel=False
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
    OperatorSupport(
        "aten::hardsigmoid", _FIXED, fixed=FixedQParamsQuantizationSpec(1 / 256, 0)
    ),
    OperatorSupport("aten::tanh", _FIXED, fixed=FixedQParamsQuantizationSpec(2 / 256, 128)),
    OperatorSupport("aten::clamp", _SHARED),
    OperatorSupport("aten::avg_pool2d", _SHARED, ranks=(4, 4)),
    OperatorSupport("aten::avg_pool3d", _SHARED, ranks=(5, 5)),
    OperatorSupport("aten::adaptive_avg_pool2d", _SHARED, ranks=(3, 4)),
    OperatorSupport("aten::adaptive_avg_pool3d", _SHARED, ranks=(4, 5)),
    OperatorSupport("aten::mean", _SHARED),
)

SUPPORT = {row.kind: row for row in _ROWS}
