"""The names of a model in the graph of its program."""

from __future__ import annotations

import torch

from ...graph.view import GraphView, NodeView
from .constants import path_of

# In `node.meta["custom"]`, while `Running` runs: the index of the view's node.
NOTE = "jit_passes_node"


def name_nodes(program: torch.export.ExportedProgram, view: GraphView) -> None:
    """Give nodes the names, modules and lines of source of the nodes that they come from.

    Without it they would have PyTorch's own notes, and lines of this package.
    """
    for module in program.graph_module.modules():
        if not isinstance(module, torch.fx.GraphModule):
            continue
        for node in module.graph.nodes:
            noted = node.meta.pop("custom", None) or {}
            if NOTE not in noted:
                continue
            name, origin = named(view.nodes[noted[NOTE]])
            node.meta["custom"] = {"name": name, "source": origin.source}
            node.meta["nn_module_stack"] = _modules(origin)
            node.meta["stack_trace"] = _line(name, origin)


def named(node: NodeView) -> tuple[str, NodeView]:
    """Return the name of a node's result, and the node of the model that it belongs to.

    Operators that quantize and dequantize have the name of the value, as its encoding has.
    """
    origin = node
    while not origin.name and origin.inputs and not origin.main_operand.is_constant:
        producer = origin.main_operand.producer
        if producer is None:
            return origin.main_operand.name, node
        origin = producer
    if origin.name or not origin.inputs:
        return origin.name, origin
    value = origin.main_operand
    while not origin.name and origin.outputs and origin.output.uses:
        origin = origin.output.uses[0][0]
    return path_of(value), origin


def described(node: NodeView) -> str:
    """Return name and line of source of a node, for messages.

    TorchScript knows no line of a write to an attribute: the line of the written value stands for
    it.
    """
    name, origin = named(node)
    producers = [value.producer for value in node.inputs if value.producer is not None]
    lines = [each.source for each in (origin, *reversed(producers)) if each.source]
    return f"'{name or node.kind}'" + (f" at {lines[0]}" if lines else "")


def _modules(origin: NodeView) -> dict[str, tuple[str, str]]:
    """Return the module of a node as `torch.export` says it, by path and class."""
    stack = {"L__self__": ("", "")}
    if origin.module:
        stack[f"L__self___{origin.module}"] = (origin.module, origin.module_type)
    return stack


def _line(name: str, origin: NodeView) -> str:
    path, _, line = origin.source.rpartition(":")
    return f'File "{path}", line {line}, in {name}' if line.isdigit() else ""
