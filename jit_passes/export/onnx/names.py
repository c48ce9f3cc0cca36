"""Names of values in a file, as reports and encodings have them."""

from __future__ import annotations

import ast
import re
from collections.abc import Iterator, Sequence
from typing import Any

import torch
from torch.export.graph_signature import ConstantArgument, OutputKind

from ...errors import ArgumentError, count_of

# torch.onnx notes the node of the program that a node comes from as the last of its scopes.
_SCOPES = "pkg.torch.onnx.name_scopes"
_SUFFIXES = {
    "QuantizeLinear": ":quantized",
    "DynamicQuantizeLinear": ":quantized",
    "DequantizeLinear": ":dequantized",
}


def check_result_names(program: torch.export.ExportedProgram, names: Sequence[str] | None) -> None:
    """Check the names of results that a caller gives; `torch.onnx` renames some without a word.

    Raises:
        ArgumentError: they are no list, one is no text, an argument's name, or occurs twice, or
            there are more or fewer names than results.
    """
    if names is None:
        return
    if isinstance(names, str) or not isinstance(names, Sequence):
        raise ArgumentError(f"output_names is a list of texts, not {names!r}")
    arguments = set(program.graph_signature.user_inputs)
    for place, name in enumerate(names):
        why = ""
        if not isinstance(name, str) or not name:
            why = "a name is a text, and not empty"
        elif name in arguments:
            why = "an argument of the model is called so"
        elif name in names[:place]:
            why = f"result {list(names).index(name)} is called so too"
        if why:
            raise ArgumentError(f"output_names has {name!r} for result {place}: {why}")
    count = sum(1 for _ in _results(program))
    if len(names) != count:
        raise ArgumentError(
            f"output_names has {count_of(len(names), 'name')}, and the model has "
            f"{count_of(count, 'result')}: give one name for each"
        )


def _results(program: torch.export.ExportedProgram) -> Iterator[Any]:
    """Yield the results of a program that a file has: text and None are left out."""
    for spec in program.graph_signature.output_specs:
        left_out = isinstance(spec.arg, ConstantArgument) and (
            spec.arg.value is None or isinstance(spec.arg.value, str)
        )
        if spec.kind is OutputKind.USER_OUTPUT and not left_out:
            yield spec.arg


def name_values(written: Any, fixed: Sequence[str]) -> None:
    """Give the values of a file the names that they have here, and nodes the names of their values.

    `torch.onnx` takes the names of nodes of the program, `conv2d_1`. A quantized value has three
    tensors: `conv:conv2d`, `conv:conv2d:quantized` and `conv:conv2d:dequantized`. No name occurs
    twice, in branches neither: the second one is `conv:conv2d#1`.

    Args:
        written: the program of `torch.onnx.export`.
        fixed: names that the caller has given.
    """
    graph = written.model.graph
    nodes = list(_nodes(graph, written.exported_program.graph_module))
    taken = {value.name for value in (*graph.inputs, *graph.initializers.values())} | set(fixed)
    for node, named in nodes:  # values without a name here keep the one of `torch.onnx`
        taken |= {value.name for value in node.outputs} - {value.name for value, _ in named}
    for node, named in nodes:
        for value, name in named:
            if value.name not in fixed:
                value.name = free_name(name + _SUFFIXES.get(node.op_type, ""), taken)
                taken.add(value.name)
        space = node.metadata_props.get("namespace", "")
        node.metadata_props.clear()  # of nodes of PyTorch, and lines of files of this machine
        if space:
            node.metadata_props["namespace"] = space
        node.name = node.outputs[0].name


def _nodes(graph: Any, module: Any) -> Iterator[tuple[Any, list[tuple[Any, str]]]]:
    """Yield the nodes of a graph and of its branches, with the names that some results have here.

    Nodes of two branches of the program may have one name, so each graph is read with its module,
    which it is called after.
    """
    nodes = module.graph.nodes if isinstance(module, torch.fx.GraphModule) else ()
    notes = {node.name: node.meta.get("custom") or {} for node in nodes}
    names = {name: note["name"] for name, note in notes.items() if "name" in note}
    for node in graph:
        origins = ((value, _origin(value, node, graph)) for value in node.outputs)
        yield node, [(value, names[origin]) for value, origin in origins if origin in names]
        for attribute in node.attributes.values():
            if attribute.type.name == "GRAPH":
                branch = attribute.as_graph()
                yield from _nodes(branch, getattr(module, branch.name or "", None))


def _origin(value: Any, node: Any, graph: Any) -> str:
    """Return the name of the program's node that gives a value.

    `torch.onnx` appends a number or the graph's name to a name that occurs twice.
    """
    scopes = ast.literal_eval(node.metadata_props.get(_SCOPES, "[]"))
    forms = (re.sub(r"_\d+$", "", value.name), value.name.removesuffix(f"_{graph.name}"))
    return str(scopes[-1] if scopes and scopes[-1] in forms else value.name)


def free_name(name: str, taken: set[str]) -> str:
    """Return a name, or the first of `name#1`, `name#2` and so on that is not taken."""
    found, number = name, 0
    while found in taken:
        number += 1
        found = f"{name}#{number}"
    return found
