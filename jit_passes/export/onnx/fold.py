"""Weights of a file as they are read: transposed, and in types of fewer bits."""

from __future__ import annotations

import importlib
from typing import Any

from .graph import initializer, main_operand

_READERS = ("DequantizeLinear", "MatMulInteger")


def fold_weights(model: Any) -> None:
    """Compute Transpose and Cast of quantized weights of any size, in place.

    `torch.onnx` folds small constants alone, and ONNX Runtime does not transpose codes of 4 bits.

    Args:
        model: of `onnx_ir`.
    """
    made: dict[tuple[Any, ...], Any] = {}
    for node in list(model.graph.all_nodes()):
        for index, value in enumerate(node.inputs if node.op_type in _READERS else ()):
            steps = _steps(value)
            if not steps:
                continue
            source = main_operand(steps[0])
            key = (id(source), *map(_what, steps))
            if key not in made:
                array = _computed(source.const_value.numpy(), steps)
                taken = {each.name for each in made.values()}
                alone = len(source.uses()) == 1 and source.name not in taken
                name = source.name if alone else f"{source.name}#{len(made)}"
                made[key] = initializer(name, array)
            node.replace_input_with(index, made[key])
    remove_unused(model.graph)
    for value in made.values():
        model.graph.register_initializer(value)


def _steps(value: Any) -> list[Any]:
    """Return the nodes by which a value is made of an initializer, the first one first."""
    steps: list[Any] = []
    while value is not None and (node := value.producer()) is not None:
        if node.op_type not in ("Transpose", "Cast"):
            return []
        steps.insert(0, node)
        value = main_operand(node)
    return steps if value is not None and value.const_value is not None else []


def _what(step: Any) -> tuple[Any, ...]:
    return step.op_type, str(step.attributes.get("perm") or step.attributes.get("to"))


def _computed(array: Any, steps: list[Any]) -> Any:
    ir = importlib.import_module("onnx_ir")
    for step in steps:
        if step.op_type == "Transpose":
            array = array.transpose(step.attributes["perm"].as_ints())
        else:
            array = array.astype(ir.DataType(step.attributes["to"].as_int()).numpy())
    return array


def remove_unused(graph: Any) -> None:
    """Remove nodes that nothing reads, and initializers that only they have read."""
    for node in reversed(list(graph.all_nodes())):
        if not any(output.uses() or output.is_graph_output() for output in node.outputs):
            node.graph.remove(node, safe=True)
    for name, value in list(graph.initializers.items()):
        if not value.uses() and not value.is_graph_output():
            del graph.initializers[name]
