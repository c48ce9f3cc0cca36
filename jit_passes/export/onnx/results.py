"""Results of programs for which ONNX has no form."""

from __future__ import annotations

from typing import Any

import torch
from torch._subclasses.fake_tensor import unset_fake_temporarily
from torch.export.graph_signature import ConstantArgument, OutputKind, TensorArgument
from torch.fx import Graph, Node

_OPEN: dict[type, type] = {torch.SymBool: bool, torch.SymInt: int, torch.SymFloat: float}


def spell_out_results(program: torch.export.ExportedProgram) -> None:
    """Write results in the forms that a file has, in place.

    Numbers become tensors without axes, and text is left out: `torch.onnx` 2.13 leaves out None,
    and fails on both. Arguments, and values that are returned twice, become copies: a file has a
    name for each result, and `torch.onnx` would rename the argument.
    """
    graph, signature = program.graph_module.graph, program.graph_signature
    [end] = [node for node in graph.nodes if node.op == "output"]
    results: list[Any] = list(end.args[0])
    seen: set[Any] = {node for node in graph.nodes if node.name in signature.user_inputs}
    for place, (result, spec) in enumerate(zip(results, signature.output_specs, strict=True)):
        made = None
        with graph.inserting_before(end):
            if isinstance(spec.arg, ConstantArgument):
                if isinstance(result, str):
                    results[place], spec.arg = None, ConstantArgument("", None)
                elif result is not None:
                    made = _number(graph, result)
            elif spec.kind is OutputKind.USER_OUTPUT:
                made = _copy(graph, result) if result in seen else None
                seen.add(result)
        if made is not None:
            results[place], spec.arg = made, TensorArgument(made.name)
    end.args = (tuple(results),)


def _number(graph: Graph, number: float | Node) -> Node:
    known = number.meta["val"] if isinstance(number, Node) else number
    dtype = torch.tensor(_OPEN.get(type(known), type(known))()).dtype
    made = graph.call_function(torch.ops.aten.full.default, ([], number), {"dtype": dtype})
    with unset_fake_temporarily():
        made.meta["val"] = torch.empty((), dtype=dtype)
    return made


def _copy(graph: Graph, value: Node) -> Node:
    if isinstance(value.meta["val"], torch.Tensor):
        made = graph.call_function(torch.ops.aten.clone.default, (value,))
        made.meta["val"] = value.meta["val"]
    else:  # a size of an open axis, or a number that is computed of it
        made = _number(graph, value)
    made.meta["custom"] = value.meta.get("custom") or {"name": value.name}
    return made
