"""Parts of dequantized values that OpenVINO gives a wrong shape: an axis is removed by itself.

    before                                 after
    %y = DequantizeLinear(%a, s, z)        %y = DequantizeLinear(%a, s, z)
    %p = Gather(%y, 0, axis=0)             %k = Gather(%y, [0], axis=0)
                                           %p = Squeeze(%k, [0])

OpenVINO 2026.4 moves the dequantize behind the Gather, and where a concatenation is ahead of it the
result keeps the axis that the index removes.
"""

from __future__ import annotations

import importlib
from typing import Any

from .graph import constant, constant_of, made_by, operand
from .means import moved


def keep_shapes(model: Any) -> None:
    """Write a Gather of one index and a Squeeze for parts of dequantized values, in place.

    Args:
        model: of `onnx_ir`, whose values have their names.
    """
    for node in list(model.graph.all_nodes()):
        if node.op_type != "Gather":
            continue
        index = constant_of(operand(node, "indices"))
        if index is not None and index.ndim == 0 and _is_dequantized(operand(node, "data")):
            _squeeze(node, index)


def _is_dequantized(value: Any) -> bool:
    while (ahead := moved(value.producer())) is not None:
        value = ahead
    return any(
        made_by(part, "DequantizeLinear") is not None
        for part in (value, *(value.producer().inputs if made_by(value, "Concat") else ()))
    )


def _squeeze(part: Any, index: Any) -> None:
    ir, numpy = (importlib.import_module(name) for name in ("onnx_ir", "numpy"))
    result = part.outputs[0]
    axis = part.attributes["axis"].as_int() if "axis" in part.attributes else 0
    constants = []
    for word, numbers in (("index", index.reshape(1)), ("axis", numpy.array([axis], "int64"))):
        constants.append(constant(f"{result.name}:{word}", numbers))
    indices, axes = (made.outputs[0] for made in constants)
    kept = ir.node(
        "Gather", [operand(part, "data"), indices], {"axis": axis}, name=f"{result.name}:kept"
    )
    kept.outputs[0].name, kept.outputs[0].type = kept.name, result.type
    squeezed = ir.node("Squeeze", [kept.outputs[0], axes], name=part.name)
    part.graph.insert_before(part, [*constants, kept, squeezed])
    ir.convenience.replace_nodes_and_values(
        part.graph, part, [part], [squeezed], [result], squeezed.outputs
    )
