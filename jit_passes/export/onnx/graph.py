"""Nodes of programs, and of the ONNX graph that is being written."""

from __future__ import annotations

import importlib
from collections.abc import Iterator
from typing import Any

import torch


def nodes_of(program: torch.export.ExportedProgram) -> Iterator[torch.fx.Node]:
    """Yield the nodes of a program, those of branches too; a caller may change them."""
    for module in program.graph_module.modules():
        if isinstance(module, torch.fx.GraphModule):
            yield from list(module.graph.nodes)


def state_of(program: torch.export.ExportedProgram) -> dict[str, torch.Tensor]:
    """Return the constant tensors of a program by the names of the inputs that stand for them."""
    state = {**program.state_dict, **program.constants}
    paths = program.graph_signature.inputs_to_buffers
    return {input: state[path] for input, path in paths.items() if path in state}


def made_by(value: Any, kind: str) -> Any:
    """Return the node of ONNX that makes a value, if it is of that kind; None otherwise."""
    node = None if value is None else value.producer()
    return node if node is not None and node.op_type == kind else None


def block_size(decoded: Any) -> int:
    """Return how many inputs of a weight have a scale in common; 0 for all."""
    attribute = None if decoded is None else decoded.attributes.get("block_size")
    return 0 if attribute is None else int(attribute.as_int())


def grid_of(node: Any) -> tuple[Any, Any] | None:
    """Return scale and zero point of a quantize or a dequantize, as numbers of numpy.

    None if they are no constants, or those of channels.
    """
    ir = importlib.import_module("onnx_ir")
    tensors = [ir.convenience.get_const_tensor(value) for value in node.inputs[1:3]]
    if any(tensor is None or tensor.size != 1 for tensor in tensors):
        return None
    scale, zero = (tensor.numpy().reshape(()) for tensor in tensors)
    return scale, zero
