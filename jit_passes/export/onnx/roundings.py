"""Values that are rounded twice in a row: a Clip that keeps both roundings.

    before                                 after
    %y = DequantizeLinear(%a, s1, z1)      %y = DequantizeLinear(%a, s1, z1)
    %b = QuantizeLinear(%y, s2, z2)        %c = Clip(%y, (low - z2) * s2, (high - z2) * s2)
                                           %b = QuantizeLinear(%c, s2, z2)

with the codes low to high of the second grid, which saturates there: no code changes.

Where nothing else reads %a and %y, ONNX Runtime merges both pairs to one on the part that the grids
have in common. ONNX Runtime merges before it drops clips that a quantize makes needless, so a clip
is in the way. So the optimized graph has neither of them.

Source: onnxruntime/core/optimizer/double_qdq_pairs_remover.cc.
"""

from __future__ import annotations

import importlib
from typing import Any

from .graph import constant, grid_of, is_read_once, made_by, operand


def keep_roundings(model: Any) -> None:
    """Write a Clip between two roundings that an engine would merge, in place.

    Args:
        model: of `onnx_ir`, whose values have their names.
    """
    for node in list(model.graph.all_nodes()):
        if node.op_type == "QuantizeLinear" and _follows_another(node):
            _clip(node)


def _follows_another(quantize: Any) -> bool:
    """Say whether a value on another grid is quantized here, and read by nothing else."""
    decoded = made_by(operand(quantize, "x"), "DequantizeLinear")
    first = decoded and made_by(operand(decoded, "x"), "QuantizeLinear")
    if not first or not all(is_read_once(node.outputs[0]) for node in (first, decoded)):
        return False
    other, own = grid_of(first), grid_of(quantize)
    if other is None or own is None:
        return False
    return other != own and other[1].dtype == own[1].dtype


def _clip(quantize: Any) -> None:
    """Clip quantized values to the ends of their grid."""
    ir, numpy = (importlib.import_module(name) for name in ("onnx_ir", "numpy"))
    grid = grid_of(quantize)
    assert grid is not None
    scale, zero = grid
    value, limits = operand(quantize, "x"), numpy.iinfo(zero.dtype)
    name = quantize.outputs[0].name.replace(":quantized", ":clipped")
    graph = quantize.graph
    ends = []
    for what, code in (("low", limits.min), ("high", limits.max)):
        end = (numpy.float32(code) - numpy.float32(zero)) * scale
        ends.append(constant(f"{name}:{what}", end))
    clip = ir.node("Clip", [value, *(end.outputs[0] for end in ends)], name=name)
    result = clip.outputs[0]
    result.name, result.type, result.shape = name, value.type, value.shape
    graph.insert_before(quantize, [*ends, clip])
    quantize.replace_input_with(0, result)
