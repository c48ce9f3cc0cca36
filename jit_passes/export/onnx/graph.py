"""Nodes of programs, and of the ONNX graph that is being written."""

from __future__ import annotations

import importlib
from collections.abc import Iterator, Mapping
from functools import cache
from typing import Any

import torch

from ...errors import JitPassesError


def nodes_of(program: torch.export.ExportedProgram) -> Iterator[torch.fx.Node]:
    """Yield the nodes of a program, also in branches; a caller may change them."""
    for module in program.graph_module.modules():
        if isinstance(module, torch.fx.GraphModule):
            yield from list(module.graph.nodes)


def state_of(program: torch.export.ExportedProgram) -> dict[str, torch.Tensor]:
    """Return the constant tensors of a program by the names of the inputs that stand for them."""
    state = {**program.state_dict, **program.constants}
    paths = program.graph_signature.inputs_to_buffers
    return {input: state[path] for input, path in paths.items() if path in state}


def made_by(value: Any, kind: str) -> Any:
    """Return the node of ONNX that makes a value, if it is of that kind; None otherwise.

    Operators of other domains, `com.microsoft` for one, are of another kind.
    """
    node = None if value is None else value.producer()
    return node if node is not None and (node.domain, node.op_type) == ("", kind) else None


def main_operand(node: Any) -> Any:
    """Return the first operand of a node of ONNX: the value that is moved, cast or reduced."""
    return node.inputs[0]


def operand(node: Any, name: str) -> Any:
    """Return an operand of a node of ONNX by its name in the operator's schema; None if left out.

    Raises:
        JitPassesError: the operator has none of that name, or has a list of operands by that name.
    """
    places = _places(node.op_type, node.domain, _version(node))
    if name not in places:
        known = f"it has {', '.join(places)}" if places else "its operands have no names"
        raise JitPassesError(f"'{node.name}' ({node.op_type}) has no operand '{name}': {known}")
    return node.inputs[places[name]] if places[name] < len(node.inputs) else None


def _version(node: Any) -> Any:
    """Return the opset of a node, or else of its graph; None where a branch notes none."""
    if node.version is not None or node.graph is None:
        return node.version
    return node.graph.opset_imports.get(node.domain)


@cache
def _places(kind: str, domain: str, version: int | None) -> Mapping[str, int]:
    """Return the places of operands by their names in an opset's schema, None for the last opset.

    The result is empty for an operator without a schema in this opset. A list of operands has no
    place.
    """
    defs: Any = importlib.import_module("onnx").defs
    wanted = (kind, *([] if version is None else [version]), domain)
    if not defs.has(*wanted):
        return {}
    schema = defs.get_schema(*wanted)
    lists = defs.OpSchema.FormalParameterOption.Variadic
    return {each.name: k for k, each in enumerate(schema.inputs) if each.option != lists}


def constant_of(value: Any) -> Any:
    """Return the numbers of a constant of ONNX, an array; None of other values."""
    ir = importlib.import_module("onnx_ir")
    found = None if value is None else ir.convenience.get_const_tensor(value)
    return None if found is None else found.numpy()


def constant(name: str, array: Any) -> Any:
    """Return a node of ONNX that gives an array, called as its result."""
    ir = importlib.import_module("onnx_ir")
    made = ir.node("Constant", [], {"value": ir.tensor(array)}, name=name)
    made.outputs[0].name = name
    return made


def initializer(name: str, array: Any) -> Any:
    """Return a value of ONNX that is an array, to be registered in a graph."""
    ir = importlib.import_module("onnx_ir")
    tensor = ir.tensor(array)
    kind = ir.TensorType(tensor.dtype)
    return ir.Value(name=name, const_value=tensor, type=kind, shape=tensor.shape)


def is_read_once(value: Any) -> bool:
    """Say whether one operand of a node reads a value of ONNX, and nothing else does."""
    return len(value.uses()) == 1 and not value.is_graph_output()


def limited(value: Any, name: str, *, ahead: Any = None, behind: Any = None) -> Any:
    """Return a Max of a value and the lowest number of its dtype, which changes nothing.

    The Max is inserted ahead of a node, or behind one.
    """
    ir, numpy = (importlib.import_module(name) for name in ("onnx_ir", "numpy"))
    dtype, in_float = value.dtype.numpy(), value.dtype.is_floating_point()
    least = (numpy.finfo if in_float else numpy.iinfo)(dtype).min
    low = constant(f"{name}:low", numpy.array(least, dtype))
    kept = ir.node("Max", [value, low.outputs[0]], name=name)
    kept.outputs[0].name, kept.outputs[0].type = name, value.type
    kept.outputs[0].shape = value.shape
    if ahead is not None:
        ahead.graph.insert_before(ahead, [low, kept])
    else:
        behind.graph.insert_after(behind, [low, kept])
    return kept.outputs[0]


def block_size(decoded: Any) -> int:
    """Return how many inputs of a weight have a scale in common; 0 for all."""
    attribute = None if decoded is None else decoded.attributes.get("block_size")
    return 0 if attribute is None else int(attribute.as_int())


def grid_of(node: Any) -> tuple[Any, Any] | None:
    """Return scale and zero point of a quantize or a dequantize, as numbers of numpy.

    None if they are no constants, or have one for each channel, or if there is no zero point.
    """
    _, *grid = node.inputs
    arrays = [constant_of(value) for value in grid]
    if len(arrays) != 2 or any(array is None or array.size != 1 for array in arrays):
        return None
    scale, zero = (array.reshape(()) for array in arrays)
    return scale, zero
